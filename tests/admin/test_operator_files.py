"""What operators are given beside the engine: alert rules, board, gateway snippet, runbook.

All of it speaks of metrics, labels, reasons and settings that exist.
"""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

import ipc.pages
from core.errors import RejectionReason
from frontends.metrics.exposition import Kind
from frontends.metrics.reference import FAMILIES
from frontends.metrics.render import render
from tests.admin.test_metrics import FACTS, busy

ROOT = Path(ipc.pages.__file__).parents[1]
RULES = msgspec.yaml.decode((ROOT / "configs" / "prometheus" / "alerts.yml").read_bytes())
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
BOARD = json.loads((ROOT / "configs" / "grafana" / "headrace.json").read_text(encoding="utf-8"))
GATEWAY = (ROOT / "configs" / "gateway" / "endpoint-picker.yaml").read_text(encoding="utf-8")
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")

METRIC = re.compile(r"(?:vllm:|headrace_)[a-z0-9_]+")
SELECTOR = re.compile(r"((?:vllm:|headrace_)[a-z0-9_]+)\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")
OF_PROMETHEUS = {"job", "instance", "le"}


def exposed() -> set[str]:
    """Return the names of all series there can be: those of a scrape, and of families that are
    empty in it.
    """
    families = text_string_to_metric_families(render(busy(), FACTS).decode())
    names = {sample.name for family in families for sample in family.samples}
    for family in FAMILIES:
        parts = ("_bucket", "_count", "_sum") if family.kind is Kind.HISTOGRAM else ("",)
        names |= {family.name + part for part in parts}
    return names


def board_expressions() -> list[str]:
    """Return all queries of the board."""
    targets = [target for panel in BOARD["panels"] for target in panel.get("targets", ())]
    variables = [v["query"]["query"] for v in BOARD["templating"]["list"] if v["type"] == "query"]
    annotations = [each["expr"] for each in BOARD["annotations"]["list"]]
    return [*(target["expr"] for target in targets), *variables, *annotations]


EXPRESSIONS = [*(rule["expr"] for rule in ALERTS.values()), *board_expressions()]


def test_every_metric_of_rules_board_and_gateway_is_exposed() -> None:
    """A query for a metric that nobody exposes is silent for ever."""
    used = {name for text in (*EXPRESSIONS, GATEWAY) for name in METRIC.findall(text)}
    assert used - exposed() == set()
    assert len(used) > 60


def test_every_label_of_rules_and_board_is_declared() -> None:
    """A selector or grouping by a label that a metric lacks matches nothing."""
    labels = {family.name: set(family.labels) for family in FAMILIES}
    for text in EXPRESSIONS:
        for name, selector in SELECTOR.findall(text):
            family = next(
                n for n in (name, re.sub(r"_(bucket|count|sum)$", "", name)) if n in labels
            )
            wanted = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert wanted <= labels[family] | OF_PROMETHEUS, text
        known = set().union(
            *(own for name, own in labels.items() if name.split("_bucket")[0] in text)
        )
        grouped = {
            label.strip()
            for group in GROUPING.findall(text)
            for label in group.split(",")
            if label.strip()
        }
        assert grouped <= known | OF_PROMETHEUS, text


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_what_to_do(name: str) -> None:
    """It has a severity, a summary, and a link to its own paragraph of the runbook."""
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"page", "ticket", "info"}
    assert rule["annotations"]["summary"]
    path, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert (ROOT / path).read_text(encoding="utf-8") == RUNBOOK
    assert anchor == name.lower()
    assert name in dict(paragraphs("Alerts"))


def paragraphs(part: str) -> Iterator[tuple[str, str]]:
    """Yield titles and texts of a part of the runbook."""
    body = RUNBOOK.split(f"\n## {part}\n")[1].split("\n## ")[0]
    for paragraph in body.split("\n### ")[1:]:
        title, _, text = paragraph.partition("\n")
        yield title, text.strip()


def test_the_runbook_has_a_paragraph_for_each_alert_and_reason_and_no_other() -> None:
    """Whoever finds a word in an alert or a refusal finds it here."""
    alerts, refusals = dict(paragraphs("Alerts")), dict(paragraphs("Refusals"))
    assert set(alerts) == set(ALERTS)
    assert set(refusals) == {reason.code for reason in RejectionReason if reason.value}
    assert all(len(text) > 40 for text in (*alerts.values(), *refusals.values()))


def test_links_of_the_runbook_lead_somewhere() -> None:
    """To a paragraph of its own, or to another page."""
    anchors = {title.lower() for part in ("Alerts", "Refusals") for title, _ in paragraphs(part)}
    for target in re.findall(r"\]\(([^)]+)\)", RUNBOOK):
        page, _, anchor = target.partition("#")
        assert (ROOT / "docs" / page).exists() if page else anchor in anchors, target


def test_settings_that_the_runbook_names_exist() -> None:
    """A knob under another name helps nobody."""
    defaults = (ROOT / "configs" / "default.toml").read_text(encoding="utf-8")
    for section, key in re.findall(
        r"`(engine|scheduler|policy|tokenizer|http|supervision)\.([a-z_]+)`", RUNBOOK
    ):
        assert re.search(rf"^#? ?{key} = ", defaults, re.MULTILINE), f"{section}.{key}"


def place(panel: dict[str, Any]) -> tuple[range, range]:
    """Return the columns and rows of a panel."""
    at = panel["gridPos"]
    return range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])


def test_panels_of_the_board_do_not_overlap() -> None:
    """Each has a number of its own and lies within the 24 columns."""
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert place(panel)[0].stop <= 24
    for (columns, rows), (other_columns, other_rows) in combinations(map(place, panels), 2):
        overlaps = max(columns.start, other_columns.start) < min(columns.stop, other_columns.stop)
        overlaps &= max(rows.start, other_rows.start) < min(rows.stop, other_rows.stop)
        assert not overlaps


def test_the_gateway_reads_load_and_cache() -> None:
    """Its snippet is YAML and maps what waits, what runs and the KV use."""
    config = msgspec.yaml.decode(GATEWAY)
    (extractor,) = [p for p in config["plugins"] if p["type"] == "core-metrics-extractor"]
    (engine,) = extractor["parameters"]["engineConfigs"]
    assert engine["name"] == extractor["parameters"]["defaultEngine"]
    assert {"queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"} <= set(engine)
