"""Which tenants' rows in what an http process counts may be another's.

Owns: when it is looked at: about once a second, if a tenant was removed that has a row. Never
knows: what is counted (`frontends.http.telemetry`), or how rows pass on (`core.tenancy.rows`).
"""

from collections.abc import Callable

from core.clock import NS_PER_S
from frontends.boards import Boards
from frontends.http.telemetry import Telemetry
from ipc.directory import DirectorySnapshot

INTERVAL_NS = NS_PER_S


class RowOffers:
    """Tells `telemetry` which of its tenants are no more, and up to when others have its numbers;
    `read_directory` returns the same object while nothing has changed.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        read_directory: Callable[[], DirectorySnapshot],
        read_boards: Callable[[], Boards],
    ) -> None:
        self._telemetry = telemetry
        self._read_directory = read_directory
        self._read_boards = read_boards
        self._looked_ns = -INTERVAL_NS
        self._snapshot: DirectorySnapshot | None = None
        self._listed: frozenset[str] = frozenset()

    def look(self, now_ns: int) -> None:
        """Look if it is time; a page of `now_ns` follows."""
        if now_ns - self._looked_ns < INTERVAL_NS:
            return
        self._looked_ns = now_ns
        former = self._telemetry.former_tenants(self._tenants())
        kept_ns = kept_to_ns(self._read_boards()) if former else 0
        self._telemetry.tenants.offer(former, (), kept_ns, now_ns)

    def _tenants(self) -> frozenset[str]:
        snapshot = self._read_directory()
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._listed = frozenset(entry.name for entry in snapshot.tenants)
        return self._listed


def kept_to_ns(boards: Boards) -> int:
    """Return up to which pages whoever sums the counters has them."""
    return max((int(page.record["kept_ns"]) for _, page in boards.of_kind("admin")), default=0)
