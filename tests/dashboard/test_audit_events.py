"""Events: the engine's own are kept by kind, records of the audit log are shown among them."""

from collections.abc import Mapping

from dashboard.audit import event_of
from dashboard.format import ASCII
from dashboard.history import History
from dashboard.journal import Journal
from dashboard.screens.events import MAX_KEPT_OF_A_KIND, EventsScreen
from dashboard.source.base import Record
from dashboard.tables.events import events_table, identity_of, numbers_of
from tests.support.control_plane.dashboard_stage import StageClock, demo

SET = {
    "time": "2026-11-29T20:00:01.500+00:00", "worker": "admin.0", "actor": "ctl alice",
    "command": "set", "args": {"path": "tenants.acme.weight", "value": "3"},
    "code": "", "error": "", "result": {"before": 1.0, "after": 3.0}, "step": 7,
}  # fmt: skip


def test_a_change_says_who_what_before_and_after() -> None:
    """At the time of day at which it was given."""
    event = event_of(dict(SET))
    assert event["kind"] == "command"
    assert event["tenant"] == "ctl alice"
    assert event["reason"] == "set tenants.acme.weight 3"
    assert numbers_of(event) == "1 > 3"
    assert event["at_s"] == 1_795_982_401.5


def test_a_refused_command_says_why() -> None:
    """In the words of the answer."""
    event = event_of({**SET, "code": "failed", "error": "weight must be positive", "result": {}})
    assert event["kind"] == "failed"
    assert numbers_of(event) == "weight must be positive"


def test_a_record_of_any_shape_is_shown() -> None:
    """A caller without the key has sent nothing that can be trusted; a broken time is no time."""
    event = event_of({"time": "soon", "actor": "x\x1b[2J", "command": "", "code": "bad_key"})
    assert event["at_s"] == 0.0
    assert "\x1b" not in str(event["tenant"])
    assert numbers_of(event) == "bad_key"


def test_two_commands_are_two_rows() -> None:
    """However alike they are."""
    again = {**SET, "time": "2026-11-29T20:00:02.500+00:00"}
    events = [event_of(dict(SET)), event_of(again)]
    assert len({identity_of(event) for event in events}) == 2
    table = events_table(lambda: 1_795_982_403.5)
    table.show(events)
    assert table.rows[0]["at_s"] == 1_795_982_402.5
    assert table.records()[0]["at_s"] == "1.0s"


async def nobody(command: str, args: Mapping[str, object]) -> Record:
    """Answer nothing."""
    return {}


def test_a_flood_of_refusals_hides_no_preemption() -> None:
    """The last of each kind are kept, however many others there have been since."""
    screen = EventsScreen(ASCII, nobody, Journal())
    num_sheds = 3 * MAX_KEPT_OF_A_KIND
    kinds = ["preempt", *["shed"] * num_sheds]
    events = [{"number": i, "kind": kind, "age_s": 1.0} for i, kind in enumerate(kinds)]
    screen.answered({"events": events, "next": len(events), "total": len(events)}, asked_s=5.0)
    view = History().push(demo(StageClock()).read())
    shown = [row["kind"] for row in screen.rows(view)]
    assert (shown.count("preempt"), shown.count("shed")) == (1, MAX_KEPT_OF_A_KIND)
    assert screen.headline() == (
        f"{num_sheds + 1} events since the scheduler's start, {MAX_KEPT_OF_A_KIND + 1} kept here"
    )
