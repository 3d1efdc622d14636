"""The tokenizer from text to text, between a scripted http and a scripted scheduler."""

import numpy as np
import pytest

from core.errors import RejectionReason
from core.kv_cache.digest import chain_digests, join_digests, namespace_digest
from core.messages.http import Detokenized, Failed, Queued, Started, Tokenized
from core.messages.tokenizer import (
    ChatPrompt,
    Detokenize,
    IdsPrompt,
    TextPrompt,
    Tokenize,
)
from core.request import RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler.plan import OutputKind
from core.tenancy.classes import TrafficClass
from tests.support.loops.tokenizer_rig import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    TokenizerRig,
    generate,
    record,
)
from tests.support.models.tiny_model import IM_END_ID, IM_START_ID
from tests.support.models.tiny_vocabulary import tiny_vocabulary

BATCH = TrafficClass.BATCH


@pytest.fixture
def rig() -> TokenizerRig:
    """A tokenizer with one http process and one scheduler."""
    return TokenizerRig(tiny_vocabulary())


def test_an_operation_goes_from_text_to_text(rig: TokenizerRig) -> None:
    """Queued, Started, chunks and one terminal chunk with usage come in this order."""
    answer = rig.vocabulary.encode("once upon a time")
    (submit,) = rig.generate(text="tell me")
    assert rig.http.messages == []
    rig.scheduler.start(submit)
    rig.scheduler.tokens(submit, answer)
    rig.run()
    rig.scheduler.finish(submit, len(answer))
    rig.run()
    queued, started = rig.http.messages[:2]
    assert isinstance(queued, Queued)
    assert queued.prompt_lens == [submit.prompt_len]
    assert queued.prompt_token_ids == []
    assert started == Started("op", 5)
    assert rig.http.text("op") == "once upon a time"
    *others, last = rig.http.chunks("op")
    assert {chunk.finish_reason for chunk in others} <= {""}
    assert last.finish_reason == "length"
    assert last.num_prompt_tokens == submit.prompt_len
    assert (last.num_output_tokens, last.num_cached_tokens) == (len(answer), 3)
    rig.check_idle()


def test_an_operation_says_in_which_class_it_is_served(rig: TokenizerRig) -> None:
    """The one that was asked for, unless the scheduler has demoted one of its requests."""
    (plain,) = rig.generate("plain", text="tell me", traffic_class=BATCH)
    rig.scheduler.start(plain)
    demoted = rig.generate("demoted", text="tell me", n=2, traffic_class=BATCH)
    for submit, served in zip(demoted, (BATCH, TrafficClass.STANDARD), strict=True):
        rig.scheduler.say(record(submit, OutputKind.QUEUED, traffic_class=served))
    rig.run()
    told = {m.operation_id: m.traffic_class for m in rig.http.messages if isinstance(m, Queued)}
    assert told == {"plain": BATCH, "demoted": TrafficClass.STANDARD}


def test_the_submission_says_everything(rig: TokenizerRig) -> None:
    """Span, ids, digests, limits and deadlines of a request are what the operation asked for."""
    text = "the street is interesting " * 8
    (submit,) = rig.generate(
        text=text, max_tokens=None, priority=4, accepted_ns=11, queue_deadline_ns=22,
        end_deadline_ns=33,
    )  # fmt: skip
    ids = rig.vocabulary.encode(text)
    assert rig.scheduler.prompt(submit) == ids
    assert submit.max_tokens == MAX_MODEL_LEN - len(ids)
    start = namespace_digest(b"secret", "tenant", "")
    expected = chain_digests(b"secret", start, np.array(ids, np.int32), BLOCK_SIZE)
    assert submit.digests == join_digests(list(expected))
    assert submit.request_id >> 56 == 2
    assert submit.request_id >> 40 & 0xFFFF == 3
    assert (submit.tokenizer, submit.tokenizer_epoch, submit.resume_from) == (2, 3, 0)
    assert (submit.priority, submit.arrival_ns) == (4, 11)
    assert (submit.queue_deadline_ns, submit.end_deadline_ns) == (22, 33)
    assert submit.client_deadline


