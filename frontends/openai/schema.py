"""What clients may send, as typed structs with every bound.

Owns: the fields of each request body, their types and bounds, and which fields of OpenAI's
interface are refused. Never knows: defaults that depend on the configuration, the engine, HTTP.
Null means "not given" everywhere, as clients send it. What a type cannot say (one field needs
another) is checked where the field is used.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from core.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOP_LOGPROBS,
)

MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_PROMPTS = 2048
INT32_MAX = 2**31 - 1

NotNegative = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]


Unread = msgspec.Raw | UnsetType


class StreamOptions(msgspec.Struct, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """The fields that both completions endpoints share."""

    model: Name | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: NotNegative | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    min_tokens: NotNegative | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    timeout: Annotated[float, Meta(gt=0.0, le=86_400.0)] | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=86_400_000)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=INT32_MAX)] | None = None
    service_tier: str | None = None
    user: str | None = None

    structured_outputs: Unread = UNSET
    guided_json: Unread = UNSET
    guided_regex: Unread = UNSET
    guided_choice: Unread = UNSET
    guided_grammar: Unread = UNSET
    use_beam_search: Unread = UNSET


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message; only `type` "text" is served."""

    type: Name
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """One turn of a conversation."""

    role: Name
    content: str | Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)] | None = None
    name: Name | None = None
    tool_calls: Unread = UNSET
    function_call: Unread = UNSET


Messages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: NotNegative | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    metadata: Unread = UNSET

    audio: Unread = UNSET
    chat_template: Unread = UNSET
    chat_template_kwargs: Unread = UNSET
    continue_final_message: Unread = UNSET
    function_call: Unread = UNSET
    functions: Unread = UNSET
    modalities: Unread = UNSET
    moderation: Unread = UNSET
    prediction: Unread = UNSET
    prompt_cache_options: Unread = UNSET
    prompt_cache_retention: Unread = UNSET
    reasoning_effort: Unread = UNSET
    response_format: Unread = UNSET
    store: Unread = UNSET
    tool_choice: Unread = UNSET
    tools: Unread = UNSET
    verbosity: Unread = UNSET
    web_search_options: Unread = UNSET


class CompletionRequest(GenerationFields, kw_only=True):
    """Body of POST /v1/completions. `prompt`: text, token ids, or a list of either."""

    prompt: msgspec.Raw
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None

    best_of: Unread = UNSET
    response_format: Unread = UNSET
    suffix: Unread = UNSET


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /tokenize: exactly one of `prompt` and `messages`."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /detokenize."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=2**20)]


TEXT_FORMAT: tuple[object, ...] = ({"type": "text"},)

UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "modalities": (["text"], []),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "reasoning_effort": ("none",),
    "response_format": TEXT_FORMAT,
    "store": (False,),
    "structured_outputs": ({},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that are refused, with the values that ask for nothing and are accepted (besides null)."""
