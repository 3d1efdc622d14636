"""When a refused client is asked to come back."""

from core.clock import NS_PER_S
from core.drain_rate import MAX_RETRY_MS, MIN_RETRY_MS, DrainRate
from core.errors import RETRY_AFTER_MS


def test_the_time_to_retry_follows_the_drain_rate() -> None:
    """Twice the speed halves the time to wait; it stays within its bounds."""
    slow, fast = DrainRate(), DrainRate()
    for second in range(60):
        slow.observe(100, second * NS_PER_S)
        fast.observe(200, second * NS_PER_S)
    now_ns = 60 * NS_PER_S
    ratio = slow.retry_after_ms(1000, 0, now_ns) / fast.retry_after_ms(1000, 0, now_ns)
    assert 1.9 < ratio < 2.1
    assert fast.retry_after_ms(1, 0, now_ns) == MIN_RETRY_MS
    assert fast.retry_after_ms(10**9, 0, now_ns) == MAX_RETRY_MS


def test_a_share_of_a_long_queue_leaves_before_a_client_comes_back() -> None:
    """However little room it needs itself."""
    rate, now_ns = DrainRate(), NS_PER_S
    rate.observe(10_000, now_ns)
    waiting = 100_000
    short, share = (rate.retry_after_ms(n, waiting, now_ns) for n in (1, waiting // 10))
    assert short == share > rate.retry_after_ms(1, 0, now_ns)


def test_an_engine_that_has_not_drained_anything_names_a_default() -> None:
    """Without a known rate, also long after the last departure, the default is named."""
    rate = DrainRate()
    assert rate.retry_after_ms(1000, 0, NS_PER_S) == RETRY_AFTER_MS
    rate.observe(100, NS_PER_S)
    assert rate.retry_after_ms(1000, 0, 1000 * NS_PER_S) == RETRY_AFTER_MS
