"""What of a tenant's row stands out, and when it does not."""

from typing import Any

import msgspec
import pytest

from dashboard.frame import TenantFrame
from dashboard.history import TenantRates
from dashboard.lines import ALARM, FAINT, NOTICE, PLAIN, Span, Tone
from dashboard.tables.tenants import COLUMNS, PROMISES, TenantRow
from dashboard.vocabulary import PROMISE_BREAKS

BROKEN, FULL = PROMISE_BREAKS[0], "tenant_queue_full_requests"
QUIET = TenantFrame("acme", False, 1.0, 0.5, 0.5, 0, 0, 0.0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, {})
CELLS = {column.key: column.cell for column in (*COLUMNS, *PROMISES)}


def cell(key: str, refused: dict[str, int] | None = None, **changes: Any) -> Span:
    """Return a cell of a tenant that differs so from a quiet one, and was refused so lately."""
    tenant = msgspec.structs.replace(QUIET, **changes)
    return CELLS[key](TenantRow(tenant, TenantRates(refused=refused or {})))


def test_a_state_is_the_worst_that_is_true() -> None:
    """Removed before paused, refused before busy, busy before waiting, waiting before idle."""
    busy: dict[str, Any] = {"running": 1, "waiting": 1}
    assert cell("state") == ("idle", FAINT)
    assert cell("state", waiting=1) == ("wait", NOTICE)
    assert cell("state", **busy) == ("run", Tone.GOOD)
    assert cell("state", {FULL: 1}, **busy) == ("refuse", NOTICE)
    assert cell("state", {FULL: 1}, paused=True, **busy) == ("paused", NOTICE)
    assert cell("state", {FULL: 1}, paused=True, removed=True, **busy) == ("gone", FAINT)


@pytest.mark.parametrize(
    ("used", "waiting", "shown"),
    [(0.504, 1, ("-", FAINT)), (0.55, 1, ("+5", PLAIN)), (0.61, 0, ("+11", NOTICE)),
     (0.45, 1, ("-5", PLAIN)), (0.39, 0, ("-11", PLAIN)), (0.39, 1, ("-11", NOTICE))],
)  # fmt: skip
def test_a_share_far_off_is_worth_a_look(used: float, waiting: int, shown: Span) -> None:
    """Too much always, too little only of whoever waits for the rest."""
    assert cell("over", share_used=used, waiting=waiting) == shown


def test_a_wait_is_shown_of_who_waits_and_stands_out_when_it_is_long() -> None:
    """A wait of the past is none."""
    assert cell("oldest", oldest_wait_s=99.0) == ("-", FAINT)
    assert cell("oldest", oldest_wait_s=10.0, waiting=1) == ("10.0s", PLAIN)
    assert cell("oldest", oldest_wait_s=10.1, waiting=1) == ("10.1s", NOTICE)


def test_memory_at_its_quota_stands_out() -> None:
    """A tenant without a quota, as while there is no executor, is not at it."""
    assert cell("held", held_blocks=99) == ("99", PLAIN)
    assert cell("held", held_blocks=100) == ("100", NOTICE)
    assert cell("held", held_blocks=0, quota_blocks=0) == ("-", FAINT)


def test_refusals_stand_out_while_they_happen() -> None:
    """Those that broke a promise most; the reason is that of the last seconds if there is any."""
    counted = {FULL: 3, BROKEN: 1}
    assert cell("refused") == ("-", FAINT)
    assert cell("refused", rejections=counted) == ("4", PLAIN)
    assert cell("refused", {FULL: 1}, rejections=counted) == ("4", NOTICE)
    assert cell("refused", {BROKEN: 1}, rejections=counted) == ("4", ALARM)
    assert cell("reason", rejections=counted) == (FULL, FAINT)
    assert cell("reason", {BROKEN: 1}, rejections=counted) == (BROKEN, NOTICE)
    assert cell("broken", rejections=counted) == ("1", ALARM)
    assert cell("broken", rejections={FULL: 3}) == ("-", FAINT)


def test_a_budget_that_is_nearly_used_up_stands_out() -> None:
    """Below a tenth of what it can hold; whoever has none has a dash."""
    assert cell("budget") == ("-", FAINT)
    assert cell("budget", budget_tokens=1000, budget_limit=10_000) == ("1000", PLAIN)
    assert cell("budget", budget_tokens=999, budget_limit=10_000) == ("999", NOTICE)


@pytest.mark.parametrize(
    ("key", "field"),
    [("waiting", "waiting"), ("running", "running"), ("preempted", "preempted"),
     ("quota", "quota_blocks"), ("swapped", "swapped"), ("again", "recomputed_tokens"),
     ("requests", "requests"), ("missed", "deadline_misses")],
)  # fmt: skip
def test_a_count_is_that_of_its_column(key: str, field: str) -> None:
    """None is a dash, so that what is there stands out."""
    for number, shown in ((7, ("7", PLAIN)), (0, ("-", FAINT))):
        changes: dict[str, Any] = {field: number}
        assert cell(key, **changes) == shown
