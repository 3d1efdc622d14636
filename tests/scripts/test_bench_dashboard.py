"""The benchmark of the dashboard: its arithmetic, and the tenants that it makes up."""

import math
from pathlib import Path

import pytest

from core.config.file import load_config
from scripts.bench.benchmarks.dashboard.loads import DEMO_CONFIG, DEMO_KEYS, write_tenants
from scripts.bench.benchmarks.dashboard.looks import cost
from scripts.bench.benchmarks.dashboard.pairs import interval, order, student_975


def test_equal_windows_have_a_ratio_of_one_and_no_width() -> None:
    """Nothing is made up where nothing scatters."""
    assert interval([1.0] * 10) == {"mean": 1.0, "low": 1.0, "high": 1.0}


def test_an_interval_is_students_of_the_logarithms() -> None:
    """Ten ratios, five of them a tenth above and five a tenth below in logarithms: their standard
    deviation is 0.1 * sqrt(10 / 9).
    """
    found = interval([math.exp(0.1), math.exp(-0.1)] * 5)
    width = 2.262 * 0.1 * math.sqrt(10 / 9) / math.sqrt(10)
    assert found["mean"] == pytest.approx(1.0, abs=1e-4)
    assert found["low"] == pytest.approx(math.exp(-width), abs=1e-4)
    assert found["high"] == pytest.approx(math.exp(width), abs=1e-4)


def test_an_unknown_number_of_pairs_gets_the_wider_interval() -> None:
    """Never a narrower one than is right."""
    assert student_975(16) == student_975(15)
    assert student_975(500) == student_975(60) >= 1.96


def test_half_of_the_windows_begin_without_a_change() -> None:
    """A pair has one window of either kind, and its second one is like the next pair's first."""
    windows = list(order(4))
    assert windows == [True, False, False, True, True, False, False, True]


def test_so_many_tenants_as_asked_for_are_written_with_their_keys(tmp_path: Path) -> None:
    """The engine takes the file."""
    path, keys = write_tenants(tmp_path, 64)
    assert [tenant.name for tenant in load_config(path).tenants] == list(keys)


def test_the_demonstrations_keys_are_those_of_its_tenants() -> None:
    """The load reaches all of them."""
    assert set(DEMO_KEYS) == {tenant.name for tenant in load_config(DEMO_CONFIG).tenants}


def test_a_look_costs_what_a_process_takes_beyond_the_window_before() -> None:
    """By look, the median of the rounds, so that a window that was disturbed does not count."""
    alone = [{"admin": 2.0}, {"admin": 4.0}, {"admin": 2.0}]
    watched = [{"admin": 12.0}, {"admin": 14.0}, {"admin": 90.0}]
    assert cost(watched, alone, hertz=10.0) == {"admin": 1.0}
