"""Which row a tenant has in the tables that are counted by tenant.

Owns: the rows, given at the first mention, and whose turn it is to give one up. Never knows: what
is counted in them, who is listed or has work. A tenant keeps its row until all are taken and
another one needs it; then rows go over in this order:

    fresh     nobody has had it
    gone      its tenant was removed, nothing of it is under way, and whoever sums the counters has
              its last ones; whose tenant was found so first goes first
    unused    its tenant is there, but nothing was ever counted for it: only to one that has asked

While there is none of these, further tenants share the row OTHER, so that no table and no label
grows without end. Each tenant that gets a row begins a tenure: a number that no other one has had,
over restarts too, so that no reader adds what two tenants have used.
"""

from collections.abc import Callable, Iterable

OTHER = 0
OTHER_NAME = "_other"


class TenantRows:
    """The rows of at most `max_rows` − 1 tenants that are told apart; names and tenures by row."""

    def __init__(self, max_rows: int) -> None:
        """Start with OTHER alone."""
        assert max_rows > 1, max_rows
        self.names = [OTHER_NAME]
        self.tenures = [0]
        self.version = 0  # another one, other names: the number of the last tenure
        self.on_reuse: list[Callable[[int], None]] = []  # told a row before another tenant has it
        self._max_rows = max_rows
        self._rows: dict[str, int] = {OTHER_NAME: OTHER}
        self._leaving: dict[int, int] = {}  # since when a row's tenant is gone, ns
        self._gone: dict[int, None] = {}
        self._unused: dict[int, None] = {}

    @property
    def num_left(self) -> int:
        """Further tenants that would have a row of their own if they asked for something now."""
        return self._max_rows - len(self.names) + len(self._gone) + len(self._unused)

    def find(self, tenant: str) -> int | None:
        """Return the row of `tenant`, None if it has none of its own."""
        return self._rows.get(tenant)

    def row(self, tenant: str) -> int:
        """Return the row of `tenant`, which has asked for something: it is not given up now."""
        row = self._rows.get(tenant)
        if row is None:
            return self._take(tenant, self._gone, self._unused)
        if row in self._leaving or row in self._unused:
            self._stay(row)
        return row

    def know(self, tenants: Iterable[str]) -> None:
        """Give each of `tenants` its row, in this order, as far as nobody else loses one for it
        that is still there.
        """
        for tenant in tenants:
            row = self._rows.get(tenant)
            if row is None:
                self._take(tenant, self._gone)
            elif row in self._leaving:
                self._stay(row)

    def resume(self, names: Iterable[str], tenures: Iterable[int]) -> None:
        """Take over the rows of a predecessor, which begin with OTHER, or are none."""
        rows = list(zip(names, tenures, strict=True))
        assert len(self.names) == 1, self.names
        for name, tenure in rows[1:]:
            self._rows[name] = len(self.names)
            self.names.append(name)
            self.tenures.append(tenure)
        self.version = max(self.tenures)

    def offer(self, gone: Iterable[int], unused: Iterable[int], kept_ns: int, now_ns: int) -> None:
        """Take in, when a page of `now_ns` is about to be published, of which rows the tenants are
        gone and of which nothing was counted. Whoever sums the counters has those of all pages up
        to `kept_ns`.
        """
        found = set(gone)
        order = [*(row for row in self._leaving if row in found), *sorted(found)]
        self._leaving = {row: self._leaving.get(row, now_ns) for row in order}
        self._gone = {row: None for row, since_ns in self._leaving.items() if since_ns <= kept_ns}
        self._unused = dict.fromkeys(row for row in unused if row not in found)

    def _take(self, tenant: str, *offers: dict[int, None]) -> int:
        if len(self.names) < self._max_rows:
            row = len(self.names)
            self.names.append("")
            self.tenures.append(0)
        else:
            row = next((row for offer in offers for row in offer), OTHER)
            if row == OTHER:
                return OTHER
            self._vacate(row)
        self.version += 1
        self._rows[tenant] = row
        self.names[row], self.tenures[row] = tenant, self.version
        return row

    def _vacate(self, row: int) -> None:
        for forget in self.on_reuse:
            forget(row)
        self._stay(row)
        del self._rows[self.names[row]]

    def _stay(self, row: int) -> None:
        for offer in (self._leaving, self._gone, self._unused):
            offer.pop(row, None)
