"""Which row a tenant has in the tables that are counted by tenant.

Owns: the rows, given at the first mention and kept. Never knows: what is counted in them. When all
are taken, further tenants share the row OTHER, so that no table and no label grows without end.
"""

from collections.abc import Iterable

OTHER = 0
OTHER_NAME = "_other"


class TenantRows:
    """The rows of at most `max_rows` − 1 tenants that are told apart; `names` is by row."""

    def __init__(self, max_rows: int) -> None:
        """Start with OTHER alone."""
        assert max_rows > 1, max_rows
        self.names = [OTHER_NAME]
        self._max_rows = max_rows
        self._rows: dict[str, int] = {OTHER_NAME: OTHER}

    def row(self, tenant: str) -> int:
        """Return the row of `tenant`."""
        row = self._rows.get(tenant)
        if row is not None:
            return row
        if len(self.names) == self._max_rows:
            return OTHER
        row = len(self.names)
        self._rows[tenant] = row
        self.names.append(tenant)
        return row

    def know(self, tenants: Iterable[str]) -> None:
        """Give each of `tenants` its row, in this order."""
        for tenant in tenants:
            self.row(tenant)
