"""The engine core on a virtual clock under a workload: a discrete-event simulation.

Owns: the order of events (arrivals, results, timers), the executors that only take time, and the
end of each request at the length that the workload says. Never knows: policies, metrics. The core
is the one of production. Token ids do not matter: all spans lie over each other in one array,
unless the prefix cache is on, which tells contents apart.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from core.engine_core import EngineCore
from core.metering import Buckets, Metering
from core.policy.base import Policy
from core.policy.cost_model import CostBasis
from core.request import Request
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import RESULT_ROW, PlanFlag, StepPlan, StepResult, row_dtype
from core.scheduler.plan_rows import work_of_rows
from core.scheduler.settings import EngineSettings
from core.simulation.hardware import KV_BYTES_PER_TOKEN, Hardware
from core.simulation.history import History, Ints, Recorder
from core.simulation.noise import NO_NOISE, Noise, NoiseSettings
from core.simulation.virtual_clock import VirtualClock
from core.simulation.workload import START_NS, Workload
from core.tenancy.classes import TrafficClass

BUCKETS = Buckets((1.0,), (0.1,), (0.1,))
END_OF_TEXT = 1
SOME_TOKEN = END_OF_TEXT + 1
MAX_SAMPLES = 2000
STEPS_BETWEEN_REPORTS = 1024
Progress = Callable[[int, int], None]

_SAMPLE = np.uint32(PlanFlag.SAMPLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """The machine and the engine on it."""

    engine: EngineSettings
    hardware: Hardware
    num_blocks: int  # of the KV cache of a replica
    num_replicas: int = 1
    max_tokens: int = 0  # what clients ask for, if the output is shorter; 0 = exactly the output
    noise: NoiseSettings = NO_NOISE
    basis: CostBasis | None = None  # what replicas say of their steps; policies learn from there
    overhead_ns: int = 0  # of each step, before the executor begins: scheduler and channels
    as_configured: bool = False  # policies take the limits of a step from `engine`, not their usual
    seed: int = 0

    @property
    def block_bytes(self) -> int:
        """Bytes of a KV block."""
        return self.engine.block_size * KV_BYTES_PER_TOKEN


@dataclass(slots=True)
class _Running:
    plan: StepPlan
    requests: Ints
    begin_ns: int  # the executor begins
    end_ns: int


class Simulation:
    """One run of one policy."""

    def __init__(self, settings: SimulationSettings, workload: Workload, policy: Policy) -> None:
        """Prepare the run; nothing has arrived."""
        engine = settings.engine
        self._settings = settings
        self._workload = workload
        self._clock = VirtualClock(START_NS)
        self._noise = Noise(settings.noise, settings.seed)
        self._recorder = Recorder(workload)
        self._policy = policy
        self._metering = Metering(BUCKETS, len(workload.tenants) + 2)
        dtype = row_dtype(engine.max_blocks_per_seq)
        self._rows = [np.zeros(engine.num_rows, dtype) for _ in range(settings.num_replicas)]
        self._core = EngineCore(engine, self._rows, self._metering, policy)
        self._running: list[_Running | None] = [None] * settings.num_replicas
        self._arrivals = workload.arrival_ns.tolist()
        self._num_arrived = 0
        self._timer_ns: int | None = None
        self._ttft_deadline_ns = workload.ttft_deadline_ns().tolist()
        self._itl_cap_ns = workload.itl_cap_ns().tolist()
        longest = int((workload.prompt_tokens + workload.output_tokens).max())
        self._asked = workload.asked_tokens(settings.max_tokens)
        self._ids = np.zeros(longest + int(self._asked.max()), np.int32)
        self._total_length = np.concatenate(
            [[0], workload.prompt_tokens + workload.output_tokens]
        )  # by request id
        self._sampling = SamplingParams(temperature=0.0)
        self._sample_every_ns = max(1, (self._arrivals[-1] - START_NS) // MAX_SAMPLES)
        self._next_sample_ns = START_NS
        ups = [
            ev.ReplicaUp(
                r,
                1,
                settings.num_blocks,
                settings.basis,
                num_host_blocks=engine.swap_memory_bytes // settings.block_bytes,
                block_bytes=settings.block_bytes,
            )
            for r in range(settings.num_replicas)
        ]
        self._core.on_events(ups, START_NS)

    @property
    def core(self) -> EngineCore:
        """The engine core that is driven."""
        return self._core

    def run(self, progress: Progress | None = None) -> History:
        """Go on until nothing is left to happen; `progress` is told (arrived, all) now and then."""
        while self._advance():
            if progress and self._recorder.num_steps % STEPS_BETWEEN_REPORTS == 0:
                progress(self._num_arrived, len(self._workload))
        if progress:
            progress(self._num_arrived, len(self._workload))
        return self._recorder.history(
            num_preemptions=self._metering.preemptions,
            recomputed=self._metering.recomputed_tokens,
            cached=self._metering.cached_tokens,
            leftovers=self._policy.leftovers(),
        )

    def _advance(self) -> bool:
        """Start what can start, then let the next thing happen; False = there is none."""
        self._start_steps()
        when_ns = self._next_event_ns()
        if when_ns is None:
            return False
        self._clock.advance_to(when_ns)
        self._take_samples(when_ns)
        self._arrive(when_ns)
        self._end_steps(when_ns)
        return True

    def _next_event_ns(self) -> int | None:
        times = [running.end_ns for running in self._running if running is not None]
        if self._num_arrived < len(self._arrivals):
            times.append(self._arrivals[self._num_arrived])
        self._timer_ns = self._core.next_timer()
        if self._timer_ns is not None:
            times.append(self._timer_ns)
        return min(times, default=None)

    def _arrive(self, now_ns: int) -> None:
        """Hand over whoever has come, and let the core look at its timers."""
        events: list[ev.Submit] = []
        while self._num_arrived < len(self._arrivals):
            if self._arrivals[self._num_arrived] > now_ns:
                break
            events.append(ev.Submit(self._make_request(self._num_arrived)))
            self._num_arrived += 1
        if events or self._timer_ns == now_ns:
            self._core.on_events(events, now_ns)
            for event in events:
                if self._policy.is_protected(event.request):
                    self._recorder.protect(event.request.request_id - 1)
            self._collect(now_ns)

    def _make_request(self, index: int) -> Request:
        workload = self._workload
        prompt_len, max_tokens = int(workload.prompt_tokens[index]), int(self._asked[index])
        length = prompt_len + max_tokens
        cached = self._settings.engine.prefix_cache
        return Request(
            request_id=index + 1,
            tokenizer=0,
            tenant=workload.tenants[workload.tenant_index[index]],
            token_ids=np.full(length, index + 1, np.int32) if cached else self._ids[:length],
            span_start=0,
            prompt_len=prompt_len,
            max_tokens=max_tokens,
            arrival_ns=self._arrivals[index],
            sampling=self._sampling,
            traffic_class=TrafficClass(int(workload.traffic_class[index])),
            ttft_deadline_ns=self._ttft_deadline_ns[index],
            itl_cap_ns=self._itl_cap_ns[index],
            prompt_digests=workload.prefix_digests(index, self._settings.engine.block_size)
            if cached
            else (),
        )

    def _start_steps(self) -> None:
        now_ns = self._clock.now_ns()
        for replica, running in enumerate(self._running):
            if running is not None:
                continue
            plan = self._core.next_plan(replica, now_ns)
            self._collect(now_ns)
            if plan is not None:
                duration_ns = self._duration_ns(plan)
                requests = self._rows[replica]["request_id"][plan.rows["row"]].astype(np.int64)
                begin_ns = now_ns + self._settings.overhead_ns
                self._running[replica] = _Running(plan, requests, begin_ns, begin_ns + duration_ns)

    def _duration_ns(self, plan: StepPlan) -> int:
        hardware = self._settings.hardware
        duration_ns = self._noise.apply(hardware.duration_ns(work_of_rows(plan.rows)))
        if not len(plan.copies):
            return duration_ns
        return duration_ns + hardware.copy_ns(len(plan.copies) * self._settings.engine.block_size)

    def _end_steps(self, now_ns: int) -> None:
        for replica, running in enumerate(self._running):
            if running is None or running.end_ns > now_ns:
                continue
            self._running[replica] = None
            self._recorder.step(running.plan, running.requests - 1, running.begin_ns, now_ns)
            self._core.on_result(self._result(running), now_ns)
            self._collect(now_ns)

    def _result(self, running: _Running) -> StepResult:
        plan, requests = running.plan, running.requests
        sampling = plan.rows
        samples = (sampling["flags"] & _SAMPLE) != 0
        if not samples.all():
            sampling, requests = sampling[samples], requests[samples]
        length = sampling["first_position"] + sampling["num_new_tokens"] + 1
        rows = np.zeros(len(sampling), RESULT_ROW)
        rows["row"] = sampling["row"]
        rows["generation"] = sampling["generation"]
        rows["token_id"] = SOME_TOKEN - (length >= self._total_length[requests])
        return StepResult(
            plan.replica, plan.epoch, plan.step, running.begin_ns, running.end_ns, rows
        )

    def _collect(self, now_ns: int) -> None:
        for batch in self._core.take_outputs().values():
            self._recorder.outputs(batch, now_ns)

    def _take_samples(self, now_ns: int) -> None:
        if now_ns >= self._next_sample_ns:
            self._recorder.samples.add(now_ns, self._core.statistics())
            self._next_sample_ns = now_ns + self._sample_every_ns
