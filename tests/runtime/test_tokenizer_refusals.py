"""What the tokenizer refuses, and how it tells what the scheduler refuses."""

from typing import Any

import pytest

from core.errors import RejectionReason
from core.messages.scheduler import Submit
from core.messages.tokenizer import (
    ChatPrompt,
    IdsPrompt,
    TextPrompt,
)
from core.request import RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler.plan import OutputKind
from core.tenancy.tenancy import Tenancy
from tests.support.loops.tokenizer_rig import MAX_MODEL_LEN, TokenizerRig, generate, record
from tests.support.models.tiny_vocabulary import tiny_vocabulary


def expire(rig: TokenizerRig, submit: Submit, threshold_ms: float) -> None:
    """Let the scheduler say that a deadline so long after the arrival has passed."""
    end = {
        "status": RequestStatus.FINISHED_EXPIRED,
        "reason": RejectionReason.DEADLINE_EXCEEDED,
        "threshold": threshold_ms,
    }
    rig.scheduler.say(
        record(submit, OutputKind.FINISHED, **end), record(submit, OutputKind.RELEASED)
    )
    rig.run()


@pytest.fixture
def rig() -> TokenizerRig:
    """A tokenizer with one http process and one scheduler."""
    return TokenizerRig(tiny_vocabulary())


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


def test_more_tokens_at_least_than_the_context_has_are_refused(rig: TokenizerRig) -> None:
    """`min_tokens` counts like `max_tokens` where that one is left to us: it could not be kept."""
    sampling = SamplingParams(min_tokens=13)
    prompts = [IdsPrompt([10] * 500)]
    assert rig.generate(prompts=prompts, max_tokens=None, sampling=sampling) == []
    (failed,) = rig.http.failed()
    assert failed.code == "context_length_exceeded"
    (submit,) = rig.generate(
        "fits", prompts=prompts, max_tokens=None, sampling=SamplingParams(min_tokens=12)
    )
    assert submit.max_tokens == 12


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
    times = {"accepted_ns": 1, "queue_deadline_ns": 5_000_001, "end_deadline_ns": 9_000_001}
    (waiting,) = rig.generate("waiting", **times)
    running = rig.begun("running", **times)
    expire(rig, waiting, threshold_ms=5.0)
    expire(rig, running, threshold_ms=9.0)
    (failed,) = rig.http.failed()
    assert (failed.operation_id, failed.status) == ("waiting", 408)
    last = rig.http.chunks("running")[-1]
    assert last.finish_reason == "abort"
    assert last.client_deadline
    assert last.rejection is not None


def test_a_deadline_of_the_engine_is_not_the_clients(rig: TokenizerRig) -> None:
    """If the class's tighter deadline has passed, it is no matter that the client had one too."""
    (waiting,) = rig.generate("waiting", accepted_ns=1, queue_deadline_ns=5_000_001)
    expire(rig, waiting, threshold_ms=4.0)
    (failed,) = rig.http.failed()
    assert failed.status != 408


def test_a_tenant_that_is_paused_meanwhile_is_refused_before_encoding(rig: TokenizerRig) -> None:
    """What http let through before it knew of the pause goes no further, with the same reason."""
    rig.operations.tenancy = Tenancy(paused_tenants=frozenset({"tenant"}))
    assert rig.generate("op") == []
    (failed,) = rig.http.failed()
    assert failed.rejection is not None
    assert failed.rejection.reason is RejectionReason.TENANT_PAUSED
    assert failed.rejection.knob == "tenants[tenant].paused"
    assert rig.operations.num_encoded_tokens == 0


def test_a_refusal_names_the_knob_of_its_tenant(rig: TokenizerRig) -> None:
    """Records have no room for the knob; it is named from the reason, the tenant and the class."""
    (submit,) = rig.generate("op")
    rig.scheduler.finish(submit, 0, RequestStatus.FINISHED_SHED, RejectionReason.TENANT_RATE)
    rig.run()
    (failed,) = rig.http.failed()
    assert failed.rejection is not None
    assert failed.rejection.knob == "tenants[tenant].tokens_per_minute"


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


def test_an_operation_id_twice_is_refused(rig: TokenizerRig) -> None:
    """A second operation under a live id fails and leaves the first alone."""
    rig.begun("same")
    assert rig.generate("same") == []
    assert [failed.param for failed in rig.http.failed()] == ["id"]
    assert len(rig.operations) == 1
