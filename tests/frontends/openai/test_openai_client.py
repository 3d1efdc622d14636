"""The official client against the server: answers, streams and typed errors."""

import asyncio
from typing import Any

import openai
import pytest

from core.messages.http import Chunk, Chunks, Failed, Started
from core.messages.tokenizer import Cancel, ChatPrompt, Generate
from tests.support.http.fake_engine import QUEUE_NS, WAIT_S
from tests.support.http.http_rig import MODEL, HttpRig


def user(text: str) -> list[Any]:
    """Return a conversation of one turn."""
    return [{"role": "user", "content": text}]


def test_a_chat_answer_is_whole(rig: HttpRig) -> None:
    """Text, role, finish reason, usage and ids are where the interface has them."""
    answer = rig.openai().chat.completions.create(model=MODEL, messages=user("say Grüße 🌊"))
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "Grüße 🌊")
    assert choice.finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 7)
    assert answer.usage.total_tokens == 18
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


def test_a_chat_stream_has_role_text_end_and_usage(rig: HttpRig) -> None:
    """One id; the role first, then the text, one finish reason, and the usage chunk last."""
    stream = rig.openai().chat.completions.create(
        model=MODEL, messages=user("say hi"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    *texts, last = chunks[:-1]
    assert "".join(c.choices[0].delta.content or "" for c in texts) == "hi"
    assert [c.choices[0].finish_reason for c in texts] == [None] * len(texts)
    assert last.choices[0].finish_reason == "stop"
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


def test_without_being_asked_a_stream_has_no_usage(rig: HttpRig) -> None:
    """The usage chunk and the `usage` field come only with include_usage."""
    body = {"model": MODEL, "messages": user("say hi"), "stream": True}
    text = rig.post("/v1/chat/completions", body).text
    assert "usage" not in text
    assert text.endswith("data: [DONE]\n\n")


def streamed(events: Any) -> dict[str, Any]:
    """Return what a completions stream says in all, choice by choice, and its usage."""
    texts: dict[int, str] = {}
    logprobs: dict[int, dict[str, list[Any]]] = {}
    token_ids: dict[int, list[int]] = {}
    ends: dict[int, str] = {}
    usage = None
    for event in events:
        usage = event.usage or usage
        for choice in event.choices:
            index = choice.index
            texts[index] = texts.get(index, "") + choice.text
            token_ids.setdefault(index, []).extend(getattr(choice, "token_ids", None) or [])
            entries = choice.logprobs.model_dump() if choice.logprobs else {}
            for name, values in entries.items():
                logprobs.setdefault(index, {}).setdefault(name, []).extend(values)
            if choice.finish_reason:
                ends[index] = choice.finish_reason
    return {"texts": texts, "logprobs": logprobs, "ids": token_ids, "ends": ends, "usage": usage}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 3},
        {"logprobs": 2},
        {"echo": True, "logprobs": 1},
        {"echo": True},
        {"max_tokens": 0, "echo": True, "logprobs": 0},
        {"max_tokens": 3},
        {"stop": ["lo"]},
        {"n": 2, "prompt": ["say hello", "say you"], "echo": True, "logprobs": 1},
        {"extra_body": {"return_token_ids": True}},
    ],
    ids=str,
)
def test_stream_and_whole_answer_agree(rig: HttpRig, options: dict[str, Any]) -> None:
    """Text, log-probabilities, token ids, ends and usage are the same in both forms."""
    client = rig.openai()
    arguments: dict[str, Any] = {"model": MODEL, "prompt": "say hello, wörld", "seed": 1}
    arguments |= options
    whole = client.completions.create(**arguments)
    stream = client.completions.create(
        **arguments, stream=True, stream_options={"include_usage": True}
    )
    told = streamed(stream)
    assert told["texts"] == {choice.index: choice.text for choice in whole.choices}
    assert told["ends"] == {choice.index: choice.finish_reason for choice in whole.choices}
    assert told["usage"] == whole.usage
    whole_logprobs = {c.index: c.logprobs.model_dump() for c in whole.choices if c.logprobs}
    assert told["logprobs"] == whole_logprobs
    whole_ids = {c.index: getattr(c, "token_ids", None) or [] for c in whole.choices}
    assert told["ids"] == whole_ids


def test_echo_counts_offsets_from_the_prompt(rig: HttpRig) -> None:
    """With echo the prompt's tokens come first; its first one has no log-probability."""
    answer = rig.openai().completions.create(
        model=MODEL, prompt="say ab", echo=True, logprobs=1, max_tokens=2
    )
    choice = answer.choices[0]
    assert choice.text == "say abab"
    assert choice.logprobs is not None
    assert choice.logprobs.text_offset == list(range(8))
    assert choice.logprobs.token_logprobs == [None] + [-0.5] * 7
    assert choice.logprobs.tokens == list("say abab")


