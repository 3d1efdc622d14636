"""Which classes wait for company, and for how long."""

from dataclasses import replace

import pytest

from core.policy.limits import Limits
from core.policy.pacing.company import Company
from core.policy.pacing.step_budget import StepRoom
from core.policy.queues.flows import NO_PROMISE_NS, NOBODY_NS
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass

MS = 1_000_000
NOW_NS = 5_000 * MS
ROOM = StepRoom(300 * MS, 10 * MS)
INTERACTIVE, STANDARD, BATCH, ADMINISTRATIVE = TrafficClass
TIGHT = ClassConfig(ttft_ms=6000, itl_ms=50)
LOOSE = ClassConfig(ttft_ms=60_000, itl_ms=400)


def company(fraction: float = 0.25, **classes: ClassConfig) -> Company:
    table = {each.label: LOOSE for each in TrafficClass} | {"interactive": TIGHT} | classes
    return Company(Limits(ClassesConfig(**table)), fraction)


def passed_over(
    some: Company, interactive_in_ms: float = 6000, room: StepRoom = ROOM
) -> tuple[int, ...]:
    """Return who waits when all other classes are due much later."""
    due = [NOW_NS + 60_000 * MS] * len(TrafficClass)
    due[INTERACTIVE] = NOW_NS + int(interactive_in_ms * MS)
    return some.waiting(room, due, NOW_NS)


def test_a_class_with_a_tight_cap_waits_for_a_part_of_its_promise() -> None:
    """A quarter of six seconds is a second and a half."""
    assert passed_over(company(), 4501) == (INTERACTIVE,)
    assert passed_over(company(), 4500) == ()


def test_it_gathers_for_as_large_a_part_of_what_is_left() -> None:
    """A quarter of four and a half seconds is another 1,125 ms."""
    assert company().gathering(ROOM, NOW_NS) == {INTERACTIVE: NOW_NS + 3375 * MS}
    long = ROOM._replace(longest_ns=1200 * MS)  # it must be due after three such
    assert company().gathering(long, NOW_NS) == {INTERACTIVE: NOW_NS + 3600 * MS}
    assert company().gathering(StepRoom(50 * MS, 10 * MS), NOW_NS) == {}
    assert company().longest_ns(INTERACTIVE) == 1500 * MS
    assert company().longest_ns(STANDARD) == 0


def test_where_steps_are_short_already_nobody_waits() -> None:
    """Beside a decode with the same cap, or where a whole step is short, waiting gains nothing."""
    assert passed_over(company(), room=StepRoom(50 * MS, 10 * MS)) == ()
    assert passed_over(company(), room=StepRoom(100 * MS, 10 * MS)) == (INTERACTIVE,)
    assert passed_over(company(), room=StepRoom(0, 0)) == ()


def test_where_long_steps_compute_no_faster_nobody_waits() -> None:
    """As on a CPU, where a token takes as long in any step."""
    assert passed_over(company(), room=StepRoom(10_000 * MS, 4 * MS)) == ()
    assert passed_over(company(), room=StepRoom(10_000 * MS, 5 * MS)) == (INTERACTIVE,)
    assert passed_over(company(), room=StepRoom(60 * MS, 50 * MS)) == (INTERACTIVE,)
    assert passed_over(company(), room=StepRoom(50 * MS, 50 * MS)) == ()


@pytest.mark.parametrize(
    "config",
    [
        replace(TIGHT, itl_ms=0),
        replace(TIGHT, itl_ms=201),
        replace(TIGHT, ttft_ms=0),
        replace(TIGHT, strict_first=True),
    ],
)
def test_only_caps_much_tighter_than_others_are_worth_it(config: ClassConfig) -> None:
    """Not without both promises, nor for classes that are served first."""
    room = StepRoom(10**12, 40 * MS)
    assert INTERACTIVE not in passed_over(company(interactive=config), room=room)
    assert company(interactive=config).longest_ns(INTERACTIVE) == 0


def test_it_can_be_switched_off() -> None:
    """With a fraction of 0 nobody waits."""
    assert passed_over(company(fraction=0.0)) == ()


@pytest.mark.parametrize("due_ns", [NOBODY_NS, NO_PROMISE_NS + NOW_NS])
def test_who_was_promised_nothing_does_not_wait(due_ns: int) -> None:
    """It would wait for as long as others come."""
    due = [due_ns] * len(TrafficClass)
    assert company().waiting(ROOM, due, NOW_NS) == ()
