"""From a checked request body to the one message that starts an operation.

Owns: defaults, the checks that need more than one field, and the total that a request may ask for.
Never knows: whether chat or completions asked, beyond the arguments. Raises the 400 with the
parameter's name.
"""

import re
import secrets
from dataclasses import dataclass

from core.clock import NS_PER_MS, NS_PER_S
from core.config.headrace import HeadraceConfig
from core.messages.tokenizer import Generate, Prompt
from core.model_card import ModelCard
from core.sampling_params import NO_LOGPROBS, SamplingParams
from core.tenancy.classes import TrafficClass
from frontends.engine_client import new_operation_id
from frontends.http.application.exchange import Exchange
from frontends.http.errors import ApiError, bad_request, model_not_found
from frontends.http.gate.auth import TIERS, traffic_class_for
from frontends.openai.schema import GenerationFields

SMALLEST_TOP_P = 1e-6  # OpenAI allows 0, meaning only the best token
SMALLEST_TEMPERATURE = 1e-5  # below it logits divided by it overflow, and a draw is greedy anyway
MAX_DEADLINE_MS = 86_400_000
MAX_SHOWN_CHARACTERS = 16
TOKEN_NUMBER = re.compile("0|[1-9][0-9]{0,9}")  # no second spelling, so no token has two biases
DEADLINE_HEADER = b"x-headrace-deadline-ms"
CLASS_HEADER = b"x-headrace-class"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the endpoints must know of the model and of the limits on a request."""

    name: str
    created_s: int
    max_model_len: int
    vocab_size: int
    max_choices: int
    max_prompts: int
    max_total_tokens: int

    @classmethod
    def of(cls, card: ModelCard, config: HeadraceConfig) -> "ServedModel":
        """Return the facts of a model in a configuration."""
        return cls(
            name=card.name,
            created_s=card.created_s,
            max_model_len=card.max_model_len,
            vocab_size=card.vocab_size,
            max_choices=config.http.max_choices,
            max_prompts=config.http.max_prompts,
            max_total_tokens=min(config.tokenizer.arena_tokens, config.scheduler.max_queued_tokens),
        )

    def check_name(self, name: str | None) -> None:
        """Raise the 404 unless `name` is this model (or none was given)."""
        if name is not None and name != self.name:
            raise model_not_found(name, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an endpoint adds to the shared fields."""

    prompts: list[Prompt]
    max_tokens: int | None
    num_logprobs: int = NO_LOGPROBS
    num_prompt_logprobs: int = NO_LOGPROBS
    echo: bool = False


def generate_message(
    exchange: Exchange, request: GenerationFields, asked: Asked, model: ServedModel
) -> Generate:
    """Return the message for the engine and note the traffic class on the exchange."""
    tenant = exchange.authenticated()
    traffic_class = traffic_class_for(tenant, exchange.header(CLASS_HEADER), request.service_tier)
    exchange.traffic_class = traffic_class
    n = _number_of_choices(request, model)
    _check_total(len(asked.prompts), n, asked.max_tokens, model)
    _check_stream_options(request)
    return Generate(
        operation_id=new_operation_id(),
        tenant=tenant.name,
        traffic_class=traffic_class,
        prompts=asked.prompts,
        n=n,
        max_tokens=asked.max_tokens,
        sampling=sampling_params(request, asked, model),
        stop=_stop_strings(request),
        include_stop_str=bool(request.include_stop_str_in_output),
        priority=request.priority or 0,
        echo=asked.echo,
        want_token_ids=bool(request.return_token_ids),
        want_logprobs=max(asked.num_logprobs, asked.num_prompt_logprobs) > NO_LOGPROBS,
        accepted_ns=exchange.accepted_ns,
        queue_deadline_ns=_queue_deadline_ns(exchange, request),
        end_deadline_ns=_end_deadline_ns(exchange, request),
    )


def told_tier(traffic_class: TrafficClass, request: GenerationFields) -> dict[str, object]:
    """Return the field that says which tier serves the request, if it named one."""
    return {} if request.service_tier is None else {"service_tier": TIERS[traffic_class]}


