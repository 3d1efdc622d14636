"""The tokenizer's loop between a scripted http and a scripted scheduler."""

from typing import Any

import numpy as np
import pytest

from core.errors import RejectionReason
from core.kv_cache.digest import chain_digests, join_digests, namespace_digest
from core.messages.http import Detokenized, Failed, Queued, Started, Tokenized
from core.messages.tokenizer import (
    Cancel,
    ChatPrompt,
    Detokenize,
    IdsPrompt,
    TextPrompt,
    Tokenize,
)
from core.request import RequestStatus
from core.runtime.peers import Peer
from core.sampling_params import SamplingParams
from core.scheduler.plan import OutputKind
from core.tokenizer.requests import ABANDONED_SPAN_NS
from tests.support.tiny_model import IM_END_ID, IM_START_ID
from tests.support.tiny_vocabulary import tiny_vocabulary
from tests.support.tokenizer_rig import BLOCK_SIZE, MAX_MODEL_LEN, TokenizerRig, generate, record


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


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompts": [IdsPrompt([])]}, "prompt", "empty"),
        ({"prompts": [TextPrompt("")]}, "prompt", "empty"),
        ({"prompts": []}, "prompt", "no prompt"),
        ({"prompts": [IdsPrompt([5, 900])]}, "prompt", "900"),
        ({"prompts": [IdsPrompt([-1])]}, "prompt", "-1"),
        ({"prompts": [ChatPrompt([{"role": "x", "content": "y"}])]}, "messages", "role"),
        ({"sampling": SamplingParams(stop_token_ids=(900,))}, "stop_token_ids", "900"),
        ({"sampling": SamplingParams(logit_bias=((901, 1.0),))}, "logit_bias", "901"),
        ({"stop": ("",)}, "stop", "stop strings"),
        ({"stop": ("a", "b", "c", "d", "e")}, "stop", "stop strings"),
        ({"stop": ("x" * 2000,)}, "stop", "stop strings"),
    ],
)
def test_bad_requests_fail_with_their_parameter(
    rig: TokenizerRig, fields: dict[str, Any], param: str, words: str
) -> None:
    """What is wrong with an operation is said with the parameter's name; no request is made."""
    assert rig.generate(**fields) == []
    (failed,) = rig.http.failed()
    assert (failed.status, failed.param) == (400, param)
    assert words in failed.message
    rig.check_idle()


def test_too_long_a_prompt_says_both_numbers(rig: TokenizerRig) -> None:
    """Prompt + max_tokens beyond the context is refused with what was asked for and the limit."""
    ids = [10] * 500
    assert rig.generate(prompts=[IdsPrompt(ids)], max_tokens=13) == []
    (failed,) = rig.http.failed()
    assert failed.code == "context_length_exceeded"
    assert (
        "maximum context length is 512 tokens. However, you requested 513 tokens" in failed.message
    )
    assert failed.num_prompt_tokens == 500
    assert failed.rejection is not None
    assert (failed.rejection.measured, failed.rejection.threshold) == (513, 512)
    (submit,) = rig.generate("fits", prompts=[IdsPrompt(ids)], max_tokens=12)
    assert submit.prompt_len + submit.max_tokens == MAX_MODEL_LEN


def test_a_hopeless_text_is_refused_before_it_is_encoded(rig: TokenizerRig) -> None:
    """A text that no encoding can make short enough costs one look, not many pieces."""
    rig.generate(text="x" * 1_000_000)
    (failed,) = rig.http.failed()
    assert failed.code == "context_length_exceeded"
    assert len(rig.worker.tenants) <= 2
    rig.check_idle()


def test_a_full_arena_is_429_and_leaves_nothing() -> None:
    """An operation whose choices do not all fit is refused whole; room comes with a release."""
    rig = TokenizerRig(tiny_vocabulary(), arena_tokens=3 * 256)
    first, second = rig.generate("a", n=2)
    assert rig.generate("b", n=2) == []
    (failed,) = rig.http.failed()
    assert failed.rejection is not None
    assert failed.rejection.reason is RejectionReason.TOKENIZER_BUSY
    assert failed.rejection.knob == "tokenizer.arena_tokens"
    for submit in (first, second):
        rig.scheduler.finish(submit, 0)
    rig.run()
    assert len(rig.generate("c", n=2)) == 2


