"""The tokenizer when a neighbour dies, leaves or is not understood: nothing lost or doubled."""

import pytest

from core.errors import RejectionReason
from core.messages.http import Queued, Started
from core.messages.tokenizer import (
    Cancel,
)
from core.peers import Peer
from core.request import RequestStatus
from core.tokenizer.requests import ABANDONED_SPAN_NS
from tests.support.loops.tokenizer_rig import TokenizerRig, generate
from tests.support.models.tiny_vocabulary import tiny_vocabulary


@pytest.fixture
def rig() -> TokenizerRig:
    """A tokenizer with one http process and one scheduler."""
    return TokenizerRig(tiny_vocabulary())


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
