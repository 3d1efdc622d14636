"""What an http process receives: from tokenizer processes, on its DEALER sockets."""

import msgspec

from core.errors import Rejection
from core.tenancy.classes import TrafficClass


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token's log-probability; `text` is its own decoding, `raw` its bytes (may be half a
    character).
    """

    token_id: int
    logprob: float
    text: str
    raw: bytes
    top: list[tuple[int, float, str, bytes]] = []


class Queued(msgspec.Struct, frozen=True, tag="queued"):
    """The operation passed the tokenizer's checks and all its requests are in the scheduler's
    queue.
    """

    operation_id: str
    prompt_token_ids: list[list[int]]  # empty unless token ids or echo were asked for
    prompt_lens: list[int]
    prompt_texts: list[str]  # empty unless echo
    traffic_class: TrafficClass  # that serves it, or some of it if not all the one it asked for


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The first request of the operation got into a step: the admission verdict."""

    operation_id: str
    queue_ns: int


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """New text of one choice. `finish_reason` "" until the last chunk of the choice.

    The text is whole UTF-8; a chunk may carry tokens and no text yet. For echoed prompt
    log-probabilities `prompt_logprobs` is filled (the first position has none: logprob NaN). Usage
    counts are set in the last chunk.
    """

    operation_id: str
    choice: int
    text: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    prompt_logprobs: list[TokenLogprob] = []
    finish_reason: str = ""  # "stop" · "length" · "abort" · "error"
    stop_reason: str | int | None = None  # the stop string or token id that ended it
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    rejection: Rejection | None = None  # why it was ended or refused
    client_deadline: bool = False  # a passed deadline was the client's own: 408, not 504


class Chunks(msgspec.Struct, frozen=True, tag="chunks"):
    """All chunks of one step for one http process, in order."""

    chunks: list[Chunk]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The whole operation ends without (further) output.

    Either `rejection` (from the engine's limits) or a bad-request `message` with `param` and
    `code`.
    """

    operation_id: str
    message: str
    code: str = ""
    param: str = ""
    status: int = 400
    rejection: Rejection | None = None
    num_prompt_tokens: int = 0  # measured, for context_length_exceeded


class Tokenized(msgspec.Struct, frozen=True, tag="tokenized"):
    """Answer to `Tokenize`."""

    operation_id: str
    token_ids: list[int]
    token_strs: list[str]


class Detokenized(msgspec.Struct, frozen=True, tag="detokenized"):
    """Answer to `Detokenize`."""

    operation_id: str
    text: str


ToHttp = Queued | Started | Chunks | Failed | Tokenized | Detokenized