def test_too_many_operations_are_429() -> None:
    """Beyond `max_operations` an operation is refused at once."""
    rig = TokenizerRig(tiny_vocabulary(), max_operations=2)
    rig.generate("a")
    rig.generate("b")
    assert rig.generate("c") == []
    (failed,) = rig.http.failed()
    assert failed.rejection is not None
    assert failed.rejection.knob == "tokenizer.max_operations"


def test_too_many_pending_bytes_are_429() -> None:
    """Prompts that wait to be encoded are bounded by their bytes."""
    rig = TokenizerRig(tiny_vocabulary(), max_pending_bytes=10_000)
    for operation_id in ("a", "b"):
        rig.http.send(generate(operation_id, text="word " * 1500))
    rig.run()
    failed = [f for f in rig.http.failed() if f.operation_id == "b"]
    assert failed[0].rejection is not None
    assert failed[0].rejection.knob == "tokenizer.pending_bytes"


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


def test_cancel_aborts_every_live_choice(rig: TokenizerRig) -> None:
    """A cancelled operation says nothing more, and its spans are free when released."""
    submits = rig.generate(n=2)
    rig.scheduler.start(*submits)
    rig.run()
    rig.http.send(Cancel("op", closed_ns=99))
    rig.run()
    assert [(a.request_id, a.closed_ns) for a in rig.scheduler.aborts] == [
        (submit.request_id, 99) for submit in submits
    ]
    num_before = len(rig.http.messages)
    rig.scheduler.tokens(submits[0], [50, 51])
    for submit in submits:
        rig.scheduler.finish(submit, 2, RequestStatus.FINISHED_ABORTED)
    rig.run()
    assert len(rig.http.messages) == num_before
    rig.check_idle()


def test_cancel_while_encoding_makes_no_request(rig: TokenizerRig) -> None:
    """An operation cancelled before its prompts are encoded never reaches the scheduler."""
    rig.http.send(generate(text="word " * 400))
    rig.loop.step(rig.channels, rig.clock)
    rig.http.send(Cancel("op"))
    rig.run()
    assert rig.scheduler.submits == []
    assert len(rig.operations.intake) == 0
    rig.check_idle()


def test_cancel_reaches_only_the_senders_operation(rig: TokenizerRig) -> None:
    """Another http process cannot cancel an operation by its id, nor can a prefix of it."""
    other = rig.start_http(1, 1)
    rig.generate("a10")
    other.send(Cancel("a10"))
    rig.http.send(Cancel("a1"))
    rig.run()
    assert rig.scheduler.aborts == []
    assert len(rig.operations) == 1


def test_a_new_http_instance_ends_its_predecessors_operations(rig: TokenizerRig) -> None:
    """When an http process dies its operations are aborted; those of others go on."""
    other = rig.start_http(1, 1)
    mine = rig.begun("mine")
    other.send(generate("theirs"))
    rig.run()
    theirs = rig.scheduler.submits[-1]
    rig.peers.peers["http.0"] = Peer()
    rig.http.port.close()
    rig.run()
    assert [abort.request_id for abort in rig.scheduler.aborts] == [mine.request_id]
    rig.scheduler.start(theirs)
    rig.run()
    assert [type(message) for message in other.read()] == [Queued, Started]


def test_a_refusal_before_the_start_fails_the_operation(rig: TokenizerRig) -> None:
    """If the scheduler refuses one choice before any has started, the operation fails whole."""
    first, second = rig.generate(n=2)
    rig.scheduler.say(record(first, OutputKind.QUEUED))
    rig.scheduler.finish(
        second, 0, RequestStatus.FINISHED_SHED, RejectionReason.QUEUE_FULL_REQUESTS
    )
    rig.run()
    (failed,) = rig.http.failed()
    assert failed.rejection is not None
    assert failed.rejection.reason is RejectionReason.QUEUE_FULL_REQUESTS
    assert failed.rejection.knob == "scheduler.max_queued_requests"
    assert [abort.request_id for abort in rig.scheduler.aborts] == [first.request_id]
    assert rig.http.chunks("op") == []