def sampling_params(request: GenerationFields, asked: Asked, model: ServedModel) -> SamplingParams:
    """Return the sampling of an operation; a seed is made if the client gave none."""
    min_tokens = request.min_tokens or 0
    if asked.max_tokens is not None and min_tokens > asked.max_tokens:
        raise bad_request(
            f"The parameter 'min_tokens' = {min_tokens} exceeds {asked.max_tokens} tokens.",
            "min_tokens",
        )
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**64
    return SamplingParams(
        temperature=_temperature(request),
        top_p=max(_given(request.top_p, 1.0), SMALLEST_TOP_P),
        top_k=max(request.top_k or 0, 0),
        min_p=_given(request.min_p, 0.0),
        repetition_penalty=_given(request.repetition_penalty, 1.0),
        presence_penalty=_given(request.presence_penalty, 0.0),
        frequency_penalty=_given(request.frequency_penalty, 0.0),
        seed=seed,
        min_tokens=min_tokens,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=_stop_token_ids(request, model),
        logit_bias=_logit_bias(request, model),
        num_logprobs=asked.num_logprobs,
        num_prompt_logprobs=asked.num_prompt_logprobs,
    )


def _temperature(request: GenerationFields) -> float:
    temperature = _given(request.temperature, 1.0)
    return temperature if temperature >= SMALLEST_TEMPERATURE else 0.0


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def _number_of_choices(request: GenerationFields, model: ServedModel) -> int:
    n = 1 if request.n is None else request.n
    if n > model.max_choices:
        raise bad_request(
            f"The parameter 'n' = {n} exceeds {model.max_choices} (setting: http.max_choices).", "n"
        )
    return n


def _check_total(num_prompts: int, n: int, max_tokens: int | None, model: ServedModel) -> None:
    """Refuse what would ask for more tokens, over all prompts and choices, than may ever wait."""
    each = model.max_model_len if max_tokens is None else min(max_tokens, model.max_model_len)
    total = num_prompts * n * each
    if total > model.max_total_tokens:
        raise bad_request(
            f"{num_prompts} prompts × {n} choices × {each} tokens = {total} exceeds the"
            f" {model.max_total_tokens} tokens that one request may ask for.",
            "n" if n > 1 else "max_tokens",
        )


def _check_stream_options(request: GenerationFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise bad_request(
            "The parameter 'stream_options' is only for streams: set 'stream' to true.",
            "stream_options",
        )


def _stop_strings(request: GenerationFields) -> tuple[str, ...]:
    if isinstance(request.stop, str):
        return (request.stop,)
    return tuple(request.stop or ())


def _stop_token_ids(request: GenerationFields, model: ServedModel) -> tuple[int, ...]:
    ids = tuple(request.stop_token_ids or ())
    for index, token_id in enumerate(ids):
        if token_id >= model.vocab_size:
            raise _not_a_token(f"stop_token_ids[{index}]", str(token_id), model)
    return ids


def _logit_bias(request: GenerationFields, model: ServedModel) -> tuple[tuple[int, float], ...]:
    biases = []
    for name, bias in (request.logit_bias or {}).items():
        if not TOKEN_NUMBER.fullmatch(name) or int(name) >= model.vocab_size:
            raise _not_a_token("logit_bias", repr(name[:MAX_SHOWN_CHARACTERS]), model)
        biases.append((int(name), bias))
    return tuple(biases)


def _not_a_token(param: str, value: str, model: ServedModel) -> ApiError:
    return bad_request(
        f"The parameter '{param}' names {value}, which is no token id:"
        f" ids are 0 to {model.vocab_size - 1}.",
        param,
    )


def _queue_deadline_ns(exchange: Exchange, request: GenerationFields) -> int:
    deadline_ms = request.deadline_ms
    header = exchange.header(DEADLINE_HEADER)
    if deadline_ms is None and header is not None:
        deadline_ms = _deadline_header_ms(header)
    return 0 if deadline_ms is None else exchange.accepted_ns + deadline_ms * NS_PER_MS


def _deadline_header_ms(header: bytes) -> int:
    text = header.strip()
    if text.isdigit() and len(text) <= 8 and 1 <= int(text) <= MAX_DEADLINE_MS:
        return int(text)
    name = DEADLINE_HEADER.decode()
    raise bad_request(
        f"The header '{name}' must be a whole number of 1 to {MAX_DEADLINE_MS}.", name
    )


def _end_deadline_ns(exchange: Exchange, request: GenerationFields) -> int:
    if request.timeout is None:
        return 0
    return exchange.accepted_ns + round(request.timeout * NS_PER_S)
