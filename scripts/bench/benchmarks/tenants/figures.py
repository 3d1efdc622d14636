"""What the loads of `scripts/bench/tenants` came to: figures, and which promises were missed.

Owns: what counts as missed, and what of one phase is compared with another. Never knows: how loads
are made, or which figures are good enough.
"""

from collections.abc import Sequence
from typing import Any

from core.config.file import load_config
from core.tenancy.classes import TrafficClass
from scripts.bench.benchmarks.tenants.loads import Progress
from scripts.bench.harness import report
from scripts.bench.harness.client import Timeline

CONFIG = report.ROOT / "configs" / "demo-tenants.toml"
INTERACTIVE = load_config(CONFIG).classes.of(TrafficClass.INTERACTIVE)
LATE_GAPS = 0.01  # a request with a larger share of late gaps has missed its promise

Figures = dict[str, Any]


def answer_figures(timelines: Sequence[Timeline]) -> Figures:
    """Return the latencies of requests, and which of them missed the interactive promise."""
    answered = [each for each in timelines if each.chunk_s]
    missed = sum(1 for each in timelines if has_missed(each))
    errors = [each for each in timelines if each.error]
    return {
        "requests": len(timelines),
        "ttft_ms": report.spread_ms([each.ttft_s for each in answered]),
        "gap_ms": report.spread_ms([gap for each in answered for gap in each.itl_s()]),
        "missed_percent": round(100 * missed / max(1, len(timelines)), 3),
        "rejected": sum(1 for each in errors if each.status in (429, 503, 504, 408)),
        "errors": len(errors),
        "error_examples": error_examples(timelines),
    }


def error_examples(timelines: Sequence[Timeline]) -> list[str]:
    """Return a few different errors."""
    return sorted({each.error for each in timelines if each.error})[:3]


def has_missed(timeline: Timeline) -> bool:
    """Tell whether a request failed, or its first token or more than a few gaps came late."""
    if timeline.error or not timeline.chunk_s:
        return True
    gaps = timeline.itl_s()
    late = sum(1 for gap in gaps if gap * 1e3 > INTERACTIVE.itl_ms)
    return timeline.ttft_s * 1e3 > INTERACTIVE.ttft_ms or late > LATE_GAPS * len(gaps)


def sent_after(timelines: Sequence[Timeline], since: float) -> list[Timeline]:
    """Return the requests that were due once the load was there."""
    return [each for each in timelines if each.intended_s >= since]


def throughput(before: Progress, after: Progress, others: int) -> Figures:
    """Return tokens per second computed for all but the `others`' tokens."""
    seconds = after.at_s - before.at_s
    steps = max(1, after.steps - before.steps)
    return {
        "tok_s": round((after.computed_tokens - before.computed_tokens - others) / seconds, 2),
        "step_ms": round(1e3 * (after.step_s - before.step_s) / steps, 2),
    }


def comparisons(figures: Figures) -> Figures:
    """Return the phases whose figures only mean something beside those of another phase."""
    compared: Figures = {}
    for phase in ("idle", "beside"):
        if phase in figures and "solo" in figures:
            of_solo = figures[phase]["tok_s"] / figures["solo"]["tok_s"]
            compared[phase] = figures[phase] | {"of_solo": round(of_solo, 4)}
    if "crowd" in figures and "alone" in figures:
        chat, canary = figures["crowd"]["chat"], figures["crowd"]["canary"]
        own = {name: alone["ttft_ms"] for name, alone in figures["alone"].items()}
        chat_allowed = _sum(own["chat"].get("p99"), INTERACTIVE.itl_ms, own["chat"].get("p50"))
        step_ms = chat["gap_ms"].get("p99")
        canary_allowed = _sum(step_ms, step_ms, own["canary"].get("p50"))
        compared["crowd"] = figures["crowd"] | {
            "chat": chat | _over(chat, chat_allowed),
            "canary": canary | _over(canary, canary_allowed),
        }
    return compared


def _sum(*values: float | None) -> float | None:
    """Return the sum; None if any of it was not measured."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _over(answers: Figures, allowed_ms: float | None) -> Figures:
    """Return by how much the slowest answers exceed what is allowed; nothing if that is unknown,
    so that the bar fails.
    """
    p99 = answers["ttft_ms"].get("p99")
    if allowed_ms is None or p99 is None:
        return {}
    return {
        "ttft_allowed_ms": round(allowed_ms, 3),
        "ttft_over_allowed_ms": round(p99 - allowed_ms, 3),
    }
