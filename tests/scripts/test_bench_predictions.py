"""When a told start counts as good, and what is counted apart."""

import numpy as np
import pytest

from core.request import Request
from core.sampling_params import SamplingParams
from scripts.bench.benchmarks.predictions import Told, figures, is_good

NS_PER_S = 1_000_000_000


def told(predicted_s: float, actual_s: float | None) -> Told:
    """Return what was told at 100 s of a request that started `actual_s` later, or never."""
    start_ns = 0 if actual_s is None else int((100 + actual_s) * NS_PER_S)
    request = Request(
        request_id=1, tokenizer=0, tenant="acme", token_ids=np.zeros(2, np.int32), span_start=0,
        prompt_len=1, max_tokens=1, arrival_ns=1, sampling=SamplingParams(),
        first_start_ns=start_ns,
    )  # fmt: skip
    asked_ns = 100 * NS_PER_S
    return Told(request, asked_ns, asked_ns + int(predicted_s * NS_PER_S) if predicted_s else 0)


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


def test_what_never_started_is_no_good_and_no_bad_prediction() -> None:
    """It is counted on its own, and so is what nobody could tell."""
    found = figures([told(10, 10), told(20, 10), told(10, None), told(0, 10)])
    assert (found["asked"], found["told_share"], found["compared"]) == (4, 0.75, 2)
    assert found["refused_later_share"] == pytest.approx(1 / 3)
    assert (found["good_share"], found["median_ratio"]) == (0.5, 1.5)
    assert found["by_wait"]["10-60s"]["compared"] == 2
