"""When a told start counts as good, and what is counted apart."""

import numpy as np
import pytest

from core.policy.base import UNFORESEEN, Forecast
from core.request import Request
from core.sampling_params import SamplingParams
from scripts.bench.benchmarks.predictions import Told, figures, is_good, is_in_range

NS_PER_S = 1_000_000_000


def told(
    predicted_s: float,
    actual_s: float | None,
    *,
    until_s: float | None = None,
    is_doubtful: bool = False,
) -> Told:
    """Return what was told at 100 s of a request that started `actual_s` later, or never: half of
    that at the soonest and `until_s`, twice as much if not given, at the latest; 0 = nothing.
    """
    start_ns = 0 if actual_s is None else int((100 + actual_s) * NS_PER_S)
    request = Request(
        request_id=1, tokenizer=0, tenant="acme", token_ids=np.zeros(2, np.int32), span_start=0,
        prompt_len=1, max_tokens=1, arrival_ns=1, sampling=SamplingParams(),
        first_start_ns=start_ns,
    )  # fmt: skip
    asked_ns = 100 * NS_PER_S
    if not predicted_s:
        return Told(request, asked_ns, UNFORESEEN)
    latest_s = 2 * predicted_s if until_s is None else until_s
    soonest_ns, start_ns, latest_ns = (
        asked_ns + int(wait_s * NS_PER_S) for wait_s in (predicted_s / 2, predicted_s, latest_s)
    )
    forecast = Forecast(start_ns, soonest_ns, latest_ns if latest_s else 0, is_doubtful)
    return Told(request, asked_ns, forecast)


@pytest.mark.parametrize(
    ("predicted_s", "actual_s", "good"),
    [(13, 10, True), (7, 10, True), (13.1, 10, False), (6.9, 10, False), (0.14, 0.05, True),
     (0.2, 0.05, False)],
)  # fmt: skip
def test_a_wait_within_thirty_percent_is_good(
    predicted_s: float, actual_s: float, good: bool
) -> None:
    """Or within a tenth of a second."""
    asked = told(predicted_s, actual_s)
    assert is_good(asked, asked.actual_s) is good


@pytest.mark.parametrize(
    ("actual_s", "until_s", "holds"),
    [(5, None, True), (20, None, True), (4.95, None, True), (4.8, None, False),
     (20.2, None, False), (99, 0, True)],
)  # fmt: skip
def test_a_range_holds_what_starts_in_it(
    actual_s: float, until_s: float | None, holds: bool
) -> None:
    """Five to twenty seconds, with a tenth at both ends, or without any end."""
    assert is_in_range(told(10, actual_s, until_s=until_s)) is holds


def test_doubts_are_held_against_refusals() -> None:
    """Of two that were doubted one was refused, of the others none."""
    doubted = [told(10, started, is_doubtful=True) for started in (None, 10)]
    found = figures([*doubted, told(10, 10)])
    assert (found["refused_of_doubtful_share"], found["refused_of_others_share"]) == (0.5, 0)
    assert found["median_range_ratio"] == 4
    assert found["in_range_share"] == 1


def test_what_never_started_is_no_good_and_no_bad_prediction() -> None:
    """It is counted on its own, and so is what nobody could tell."""
    found = figures([told(10, 10), told(20, 10), told(10, None), told(0, 10)])
    assert (found["asked"], found["told_share"], found["compared"]) == (4, 0.75, 2)
    assert found["refused_later_share"] == pytest.approx(1 / 3)
    assert (found["good_share"], found["median_ratio"]) == (0.5, 1.5)
    assert found["by_wait"]["10-60s"]["compared"] == 2