def test_every_prompt_and_choice_is_a_request(rig: TokenizerRig) -> None:
    """Choice prompt * n + i has its own span; each sample of a prompt draws its own numbers."""
    prompts = [TextPrompt("red"), TextPrompt("green")]
    submits = rig.generate(prompts=prompts, n=2)
    assert [submit.choice for submit in submits] == [0, 1, 2, 3]
    assert [submit.sampling.choice for submit in submits] == [0, 1, 0, 1]
    assert len({submit.span_start for submit in submits}) == 4
    assert len({submit.request_id for submit in submits}) == 4
    texts = [rig.vocabulary.decode(rig.scheduler.prompt(submit)) for submit in submits]
    assert texts == ["red", "red", "green", "green"]
    rig.scheduler.start(*submits)
    for index, submit in enumerate(submits):
        rig.scheduler.tokens(submit, rig.vocabulary.encode(f"answer {index}"))
    rig.run()
    assert [rig.http.text("op", choice) for choice in range(4)] == [
        f"answer {index}" for index in range(4)
    ]


def test_queued_is_told_once_all_choices_are(rig: TokenizerRig) -> None:
    """`Queued` waits for the last choice; a choice that starts early brings it along first."""
    first, second = rig.generate(n=2)
    rig.scheduler.say(record(first, OutputKind.QUEUED))
    rig.run()
    assert rig.http.messages == []
    rig.scheduler.say(record(second, OutputKind.QUEUED))
    rig.run()
    assert [type(message) for message in rig.http.messages] == [Queued]
    third, _ = rig.generate("early", n=2)
    rig.scheduler.start(third)
    rig.run()
    assert [type(message) for message in rig.http.messages] == [Queued, Queued, Started]


