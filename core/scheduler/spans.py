"""Where the tokens of each row go: the spans of its request, seen in the arenas that hold them.

Owns: the arena and the place of every row's span. Never knows: which tokens, or how many there are.
Spans are views of few long arrays, one a tokenizer, so the tokens of a whole step are written by
one scatter for each arena, at start + position. A span that is a view of nothing is its own arena.
"""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]


class _Arena:
    """An array with spans of rows in it."""

    def __init__(self, ids: Ids, index: int) -> None:
        self.ids = ids
        self.index = index
        self.num_spans = 0


class Spans:
    """The spans of the rows of one replica."""

    def __init__(self, num_rows: int) -> None:
        """Start with no span."""
        self._arenas: dict[int, _Arena] = {}  # by `id` of their arrays
        self._by_index: dict[int, _Arena] = {}
        self._arena = np.zeros(num_rows, np.int64)  # index of the row's arena
        self._start = np.zeros(num_rows, np.int64)  # in that

    def assign(self, row: int, token_ids: Ids, start: int) -> None:
        """Let `token_ids`, which are at `start` in their arena if they have one, be the span of
        `row`, which has none.
        """
        whole = _whole(token_ids)
        arena = self._arenas.get(id(whole)) or self._enter(whole)
        arena.num_spans += 1
        self._arena[row] = arena.index
        self._start[row] = 0 if whole is token_ids else start

    def clear(self, row: int) -> None:
        """Forget the span of `row`."""
        arena = self._by_index[int(self._arena[row])]
        arena.num_spans -= 1
        if not arena.num_spans:
            del self._by_index[arena.index], self._arenas[id(arena.ids)]

    def write(self, rows: Rows, positions: Ids, token_ids: Ids) -> None:
        """Write a token of each of `rows` into its span at `positions`; all are [n]."""
        places = self._start[rows] + positions
        if len(self._by_index) == 1:
            [arena] = self._by_index.values()
            arena.ids[places] = token_ids
            return
        indexes = self._arena[rows]
        for index in np.bincount(indexes).nonzero()[0].tolist():
            here = indexes == index
            self._by_index[index].ids[places[here]] = token_ids[here]

    def _enter(self, ids: Ids) -> _Arena:
        index = next(i for i in range(len(self._by_index) + 1) if i not in self._by_index)
        arena = self._arenas[id(ids)] = self._by_index[index] = _Arena(ids, index)
        return arena


def _whole(token_ids: Ids) -> Ids:
    """Return the array that `token_ids` is a view of, if it holds such ids in a row, or itself."""
    base = token_ids.base
    if not isinstance(base, np.ndarray) or base.dtype != token_ids.dtype or base.ndim != 1:
        return token_ids
    return base if base.flags.c_contiguous and base.flags.writeable else token_ids
