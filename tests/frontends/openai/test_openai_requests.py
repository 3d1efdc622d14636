"""What a request body may say: every bound, every refusal, and what reaches the engine."""

from typing import Any

import pytest

from core.clock import NS_PER_MS, NS_PER_S
from core.messages.tokenizer import ChatPrompt, Generate, TextPrompt
from core.sampling_params import NO_LOGPROBS, SamplingParams
from core.tenancy.classes import TrafficClass
from frontends.openai.schema import UNSUPPORTED, ChatCompletionRequest, CompletionRequest
from tests.support.http.http_rig import MODEL, HttpRig

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
TURN = {"role": "user", "content": "say hi"}


def chat(**fields: Any) -> dict[str, Any]:
    """Return a chat body with some fields."""
    return {"model": MODEL, "messages": [TURN], **fields}


def text(**fields: Any) -> dict[str, Any]:
    """Return a completions body with some fields."""
    return {"model": MODEL, "prompt": "say hi", **fields}


Cases = list[tuple[dict[str, Any], str]]

BOTH: Cases = [
    ({"model": 7}, "model"),
    ({"model": ""}, "model"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": "1"}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2**31}, "max_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_p": -0.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": ""}, "stop"),
    ({"stop": "x" * 1025}, "stop"),
    ({"stop_token_ids": list(range(17))}, "stop_token_ids"),
    ({"stop_token_ids": [0, 0x110000]}, "stop_token_ids[1]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"5": 100, "05": -100}}, "logit_bias"),
    ({"logit_bias": {"one": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"٣": 1}}, "logit_bias"),
    ({"logit_bias": {"1114112": 1}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": 86_401}, "timeout"),
    ({"deadline_ms": 0}, "deadline_ms"),
    ({"priority": 2**31}, "priority"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"user": 5}, "user"),
]
ONLY_CHAT: Cases = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [TURN, {"content": "x"}]}, "messages[1].role"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    ({"messages": [TURN] * 4097}, "messages"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 2}, "logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
]
ONLY_TEXT: Cases = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": [[1], ["a"]]}, "prompt[1][0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [2**31]}, "prompt[0]"),
    ({"prompt": [[[1]]]}, "prompt[0][0]"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": [[1]] * 65}, "prompt"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": "yes"}, "echo"),
]
CASES = [
    *((CHAT, chat(**fields), param) for fields, param in BOTH + ONLY_CHAT),
    *((TEXT, text(**fields), param) for fields, param in BOTH + ONLY_TEXT),
]


def test_every_bad_parameter_is_named(rig: HttpRig) -> None:
    """A value out of its type or bounds is a 400 that names its path; the engine sees nothing."""
    wrong = []
    for path, body, param in CASES:
        answer = rig.post(path, body)
        error = answer.json()["error"]
        told = (answer.status_code, error["type"], error["param"])
        if told != (400, "invalid_request_error", param) or not error["message"]:
            wrong.append((path, param, told, error["message"]))
    assert wrong == []
    assert rig.engine.received(Generate) == []


@pytest.mark.parametrize(("path", "name"), [(CHAT, "messages"), (TEXT, "prompt")])
def test_a_missing_parameter_is_named(rig: HttpRig, path: str, name: str) -> None:
    """A required field that is absent is told by its name."""
    error = rig.post(path, {"model": MODEL}).json()["error"]
    assert error["param"] == name
    assert "missing" in error["message"]


def test_the_model_may_be_left_out(rig: HttpRig) -> None:
    """There is one model, so a request by hand need not name it."""
    answer = rig.post(CHAT, {"messages": [TURN]})
    assert (answer.status_code, answer.json()["model"]) == (200, MODEL)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b"[]",
        b'"text"',
        b"null",
        b'{"model": "tiny-fake",}',
        b'{"model": "\xff\xfe"}',
        b'{"model": "\\ud800"}',
        b'{"model": "tiny-fake"} trailing',
        b'{"temperature": NaN}',
        b"\x00\x01\x02",
        b"[" * 100_000,
        b'{"unknown": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"messages": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b'{"tools": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_not_a_json_object_is_400(rig: HttpRig, body: bytes) -> None:
    """Malformed, truncated, deeply nested and mistyped bodies are 400, never 422 or 5xx."""
    for path in (CHAT, TEXT, "/tokenize", "/detokenize"):
        answer = rig.post(path, body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_name_that_is_not_unicode_is_400(rig: HttpRig) -> None:
    """A broken name of a field that nobody reads is still no JSON."""
    body = b'{"messages": [{"role": "user", "content": "say hi"}], "n\xff": 1}'
    assert rig.post(CHAT, body).status_code == 400


@pytest.mark.parametrize("prompt", [b'"\xff"', b'"\xed\xa0\x80"', b'["\xc0\x80"]', b'"\\ud800"'])
def test_a_prompt_that_is_not_unicode_is_400(rig: HttpRig, prompt: bytes) -> None:
    """Bytes that are no UTF-8 are the client's fault wherever they are; so is half a character."""
    answer = rig.post("/v1/completions", b'{"prompt": ' + prompt + b"}")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_a_field_that_is_not_built_is_refused(rig: HttpRig, name: str) -> None:
    """A field of OpenAI's interface that would change the answer is never ignored in silence."""
    paths = [
        (path, body)
        for path, body, kind in (
            (CHAT, chat(), ChatCompletionRequest),
            (TEXT, text(), CompletionRequest),
        )
        if name in kind.__struct_fields__
    ]
    assert paths
    for path, body in paths:
        answer = rig.post(path, {**body, name: {"some": ["wish"]}})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (
            400,
            "unsupported_parameter",
            name,
        )
        for harmless in (None, *UNSUPPORTED[name]):
            assert rig.post(path, {**body, name: harmless}).status_code == 200


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "messages[0].role"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
    ],
)
def test_parts_of_a_conversation_that_are_not_built_are_refused(
    rig: HttpRig, turn: dict[str, Any], param: str
) -> None:
    """Tools and images in a conversation are named, not dropped."""
    error = rig.post(CHAT, chat(messages=[turn])).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", param)


