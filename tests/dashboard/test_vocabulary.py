"""The dashboard's words are the engine's: it may not import them, so they are compared here."""

from core.errors import RejectionReason
from core.metering import PreemptionCause, PreemptionKind
from core.policy.base import Blocked
from core.request import RequestStatus
from core.scheduler.decisions import DecisionKind
from core.supervision.states import ProcessState
from core.tenancy.classes import CLASS_NAMES
from core.tenancy.rows import OTHER_NAME
from dashboard import vocabulary
from dashboard.tables.events import KIND_TONES
from dashboard.tables.tenants import OTHER
from dashboard.vocabulary import word
from dashboard.waits import REASONS


def test_every_number_has_the_engines_name() -> None:
    """In the engine's order."""
    assert vocabulary.CLASSES == CLASS_NAMES
    assert tuple(r.code for r in RejectionReason) == vocabulary.REJECTIONS
    assert tuple(s.name.lower() for s in ProcessState) == vocabulary.PROCESS_STATES
    assert tuple(k.name.lower() for k in PreemptionKind) == vocabulary.PREEMPTION_KINDS
    assert tuple(c.name.lower() for c in PreemptionCause) == vocabulary.PREEMPTION_CAUSES
    assert OTHER == OTHER_NAME


def test_every_reason_to_wait_has_a_sentence() -> None:
    """Short enough for a line of 80 cells beside the reason itself."""
    assert set(REASONS) == {blocked.name.lower() for blocked in Blocked}
    for name, reason in REASONS.items():
        assert len(f" waits for {name}: {reason.sentence}") <= 80
        assert len(f" what helps: {reason.helps}") <= 80
        assert "{" not in reason.numbers.format("1", "2", 3.0)


def test_a_request_has_ended_from_the_first_final_status_on() -> None:
    """All before it are of live requests."""
    final = [status.is_finished for status in RequestStatus]
    assert final == [status >= vocabulary.FIRST_FINAL_STATUS for status in RequestStatus]


def test_refusals_that_break_a_promise_are_reasons_of_the_engine() -> None:
    """And so are the kinds of events that have a tone."""
    assert set(vocabulary.PROMISE_BREAKS) <= set(vocabulary.REJECTIONS)
    here = {"restart", "engine", "command", "failed"}
    assert set(KIND_TONES) - here <= {kind.label for kind in DecisionKind}


def test_a_number_without_a_name_stays_a_number() -> None:
    """A newer engine may know more words."""
    assert word(("a", "b"), 1) == "b"
    assert word(("a", "b"), 7) == "7"
    assert word(("a", "b"), -1) == "-1"
