"""Spans: tokens of rows land in the arrays that their requests were given."""

import numpy as np

from core.scheduler.spans import Spans


def write(spans: Spans, rows: list[int], positions: list[int], token_ids: list[int]) -> None:
    spans.write(np.array(rows), np.array(positions, np.int32), np.array(token_ids, np.int32))


def test_rows_of_one_arena_are_written_through_their_views() -> None:
    """A token lands at its position in the view that the row was given, and nowhere else."""
    arena = np.zeros(16, np.int32)
    spans = Spans(4)
    spans.assign(1, arena[2:6], 2)
    spans.assign(3, arena[8:12], 8)
    write(spans, [3, 1], [0, 3], [5, 6])
    assert arena.tolist() == [0, 0, 0, 0, 0, 6, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]


def test_rows_of_several_arenas_are_written_each_into_its_own() -> None:
    """Arenas and arrays that belong to one request alone are told apart."""
    arenas = [np.zeros(8, np.int32), np.zeros(8, np.int32)]
    alone = np.zeros(4, np.int32)
    spans = Spans(3)
    for row, (token_ids, start) in enumerate(((arenas[0][4:], 4), (alone, 0), (arenas[1][2:], 2))):
        spans.assign(row, token_ids, start)
    write(spans, [0, 1, 2], [0, 1, 2], [7, 8, 9])
    assert (arenas[0].nonzero()[0].tolist(), arenas[0][4]) == ([4], 7)
    assert alone.tolist() == [0, 8, 0, 0]
    assert (arenas[1].nonzero()[0].tolist(), arenas[1][4]) == ([4], 9)


def test_a_row_forgets_its_arena() -> None:
    """After its last row has left, an arena is not held any more, and another takes its place."""
    spans = Spans(2)
    first, second, third = (np.zeros(4, np.int32) for _ in range(3))
    spans.assign(0, first, 0)
    spans.assign(1, second, 0)
    spans.clear(0)
    spans.assign(0, third, 0)
    write(spans, [0, 1], [0, 0], [1, 2])
    assert (first[0], second[0], third[0]) == (0, 2, 1)


def test_a_view_of_other_numbers_is_its_own_arena() -> None:
    """What ids are a view of counts as an arena only if it holds such ids in a row."""
    table = np.zeros((2, 8), np.int32)
    halves = np.zeros(16, np.int16).view(np.int32)
    spans = Spans(2)
    spans.assign(0, table[1], 8)
    spans.assign(1, halves[4:], 4)
    write(spans, [0, 1], [2, 1], [3, 4])
    assert (table[1, 2], halves[5]) == (3, 4)
