"""The debits of one tenant as times: its TAT, and what that would be without those still open.

Owns: the arithmetic of giving back. Never knows: tokens, rates, requests. The TAT (theoretical
arrival time) is when the bucket is full again.

What was not used is given back as if it had never been debited. Subtracting it from the TAT gives
back too much: time has passed since, and has already filled the bucket up to its brim. So each open
debit remembers the TAT that the later debits alone would have made; the TAT never falls below it.
Nothing is ever used beyond burst + rate × time, over any window of arrivals.
"""

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


class Debits:
    """Those of one tenant."""

    def __init__(self) -> None:
        """Start with a full bucket."""
        self.tat_ns = 0
        self._num_debits = 0
        self._open: Times = np.zeros(0, np.int64)  # numbers, ascending
        self._later_ns: Times = np.zeros(0, np.int64)  # TAT of the debits after each, alone

    @property
    def num_open(self) -> int:
        """Debits that may still become smaller."""
        return len(self._open)

    def debit(self, time_ns: int, now_ns: int) -> None:
        """Debit for good."""
        self.tat_ns = max(self.tat_ns, now_ns) + time_ns
        np.maximum(self._later_ns, now_ns, out=self._later_ns)
        self._later_ns += time_ns

    def open(self, time_ns: int, now_ns: int) -> int:
        """Debit what may turn out to be too much; return its number, for `close`."""
        self.debit(time_ns, now_ns)
        self._num_debits += 1
        self._open = np.append(self._open, self._num_debits)
        self._later_ns = np.append(self._later_ns, 0)
        return self._num_debits

    def close(self, number: int, excess_ns: int) -> None:
        """Make an open debit smaller by what was too much, as if it had been so from its start."""
        place = int(self._open.searchsorted(number))
        assert place < len(self._open), number
        assert self._open[place] == number, number
        later_ns = int(self._later_ns[place])
        before = self._later_ns[:place]
        np.maximum(before - excess_ns, later_ns, out=before)
        self.tat_ns = max(self.tat_ns - excess_ns, later_ns)
        self._open = np.delete(self._open, place)
        self._later_ns = np.delete(self._later_ns, place)

    def rescale(self, numerator: int, denominator: int, now_ns: int) -> None:
        """Stretch all debt by a fraction, rounding up."""

        def stretched(tat_ns: int) -> int:
            debt_ns = max(0, tat_ns - now_ns)
            return min(tat_ns, now_ns) - (-debt_ns * numerator // denominator)

        self.tat_ns = stretched(self.tat_ns)
        self._later_ns = np.array([stretched(t) for t in self._later_ns.tolist()], np.int64)
