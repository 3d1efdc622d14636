"""What runs on when somebody waits again, and was begun while nobody did.

Owns: of which classes somebody wanted more at the last step of each replica, and up to which
context the decodes of each row do not count against their tenants.
Never knows: charges, virtual service.

Who starts while nobody waits takes nothing from anybody, however long its outputs last. When the
last row is taken, its decodes go on beside those who wait; if they counted, their tenant would be
served nothing else for as long. So they are charged, but only what is begun from then on makes a
tenant go ahead. An output counts like any other once it is SPARED_TOKENS longer than it was then.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.policy.base import DecodeBatch
from core.policy.queues.fair_queue import Mask
from core.request import Request

SPARED_TOKENS = 1024  # of an output
GROWTH = 64  # rows


class SpareService:
    """The decodes of all replicas that count against nobody."""

    def __init__(self) -> None:
        """Start with nobody waiting."""
        self._wanting: dict[int, Sequence[bool]] = {}  # by replica: classes of which somebody waits
        self._until: dict[int, npt.NDArray[np.int64]] = {}  # by replica and row: a context

    def started(self, request: Request) -> None:
        """Take in that `request` has a row, which may have been another's."""
        until = self._until.get(request.replica)
        if until is not None and request.row < len(until):
            until[request.row] = 0

    def filled(self, replica: int, decodes: DecodeBatch, wanting: Sequence[bool]) -> None:
        """Take in which classes could use more than a step had, by class."""
        before = self._wanting.get(replica, wanting)
        self._wanting[replica] = wanting
        if before == wanting or not len(decodes.rows):
            return
        returned = np.array([now and not then for now, then in zip(wanting, before, strict=True)])
        if not np.count_nonzero(returned):
            return
        chosen = returned[decodes.traffic_class]
        rows = decodes.rows[chosen]
        until = self._until.get(replica, np.zeros(0, np.int64))
        missing = int(decodes.rows.max()) + 1 - len(until)
        if missing > 0:
            until = np.concatenate([until, np.zeros(missing + GROWTH, np.int64)])
        until[rows] = decodes.context_tokens[chosen] + SPARED_TOKENS
        self._until[replica] = until

    def of(self, replica: int, decodes: DecodeBatch) -> Mask | None:
        """Return which decodes do not count, bool[n]; None if all do."""
        until = self._until.get(replica)
        if until is None:
            return None
        spared: Mask = decodes.context_tokens < until.take(decodes.rows, mode="clip")
        spared &= decodes.rows < len(until)
        return spared if len(spared.nonzero()[0]) else None

    def has(self, replica: int, row: int, context: int) -> bool:
        """Tell whether the decode of a row at `context` does not count."""
        until = self._until.get(replica)
        return until is not None and row < len(until) and context < until[row]
