"""The figures of a study as tables of text, the same on a terminal and on a page.

Owns: which columns there are and how a number is written. Never knows: borders, colours, tags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; the first column is text, the others are numbers."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def overview_table(documents: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each case."""
    columns = (
        "policy", "kept", "goodput/s", "tokens/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99",
        "refused", "KV mean", "preempted", "Jain", "× real time",
    )  # fmt: skip
    return Table(columns, [_overview_row(document) for document in documents])


def class_table(documents: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each case and class."""
    columns = (
        "policy, class", "requests", "kept", "goodput/s", "TTFT p50", "TTFT p99", "ITL p50",
        "ITL p99", "E2E p99", "refused",
    )  # fmt: skip
    rows = [
        _class_row(f"{document['label']}, {name}", figures)
        for document in documents
        for name, figures in document["classes"].items()
    ]
    return Table(columns, rows)


def promise_table(documents: Sequence[Mapping[str, Any]]) -> Table:
    """Return what the promises cost in each case, and who paid."""
    columns = (
        "policy", "gaps", "reserves", "memory", "recomputed", "shed", "protected", "of them late",
        "kept by prompt quartile", "Jain", "most apart",
    )  # fmt: skip
    return Table(columns, [_promise_row(document) for document in documents])


def refusal_table(documents: Sequence[Mapping[str, Any]]) -> Table:
    """Return how many requests each case refused, by reason."""
    return _reason_table("policy, refused for", "refusals", documents)


def leftover_table(documents: Sequence[Mapping[str, Any]]) -> Table:
    """Return the tokens that the steps of each case left unused, by reason."""
    return _reason_table("policy, tokens unused for", "leftovers", documents)


def _reason_table(title: str, key: str, documents: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each case that has counts under `key`, and a column for each reason."""
    reasons = sorted({reason for document in documents for reason in document[key]})
    rows = [
        (document["label"], *(f"{document[key].get(reason, 0):,}" for reason in reasons))
        for document in documents
        if document[key]
    ]
    return Table((title, *reasons), rows)


def as_lines(table: Table) -> list[str]:
    """Return the table with its columns aligned, a line each."""
    cells = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    return ["  ".join(_padded(row, widths)).rstrip() for row in cells]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]


def _overview_row(document: Mapping[str, Any]) -> tuple[str, ...]:
    overall = document["all"]
    return (
        document["label"],
        _percent(1 - overall["miss_share"]),
        f"{overall['goodput_rps']:.2f}",
        f"{overall['goodput_tokens_per_s']:.0f}",
        _seconds(overall["ttft_s"].get("p50")),
        _seconds(overall["ttft_s"].get("p99")),
        _seconds(overall["itl_s"].get("p50")),
        _seconds(overall["itl_s"].get("p99")),
        str(overall["num_refused"]),
        _percent(document["kv_use"]["mean"]),
        str(document["preemptions"]),
        f"{document['fairness']['jain_index']:.3f}",
        f"{document['speed']['times_real_time']:.0f}",
    )


def _promise_row(document: Mapping[str, Any]) -> tuple[str, ...]:
    prices, protected = document["prices"], document["protected"]
    quartiles = document["kept_by_prompt_quartile"]
    return (
        document["label"],
        *(_percent(prices[name]) for name in ("gaps", "reserves", "memory", "recomputed")),
        str(sum(prices["sheds"].values())),
        str(protected["num_requests"]),
        str(protected["num_missed"]),
        " ".join(NOTHING if share is None else f"{100 * share:.0f}" for share in quartiles),
        f"{document['fairness']['jain_index']:.3f}",
        f"{document['fairness']['max_difference_tokens']:,.0f}",
    )


def _class_row(label: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        label,
        str(figures["num_requests"]),
        _percent(1 - figures["miss_share"]),
        f"{figures['goodput_rps']:.2f}",
        _seconds(figures["ttft_s"].get("p50")),
        _seconds(figures["ttft_s"].get("p99")),
        _seconds(figures["itl_s"].get("p50")),
        _seconds(figures["itl_s"].get("p99")),
        _seconds(figures["e2e_s"].get("p99")),
        str(figures["num_refused"]),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
