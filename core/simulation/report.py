"""A study as one HTML page that needs nothing else: tables, and charts as SVG.

Owns: which charts there are and what is in them. Never knows: how a chart is drawn, how a figure is
computed.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from core.clock import NS_PER_S
from core.simulation import metrics
from core.simulation.plots import Floats, Series, area_chart, bar_chart, line_chart
from core.simulation.study import Outcome
from core.simulation.tables import (
    Table,
    class_table,
    leftover_table,
    overview_table,
    promise_table,
)
from core.tenancy.classes import TrafficClass

MAX_SHARES = 7  # tenants shown by name in the chart of shares; the others together
NUM_WINDOWS = 120
STYLE = """
:root{--bg:#fff;--fg:#1c2430;--dim:#66707e;--line:#dfe4ea;--c0:#2667c9;--c1:#d1662b;--c2:#2f8f5b;
--c3:#a83a6b;--c4:#7a5cc2;--c5:#b38b12;--c6:#2a94a5;--c7:#8a8f98}
@media(prefers-color-scheme:dark){:root{--bg:#14181f;--fg:#e3e8ef;--dim:#98a3b3;--line:#2d3541;
--c0:#6aa2f7;--c1:#f0955c;--c2:#63c28e;--c3:#e07ba6;--c4:#b09af0;--c5:#dcb94b;--c6:#63c6d6}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:1000px;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}code,pre{font-size:.85em}
pre{white-space:pre-wrap;color:var(--dim)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:right}
td:first-child,th:first-child{text-align:left}th{color:var(--dim);font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(400px,1fr));gap:1rem}
figure{margin:0}svg{width:100%;height:auto}svg text{fill:var(--dim);font-size:11px}
svg .title{fill:var(--fg);font-size:13px;font-weight:600}
.grid{stroke:var(--line);fill:none}.line{fill:none;stroke-width:1.8}
figcaption{font-size:.8rem;color:var(--dim)}figcaption span{margin-right:1rem}
figcaption i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}
"""


def html_report(
    command: str, about: Mapping[str, str], outcomes: Sequence[Outcome],
    documents: Sequence[Mapping[str, Any]],
) -> str:  # fmt: skip
    """Return the page; `documents` are the figures of `outcomes`, in the same order."""
    facts = " · ".join(f"{escape(name)} {escape(value)}" for name, value in about.items())
    body = [
        "<h1>Simulation of scheduling policies</h1>",
        f"<p>{facts}</p><pre>{escape(command)}</pre>",
        "<h2>Policies</h2>" + _table(overview_table(documents)),
        "<h2>Classes</h2>" + _table(class_table(documents)),
        "<h2>Prices of the promises</h2>" + _table(promise_table(documents)),
        *_leftover_section(documents),
        "<h2>Latency by class</h2>" + _charts(_latency_charts(outcomes)),
        "<h2>Queue and memory over time</h2>" + _charts(_state_charts(outcomes)),
        "<h2>Service over time</h2>" + _charts([_share_chart(each) for each in outcomes]),
        *_refusal_section(documents),
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Headrace simulation</title><style>{STYLE}</style>{''.join(body)}</html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _charts(charts: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>'


def _latency_charts(outcomes: Sequence[Outcome]) -> list[str]:
    charts = []
    for each in TrafficClass:
        name = each.label
        masks = [outcome.history.workload.traffic_class == each for outcome in outcomes]
        if not masks[0].any():
            continue
        pairs = list(zip(outcomes, masks, strict=True))
        first = [_distribution(o.label, o.times.ttft_s[m]) for o, m in pairs]
        gaps = [_distribution(o.label, o.times.gap_s[m[o.times.gap_request]]) for o, m in pairs]
        charts.append(line_chart(f"TTFT, {name}", "s", "share of requests", first, log_x=True))
        charts.append(line_chart(f"ITL, {name}", "s", "share of gaps", gaps, log_x=True))
    return charts


def _distribution(label: str, values: Floats) -> Series:
    """Return the cumulative distribution of what is known of `values`."""
    known = np.sort(values[~np.isnan(values)])
    return Series(label, known, np.arange(1, len(known) + 1) / max(1, len(known)))


def _state_charts(outcomes: Sequence[Outcome]) -> list[str]:
    waiting, use = [], []
    for outcome in outcomes:
        samples = outcome.history.samples
        start_ns = outcome.history.workload.arrival_ns[0]
        times_s = (np.array(samples.time_ns) - start_ns) / NS_PER_S
        waiting.append(Series(outcome.label, times_s, np.array(samples.num_waiting, float)))
        use.append(Series(outcome.label, times_s, np.array(samples.kv_use)))
    return [
        line_chart("Requests that wait", "s", "requests", waiting),
        line_chart("KV blocks in use", "s", "share of all", use),
    ]


def _share_chart(outcome: Outcome) -> str:
    history = outcome.history
    window_s = max(history.duration_s / NUM_WINDOWS, 1e-3)
    rates = metrics.service(history, window_s) / window_s
    order = np.argsort(-rates.sum(axis=0))
    names = history.workload.tenants
    layers = [(names[index], rates[:, index]) for index in order[:MAX_SHARES]]
    if len(order) > MAX_SHARES:
        layers.append(("others", rates[:, order[MAX_SHARES:]].sum(axis=1)))
    times_s = np.arange(float(len(rates))) * window_s
    return area_chart(f"Service, {outcome.label}", "s", "tokens/s, output twice", times_s, layers)


def _leftover_section(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    table = leftover_table(documents)
    title = "<h2>Tokens that steps left unused while somebody waited, by reason</h2>"
    return [title + _table(table)] if table.rows else []


def _refusal_section(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    charts = [
        bar_chart(f"Refusals, {document['label']}", "requests", list(document["refusals"].items()))
        for document in documents
        if document["refusals"]
    ]
    return ["<h2>Refusals by reason</h2>" + _charts(charts)] if charts else []
