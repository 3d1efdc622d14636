"""What the scheduler receives on its inbox: from tokenizers (requests) and the admin pool
(control).

Control commands are declared in `ipc.control` and arrive as `ipc.messages.ControlCall`; this union
adds the data path.
"""

import msgspec

from core.sampling_params import SamplingParams
from core.tenancy.classes import TrafficClass
from ipc.messages import ControlCall


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """One request. The prompt ids already lie in the span when this arrives.

    `resume_from` = output tokens already delivered (after a scheduler restart); they lie in the
    span too. `was_queued` and `was_started` say how far an earlier scheduler came with it, so that
    nothing is counted twice. `digests` are the chained 16-byte block digests of the full prompt
    blocks, concatenated.
    """

    request_id: int
    operation_id: str
    choice: int
    tokenizer: int
    tokenizer_epoch: int
    tenant: str
    traffic_class: TrafficClass
    span_start: int
    prompt_len: int
    max_tokens: int
    arrival_ns: int
    sampling: SamplingParams
    adapter: str = ""
    priority: int = 0
    queue_deadline_ns: int = 0
    end_deadline_ns: int = 0
    client_deadline: bool = False
    resume_from: int = 0
    was_queued: bool = False
    was_started: bool = False
    digests: bytes = b""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request with FINISHED_ABORTED; unknown ids are ignored. `closed_ns` = when the client
    left (0: unknown).
    """

    request_id: int
    closed_ns: int = 0


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """A stop string was found: end as FINISHED_STOPPED with `num_output_tokens` delivered."""

    request_id: int
    num_output_tokens: int


ToScheduler = Submit | Abort | Stop | ControlCall
