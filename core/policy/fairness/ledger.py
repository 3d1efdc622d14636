"""What each running request was charged: for which of its tokens, and how much.

Owns: two numbers for each row of each replica, written back to the request when it leaves its row,
and the charges of the step in the making, which a request takes with it when it leaves that step.
Never knows: prices, flows. Tokens are computed again after a preemption, a crash or a lost result;
up to the position that was charged once they are not the request's cost.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.policy.base import DecodeBatch
from core.policy.fairness.prices import Charges
from core.request import Request

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Contexts = npt.NDArray[np.int32]
GROWTH = 64  # rows
_NO_ROWS: Ints = np.zeros(0, np.int64)
_NO_CONTEXTS: Contexts = np.zeros(0, np.int32)
_NO_UNITS: Charges = np.zeros(0, np.float64)


class _Book:
    """One replica."""

    def __init__(self) -> None:
        self.tokens = np.zeros(0, np.int64)  # its first so many were charged
        self.units = np.zeros(0, np.float64)  # for them, since it has the row
        self.prompt_units = np.zeros(0, np.int64)  # of those, for its prompt
        self.repeating: set[int] = set()  # rows that may compute again what was charged

    def reach(self, row: int) -> None:
        if row >= len(self.tokens):
            added = np.zeros(row + GROWTH - len(self.tokens), np.int64)
            self.tokens = np.concatenate([self.tokens, added])
            self.units = np.concatenate([self.units, added.astype(np.float64)])
            self.prompt_units = np.concatenate([self.prompt_units, added])


class Ledger:
    """All replicas."""

    def __init__(self) -> None:
        """Start with nothing running."""
        self._books: dict[int, _Book] = {}
        self._places: dict[Request, tuple[_Book, int]] = {}

    def started(self, request: Request) -> None:
        """Open an account for `request`, which has a row."""
        book = self._books.setdefault(request.replica, _Book())
        book.reach(request.row)
        book.tokens[request.row] = request.num_charged_tokens
        book.units[request.row] = book.prompt_units[request.row] = 0
        if request.num_charged_tokens:
            book.repeating.add(request.row)
        self._places[request] = (book, request.row)

    def stopped(self, request: Request) -> int:
        """Close the account of `request`, which has lost its row; return what it was charged since
        it had it, but for its prompt.
        """
        book, row = self._places.pop(request)
        book.repeating.discard(row)
        units = int(book.units[row])
        request.num_charged_tokens = int(book.tokens[row])
        request.num_charged_units += units
        return units - int(book.prompt_units[row])

    def row(self, request: Request) -> int:
        """Return the row of a running `request`, also while it is losing it."""
        return self._places[request][1]

    def charged_tokens(self, request: Request) -> int:
        """Return how many of the first tokens of a running `request` were charged."""
        book, row = self._places[request]
        return int(book.tokens[row])

    def note_prompt(self, request: Request, num_tokens: int, units: int) -> None:
        """Note that `units` more are charged for the prompt, for the first `num_tokens` in all."""
        book, row = self._places[request]
        book.prompt_units[row] += units
        self.note(request, num_tokens, units)

    def note(self, request: Request, num_tokens: int, units: int) -> None:
        """Note that `units` more, or less, are charged now, for the first `num_tokens` in all."""
        book, row = self._places[request]
        book.tokens[row] = num_tokens
        book.units[row] += units

    def note_decodes(
        self,
        replica: int,
        rows: npt.NDArray[np.int64],
        contexts: Contexts,
        units: Charges,
    ) -> Mask | None:
        """Note a decode at `contexts`, int32[n], in each of `rows`, for `units`, [n].

        Returns which of them were charged before, None if none was; those are not noted.
        """
        book, redone = self._books[replica], None
        if book.repeating:
            redone = book.tokens[rows] > contexts
            if redone.any():
                rows, contexts, units = rows[~redone], contexts[~redone], units[~redone]
            else:
                redone = None
        book.tokens[rows] = contexts + 1
        book.units[rows] += units
        return redone

    def shortened(self, request: Request) -> None:
        """Take in that a running `request` will compute some of its tokens again."""
        book, row = self._places[request]
        book.repeating.add(row)

    def check_integrity(self, num_running: int) -> None:
        """Assert that exactly what runs has an account."""
        assert len(self._places) == num_running, (len(self._places), num_running)


@dataclass(slots=True)
class StepCharge:
    """What the step in the making costs one request."""

    charged_tokens: int  # of its first tokens, before the step
    units: int = 0  # to be paid by its flow
    redone: int = 0  # by the system


class StepCharges:
    """The charges of the step that is being filled."""

    def __init__(self, replica: int = -1) -> None:
        """Begin without any; the default is no step at all."""
        self.total = 0
        self._replica = replica
        self._grants: dict[Request, StepCharge] = {}
        self._rows: Ints = _NO_ROWS
        self._contexts: Contexts = _NO_CONTEXTS
        self._units: Charges = _NO_UNITS
        self._redone: Mask | None = None

    def decodes(self, batch: DecodeBatch, units: Charges, redone: Mask | None) -> None:
        """Remember the charges of the decodes, [n], and which of them are work done again."""
        self._rows, self._contexts = batch.rows, batch.context_tokens
        self._units, self._redone = units, redone

    def grant(self, request: Request, charged_tokens: int, units: int, redone: int) -> None:
        """Remember the charge of a grant; before it `charged_tokens` of the request were paid."""
        taken = self._grants.setdefault(request, StepCharge(charged_tokens))
        taken.units += units
        taken.redone += redone

    def take_back(self, request: Request, ledger: Ledger) -> StepCharge | None:
        """Forget what `request` was to cost, since it leaves the step; None = nothing."""
        taken = self._grants.pop(request, None) or self._decode_of(request, ledger)
        if taken is not None:
            ledger.note(request, taken.charged_tokens, -taken.units)
        return taken

    def _decode_of(self, request: Request, ledger: Ledger) -> StepCharge | None:
        if request.replica != self._replica:
            return None
        row = ledger.row(request)
        found = (self._rows == row).nonzero()[0]
        if not len(found):
            return None
        index = int(found[0])
        self._rows = np.where(self._rows == row, -1, self._rows)  # another may get the row now
        units = int(self._units[index])
        if self._redone is not None and self._redone[index]:
            return StepCharge(ledger.charged_tokens(request), 0, units)
        return StepCharge(int(self._contexts[index]), units)