def test_unknown_fields_are_ignored_with_one_warning_each(
    rig: HttpRig, caplog: pytest.LogCaptureFixture
) -> None:
    """A field nobody knows does no harm; the log names it once, and not its value."""
    for _ in range(2):
        assert rig.post(TEXT, text(frobnicate="secret", foo=1)).status_code == 200
    warnings = [r.getMessage() for r in caplog.records if "unknown request field" in r.getMessage()]
    assert len(warnings) == 2
    assert any("frobnicate" in warning for warning in warnings)
    assert "secret" not in caplog.text


def test_too_many_token_ids_are_refused_by_counting(rig: HttpRig) -> None:
    """A prompt of ids beyond the context needs no tokenizer to be refused."""
    error = rig.post(TEXT, text(prompt=[7] * 9000)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "However, you requested 9000 tokens" in error["message"]
    assert rig.engine.received(Generate) == []


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "logit_bias"])
def test_a_huge_small_field_is_refused_by_its_size(rig: HttpRig, name: str) -> None:
    """A megabyte of stop strings is named without being built."""
    value: Any = {str(i): 1 for i in range(60_000)} if name == "logit_bias" else ["a"] * 60_000
    answer = rig.post(TEXT, text(**{name: value}))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert "too large" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "prompt", [['say "a"'] * 64, ["say a\\"] * 64, ['say \\"'] * 64, ["", *['"'] * 60]]
)
def test_quotes_in_prompts_are_not_counted_as_prompts(rig: HttpRig, prompt: list[str]) -> None:
    """Escaped quotes and backslashes do not make a short list look long."""
    answer = rig.post(TEXT, text(prompt=prompt))
    assert "at most" not in answer.text


def test_an_unknown_model_is_404(rig: HttpRig) -> None:
    """Both endpoints and tokenize know only the served model."""
    for path, body in ((CHAT, chat()), (TEXT, text()), ("/tokenize", {"prompt": "x"})):
        answer = rig.post(path, {**body, "model": "gpt-9"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def sent(rig: HttpRig, path: str, body: dict[str, Any], **headers: str) -> Generate:
    """Return the message that a request becomes."""
    assert rig.post(path, body, **headers).status_code == 200
    return rig.engine.received(Generate)[-1]


def test_defaults_are_openais(rig: HttpRig) -> None:
    """Nothing given means: temperature 1, one choice, chat up to the context, text 16 tokens."""
    asked = sent(rig, CHAT, chat())
    assert (asked.n, asked.max_tokens, asked.tenant) == (1, None, "default")
    assert asked.traffic_class is TrafficClass.STANDARD
    assert asked.sampling == SamplingParams(seed=asked.sampling.seed)
    assert (asked.echo, asked.want_token_ids, asked.want_logprobs) == (False, False, False)
    assert sent(rig, TEXT, text()).max_tokens == 16


def test_nulls_are_the_defaults(rig: HttpRig) -> None:
    """Clients send null for what they do not set."""
    names = set(ChatCompletionRequest.__struct_fields__) - {"messages"}
    asked = sent(rig, CHAT, chat(**dict.fromkeys(names)))
    assert asked.sampling == SamplingParams(seed=asked.sampling.seed)


def test_every_sampling_field_arrives(rig: HttpRig) -> None:
    """What the client asks of the sampler is what the engine is told."""
    asked = sent(
        rig,
        TEXT,
        text(
            n=2, max_tokens=9, temperature=0, top_p=0.5, top_k=7, min_p=0.1, seed=-1,
            repetition_penalty=1.1, presence_penalty=-1, frequency_penalty=1, min_tokens=2,
            ignore_eos=True, stop=["x", "y"], stop_token_ids=[5], logit_bias={"7": -100, "8": 1.5},
            logprobs=3, echo=True, priority=-4, include_stop_str_in_output=True,
            return_token_ids=True,
        ),
    )  # fmt: skip
    assert asked.sampling == SamplingParams(
        temperature=0.0, top_p=0.5, top_k=7, min_p=0.1, seed=2**64 - 1, repetition_penalty=1.1,
        presence_penalty=-1.0, frequency_penalty=1.0, min_tokens=2, ignore_eos=True,
        stop_token_ids=(5,), logit_bias=((7, -100.0), (8, 1.5)), num_logprobs=3,
        num_prompt_logprobs=3,
    )  # fmt: skip
    assert (asked.n, asked.max_tokens, asked.stop) == (2, 9, ("x", "y"))
    assert (asked.priority, asked.echo, asked.include_stop_str) == (-4, True, True)
    assert asked.want_token_ids
    assert asked.want_logprobs


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": True}, 0),
        ({"logprobs": False}, NO_LOGPROBS),
    ],
)
def test_chat_logprobs_are_a_switch_and_a_number(
    rig: HttpRig, fields: dict[str, Any], expected: int
) -> None:
    """`logprobs` alone means the chosen token only."""
    asked = sent(rig, CHAT, chat(**fields))
    assert asked.sampling.num_logprobs == expected
    assert asked.sampling.num_prompt_logprobs == NO_LOGPROBS


