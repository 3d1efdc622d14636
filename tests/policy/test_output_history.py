"""How long outputs were, and what is left of one under way."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.policy.kv_memory.output_history import EDGES, MAX_SAMPLES, MIN_SAMPLES, OutputHistory

FLOW = 5
NO_LIMIT = 1 << 30


def history_of(lengths: list[int], quantile: float = 0.8) -> OutputHistory:
    """Return the history of one flow."""
    history = OutputHistory(lambda flow: quantile)
    for length in lengths:
        history.note(FLOW, length)
    return history


def test_without_history_an_output_has_the_default_length() -> None:
    """Before enough outputs have ended, 1,024 tokens are left, or what may come at the most."""
    history = history_of([10] * (MIN_SAMPLES - 1))
    assert history.left_of(FLOW, 0, NO_LIMIT) == 1024
    assert history.left_of(FLOW, 0, 300) == 300
    assert history.left_of(FLOW + 1, 7, NO_LIMIT) == 1024


def test_what_is_left_is_the_conditional_quantile() -> None:
    """Of lengths 100 and 900, half each, the median is short at first, and long beyond 100."""
    history = history_of([100, 900] * 50, quantile=0.5)
    assert 100 <= history.left_of(FLOW, 0, NO_LIMIT) <= 120
    assert 900 - 200 <= history.left_of(FLOW, 200, NO_LIMIT) <= 1100 - 200


def test_nothing_seen_is_as_long_means_as_much_again() -> None:
    """An output beyond all that was ever seen is expected to double, and never to be over."""
    history = history_of([50] * 40)
    assert 500 <= history.left_of(FLOW, 500, NO_LIMIT) <= 800
    assert history.left_of(FLOW, 50, NO_LIMIT) >= 1


def test_the_past_fades() -> None:
    """After as many short outputs as are kept, long ones of old do not count any more."""
    history = history_of([4000] * MAX_SAMPLES + [20] * (4 * MAX_SAMPLES))
    assert history.left_of(FLOW, 0, NO_LIMIT) < 30


def test_another_quantile_is_read_off_the_same_history() -> None:
    """A changed configuration counts at once."""
    quantiles = {FLOW: 0.5}
    history = OutputHistory(quantiles.__getitem__)
    for length in [100, 900] * 50:
        history.note(FLOW, length)
    quantiles[FLOW] = 0.95
    history.tabulate()
    assert history.left_of(FLOW, 0, NO_LIMIT) >= 900


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=MIN_SAMPLES, max_size=200),
    quantile=st.sampled_from([0.5, 0.8, 0.95]),
    rows=st.lists(
        st.tuples(st.sampled_from([FLOW, 0]), st.integers(0, 6000), st.integers(0, 3000)),
        min_size=1,
        max_size=20,
    ),
)
def test_rows_at_once_are_rows_one_by_one(
    lengths: list[int], quantile: float, rows: list[tuple[int, int, int]]
) -> None:
    """The vectorised look-up agrees with the single one, and stays within its limits."""
    history = history_of(lengths, quantile)
    flows, outputs, most = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    left = history.left(flows, outputs, most)
    assert left.tolist() == [history.left_of(*row) for row in rows]
    assert np.all(left <= most)
    assert np.all((left >= 1) | (most == 0))


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=MIN_SAMPLES, max_size=200),
    num_outputs=st.integers(0, 4000),
)
def test_the_quantile_is_right_to_a_bucket(lengths: list[int], num_outputs: int) -> None:
    """So many of the outputs that got this far ended within what was said, bucket by bucket."""
    history = history_of(lengths, 0.8)
    end = num_outputs + history.left_of(FLOW, num_outputs, NO_LIMIT)
    bucket_start = int(EDGES[max(0, int(EDGES.searchsorted(num_outputs + 1)) - 1)])
    longer = [length for length in lengths if length > bucket_start or bucket_start == 1]
    if longer:
        assert sum(length <= end for length in longer) >= 0.8 * len(longer) - 1e-6