def test_a_clients_own_deadline_is_marked(rig: TokenizerRig) -> None:
    """A deadline that the client set is status 408 before the start, a mark on the chunk after."""
    (waiting,) = rig.generate("waiting", queue_deadline_ns=5)
    running = rig.begun("running", end_deadline_ns=5)
    for submit in (waiting, running):
        rig.scheduler.finish(
            submit, 0, RequestStatus.FINISHED_EXPIRED, RejectionReason.DEADLINE_EXCEEDED
        )
    rig.run()
    (failed,) = rig.http.failed()
    assert (failed.operation_id, failed.status) == ("waiting", 408)
    last = rig.http.chunks("running")[-1]
    assert last.finish_reason == "abort"
    assert last.client_deadline
    assert last.rejection is not None


def test_an_executors_fault_ends_one_choice(rig: TokenizerRig) -> None:
    """A choice that ended with an error says so, with the reason; the other one goes on."""
    first, second = rig.generate(n=2)
    rig.scheduler.start(first, second)
    rig.scheduler.finish(first, 0, RequestStatus.FINISHED_ERROR, RejectionReason.EXECUTOR_FAULT)
    rig.scheduler.tokens(second, rig.vocabulary.encode("b"))
    rig.run()
    last = rig.http.chunks("op", 0)[-1]
    assert last.finish_reason == "error"
    assert last.rejection is not None
    assert rig.http.text("op", 1) == "b"


def test_a_restarted_scheduler_gets_everything_again(rig: TokenizerRig) -> None:
    """Requests go on from the delivered tokens: nothing is lost, doubled, or out of order."""
    answer = rig.vocabulary.encode("once upon a time there was a street")
    submits = [rig.begun(name) for name in ("a", "b", "c")]
    rig.scheduler.tokens(submits[0], answer[:4])
    rig.run()
    rig.scheduler.tokens(submits[0], answer[4:6])  # nobody reads these before the restart
    rig.kill_scheduler()
    rig.ids[submits[0].span_start + submits[0].prompt_len :][:6] = -7  # died while writing
    new = rig.start_scheduler(2)
    rig.run()
    assert [s.request_id for s in new.submits] == [s.request_id for s in submits]
    assert [s.resume_from for s in new.submits] == [4, 0, 0]
    again = new.submits[0]
    assert new.span(again)[: again.prompt_len + 4] == [*new.prompt(submits[0]), *answer[:4]]
    new.start(*new.submits)
    new.tokens(again, answer[4:], first_index=4)
    new.finish(again, len(answer))
    rig.run()
    assert rig.http.text("a") == "once upon a time there was a street"
    last = rig.http.chunks("a")[-1]
    assert (last.num_output_tokens, last.num_cached_tokens) == (len(answer), 3)
    assert sum(isinstance(m, Started) for m in rig.http.messages) == 3


def test_outputs_said_before_a_death_count(rig: TokenizerRig) -> None:
    """What the old scheduler said and did not void is delivered before anything is resubmitted."""
    answer = rig.vocabulary.encode("abc def ghi")
    submit = rig.begun()
    rig.kill_scheduler()
    rig.scheduler.tokens(submit, answer[:2])
    floor = rig.ring.floor
    new = rig.start_scheduler(2)
    rig.ring.floor = floor  # as if it had died between its last frame and the reset
    rig.run()
    assert new.submits[0].resume_from == 2


def test_spans_of_ended_requests_are_free_at_a_restart(rig: TokenizerRig) -> None:
    """Cancelled requests are not resubmitted, and nobody waits for their release."""
    rig.begun("a")
    rig.begun("b")
    rig.http.send(Cancel("a"))
    rig.run()
    rig.kill_scheduler()
    new = rig.start_scheduler(2)
    rig.run()
    assert [submit.operation_id for submit in new.submits] == ["b"]
    assert rig.arena.statistics().num_spans == 1


def test_while_the_scheduler_is_away_requests_wait(rig: TokenizerRig) -> None:
    """Operations accepted without a scheduler are submitted once, when one serves."""
    rig.kill_scheduler()
    rig.run()
    rig.http.send(generate("a"))
    rig.http.send(generate("b"))
    rig.run()
    new = rig.start_scheduler(2)
    rig.peers.peers["scheduler"] = Peer(2, 0)  # it can receive, but has not said that it serves
    rig.run()
    assert new.submits == []
    rig.peers.peers["scheduler"] = Peer(2, 2)
    rig.run()
    assert [submit.operation_id for submit in new.submits] == ["a", "b"]


