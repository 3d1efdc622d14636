"""The page stands alone and shows what was run; tables and charts hold up without data."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from core.simulation.plots import Axis, Series, area_chart, bar_chart, line_chart
from core.simulation.report import html_report
from core.simulation.study import Case, Outcome, figures, run_case
from core.simulation.tables import (
    as_lines,
    class_table,
    leftover_table,
    overview_table,
    refusal_table,
)
from tests.support.loads.workloads import make_workload, random_workload, simulated_settings

VOID = frozenset({"meta", "rect", "path", "polyline", "polygon"})


class Balance(HTMLParser):
    """Checks that every element is closed in order, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outcomes_of(*policies: str) -> list[Outcome]:
    """Run a small workload under some policies."""
    settings, workload = simulated_settings(), random_workload(40, seed=2)
    return [run_case(Case(name, name, settings), workload, lambda: 0.0) for name in policies]


def test_a_report_is_one_page_that_loads_nothing() -> None:
    """All elements are closed, all policies and classes are there, no address is in it."""
    outcomes = outcomes_of("sarathi", "gap-edf")
    documents = [figures(outcome, 0.1) for outcome in outcomes]
    page = html_report("headrace simulate <x>", {"trace": "a&b.csv"}, outcomes, documents)
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert balance.seen.count("svg") >= 8 + 2 + 2
    assert not re.search(r"(src|href)=|https?:|@import|url\(", page)
    for text in ("sarathi", "gap-edf", "ITL, interactive", "a&amp;b.csv", "&lt;x&gt;"):
        assert text in page
    assert "nan" not in page


def test_tables_have_a_row_for_each_case_and_class() -> None:
    """And align on a terminal."""
    documents = [figures(outcome, 0.0) for outcome in outcomes_of("sarathi", "edf")]
    assert [row[0] for row in overview_table(documents).rows] == ["sarathi", "edf"]
    table = class_table(documents)
    assert len(table.rows) == 8
    lines = as_lines(table)
    assert len(lines) == 9
    assert lines[1].startswith("sarathi, interactive  ")
    assert {line[: len("policy, class")].strip() != "" for line in lines} == {True}


def test_figures_are_plain_and_whole_without_any_token() -> None:
    """A workload of which nothing is served has figures too."""
    workload = make_workload([(0.0, 9000, 1), (5.0, 9000, 1)])
    case = Case("sarathi", "sarathi", simulated_settings())
    document = figures(run_case(case, workload, lambda: 0.0), 0.0)
    assert document["refusals"] == {"context_length_exceeded": 2}
    assert document["all"]["miss_share"] == 1.0
    assert document["all"]["ttft_s"] == {}
    assert as_lines(overview_table([document]))


def test_a_line_is_drawn_to_scale() -> None:
    """From the lower left corner to the upper right one."""
    chart = line_chart("t", "x", "y", [Series("a", np.array([0.0, 10.0]), np.array([0.0, 5.0]))])
    assert 'points="58.0,218.0 448.0,30.0"' in chart


def test_ticks_are_round_numbers_within_the_range() -> None:
    """About five on a linear axis, powers of ten on a wide logarithmic one."""
    assert Axis(0.0, 47.0, 0, 1).ticks() == pytest.approx([0, 10, 20, 30, 40])
    assert Axis(0.004, 30.0, 0, 1, log=True).ticks() == pytest.approx([0.01, 0.1, 1, 10])
    assert Axis(0.03, 0.3, 0, 1, log=True).ticks() == pytest.approx([0.05, 0.1, 0.2])


def test_layers_stand_on_each_other() -> None:
    """The second layer begins where the first ends."""
    x = np.array([0.0, 1.0])
    chart = area_chart("t", "x", "y", x, [("a", np.ones(2)), ("b", np.ones(2))])
    assert 'points="58.0,124.0 448.0,124.0 448.0,218.0 58.0,218.0"' in chart
    assert 'points="58.0,30.0 448.0,30.0 448.0,124.0 58.0,124.0"' in chart


def test_nothing_to_draw_is_no_chart() -> None:
    """Neither are names put into the page as they are."""
    nothing = np.empty(0)
    assert line_chart("t", "x", "y", [Series("a", nothing, nothing)]) == ""
    assert area_chart("t", "x", "y", nothing, []) == ""
    assert bar_chart("t", "x", []) == ""
    assert "<b>" not in bar_chart("<b>", "<b>", [("<b>", 1.0)])


def test_reasons_are_columns_where_there_are_any() -> None:
    """A case that refused nobody has no row, and a table without rows is not shown."""
    documents = [
        {"label": "a", "refusals": {"queue_full_tokens": 1200}, "leftovers": {}},
        {"label": "b", "refusals": {}, "leftovers": {}},
    ]
    assert as_lines(refusal_table(documents)) == [
        "policy, refused for  queue_full_tokens",
        "a                                1,200",
    ]
    assert leftover_table(documents).rows == []
