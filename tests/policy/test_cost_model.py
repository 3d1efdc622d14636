"""The sums of a step, and the largest chunk that fits into a time."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.cost_model import StepWork, largest_chunk
from core.simulation.hardware import HARDWARE

LIMITS_NS = st.integers(1, 1_000_000_000)


@dataclass(frozen=True)
class Staircase:
    """A model that rises in steps, where interpolation guesses worst."""

    tread: int

    def duration_ns(self, work: StepWork) -> int:
        """Return 1 ms for every `tread` tokens begun."""
        return 1_000_000 * -(-work.num_tokens // self.tread)


def test_chunks_add_up() -> None:
    """Pairs are n·context + n²/2 for each chunk."""
    work = StepWork(num_decodes=3, decode_context=50, num_outputs=3)
    both = work.with_prefill(10, 100).with_prefill(20, 0, ends=True)
    assert both == StepWork(30, 100, 10 * 100 + 50 + 200, 3, 50, 4)
    assert both.num_tokens == 33


@pytest.mark.parametrize("name", HARDWARE)
@given(
    limit_ns=LIMITS_NS,
    context=st.integers(0, 10_000),
    decodes=st.integers(0, 200),
    most=st.integers(1, 5000),
    tile=st.sampled_from([1, 16, 64]),
)
def test_the_largest_chunk_fits_and_a_larger_one_does_not(
    name: str, limit_ns: int, context: int, decodes: int, most: int, tile: int
) -> None:
    """It is all that was wanted, or a multiple of the tile."""
    model, work = HARDWARE[name], StepWork(num_decodes=decodes, decode_context=500 * decodes)
    chunk = largest_chunk(model, work, context, most, limit_ns, tile)
    assert 0 <= chunk <= most
    assert chunk in (0, most) or chunk % tile == 0
    if chunk:
        assert model.duration_ns(work.with_prefill(chunk, context)) <= limit_ns
    if chunk < most:
        larger = min(chunk + tile, most)
        assert model.duration_ns(work.with_prefill(larger, context)) > limit_ns


@given(
    tread=st.integers(1, 700),
    limit_ns=st.integers(0, 20_000_000),
    most=st.integers(1, 5000),
)
def test_a_staircase_is_searched_as_well(tread: int, limit_ns: int, most: int) -> None:
    """Flat pieces and jumps do not mislead the search."""
    model = Staircase(tread)
    chunk = largest_chunk(model, StepWork(), 0, most, limit_ns)
    assert chunk == min(most, limit_ns // 1_000_000 * tread)


def test_nothing_fits_beside_decodes_that_take_too_long() -> None:
    """Even if a few prompt tokens would cost nothing more."""
    assert largest_chunk(Staircase(100), StepWork(num_decodes=10), 0, 5, 500_000) == 0
