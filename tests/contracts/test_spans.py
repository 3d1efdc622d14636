"""What a span arena promises, in a file and in plain memory."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipc.layout import anonymous_segment, create_segment
from ipc.segment import Segment
from ipc.spans import CHUNK_IDS, SpanArena, map_spans, spans_layout

NUM_TOKENS = 16 * CHUNK_IDS


@pytest.fixture(params=["file", "anonymous"])
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> Segment:
    layout = spans_layout(NUM_TOKENS)
    if request.param == "anonymous":
        return anonymous_segment(layout)
    return create_segment(tmp_path / "spans.0", layout)


@pytest.fixture
def arena(segment: Segment) -> SpanArena:
    return SpanArena(map_spans(segment, NUM_TOKENS))


def test_a_span_is_whole_chunks(arena: SpanArena) -> None:
    """Spans start at multiples of 256 ids and take as many chunks as their ids need."""
    assert [arena.allocate(n) for n in (1, 256, 257, 1)] == [0, 256, 512, 1024]
    assert arena.statistics().num_used_chunks == 5
    arena.check_integrity()


def test_a_full_arena_says_none(arena: SpanArena) -> None:
    """None, and nothing changes, if no free run is long enough; a smaller span may still fit."""
    assert arena.allocate(15 * CHUNK_IDS) == 0
    assert arena.allocate(CHUNK_IDS + 1) is None
    assert arena.allocate(CHUNK_IDS) == 15 * CHUNK_IDS
    assert arena.allocate(1) is None
    arena.check_integrity()


def test_the_first_run_that_fits_is_taken(arena: SpanArena) -> None:
    """Freed space is used again from the front, so that the end stays whole for long prompts."""
    a, b, _ = (arena.allocate(2 * CHUNK_IDS) for _ in range(3))
    assert a is not None
    assert b is not None
    arena.free(b)
    arena.free(a)
    assert arena.allocate(3 * CHUNK_IDS) == a
    assert arena.allocate(2 * CHUNK_IDS) == 6 * CHUNK_IDS
    assert arena.allocate(CHUNK_IDS) == 3 * CHUNK_IDS


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (2, 0, 1)])
def test_free_runs_are_joined(arena: SpanArena, order: tuple[int, ...]) -> None:
    """Whatever the order of frees, neighbours become one run."""
    starts = [arena.allocate(4 * CHUNK_IDS) for _ in range(3)]
    for index in order:
        start = starts[index]
        assert start is not None
        arena.free(start)
        arena.check_integrity()
    assert arena.statistics().largest_free_chunks == 16
    assert arena.statistics().num_free_runs == 1


def test_freeing_what_is_not_a_span_is_an_error(arena: SpanArena) -> None:
    """A second free, an inner position and a foreign one are KeyErrors and change nothing."""
    start = arena.allocate(512)
    assert start is not None
    for wrong in (start + 256, start + 1, 4096):
        with pytest.raises(KeyError):
            arena.free(wrong)
    arena.free(start)
    with pytest.raises(KeyError):
        arena.free(start)
    assert arena.statistics().num_spans == 0


def test_views_are_the_shared_ids(segment: Segment, arena: SpanArena) -> None:
    """What the owner writes into a span, another mapping of the arena reads."""
    arena.allocate(1)
    start = arena.allocate(3)
    assert start is not None
    arena.view(start, 3)[:] = [7, 8, 9]
    assert map_spans(segment, NUM_TOKENS)[start : start + 3].tolist() == [7, 8, 9]


def test_an_arena_rounds_up_to_chunks(tmp_path: Path) -> None:
    """`num_tokens` that is no multiple of a chunk gets the chunk that it begins."""
    segment = create_segment(tmp_path / "s", spans_layout(300))
    assert len(map_spans(segment, 300)) == 512


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 5 * CHUNK_IDS), st.integers(0, 99)), max_size=120
    )
)
def test_spans_never_overlap(operations: list[tuple[bool, int, int]]) -> None:
    """Under any allocations and frees the arena stays tiled, and every span keeps its ids."""
    arena = SpanArena(np.zeros(40 * CHUNK_IDS, np.int32))
    live: dict[int, tuple[int, int]] = {}  # start → ids, mark
    for mark, (is_free, num_ids, which) in enumerate(operations):
        if is_free and live:
            arena.free(release(arena, live, which % len(live)))
        elif (start := arena.allocate(num_ids)) is not None:
            live[start] = (num_ids, mark)
            arena.view(start, num_ids)[:] = mark
        arena.check_integrity()
    assert arena.statistics().num_spans == len(live)
    while live:
        arena.free(release(arena, live, 0))
    assert arena.statistics().largest_free_chunks == 40


def release(arena: SpanArena, live: dict[int, tuple[int, int]], which: int) -> int:
    """Check that the span still holds its mark, and return its start."""
    start = list(live)[which]
    num_ids, mark = live.pop(start)
    assert (arena.view(start, num_ids) == mark).all()
    return start


def test_many_free_runs_are_kept(arena: SpanArena) -> None:
    """The tables of free runs grow: every second of 400 spans freed gives 200 runs."""
    large = SpanArena(np.zeros(400 * CHUNK_IDS, np.int32))
    starts = [large.allocate(1) for _ in range(400)]
    for start in starts[::2]:
        assert start is not None
        large.free(start)
    large.check_integrity()
    assert large.statistics().num_free_runs == 200