def test_the_newer_limit_wins(rig: HttpRig) -> None:
    """max_completion_tokens replaces max_tokens where both are given."""
    assert sent(rig, CHAT, chat(max_tokens=5, max_completion_tokens=7)).max_tokens == 7
    assert sent(rig, CHAT, chat(max_tokens=5)).max_tokens == 5


def test_off_values_of_the_sampler(rig: HttpRig) -> None:
    """top_k -1 is off as in vLLM; top_p 0 keeps only the best token."""
    asked = sent(rig, TEXT, text(top_k=-1, top_p=0))
    assert asked.sampling.top_k == 0
    assert 0 < asked.sampling.top_p < 1e-3


@pytest.mark.parametrize("temperature", [0, 1e-9, 1e-39, 1e-320])
def test_hardly_any_temperature_is_greedy(rig: HttpRig, temperature: float) -> None:
    """Logits divided by so little are infinite, of which nothing sensible can be drawn."""
    assert sent(rig, TEXT, text(temperature=temperature)).sampling.temperature == 0.0


def test_deadlines_count_from_the_arrival(rig: HttpRig) -> None:
    """`timeout` bounds the whole request, `deadline_ms` the queue; the field beats the header."""
    asked = sent(rig, TEXT, text(timeout=1.5, deadline_ms=250), x_headrace_deadline_ms="9")
    assert asked.end_deadline_ns - asked.accepted_ns == 1.5 * NS_PER_S
    assert asked.queue_deadline_ns - asked.accepted_ns == 250 * NS_PER_MS
    by_header = sent(rig, TEXT, text(), x_headrace_deadline_ms="40")
    assert by_header.queue_deadline_ns - by_header.accepted_ns == 40 * NS_PER_MS
    assert by_header.end_deadline_ns == 0


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1.5", "99999999999"])
def test_a_bad_deadline_header_is_400(rig: HttpRig, value: str) -> None:
    """A header that is not a number of milliseconds is named like a parameter."""
    answer = rig.post(TEXT, text(), x_headrace_deadline_ms=value)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-headrace-deadline-ms"


def test_the_class_header_reaches_the_engine(rig: HttpRig) -> None:
    """The class named in the header is the class of the operation."""
    asked = sent(rig, TEXT, text(), x_headrace_class="interactive")
    assert asked.traffic_class is TrafficClass.INTERACTIVE


def test_one_request_may_not_ask_for_more_than_may_wait(rig: HttpRig) -> None:
    """Prompts × choices × tokens is one total, refused by arithmetic before it goes anywhere."""
    answer = rig.post(TEXT, text(prompt=["say hi"] * 64, n=16, max_tokens=8192))
    assert answer.status_code == 400
    assert "8388608" in answer.json()["error"]["message"]
    assert rig.engine.received(Generate) == []


def test_generation_prompt_may_be_left_out(rig: HttpRig) -> None:
    """add_generation_prompt goes to the template."""
    prompt = sent(rig, CHAT, chat(add_generation_prompt=False)).prompts[0]
    assert isinstance(prompt, ChatPrompt)
    assert not prompt.add_generation_prompt


def test_prompts_keep_their_order(rig: HttpRig) -> None:
    """A list of texts becomes as many prompts, in order."""
    asked = sent(rig, TEXT, text(prompt=["say a", "say b"]))
    assert asked.prompts == [TextPrompt("say a"), TextPrompt("say b")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": [TURN]}, "prompt"),
        ({"messages": []}, "messages"),
        ({"prompt": 7}, "prompt"),
    ],
)
def test_tokenize_wants_exactly_one_source(rig: HttpRig, body: dict[str, Any], param: str) -> None:
    """Neither both nor none of prompt and messages."""
    answer = rig.post("/tokenize", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("tokens", [None, "abc", [-1], [2**31], [1.5], ["a"]])
def test_detokenize_wants_token_ids(rig: HttpRig, tokens: Any) -> None:
    """Only whole numbers from 0 on are token ids."""
    answer = rig.post("/detokenize", {"tokens": tokens})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("tokens")
