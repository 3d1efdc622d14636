"""A delay is held against the step that ran meanwhile, as other streams saw it."""

import pytest

from scripts.bench.benchmarks.cancel import Delay, delay_figures
from scripts.bench.harness.client import Timeline


def test_the_longest_overlapping_gap_is_the_step() -> None:
    """Gaps before and after do not count; one that is still open at the reclaim does."""
    outputs_s = [0.0, 9.0, 10.1, 10.4, 10.5]
    assert Delay("decode", 10.2, 10.3).longest_step_s(outputs_s) == pytest.approx(0.3)
    assert Delay("decode", 10.2, 10.45).longest_step_s(outputs_s) == pytest.approx(0.3)
    assert Delay("decode", 9.5, 10.3).longest_step_s(outputs_s) == pytest.approx(1.1)
    assert Delay("decode", 20.0, 20.1).longest_step_s(outputs_s) == 0.0


def test_the_excess_is_what_a_delay_has_beyond_its_step() -> None:
    """A reclaim within the step has none."""
    others = [Timeline(chunk_s=[1.0, 1.5, 2.0])]
    figures = delay_figures([Delay("decode", 1.1, 1.4), Delay("decode", 1.6, 2.3)], others)
    assert figures["excess_over_a_step_ms"]["max"] == pytest.approx(200)
    assert figures["reclaim_ms"]["max"] == pytest.approx(700)
