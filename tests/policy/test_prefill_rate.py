"""The rate at which prompts are computed: from steps that left some, and only from those."""

import pytest

from core.clock import NS_PER_MS, NS_PER_S
from core.policy.lateness.prefill_rate import PrefillRate


def after(
    rate: PrefillRate, steps: list[tuple[int, int]], *, left_some: bool = True
) -> PrefillRate:
    """Let `steps` of (ms, tokens) follow each other."""
    now_ns = NS_PER_S
    for duration_ms, num_tokens in steps:
        rate.begin(0, now_ns)
        rate.planned(0, now_ns, num_tokens, left_some=left_some)
        now_ns += duration_ms * NS_PER_MS
    rate.begin(0, now_ns)
    return rate


def guessed(tokens_per_s: float) -> PrefillRate:
    """Return a rate that was told but not measured."""
    rate = PrefillRate()
    rate.guess(0, tokens_per_s)
    return rate


def test_the_rate_follows_the_steps() -> None:
    """Ten seconds of 300 tokens in 40 ms are 7,500 a second, whatever was guessed."""
    assert after(guessed(1000.0), [(40, 300)] * 250).of(0) == pytest.approx(7500, rel=0.05)


def test_long_steps_count_for_as_long_as_they_last() -> None:
    """Half of the time at 5,000, half at 10,000 a second, in steps of 40 and of 400 ms."""
    steps = ([(40, 200)] * 10 + [(400, 4000)]) * 30
    assert after(guessed(1000.0), steps).of(0) == pytest.approx(7500, rel=0.1)


def test_steps_that_left_no_prompt_say_nothing() -> None:
    """They tell how much there was to do."""
    assert after(guessed(1000.0), [(40, 1)] * 100, left_some=False).of(0) == 1000.0


def test_the_cautious_rate_is_lower_by_the_scatter() -> None:
    """Steady steps leave it close to the average, unsteady ones do not; it stays above half."""
    steady = after(guessed(7500.0), [(40, 300)] * 200)
    unsteady = after(guessed(7500.0), [(40, 100), (40, 500)] * 100)
    assert steady.cautious() > 0.98 * steady.total()
    assert 0.5 * unsteady.total() < unsteady.cautious() < 0.7 * unsteady.total()


def test_replicas_add_up_until_they_are_lost() -> None:
    """Two replicas are as fast as both, one of them as the faster one."""
    rate = guessed(1000.0)
    rate.guess(1, 3000.0)
    rate.guess(1, 9000.0)  # changes nothing
    assert (rate.total(), rate.fastest()) == (4000.0, 3000.0)
    rate.lose(1)
    assert (rate.total(), rate.of(1)) == (1000.0, 0.0)
