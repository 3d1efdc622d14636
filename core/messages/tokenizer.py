"""What a tokenizer process receives: from http processes, on its ROUTER socket."""

import msgspec

from core.sampling_params import SamplingParams
from core.tenancy.classes import TrafficClass


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """A conversation for the model's chat template."""

    messages: list[dict[str, object]]
    tools: list[dict[str, object]] | None = None
    add_generation_prompt: bool = True


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """Plain text; control tokens in it are encoded as ordinary text."""

    text: str


class IdsPrompt(msgspec.Struct, frozen=True, tag="ids"):
    """Token ids as the client gave them; checked against the vocabulary by the tokenizer."""

    token_ids: list[int]


Prompt = ChatPrompt | TextPrompt | IdsPrompt


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """One operation: every prompt times every choice becomes a request (choice index = prompt * n +
    i).

    `sampling.choice` is ignored here; `max_tokens` None = up to the context. `stop` strings are
    searched in the text. Deadlines are CLOCK_MONOTONIC ns, 0 = none of the client's.
    """

    operation_id: str
    tenant: str
    traffic_class: TrafficClass
    prompts: list[Prompt]
    n: int
    max_tokens: int | None
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    priority: int = 0
    echo: bool = False
    want_token_ids: bool = False  # token ids in the chunks (return_token_ids)
    want_logprobs: bool = False  # logprob entries in the chunks, with the text of each token
    accepted_ns: int = 0
    queue_deadline_ns: int = 0
    end_deadline_ns: int = 0


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The client of this operation is gone (since `closed_ns`, 0 = unknown), or an operator cancels
    it.
    """

    operation_id: str
    closed_ns: int = 0


class Tokenize(msgspec.Struct, frozen=True, tag="tokenize"):
    """Encode only; answered by `Tokenized` or `Failed` with the same call id as operation id."""

    operation_id: str
    tenant: str
    prompt: Prompt


class Detokenize(msgspec.Struct, frozen=True, tag="detokenize"):
    """Decode only; answered by `Detokenized` or `Failed`."""

    operation_id: str
    tenant: str
    token_ids: list[int]


ToTokenizer = Generate | Cancel | Tokenize | Detokenize
