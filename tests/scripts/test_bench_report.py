"""Figures and bars: percentiles, limits, medians and ratios."""

import asyncio
import math

import pytest

from scripts.bench.benchmarks.load.__main__ import medians, ratios
from scripts.bench.harness import report


def test_percentiles_interpolate_between_neighbours() -> None:
    """The median of 1 to 4 is 2.5; 0 and 100 give the extremes; nothing gives NaN."""
    assert report.percentile([4, 1, 3, 2], 50) == 2.5
    assert report.percentile([4, 1, 3, 2], 0) == 1
    assert report.percentile([4, 1, 3, 2], 100) == 4
    assert math.isnan(report.percentile([], 50))


@pytest.mark.parametrize(
    ("bar", "ok"),
    [("a.b>=5", True), ("a.b>=6", False), ("a.b<=5", True), ("a.b<=4.9", False)],
)
def test_a_bar_holds_or_fails_on_its_figure(bar: str, ok: bool) -> None:
    """A bar is read from text, finds its figure by a dotted path and is inclusive."""
    (verdict,) = report.judge({"a": {"b": 5}}, [report.parse_bar(bar)])
    assert verdict.ok is ok
    assert verdict.value == 5


@pytest.mark.parametrize("figures", [{}, {"a": {}}, {"a": {"b": math.nan}}, {"a": {"b": "text"}}])
def test_a_figure_that_was_not_measured_fails_its_bar(figures: dict[str, object]) -> None:
    """Neither a missing figure nor NaN passes."""
    (verdict,) = report.judge(figures, [report.parse_bar("a.b<=5")])
    assert not verdict.ok
    assert verdict.value is None


def test_a_later_bar_replaces_the_default_one() -> None:
    """The user's limit on a figure wins over the built-in one."""
    verdicts = report.judge({"a": 5}, [report.Bar("a", ">=", 9), report.parse_bar("a>=3")])
    assert [verdict.limit for verdict in verdicts] == [3]


def test_text_that_is_no_bar_is_refused() -> None:
    """A bar needs a name, a relation and a number."""
    for text in ("a", "a=5", ">=5", "a>=x"):
        with pytest.raises(ValueError, match=r"."):
            report.parse_bar(text)


def test_a_failing_bar_gives_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The report is one JSON line and the status says whether all bars hold."""
    good = report.build("x", {"a": 5}, [report.Bar("a", ">=", 5)])
    bad = report.build("x", {"a": 5}, [report.Bar("a", ">=", 6)])
    assert report.emit(good, as_json=True) == 0
    assert report.emit(bad, as_json=True) == 1
    assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.parametrize(
    ("fault", "line"),
    [(ValueError("no such trace"), "x: ValueError: no such trace\n"),
     (asyncio.CancelledError(), "x: stopped before it was done\n")],
)  # fmt: skip
def test_what_could_not_be_measured_is_one_line(
    fault: BaseException, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit status 2: a fault of the world, or somebody who ended the command."""

    async def fail() -> dict[str, object]:
        raise fault

    assert report.run("x", fail, as_json=True) == 2
    assert capsys.readouterr() == ("", line)


def test_medians_and_ratios_follow_the_nesting() -> None:
    """Numbers are combined at their own place; text and zero divisors are left out."""
    runs = [{"m": {"x": x, "note": "n"}, "y": 2 * x} for x in (3, 1, 2)]
    assert medians(runs) == {"m": {"x": 2}, "y": 4}
    assert ratios({"m": {"x": 3}, "y": 1}, {"m": {"x": 2}, "y": 0}) == {"m": {"x": 1.5}}
