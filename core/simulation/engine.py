"""An engine core with modelled executors in one process, in virtual time.

Owns: the arenas, the executors, the plans they have not answered, and what was delivered for each
request. Never knows: processes or rings. A plan is computed when its result is due, as late as a
real executor could still read rows and spans, so anything reused too early shows in the tokens.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from core.engine_core import EngineCore
from core.metering import Buckets, Metering
from core.policy.base import Policy
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import OutputBatch, OutputKind, StepPlan, row_dtype
from core.scheduler.settings import EngineSettings
from core.simulation.modelled_executor import ModelledExecutor, NextToken, StepModel, hashed_token
from core.simulation.virtual_clock import VirtualClock
from core.tenancy.classes import TrafficClass

MAX_TENANTS = 64
BUCKETS = Buckets((0.3, 1.0, 10.0, 100.0), (0.001, 0.01, 0.1, 1.0), (0.001, 0.01, 0.1, 1.0))


@dataclass(slots=True)
class Transcript:
    """Everything a tokenizer was told about one request."""

    token_ids: list[int] = field(default_factory=list)
    kinds: list[OutputKind] = field(default_factory=list)
    prompt_logprobs: dict[int, float] = field(default_factory=dict)  # position → of the actual id
    finished: np.void | None = None  # the FINISHED record

    @property
    def status(self) -> RequestStatus:
        """How it ended; WAITING while it has not."""
        if self.finished is None:
            return RequestStatus.WAITING
        return RequestStatus(int(self.finished["status"]))


class SimulatedEngine:
    """`num_replicas` executors of `num_blocks` KV blocks behind one core; call `start` first."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        num_blocks: int,
        num_replicas: int = 1,
        num_tokenizers: int = 1,
        num_host_blocks: int = 0,
        model: StepModel | None = None,
        next_token: NextToken = hashed_token,
        vocab_size: int = 50_000,
        arena_tokens: int = 1 << 22,
        policy: Policy | None = None,
        metering: Metering | None = None,
    ) -> None:
        """Build the engine; no executor is up yet. `policy` None: the one that `settings` names;
        `metering` None: counters that begin at 0.
        """
        self.settings = settings
        self.clock = VirtualClock()
        self.metering = metering or Metering(BUCKETS, MAX_TENANTS)
        dtype = row_dtype(settings.max_blocks_per_seq)
        self.rows = [np.zeros(settings.num_rows, dtype) for _ in range(num_replicas)]
        self.core = EngineCore(settings, self.rows, self.metering, policy)
        self.arenas = {t: np.full(arena_tokens, -1, np.int32) for t in range(num_tokenizers)}
        self.transcripts: dict[int, Transcript] = {}
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.executors: list[ModelledExecutor | None] = [None] * num_replicas
        self.unanswered: list[deque[tuple[StepPlan, int]]] = [deque() for _ in range(num_replicas)]
        self._epochs = [0] * num_replicas
        self._group_widths: dict[int, int] = {}  # entries about one prompt position, by request
        self._free_from = dict.fromkeys(range(num_tokenizers), 0)
        self._model = model or StepModel()
        self._next_token = next_token
        self._vocab_size = vocab_size

    def start(self, replica: int = 0) -> None:
        """Bring an executor up under a new epoch, with an empty cache."""
        self._epochs[replica] += 1
        self.executors[replica] = ModelledExecutor(
            self.rows[replica],
            self.arenas,
            num_blocks=self.num_blocks,
            block_size=self.settings.block_size,
            num_host_blocks=self.num_host_blocks,
            vocab_size=self._vocab_size,
            model=self._model,
            next_token=self._next_token,
        )
        up = ev.ReplicaUp(
            replica,
            self._epochs[replica],
            self.num_blocks,
            num_host_blocks=self.num_host_blocks,
        )
        self.tell(up)

    def kill(self, replica: int = 0, *, gone: bool = False) -> None:
        """Let an executor die with its plans unanswered; `gone`: for good."""
        self.executors[replica] = None
        self.unanswered[replica].clear()
        self.tell(ev.ReplicaGone(replica) if gone else ev.ReplicaDown(replica))

    def make_request(
        self,
        request_id: int,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        tenant: str = "a",
        tokenizer: int = 0,
        priority: int = 0,
        traffic_class: TrafficClass = TrafficClass.STANDARD,
        sampling: SamplingParams | None = None,
        queue_deadline_ns: int = 0,
        end_deadline_ns: int = 0,
    ) -> Request:
        """Lay a prompt into a new span and return its request, arriving now."""
        length = len(prompt) + max_tokens
        start = self._free_from[tokenizer]
        if start + length > len(self.arenas[tokenizer]):
            start = 0
        self._free_from[tokenizer] = start + length
        span = self.arenas[tokenizer][start : start + length]
        span[:] = -1
        span[: len(prompt)] = prompt
        sampling = sampling or SamplingParams()
        self._group_widths[request_id] = 1 + sampling.num_prompt_logprobs
        return Request(
            request_id=request_id,
            tokenizer=tokenizer,
            tenant=tenant,
            token_ids=span,
            span_start=start,
            prompt_len=len(prompt),
            max_tokens=max_tokens,
            arrival_ns=self.clock.now_ns(),
            sampling=sampling,
            traffic_class=traffic_class,
            priority=priority,
            queue_deadline_ns=queue_deadline_ns,
            end_deadline_ns=end_deadline_ns,
        )

    def submit(self, request: Request) -> Request:
        """Hand `request` to the core and return it."""
        self.tell(ev.Submit(request))
        return request

    def tell(self, *events: ev.Event) -> None:
        """Hand events to the core now."""
        self.core.on_events(events, self.clock.now_ns())
        self.collect()

    def plan(self, replica: int = 0) -> StepPlan | None:
        """Ask for one plan and keep it unanswered."""
        plan = self.core.next_plan(replica, self.clock.now_ns())
        executor = self.executors[replica]
        if plan is not None and executor is not None:
            queue = self.unanswered[replica]
            begin_ns = max(self.clock.now_ns(), queue[-1][1] if queue else 0)
            queue.append((plan, begin_ns + executor.duration_ns(plan)))
        self.collect()
        return plan

    def answer(self, replica: int = 0) -> None:
        """Compute the oldest unanswered plan, move the clock to its end, and hand in the result."""
        plan, end_ns = self.unanswered[replica].popleft()
        executor = self.executors[replica]
        assert executor is not None, replica
        result = executor.execute(plan, self.clock.now_ns())
        self.clock.advance_to(end_ns)
        self.core.on_result(result, self.clock.now_ns())
        self.collect()

    def step(self) -> bool:
        """Let every replica plan what it can, then the earliest plan end; False = nothing to do."""
        self.tell()
        for replica in range(len(self.executors)):
            while self.plan(replica) is not None:
                pass
        busy = [r for r, queue in enumerate(self.unanswered) if queue]
        if not busy:
            return False
        self.answer(min(busy, key=lambda r: self.unanswered[r][0][1]))
        return True

    def run(self, max_steps: int = 100_000) -> int:
        """Step until nothing is left to do; return the number of steps."""
        for num_steps in range(max_steps):
            if not self.step():
                return num_steps
        raise AssertionError(f"not idle after {max_steps} steps")

    def collect(self) -> None:
        """Read the outputs into the transcripts."""
        for batch in self.core.take_outputs().values():
            for record in batch.records:
                self._note(record, batch)

    def transcript(self, request: Request) -> Transcript:
        """Return what was delivered for `request`."""
        return self.transcripts.setdefault(request.request_id, Transcript())

    def _note(self, record: np.void, batch: OutputBatch) -> None:
        transcript = self.transcripts.setdefault(int(record["request_id"]), Transcript())
        kind = OutputKind(int(record["kind"]))
        transcript.kinds.append(kind)
        if kind is OutputKind.TOKEN:
            assert int(record["index"]) == len(transcript.token_ids), "a token is missing or double"
            transcript.token_ids.append(int(record["token_id"]))
        elif kind is OutputKind.FINISHED:
            assert transcript.finished is None, "a request ended twice"
            transcript.finished = record
        elif kind is OutputKind.PROMPT_LOGPROBS:
            start, count = int(record["logprobs_start"]), int(record["num_logprobs"])
            width = self._group_widths[int(record["request_id"])]
            for offset, entry in enumerate(batch.logprobs[start : start + count : width]):
                position = int(record["index"]) + offset
                assert position not in transcript.prompt_logprobs, "a position is scored twice"
                transcript.prompt_logprobs[position] = float(entry["logprob"])
