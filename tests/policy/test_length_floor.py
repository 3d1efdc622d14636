"""The lead that keeps refusals even over lengths."""

from random import Random

import pytest

from core.policy.lateness.length_floor import FIRST_LEAD, LEAD_MAX, RATIO, LengthFloor


def after(short_rate: float, long_rate: float, count: int = 4000) -> LengthFloor:
    """Refuse short and long prompts at these rates, in turn."""
    random, floor = Random(1), LengthFloor()
    for number in range(count):
        length, rate = (100, short_rate) if number % 2 else (2000, long_rate)
        (floor.refused if random.random() < rate else floor.served)(length)
    return floor


def test_refusals_of_long_prompts_raise_the_lead() -> None:
    """As far as it goes, if nothing changes."""
    assert after(0.05, 0.6).lead == LEAD_MAX


def test_refusals_of_short_prompts_lower_the_lead() -> None:
    """Down to nothing."""
    assert after(0.6, 0.1).lead == 0.0


def test_the_ratio_aimed_at_leaves_the_lead_alone() -> None:
    """It stays near where it was."""
    assert after(0.3, 0.3 * RATIO, 1000).lead == pytest.approx(FIRST_LEAD, abs=0.4)


def test_rates_are_told_by_quarters() -> None:
    """Half of all are short and half of those were refused."""
    rates = after(0.5, 0.1).rates()
    assert rates[0] == pytest.approx(0.5, abs=0.1)
    assert rates[-1] == pytest.approx(0.1, abs=0.1)


def test_without_refusals_nothing_happens() -> None:
    """Whatever is served."""
    assert after(0.0, 0.0).lead == FIRST_LEAD


def test_quarters_are_those_of_the_lengths_seen() -> None:
    """Half of all are short: they fill the lower two; refusals of the longest count for less."""
    floor = after(0.3, 0.3)
    assert floor.quarter(10) == 0
    assert floor.quarter(5000) == 3
    assert floor.quarter(100) < 2 <= floor.quarter(2000)
    assert floor.refusals()[-1] == pytest.approx(floor.rates()[-1] / RATIO)
