"""How much of the growth that is foreseen is kept free, and what may be thrown away."""

import pytest

from core.policy.kv_memory.caution import HIGHEST, LOWEST, Caution


def test_caution_grows_with_what_is_thrown_away_and_fades_without() -> None:
    """Nothing preempted makes admission bolder step by step, too much at once more careful."""
    caution = Caution(0.05)
    for _ in range(1000):
        caution.computed(2000, 0)
    assert caution.factor == LOWEST
    caution.preempted(200)
    caution.computed(2000, 0)
    assert caution.factor >= 1.25 * LOWEST
    for _ in range(1000):
        caution.preempted(1000)
        caution.computed(2000, 0)
    assert caution.factor == HIGHEST


def test_caution_rests_where_little_is_thrown_away() -> None:
    """A fifth of what may be preempted moves the factor nowhere."""
    caution = Caution(0.05)
    for _ in range(100):
        caution.preempted(20)
        caution.computed(2000, 0)
    assert caution.factor == pytest.approx(1.0)


def test_what_is_called_back_by_choice_is_paid_for_by_what_was_computed() -> None:
    """Half of what may be thrown away can be called back without need; debt is worked off."""
    caution = Caution(0.05)
    assert caution.has_credit
    caution.preempted(50)
    assert not caution.has_credit
    caution.computed(1999, 10**6)
    assert not caution.has_credit
    caution.computed(1, 10**6)
    assert caution.has_credit
