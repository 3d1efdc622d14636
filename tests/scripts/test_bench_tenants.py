"""What counts as a missed promise, and what a tenant took of the engine."""

import argparse

import pytest

from scripts.bench.benchmarks.tenants.__main__ import BARS, PHASES, phases
from scripts.bench.benchmarks.tenants.figures import (
    INTERACTIVE,
    answer_figures,
    comparisons,
    has_missed,
)
from scripts.bench.benchmarks.tenants.loads import tokens_of
from scripts.bench.harness import report
from scripts.bench.harness.client import Timeline

TTFT_S = INTERACTIVE.ttft_ms / 1000
GAP_S = INTERACTIVE.itl_ms / 1000


def answered(ttft_s: float, gaps_s: list[float], error: str = "", status: int = 200) -> Timeline:
    """Return a request sent at 10 s."""
    chunks = [10 + ttft_s]
    for gap_s in gaps_s:
        chunks.append(chunks[-1] + gap_s)
    return Timeline(
        intended_s=10, chunk_s=chunks, prompt_tokens=100, error=error, status=status, done=True
    )


def test_a_promise_is_missed_by_its_first_token_by_gaps_or_by_failing() -> None:
    """One late gap in a hundred is forgiven, one in fifty is not."""
    good = [0.9 * GAP_S] * 99
    assert not has_missed(answered(0.9 * TTFT_S, good))
    assert not has_missed(answered(0.9 * TTFT_S, [*good, 2 * GAP_S]))
    assert has_missed(answered(0.9 * TTFT_S, [*good[:48], 2 * GAP_S]))
    assert has_missed(answered(1.1 * TTFT_S, good))
    assert has_missed(answered(0.5, good, error="429 full", status=429))
    assert has_missed(Timeline(intended_s=10))


def test_refusals_are_told_from_other_errors() -> None:
    """A cut connection is an error and no refusal."""
    figures = answer_figures(
        [
            answered(0.1, []),
            answered(0.1, [], error="429 full", status=429),
            answered(0.1, [], error="reset", status=200),
        ]
    )
    assert (figures["requests"], figures["rejected"], figures["errors"]) == (3, 1, 2)
    assert figures["missed_percent"] == pytest.approx(66.667)


def test_tokens_count_when_they_came() -> None:
    """A prompt counts with its first output, or not at all."""
    request = answered(1.0, [1.0, 1.0, 1.0])
    assert tokens_of([request], 10, 20) == 104
    assert tokens_of([request], 11.5, 13.5) == 2
    assert tokens_of([request], 0, 10) == 0


def test_phases_run_in_their_order_and_unknown_ones_are_named() -> None:
    """What is compared comes before what compares."""
    assert phases("idle,solo") == ("solo", "idle")
    with pytest.raises(argparse.ArgumentTypeError, match="rest: use solo"):
        phases("idle,rest")


def test_every_bar_names_a_figure_of_its_phase() -> None:
    """With all phases measured, no bar is without a value."""
    ttft = {"p50": 100.0, "p99": 200.0}
    chat = {"ttft_ms": ttft, "gap_ms": {"p99": 50.0}, "missed_percent": 0.0, "rejected": 0}
    figures = {
        "solo": {"tok_s": 100.0},
        "alone": {"chat": {"ttft_ms": ttft}, "canary": {"ttft_ms": ttft}},
        "idle": {"tok_s": 96.0},
        "beside": {"tok_s": 61.0, "chat": chat},
        "crowd": {
            "chat": chat,
            "canary": {"ttft_ms": ttft},
            "control": {"answer_ms": {"p99": 5.0}, "unconfirmed": 0},
        },
        "equal": {"ratio": 1.0},
        "weighted": {"ratio": 3.0},
    }
    assert set(figures) == set(PHASES)
    bars = [bar for phase in PHASES for bar in BARS.get(phase, ())]
    built = report.build("tenants", figures | comparisons(figures), bars, command=[])
    assert [bar["name"] for bar in built["bars"] if bar["value"] is None] == []
    assert built["ok"] is True


def test_a_phase_in_which_nobody_was_answered_fails_its_bars() -> None:
    """What was not measured is no figure, and its bar does not hold."""
    nobody = answer_figures([answered(0.1, [], error="429 full", status=429)])
    nobody |= {"ttft_ms": {}, "gap_ms": {}}
    alone = {"ttft_ms": {"p50": 100.0, "p99": 200.0}}
    figures = {
        "alone": {"chat": alone, "canary": alone},
        "crowd": {"chat": nobody, "canary": nobody},
    }
    built = report.build("tenants", comparisons(figures), BARS["crowd"], command=[])
    holds = {bar["name"]: bar["ok"] for bar in built["bars"]}
    assert not holds["crowd.chat.ttft_over_allowed_ms"]
    assert not holds["crowd.canary.ttft_over_allowed_ms"]