def test_chat_prompts_use_the_template(rig: TokenizerRig) -> None:
    """A conversation becomes control tokens of the template and text of the client."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "<|im_end|>"}]
    (submit,) = rig.generate(prompts=[ChatPrompt(messages)])
    ids = rig.scheduler.prompt(submit)
    assert [i for i in ids if i in (IM_START_ID, IM_END_ID)] == [
        IM_START_ID, IM_END_ID, IM_START_ID,
    ]  # fmt: skip
    assert rig.vocabulary.decode(ids) == "user\n<|im_end|>\nassistant\n"


def test_echo_and_token_ids_are_told(rig: TokenizerRig) -> None:
    """With `echo` http gets prompt ids and texts, with `want_token_ids` the ids of each chunk."""
    submit = rig.begun(text="abc", echo=True, want_token_ids=True)
    (queued,) = [m for m in rig.http.messages if isinstance(m, Queued)]
    assert queued.prompt_texts == ["abc"]
    assert queued.prompt_token_ids == [rig.vocabulary.encode("abc")]
    answer = rig.vocabulary.encode("héllo 🐍")
    rig.scheduler.tokens(submit, answer)
    rig.run()
    assert [i for chunk in rig.http.chunks("op") for i in chunk.token_ids] == answer
    assert rig.http.text("op") == "héllo 🐍"


def test_half_characters_wait(rig: TokenizerRig) -> None:
    """While a character is unfinished no chunk is sent; at the end it is U+FFFD."""
    submit = rig.begun()
    first, *_ = rig.vocabulary.encode("🐍")
    rig.scheduler.tokens(submit, [first])
    rig.run()
    assert rig.http.chunks("op") == []
    rig.scheduler.finish(submit, 1)
    rig.run()
    assert rig.http.text("op") == "\ufffd"


def test_a_stop_string_ends_a_choice_at_its_token(rig: TokenizerRig) -> None:
    """Text ends before the stop string, usage after the token that completed it."""
    answer = rig.vocabulary.encode("one. two. three")
    submit = rig.begun(stop=(". t",))
    rig.scheduler.tokens(submit, answer)
    rig.run()
    last = rig.http.chunks("op")[-1]
    assert (last.finish_reason, last.stop_reason) == ("stop", ". t")
    assert rig.http.text("op") == "one"
    count = next(n for n in range(1, len(answer)) if ". t" in rig.vocabulary.decode(answer[:n]))
    assert last.num_output_tokens == count
    assert [(s.request_id, s.num_output_tokens) for s in rig.scheduler.stops] == [
        (submit.request_id, count)
    ]
    rig.scheduler.finish(submit, count, RequestStatus.FINISHED_STOPPED)
    rig.run()
    assert sum(bool(chunk.finish_reason) for chunk in rig.http.chunks("op")) == 1
    rig.check_idle()


def test_min_tokens_defers_stop_strings(rig: TokenizerRig) -> None:
    """A stop string that is complete before `min_tokens` tokens is text; the next one ends it."""
    dot, a = (rig.vocabulary.encode(text)[0] for text in (".", "a"))
    submit = rig.begun(stop=(".",), sampling=SamplingParams(min_tokens=3))
    rig.scheduler.tokens(submit, [dot, a, a, dot, a])
    rig.run()
    assert rig.http.text("op") == ".aa"
    assert [stop.num_output_tokens for stop in rig.scheduler.stops] == [4]


def test_stop_token_ids_are_named(rig: TokenizerRig) -> None:
    """A choice that ended on a token the client named says which; others give no reason."""
    for stop_token_ids, expected in (((50,), 50), ((51,), None)):
        sampling = SamplingParams(stop_token_ids=stop_token_ids)
        submit = rig.begun(f"op{expected}", sampling=sampling)
        rig.scheduler.tokens(submit, [50])
        rig.scheduler.finish(submit, 1, RequestStatus.FINISHED_STOPPED)
        rig.run()
        last = rig.http.chunks(f"op{expected}")[-1]
        assert (last.finish_reason, last.stop_reason) == ("stop", expected)


def test_logprobs_carry_text_and_bytes(rig: TokenizerRig) -> None:
    """Each token's entry has its own text and raw bytes, and its best alternatives."""
    sampling = SamplingParams(num_logprobs=2)
    submit = rig.begun(sampling=sampling, want_logprobs=True)
    first, *_ = rig.vocabulary.encode("é")
    (b,) = rig.vocabulary.encode("b")
    fields = {"token_id": first, "logprob": -0.5, "logprobs_start": 1, "num_logprobs": 2}
    rig.scheduler.say(
        record(submit, OutputKind.TOKEN, **fields),
        logprobs=[(0, 0.0), (b, -0.25), (IM_END_ID, -2.0)],
    )
    rig.run()
    ((entry,),) = [chunk.logprobs for chunk in rig.http.chunks("op")]
    assert (entry.token_id, entry.logprob, entry.raw) == (first, -0.5, "é".encode()[:1])
    assert entry.text == "\ufffd"
    assert entry.top == [(b, -0.25, "b", b"b"), (IM_END_ID, -2.0, "<|im_end|>", b"<|im_end|>")]


def test_prompt_logprobs_come_once_each(rig: TokenizerRig) -> None:
    """Positions start with one that has none, and positions computed again are not repeated."""
    sampling = SamplingParams(num_prompt_logprobs=1)
    prompt = IdsPrompt([10, 11, 12, 13])
    submit = rig.begun(prompts=[prompt], sampling=sampling)

    def say(index: int, entries: list[tuple[int, float]]) -> None:
        fields = {"index": index, "num_logprobs": len(entries)}
        rig.scheduler.say(record(submit, OutputKind.PROMPT_LOGPROBS, **fields), logprobs=entries)

    say(1, [(11, -1.0), (99, -0.5), (12, -2.0), (98, -0.5)])
    say(1, [(11, -1.0), (99, -0.5)])
    say(2, [(12, -2.0), (98, -0.5), (13, -3.0), (97, -0.5)])
    rig.run()
    entries = [e for chunk in rig.http.chunks("op") for e in chunk.prompt_logprobs]
    assert [entry.token_id for entry in entries] == [10, 11, 12, 13]
    assert np.isnan(entries[0].logprob)
    assert [entry.logprob for entry in entries[1:]] == [-1.0, -2.0, -3.0]
    assert [entry.top[0][0] for entry in entries[1:]] == [99, 98, 97]