def test_without_hope_of_a_scheduler_everything_fails(rig: TokenizerRig) -> None:
    """If the scheduler is given up, streams end with an error and waiting operations fail."""
    rig.begun("running")
    rig.generate("waiting")
    rig.kill_scheduler()
    rig.peers.peers["scheduler"] = Peer(is_given_up=True)
    rig.run()
    (failed,) = rig.http.failed()
    assert failed.operation_id == "waiting"
    last = rig.http.chunks("running")[-1]
    assert last.finish_reason == "error"
    assert last.rejection is not None
    assert last.rejection.reason is RejectionReason.ENGINE_RESTARTED


@pytest.mark.parametrize("cause", ["torn slot", "gap", "nonsense token", "early end"])
def test_lost_records_make_requests_go_on_under_new_names(rig: TokenizerRig, cause: str) -> None:
    """After a loss every request is aborted and continues as a new one from what was delivered."""
    answer = rig.vocabulary.encode("once upon a time")
    submit = rig.begun()
    rig.scheduler.tokens(submit, answer[:2])
    rig.run()
    match cause:
        case "torn slot":
            rig.scheduler.tokens(submit, answer[2:3], first_index=2)
            rig.ring.damage(rig.ring.head - 1)
        case "gap":
            rig.scheduler.tokens(submit, answer[3:4], first_index=3)
        case "nonsense token":
            rig.scheduler.tokens(submit, [10_000], first_index=2)
        case "early end":
            rig.scheduler.finish(submit, 3)
    rig.run()
    assert [abort.request_id for abort in rig.scheduler.aborts] == [submit.request_id]
    again = rig.scheduler.submits[-1]
    assert again.request_id != submit.request_id
    assert again.span_start != submit.span_start
    assert again.resume_from == 2
    prompt = rig.scheduler.prompt(submit)
    assert rig.scheduler.span(again)[: again.prompt_len + 2] == [*prompt, *answer[:2]]
    rig.scheduler.start(again)
    rig.scheduler.tokens(again, answer[2:], first_index=2)
    rig.scheduler.finish(again, len(answer))
    rig.run()
    assert rig.http.text("op") == "once upon a time"
    assert sum(bool(chunk.finish_reason) for chunk in rig.http.chunks("op")) == 1
    rig.clock.advance(ABANDONED_SPAN_NS)
    rig.run()
    rig.check_idle()


def test_a_late_release_frees_an_abandoned_span(rig: TokenizerRig) -> None:
    """The span of a request that was replaced is free as soon as the scheduler lets go of it."""
    submit = rig.begun()
    rig.scheduler.tokens(submit, [50], first_index=5)
    rig.run()
    assert rig.arena.statistics().num_spans == 2
    rig.scheduler.finish(submit, 5, RequestStatus.FINISHED_ABORTED)
    rig.run()
    assert rig.arena.statistics().num_spans == 1


def test_repeated_tokens_are_dropped(rig: TokenizerRig) -> None:
    """A token that was delivered before is not delivered again."""
    submit = rig.begun()
    answer = rig.vocabulary.encode("hello")
    rig.scheduler.tokens(submit, answer)
    rig.scheduler.tokens(submit, answer)
    rig.run()
    assert rig.http.text("op") == "hello"


def test_a_slow_http_process_loses_nothing_until_it_is_too_late(rig: TokenizerRig) -> None:
    """Messages wait in order for a full peer; one that never reads loses its operations only."""
    submit = rig.begun(want_token_ids=True)
    rig.http.port.close()
    rig.scheduler.tokens(submit, [50, 51])
    rig.run()
    rig.network.dealers["front", rig.http.identity] = rig.http.port
    rig.scheduler.tokens(submit, [52], first_index=2)
    rig.run()
    ids = [i for chunk in rig.http.chunks("op") for i in chunk.token_ids]
    assert ids == [50, 51, 52]


def test_an_operation_id_twice_is_refused(rig: TokenizerRig) -> None:
    """A second operation under a live id fails and leaves the first alone."""
    rig.begun("same")
    assert rig.generate("same") == []
    assert [failed.param for failed in rig.http.failed()] == ["id"]
    assert len(rig.operations) == 1


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
