"""Where a tenant stands: its numbers on the scheduler's page, read now and then.

Owns: how old they may be. Never knows: what follows from them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from core.clock import NS_PER_MS, Clock
from frontends.boards import Boards, text_of
from ipc.pages import SCHEDULER_PAGE

REFRESH_NS = 50 * NS_PER_MS  # as often as the scheduler publishes


@dataclass(frozen=True, slots=True)
class Standing:
    """The engine and one tenant in numbers."""

    num_waiting: int  # of all tenants
    oldest_wait_ns: int
    longest_token_bytes: int  # 0 = no tokenizer has said
    tenant_waiting: int
    tat_ns: int  # when the tenant's bucket is full again; 0 = it is


class StandingReader:
    """Reads the board at most every REFRESH_NS."""

    def __init__(self, read_boards: Callable[[], Boards], clock: Clock) -> None:
        self._read_boards = read_boards
        self._clock = clock
        self._read_ns = -REFRESH_NS
        self._page: np.void = np.zeros(1, SCHEDULER_PAGE)[0]
        self._rows: dict[str, int] = {}
        self._longest_token_bytes = 0

    def read(self, tenant: str) -> Standing:
        """Return the numbers of a tenant; all zeros if the engine has none yet."""
        now_ns = self._clock.now_ns()
        if now_ns - self._read_ns >= REFRESH_NS:
            self._read_ns = now_ns
            self._take(self._read_boards())
        page, row = self._page, self._rows.get(tenant)
        mine = None if row is None else page["tenants"][row]
        return Standing(
            num_waiting=int(page["num_waiting"]),
            oldest_wait_ns=int(page["oldest_wait_ns"]),
            longest_token_bytes=self._longest_token_bytes,
            tenant_waiting=0 if mine is None else int(mine["num_waiting"]),
            tat_ns=0 if mine is None else int(mine["budget_tat_ns"]),
        )

    def _take(self, boards: Boards) -> None:
        page = boards.record("scheduler")
        names = page["tenants"]["name"][: int(page["num_tenants"])].tolist()
        self._page = page
        self._rows = {text_of(name): index for index, name in enumerate(names)}
        self._longest_token_bytes = int(boards.record("tokenizer")["longest_token_bytes"])