def test_long_prompts_of_tenants_take_turns() -> None:
    """Pieces alternate between tenants, and a short prompt waits for none of them."""
    rig = TokenizerRig(tiny_vocabulary(), piece_bytes=1024)
    text = "the rest of the interesting street is there " * 60
    for tenant in ("a", "a", "b"):
        rig.http.send(generate(f"{tenant}{rig.clock.advance(1)}", text=text, tenant=tenant))
    rig.http.send(generate("short", text="hi", tenant="c"))
    rig.loop.step(rig.channels, rig.clock)
    rig.scheduler.read()
    assert [submit.operation_id for submit in rig.scheduler.submits] == ["short"]
    rig.run()
    turns = "".join(rig.worker.tenants)
    assert turns.startswith("abab")
    assert turns.rstrip("a").count("b") == turns.count("b")


def test_tokenize_and_detokenize_answer(rig: TokenizerRig) -> None:
    """Text, conversations and ids are answered with ids and texts, and bad ids with a failure."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
    ids = rig.vocabulary.encode("hi 🐍")
    rig.http.send(Tokenize("t", "tenant", TextPrompt("hi 🐍")))
    rig.http.send(Tokenize("c", "tenant", ChatPrompt(messages)))
    rig.http.send(Tokenize("long", "tenant", TextPrompt("word " * 300)))
    rig.http.send(Detokenize("d", "tenant", [IM_START_ID, *ids]))
    rig.http.send(Detokenize("bad", "tenant", [900]))
    rig.http.send(Tokenize("huge", "tenant", TextPrompt("x" * 100_000)))
    rig.run()
    answers = {message.operation_id: message for message in rig.http.messages}  # type: ignore[union-attr]
    tokenized, chat, long, detokenized, bad = (answers[k] for k in ("t", "c", "long", "d", "bad"))
    assert isinstance(tokenized, Tokenized)
    assert tokenized.token_ids == ids
    assert len(tokenized.token_strs) == len(ids)
    assert isinstance(chat, Tokenized)
    assert chat.token_ids[0] == IM_START_ID
    assert isinstance(long, Tokenized)
    assert long.token_ids == rig.vocabulary.encode("word " * 300)
    assert detokenized == Detokenized("d", "hi 🐍")
    assert isinstance(bad, Failed)
    assert (bad.status, bad.param) == (400, "tokens")
    huge = answers["huge"]
    assert isinstance(huge, Failed)
    assert huge.code == "context_length_exceeded"


def test_the_page_counts(rig: TokenizerRig) -> None:
    """The board page shows operations, arena, tokens and refusals."""
    submit = rig.begun()
    rig.generate("bad", prompts=[IdsPrompt([10] * 600)])
    rig.scheduler.tokens(submit, [50, 51])
    rig.run()
    rig.clock.advance(1_000_000_000)
    rig.loop.step(rig.channels, rig.clock)
    page = rig.channels.page.page
    assert page["num_operations"] == 1
    assert page["arena_used_chunks"] == 1
    assert page["arena_chunks"] == 64
    assert page["decoded_tokens"] == 2
    assert page["encoded_tokens"] >= submit.prompt_len
    assert page["rejections"][RejectionReason.CONTEXT_LENGTH_EXCEEDED] == 1
