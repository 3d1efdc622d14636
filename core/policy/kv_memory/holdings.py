"""What runs on a replica, as far as memory goes: what each row holds, and what is to come.

Owns: these numbers by row, kept while requests start and stop, and the peaks that follow from them,
worked out when somebody asks. Never knows: where the numbers come from, how much there is for all.
What a row holds and what is to come for it add up to the same while it grows as foreseen.
"""

import numpy as np
import numpy.typing as npt

from core.policy.kv_memory.future_peak import FuturePeak

Tokens = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Holdings:
    """The rows of one replica; one that nobody has holds nothing."""

    def __init__(
        self,
        *,
        held: Tokens,
        to_come: Tokens,
        num_blocks: npt.NDArray[np.int32],
        is_firm: Mask,
        by_class: list[int],
        num_shared: int,
        num_firm_shared: int,
    ) -> None:
        """Take over arrays [rows]: tokens `held` and `to_come`, the blocks for them, and whether
        they are firm, not lent. `by_class` are the blocks of each class, `num_shared` the tokens of
        `held` that are counted more than once, `num_firm_shared` of those that are firm.
        """
        self.by_class = by_class
        self.num_shared = num_shared
        self.most = int(held.sum()) + int(to_come.sum())  # tokens, if nobody ends before the others
        self._held = held
        self._to_come = to_come
        self._num_blocks = num_blocks
        self._is_firm = is_firm
        self._num_firm_shared = num_firm_shared
        self._peak: FuturePeak | None = None
        self._firm_peak: FuturePeak | None = None

    def add(
        self, row: int, traffic_class: int, *, held: int, to_come: int, num_blocks: int,
        is_firm: bool,
    ) -> None:  # fmt: skip
        """Take in who has just started in `row`."""
        self._reach(row)
        self._held[row], self._to_come[row] = held, to_come
        self._num_blocks[row], self._is_firm[row] = num_blocks, is_firm
        self.by_class[traffic_class] += num_blocks
        self._count(held + to_come)

    def remove(self, row: int, traffic_class: int) -> None:
        """Take in that nobody has `row` any more; it shared nothing with others."""
        assert not self.num_shared, row
        self.by_class[traffic_class] -= int(self._num_blocks[row])
        self._count(-int(self._held[row]) - int(self._to_come[row]))
        self._held[row] = self._to_come[row] = self._num_blocks[row] = 0

    def peak_with(self, left: int, held: int) -> int:
        """Return the most tokens that all will hold with one more, growing as foreseen."""
        if self._peak is None:
            self._peak = FuturePeak(self._to_come, self._held, self.num_shared)
        return self._peak.peak_with(left, held)

    def firm_peak_with(self, left: int, held: int) -> int:
        """Return the same, were those that are lent what they hold not to grow."""
        if self._firm_peak is None:
            firm = self._is_firm
            self._firm_peak = FuturePeak(
                self._to_come[firm], self._held[firm], self._num_firm_shared
            )
        num_lent = int(self._held.sum(where=~self._is_firm))
        firm_peak = self._firm_peak.peak_with(left, held) + num_lent
        return min(firm_peak, self.peak_with(left, held))

    def _count(self, num_tokens: int) -> None:
        self.most += num_tokens
        self._peak = self._firm_peak = None

    def _reach(self, row: int) -> None:
        """Have a place for `row`."""
        missing = row + 1 - len(self._held)
        if missing > 0:
            self._held = np.pad(self._held, (0, missing))
            self._to_come = np.pad(self._to_come, (0, missing))
            self._num_blocks = np.pad(self._num_blocks, (0, missing))
            self._is_firm = np.pad(self._is_firm, (0, missing))