def test_chat_logprobs_have_bytes_and_alternatives(rig: HttpRig) -> None:
    """Each token comes with its bytes and as many alternatives as asked for."""
    answer = rig.openai().chat.completions.create(
        model=MODEL, messages=user("say ü"), logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    (entry,) = logprobs.content
    assert (entry.token, entry.bytes, entry.logprob) == ("ü", [0xC3, 0xBC], -0.5)
    assert len(entry.top_logprobs) == 3


def test_several_prompts_with_several_choices(rig: HttpRig) -> None:
    """Choices are numbered prompt by prompt; each prompt is counted once in the usage."""
    answer = rig.openai().completions.create(model=MODEL, prompt=["say a", "say bb"], n=2)
    assert [choice.text for choice in answer.choices] == ["a", "a", "bb", "bb"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 6)


@pytest.mark.parametrize("prompt", ["say id", list(b"say id"), [list(b"say id")], ["say id"]])
def test_prompts_come_as_text_or_ids_or_lists(rig: HttpRig, prompt: Any) -> None:
    """All four forms of a prompt mean the same."""
    answer = rig.openai().completions.create(model=MODEL, prompt=prompt)
    assert answer.choices[0].text == "id"


def test_token_ids_are_returned_where_vllm_has_them(rig: HttpRig) -> None:
    """Chat has the prompt's ids at the top, completions in the choice; both have the choice's."""
    client = rig.openai()
    extra = {"return_token_ids": True}
    chat: Any = client.chat.completions.create(
        model=MODEL, messages=user("say hi"), extra_body=extra
    )
    assert chat.prompt_token_ids == list(b"say hi")
    assert chat.choices[0].token_ids == list(b"hi")
    text: Any = client.completions.create(model=MODEL, prompt="say hi", extra_body=extra)
    assert text.choices[0].prompt_token_ids == list(b"say hi")
    assert text.choices[0].token_ids == list(b"hi")
    first: Any = next(
        iter(
            client.chat.completions.create(
                model=MODEL, messages=user("say hi"), stream=True, extra_body=extra
            )
        )
    )
    assert first.prompt_token_ids == list(b"say hi")


def test_a_conversation_reaches_the_engine_in_order(rig: HttpRig) -> None:
    """Roles, names and parts become turns; `developer` is the system's voice."""
    rig.openai().chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "one"}], "name": "ann"},
            {"role": "assistant", "content": None},
            {
                "role": "user",
                "content": [{"type": "text", "text": "say"}, {"type": "text", "text": "two"}],
            },
        ],
    )
    prompt = rig.engine.wait_for(Generate).prompts[0]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one", "name": "ann"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "say\ntwo"},
    ]


