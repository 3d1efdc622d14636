"""What happened in a simulation, as columns: steps, tokens, ends, samples of the state.

Owns: gathering it cheaply, an array a step, and one concatenation at the end. Never knows: what is
computed from it (`core.simulation.metrics`). Requests are named by their index in the workload.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from core.policy.base import Blocked
from core.request import RequestStatus
from core.scheduler.plan import OutputBatch, OutputKind, StepPlan
from core.scheduler.statistics import EngineStatistics
from core.simulation.workload import Workload

Ints = npt.NDArray[np.int64]
_TOKEN, _STARTED, _FINISHED = (
    int(kind) for kind in (OutputKind.TOKEN, OutputKind.STARTED, OutputKind.FINISHED)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One run. Times are ns of the simulated clock; 0 = it never happened."""

    workload: Workload
    status: Ints  # RequestStatus of each request; WAITING = still in the system at the end
    reason: Ints  # RejectionReason
    first_start_ns: Ints
    finished_ns: Ints
    step_begin_ns: Ints  # of each step
    step_end_ns: Ints
    token_request: Ints  # of each output token: whose it is
    token_ns: Ints  # and when it came
    share_request: Ints  # of each row of each plan: whose it is,
    share_tokens: Ints  # how many tokens were computed,
    share_step: Ints  # and in which step
    samples: "Samples"
    num_preemptions: int
    recomputed_tokens: int
    computed_tokens: int
    cached_tokens: int
    protected: npt.NDArray[np.bool_]  # at its arrival the policy was sure of its first token
    leftovers: Mapping[Blocked, int]  # tokens that steps left unused while somebody waited

    @property
    def duration_s(self) -> float:
        """Simulated time from the first arrival to the end of the last step."""
        last_ns = self.step_end_ns[-1] if len(self.step_end_ns) else self.workload.arrival_ns[-1]
        return float(last_ns - self.workload.arrival_ns[0]) / 1e9


@dataclass(slots=True)
class Samples:
    """The state at regular times."""

    time_ns: list[int] = field(default_factory=list)
    num_waiting: list[int] = field(default_factory=list)
    num_running: list[int] = field(default_factory=list)
    kv_use: list[float] = field(default_factory=list)  # held blocks / all

    def add(self, now_ns: int, statistics: EngineStatistics) -> None:
        """Take one sample."""
        pools = [replica.pool for replica in statistics.replicas]
        held = sum(pool.num_held + pool.num_fenced for pool in pools)
        self.time_ns.append(now_ns)
        self.num_waiting.append(
            statistics.num_waiting + statistics.num_preempted + statistics.num_swapped
        )
        self.num_running.append(statistics.num_running)
        self.kv_use.append(held / max(1, sum(pool.num_blocks for pool in pools)))


class Recorder:
    """Gathers a history while it happens."""

    def __init__(self, workload: Workload) -> None:
        """Start with nothing."""
        count = len(workload)
        self.samples = Samples()
        self._workload = workload
        self._status = np.full(count, RequestStatus.WAITING, np.int64)
        self._reason = np.zeros(count, np.int64)
        self._first_start_ns = np.zeros(count, np.int64)
        self._finished_ns = np.zeros(count, np.int64)
        self._protected = np.zeros(count, np.bool_)
        self._steps: list[tuple[int, int, int]] = []  # begin, end, number of rows
        self._share_requests: list[npt.NDArray[np.int64]] = []
        self._share_tokens: list[npt.NDArray[np.int32]] = []
        self._token_requests: list[npt.NDArray[np.int64]] = []
        self._tokens: list[tuple[int, int]] = []  # when, how many

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return len(self._steps)

    def protect(self, index: int) -> None:
        """Note that the policy is sure of the first token of a request that has just come."""
        self._protected[index] = True

    def step(self, plan: StepPlan, requests: Ints, begin_ns: int, end_ns: int) -> None:
        """Note a step whose rows belong to `requests`, int64[n]."""
        self._steps.append((begin_ns, end_ns, len(requests)))
        self._share_requests.append(requests)
        self._share_tokens.append(plan.rows["num_new_tokens"].copy())

    def outputs(self, batch: OutputBatch, now_ns: int) -> None:
        """Note what the engine says of the requests."""
        is_token = batch.records["kind"] == _TOKEN
        indexes = batch.records["request_id"].astype(np.int64) - 1
        num_tokens = int(np.count_nonzero(is_token))
        if num_tokens:
            tokens = indexes if num_tokens == len(indexes) else indexes[is_token]
            self._token_requests.append(tokens)
            self._tokens.append((now_ns, num_tokens))
        if num_tokens < len(indexes):
            self._note_others(batch, indexes, (~is_token).nonzero()[0].tolist(), now_ns)

    def _note_others(
        self, batch: OutputBatch, indexes: Ints, places: list[int], now_ns: int
    ) -> None:
        for place in places:
            record, index = batch.records[place], indexes[place]
            kind = int(record["kind"])
            if kind == _STARTED:
                self._first_start_ns[index] = now_ns
            elif kind == _FINISHED:
                self._status[index] = record["status"]
                self._reason[index] = record["reason"]
                self._finished_ns[index] = now_ns

    def history(
        self,
        *,
        num_preemptions: int,
        recomputed: int,
        cached: int,
        leftovers: Mapping[Blocked, int],
    ) -> History:
        """Return everything as columns; what is given are the engine's own counts."""
        steps = np.array(self._steps, np.int64).reshape(-1, 3)
        tokens = np.array(self._tokens, np.int64).reshape(-1, 2)
        share_tokens = _joined(self._share_tokens)
        return History(
            workload=self._workload,
            status=self._status,
            reason=self._reason,
            first_start_ns=self._first_start_ns,
            finished_ns=self._finished_ns,
            step_begin_ns=steps[:, 0],
            step_end_ns=steps[:, 1],
            token_request=_joined(self._token_requests),
            token_ns=np.repeat(tokens[:, 0], tokens[:, 1]),
            share_request=_joined(self._share_requests),
            share_tokens=share_tokens,
            share_step=np.repeat(np.arange(len(steps)), steps[:, 2]),
            samples=self.samples,
            num_preemptions=num_preemptions,
            recomputed_tokens=recomputed,
            computed_tokens=int(share_tokens.sum()),
            cached_tokens=cached,
            protected=self._protected,
            leftovers=leftovers,
        )


def _joined(arrays: list[Ints] | list[npt.NDArray[np.int32]]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *arrays]).astype(np.int64)
