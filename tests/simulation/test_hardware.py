"""Step times are exactly those of the published formulas."""

import pytest

from core.policy.cost_model import StepWork
from core.simulation.hardware import A100, H200, HARDWARE, FittedA100

FITTED = FittedA100(kv_tokens=1)


@pytest.mark.parametrize(
    ("work", "nanoseconds"),
    [
        # .014936 + 256·(5.882475e-5 + 2.247956e-5)
        (StepWork(num_prefill_tokens=256), 35_749_903),
        # .014936 + 2·(5.882475e-5 + 3.634519e-5) + 3000·1.111258e-7
        (StepWork(num_decodes=2, decode_context=3000, num_outputs=2), 15_459_717),
        # .014936 + 100·8.130431e-5 + 1000·7.554773e-7
        (StepWork(num_prefill_tokens=100, prefill_context=1000), 23_821_908),
        # 512 tokens: still the first piece alone, .014936 + 512·8.130431e-5
        (StepWork(num_prefill_tokens=512), 56_563_807),
        # 600 tokens: the first piece gives .063719, the second .062497
        (StepWork(num_prefill_tokens=600), 63_718_586),
        # 2000 tokens: the first .177545, the second .005004 + 2000·9.582093e-5
        (StepWork(num_prefill_tokens=2000), 196_645_860),
    ],
)
def test_the_fitted_machine_takes_the_published_times(work: StepWork, nanoseconds: int) -> None:
    """Worked out by hand from the two pieces."""
    assert FITTED.duration_ns(work) == nanoseconds


def test_a_decode_on_the_roofline_streams_weights_and_kv() -> None:
    """One row at context 1,000 on an A100, each term worked out by hand."""
    overhead, fixed, token = 1.5e-3, 0.9e-3, 6e-6
    body = (0.0088341772**2 + 0.0000612193**2) ** 0.5  # 2·6.979e9 / 1.58e12 and / 228e12
    head = (0.0006645570**2 + 0.0000046053**2) ** 0.5  # 2·0.525e9 / the same
    kv = 1000 * 131_072 / 1.4e12
    work = StepWork(num_decodes=1, decode_context=1000, num_outputs=1)
    expected_s = overhead + body + head + kv + fixed + token
    assert A100.duration_ns(work) == pytest.approx(expected_s * 1e9, rel=1e-7)


def test_a_prompt_on_the_roofline_pays_for_its_pairs() -> None:
    """The attention of 1,000 tokens behind 3,000: n·context + n²/2 pairs of 524,288 FLOP."""
    alone = StepWork().with_prefill(1000, 0)
    behind = StepWork().with_prefill(1000, 3000)
    pairs_s = 524_288 * 1000 * 3000 / 160e12
    assert A100.duration_ns(behind) - A100.duration_ns(alone) == pytest.approx(pairs_s * 1e9, abs=2)


def test_a_small_step_is_bound_by_bandwidth_and_a_large_one_by_arithmetic() -> None:
    """An H200 streams faster than an H100 and computes alike."""
    h100 = HARDWARE["h100"]
    decode = StepWork(num_decodes=1, num_outputs=1)
    prompt = StepWork().with_prefill(16_384, 0)
    assert H200.duration_ns(decode) < 0.8 * h100.duration_ns(decode)
    assert H200.duration_ns(prompt) > 0.95 * h100.duration_ns(prompt)


@pytest.mark.parametrize("name", HARDWARE)
def test_more_work_never_takes_less_time(name: str) -> None:
    """Across the border between the pieces too."""
    times = [HARDWARE[name].duration_ns(StepWork().with_prefill(n, 100)) for n in range(0, 1500, 7)]
    assert times == sorted(times)