def test_headers_tell_class_and_queue_time(rig: HttpRig) -> None:
    """Whole answers and streams both say how long the request queued, and in which class."""
    for stream in (True, False):
        body = {"model": MODEL, "prompt": "say hi", "stream": stream, "service_tier": "flex"}
        answer = rig.post("/v1/completions", body)
        assert answer.headers["x-headrace-queue-ms"] == str(QUEUE_NS // 1_000_000)
        assert answer.headers["x-headrace-class"] == "batch"


@pytest.mark.parametrize("stream", [True, False])
def test_a_demoted_request_is_told_the_class_that_serves_it(rig: HttpRig, stream: bool) -> None:
    """In the header, and as the tier if it named one."""
    body = {"model": MODEL, "prompt": "demote me", "stream": stream, "service_tier": "priority"}
    answer = rig.post("/v1/completions", body)
    assert answer.headers["x-headrace-class"] == "standard"
    assert '"service_tier":"default"' in answer.text
    assert "priority" not in answer.text


@pytest.mark.parametrize(
    ("tier", "header", "told"),
    [("flex", None, "flex"), ("auto", None, "default"), ("flex", "interactive", "priority")],
)
def test_an_answer_tells_the_tier_that_served_it(
    rig: HttpRig, tier: str, header: str | None, told: str
) -> None:
    """Who names a service tier is told which one it got, whole or streamed; others are not."""
    extra = {} if header is None else {"x-headrace-class": header}
    client = rig.openai(default_headers=extra)
    messages: Any = [{"role": "user", "content": "say hi"}]
    named: Any = {"model": MODEL, "messages": messages, "service_tier": tier}
    assert client.chat.completions.create(**named).service_tier == told
    chunks = client.chat.completions.create(**named, stream=True)
    assert {chunk.service_tier for chunk in chunks} == {told}
    plain = client.chat.completions.create(model=MODEL, messages=messages)
    assert plain.service_tier is None


ERRORS = [
    ("reject CONTEXT_LENGTH_EXCEEDED", openai.BadRequestError, 400, "context_length_exceeded"),
    ("reject KV_NEVER_FITS", openai.BadRequestError, 400, "kv_never_fits"),
    ("bad 400 bad_token", openai.BadRequestError, 400, "bad_token"),
    ("reject TENANT_FORBIDDEN", openai.PermissionDeniedError, 403, "tenant_forbidden"),
    ("reject QUEUE_FULL_TOKENS 1200", openai.RateLimitError, 429, "queue_full_tokens"),
    ("shed SHED_PREDICTED", openai.RateLimitError, 429, "shed_predicted"),
    ("reject DRAINING", openai.InternalServerError, 503, "draining"),
    ("reject NO_REPLICA", openai.InternalServerError, 503, "no_replica"),
    ("reject DEADLINE_EXCEEDED", openai.InternalServerError, 504, "deadline_exceeded"),
    ("late ENGINE_RESTARTED", openai.InternalServerError, 503, "engine_restarted"),
    ("fault", openai.InternalServerError, 500, "executor_fault"),
    ("cancelled", openai.InternalServerError, 503, "cancelled"),
]


@pytest.mark.parametrize(("prompt", "kind", "status", "code"), ERRORS)
def test_a_failure_is_the_clients_typed_error(
    rig: HttpRig, prompt: str, kind: type[openai.APIStatusError], status: int, code: str
) -> None:
    """Whatever the engine answers to a whole request becomes the error class clients catch."""
    with pytest.raises(kind) as caught:
        rig.openai().completions.create(model=MODEL, prompt=prompt)
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert ("retry-after" in caught.value.response.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("prompt", "kind", "code"),
    [
        ("reject QUEUE_FULL_REQUESTS", openai.RateLimitError, "queue_full_requests"),
        ("shed SHED_INFEASIBLE", openai.RateLimitError, "shed_infeasible"),
        ("reject CONTEXT_LENGTH_EXCEEDED", openai.BadRequestError, "context_length_exceeded"),
    ],
)
def test_a_stream_that_is_refused_has_a_real_status(
    rig: HttpRig, prompt: str, kind: type[openai.APIStatusError], code: str
) -> None:
    """Headers wait for the verdict, so a refusal is not hidden in a 200."""
    with pytest.raises(kind) as caught:
        rig.openai().completions.create(model=MODEL, prompt=prompt, stream=True)
    assert caught.value.code == code


@pytest.mark.parametrize("options", [{"extra_body": {"deadline_ms": 5}}, {"timeout": 5.0}])
def test_a_passed_deadline_of_the_clients_is_408(rig: HttpRig, options: dict[str, Any]) -> None:
    """A deadline that the request named is the client's: 408, and it should not be retried."""
    body = {"model": MODEL, "prompt": "reject DEADLINE_EXCEEDED"}
    body |= options.get("extra_body", {"timeout": 5.0})
    answer = rig.post("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "deadline_exceeded")
    assert answer.headers["x-should-retry"] == "false"


def test_the_client_does_not_retry_a_passed_deadline(rig: HttpRig) -> None:
    """x-should-retry stops the official client, which retries 408 and 504 otherwise."""
    client = rig.openai(max_retries=2)
    with pytest.raises(openai.APIStatusError):
        client.completions.create(model=MODEL, prompt="reject DEADLINE_EXCEEDED")
    assert len(rig.engine.received(Generate)) == 1


def test_the_client_comes_back_after_a_full_queue(rig: HttpRig) -> None:
    """A 429 is retried by the official client after the time we named."""
    client = rig.openai(max_retries=1)
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model=MODEL, prompt="reject QUEUE_FULL_REQUESTS 1")
    assert len(rig.engine.received(Generate)) == 2


def test_a_failure_after_the_first_byte_is_an_error_event(rig: HttpRig) -> None:
    """What was streamed stays; then the client raises, and no [DONE] pretends a good end."""
    stream = iter(rig.openai().completions.create(model=MODEL, prompt="hold", stream=True))
    assert next(stream).choices[0].text == "a"
    operation_id = rig.engine.wait_for(Generate).operation_id
    rig.engine.send(Failed(operation_id, "the model broke", code="broken", status=500))
    with pytest.raises(openai.APIError, match="the model broke"):
        next(stream)


def test_the_text_of_a_bad_end_is_still_delivered(rig: HttpRig) -> None:
    """A last chunk that ends in an error brings its text first; other choices are cancelled."""
    with rig.openai().completions.with_streaming_response.create(
        model=MODEL, prompt="hold", stream=True, n=2
    ) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if '"index":1' in line)
        operation_id = rig.engine.wait_for(Generate).operation_id
        last = Chunk(operation_id, 0, "late", finish_reason="error", num_output_tokens=2)
        rig.engine.send(Chunks([last]))
        rest = [line for line in lines if line]
    assert '"text":"late"' in rest[0]
    assert '"error"' in rest[1]
    assert len(rest) == 2
    assert rig.engine.wait_for(Cancel).operation_id == operation_id


