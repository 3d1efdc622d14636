"""A request, its states and the one table of transitions.

Owns: what the scheduler knows of a request, and how its status may change. Never knows: text,
sockets, tensors, clocks. The token ids live in shared memory and are seen here as one numpy view.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from core.errors import Rejection
from core.sampling_params import NO_LOGPROBS, SamplingParams
from core.tenancy.classes import NUM_CLASSES, TrafficClass


class RequestStatus(IntEnum):
    """Where a request stands; the FINISHED_ states are final."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    SWAPPED = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH = 5
    FINISHED_ABORTED = 6
    FINISHED_SHED = 7
    FINISHED_EXPIRED = 8
    FINISHED_ERROR = 9

    @property
    def is_finished(self) -> bool:
        """True for the final states."""
        return self >= RequestStatus.FINISHED_STOPPED


class FinishReason(IntEnum):
    """What a client or a metric is told about the end of a request."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4


_ENDS = frozenset(status for status in RequestStatus if status.is_finished)
_BEFORE_START = frozenset({
    RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_SHED,
    RequestStatus.FINISHED_EXPIRED, RequestStatus.FINISHED_ERROR,
})  # fmt: skip

TRANSITIONS: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: frozenset({RequestStatus.RUNNING}) | _BEFORE_START,
    RequestStatus.RUNNING: frozenset({RequestStatus.PREEMPTED, RequestStatus.SWAPPED}) | _ENDS,
    RequestStatus.PREEMPTED: frozenset({RequestStatus.RUNNING}) | _ENDS,
    RequestStatus.SWAPPED: frozenset({RequestStatus.RUNNING, RequestStatus.PREEMPTED}) | _ENDS,
    **{end: frozenset() for end in _ENDS},
}

FINISH_REASONS: dict[RequestStatus, FinishReason] = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_SHED: FinishReason.ABORT,
    RequestStatus.FINISHED_EXPIRED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate. An operation with n choices is n requests.

    `token_ids` is the span, int32[prompt_len + max_tokens]: the prompt, then the generated ids,
    written by the scheduler as they are sampled; `prompt_len` never changes. `prompt_digests` are
    the chained 128-bit digests of the full prompt blocks. All times are CLOCK_MONOTONIC ns; a
    deadline of 0 is none. While the request runs, the truth about its tokens is in the running
    table; the counters here are set when it leaves its row.
    """

    request_id: int  # unique over restarts: tokenizer index, its epoch, a counter
    tokenizer: int  # index of the tokenizer that owns the span and wants the outputs
    tenant: str
    token_ids: npt.NDArray[np.int32] = field(repr=False)
    span_start: int  # first id of the span in the tokenizer's arena
    prompt_len: int
    max_tokens: int
    arrival_ns: int
    sampling: SamplingParams
    traffic_class: TrafficClass = TrafficClass.STANDARD
    priority: int = 0  # smaller is sooner, within tenant and class (policy `priority`: class)
    adapter: str = ""
    queue_deadline_ns: int = 0
    end_deadline_ns: int = 0
    ttft_deadline_ns: int = 0  # the promise: first token by then
    itl_cap_ns: int = 0  # the promise: no longer gap between two tokens
    start_by_ns: int = 0  # where it stands in its flow; 0 = by deadline or arrival; set once
    client_deadline: bool = False  # the deadline came from the client: 408, not 504
    prompt_digests: tuple[bytes, ...] = field(default=(), repr=False)
    was_queued: bool = False  # by an earlier scheduler, which has counted it
    was_started: bool = False  # the same of its prompt

    status: RequestStatus = RequestStatus.WAITING
    replica: int = -1
    row: int = -1
    block_ids: list[int] = field(default_factory=list, repr=False)
    num_output_tokens: int = 0  # delivered to the tokenizer; > 0 at submission means `resume_from`
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache at the first start
    num_preemptions: int = 0
    num_crashes: int = 0
    num_charged_tokens: int = 0  # its first so many: computed again they are not its cost
    num_charged_units: int = 0  # for them, to its flow; set like the counters above
    first_start_ns: int = 0
    first_token_ns: int = 0
    rejection: Rejection | None = None

    order: int = 0  # place among all arrivals; preemption and failover keep it
    tenant_index: int = 0  # of `tenant` in core.metering
    num_pins: int = 0  # vacated rows that plans in flight still name: the span must stay
    noted_waits: int = 0  # bits of the constraints that were noted as what it waits for
    numerics: str = ""  # of the replica that it ran on last
    num_scored_tokens: int = 0  # prompt tokens whose log-probabilities were delivered
    block_digests: list[bytes] = field(default_factory=list, repr=False)  # chain of its full blocks

    @property
    def flow(self) -> int:
        """The index of its flow: its tenant in its class."""
        return self.tenant_index * NUM_CLASSES + self.traffic_class

    @property
    def num_tokens(self) -> int:
        """Prompt + generated ids that exist."""
        return self.prompt_len + self.num_output_tokens

    @property
    def max_length(self) -> int:
        """Prompt + the most that may be generated, tokens."""
        return self.prompt_len + self.max_tokens

    @property
    def has_begun(self) -> bool:
        """Whether it was started before, by this scheduler or an earlier one."""
        return self.first_start_ns > 0 or self.num_output_tokens > 0

    @property
    def has_open_promise(self) -> bool:
        """Whether its first token was promised, and it has not begun."""
        return self.ttft_deadline_ns > 0 and not self.has_begun

    @property
    def is_being_scored(self) -> bool:
        """Whether log-probabilities of its prompt are wanted that were not delivered yet."""
        wanted = self.sampling.num_prompt_logprobs != NO_LOGPROBS
        return wanted and self.num_scored_tokens < self.prompt_len

    def move_to(self, status: RequestStatus) -> None:
        """Change the status along TRANSITIONS; anything else is a bug."""
        assert status in TRANSITIONS[self.status], (self.request_id, self.status.name, status.name)
        self.status = status
