"""The peak of future KV memory, against a simulation of the growth token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.policy.kv_memory.future_peak import FuturePeak

REQUESTS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 80)), max_size=12)


def simulated_peak(requests: list[tuple[int, int]]) -> int:
    """Let every request (left, held) grow by a token a step and end; return the most held."""
    peak = sum(held for _, held in requests)
    for step in range(1, max((left for left, _ in requests), default=0) + 1):
        peak = max(peak, sum(held + step for left, held in requests if left >= step))
    return peak


def peak_of(requests: list[tuple[int, int]], num_shared: int = 0) -> FuturePeak:
    left, held = (np.array(c, np.int64) for c in zip(*requests or [(0, 0)], strict=True))
    if not requests:
        left = held = np.zeros(0, np.int64)
    return FuturePeak(left, held, num_shared)


@given(requests=REQUESTS)
def test_the_formula_is_what_growth_comes_to(requests: list[tuple[int, int]]) -> None:
    """The most that is ever held is the greatest term of the formula, to the token."""
    assert peak_of(requests).peak() == simulated_peak(requests)


@given(requests=REQUESTS, left=st.integers(0, 60), held=st.integers(1, 80))
def test_one_more_counts_as_if_it_were_there(
    requests: list[tuple[int, int]], left: int, held: int
) -> None:
    """Asking about a candidate gives what a simulation with it among them gives."""
    assert peak_of(requests).peak_with(left, held) == simulated_peak([*requests, (left, held)])


@given(requests=REQUESTS.filter(len), prefix=st.integers(0, 40))
def test_a_shared_prefix_is_held_once_and_until_the_last_end(
    requests: list[tuple[int, int]], prefix: int
) -> None:
    """With a prefix that all share the peak is never less than what is held in truth, and never
    more than if nothing were shared.
    """
    sharing = [(left, prefix + held) for left, held in requests]
    num_shared = prefix * (len(requests) - 1)
    truth = prefix + simulated_peak(requests)
    assert truth <= peak_of(sharing, num_shared).peak() <= peak_of(sharing).peak()


def test_nothing_runs() -> None:
    """A request alone needs what it holds and what it grows by."""
    assert peak_of([]).peak() == 0
    assert peak_of([]).peak_with(10, 5) == 15