def test_a_tokenizer_that_dies_is_told_to_streams(rig: HttpRig) -> None:
    """A new epoch ends its streams with a retryable error event, and later requests go on."""
    stream = iter(rig.openai().completions.create(model=MODEL, prompt="hold", stream=True))
    next(stream)
    rig.tokenizer_epoch = 2
    with pytest.raises(openai.APIError, match="restarted"):
        next(stream)
    rig.openai().completions.create(model=MODEL, prompt="say again")


def test_a_tokenizer_that_is_away_is_503(rig: HttpRig) -> None:
    """Before the first byte the death of a tokenizer is a 503 that says when to come back."""
    rig.tokenizer_epoch = 0
    client = rig.openai()
    with pytest.raises(openai.InternalServerError) as caught:
        [client.completions.create(model=MODEL, prompt="say hi") for _ in range(1000)]
    assert (caught.value.status_code, caught.value.code) == (503, "engine_restarted")


def test_breaking_off_a_stream_cancels(rig: HttpRig) -> None:
    """A client that closes its stream in the middle ends the operation."""
    stream = rig.openai().completions.create(model=MODEL, prompt="flood", stream=True)
    next(iter(stream))
    stream.close()
    assert rig.engine.wait_for(Cancel).operation_id == rig.engine.wait_for(Generate).operation_id


def test_the_async_client_streams_side_by_side(rig: HttpRig) -> None:
    """Many streams at once each get their own text."""

    async def ask(client: openai.AsyncOpenAI, text: str) -> str:
        stream = await client.chat.completions.create(
            model=MODEL, messages=user(f"say {text}"), stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{rig.url}/v1", api_key="x", max_retries=0, timeout=WAIT_S
        ) as client:
            return await asyncio.gather(*(ask(client, f"text-{i}") for i in range(20)))

    assert asyncio.run(ask_all()) == [f"text-{i}" for i in range(20)]


def test_tokenize_and_detokenize_are_each_others_inverse(rig: HttpRig) -> None:
    """vLLM's shape: count, max_model_len, tokens; and back to the text."""
    answer = rig.post("/tokenize", {"prompt": "héllo", "return_token_strs": True}).json()
    assert answer == {
        "count": 5,
        "max_model_len": 8192,
        "tokens": [104, 233, 108, 108, 111],
        "token_strs": list("héllo"),
    }
    back = rig.post("/detokenize", {"model": MODEL, "tokens": answer["tokens"]}).json()
    assert back == {"prompt": "héllo"}
    chat = rig.post("/tokenize", {"messages": user("abc")}).json()
    assert (chat["count"], chat["token_strs"]) == (3, None)


def test_a_queued_stream_gets_its_headers_after_the_hold(
    start: Any,
) -> None:
    """A stream that waits longer than the hold gets a comment, then its output."""
    rig = start(verdict_hold_ms=20)
    with rig.openai().completions.with_streaming_response.create(
        model=MODEL, prompt="queue", stream=True
    ) as answer:
        assert "x-headrace-queue-ms" not in answer.headers
        lines = answer.iter_lines()
        assert next(lines) == ": keep-alive"
        generate = rig.engine.wait_for(Generate)
        rig.engine.send(Started(generate.operation_id, 5))
        rig.engine.finish(generate, "late")
        rest = [line for line in lines if line]
        assert '"text":"late"' in rest[0]
        assert rest[-1] == "data: [DONE]"


def test_a_late_shed_is_an_error_event_with_the_same_code(start: Any) -> None:
    """After the hold a refusal can only be told in the stream, by the same reason."""
    rig = start(verdict_hold_ms=0)
    stream = iter(
        rig.openai().completions.create(model=MODEL, prompt="shed SHED_PREDICTED", stream=True)
    )
    with pytest.raises(openai.APIError) as caught:
        next(stream)
    assert caught.value.code == "shed_predicted"
    rig.wait_for_page(lambda page: page["rejections"].sum() == 1)
