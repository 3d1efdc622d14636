"""What each tenant has used: the board's counters, summed by the hour.

Owns: which counters are kept, how far they have grown, and the answer to `usage`. Never knows: who
writes the database (`keeper`). The board counts from the start of the engine, over restarts of its
processes; the database has where each counter stood when it was added last. So an
answer is exact at any moment: what is in the database, and what has grown since.

A counter of the board is one of one process and of one tenure of a row (`core.tenancy.rows`), and
is named so: `requests@http.0/17`. It never falls while the engine runs, so one that is smaller than
it was is one whose page could not be read just now: it has not grown. One that is no more has ended
with its tenure, and that waits until all of it is in the database.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from core.state_database import reading
from frontends.admin.since import moment_of
from frontends.boards import Boards, kind_of, text_of
from frontends.refusals import REASON_CODES

HOUR_S = 3600
REQUESTS = "requests"
TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")
REJECTED = "rejected."
OF = "@"  # between a counter and whose it is, on the board
COUNTING = ("scheduler", "http")  # kinds of processes whose pages are summed

Counters = dict[tuple[str, str], int]  # by tenant and counter
Column = tuple[str, npt.NDArray[np.uint64]]
Record = dict[str, object]


def counters_of(boards: Boards) -> Counters:
    """Return the counters of the board that are not 0: what clients asked for, the tokens that the
    scheduler counts, and what clients were refused.
    """
    counters: Counters = {}
    for child, page in boards.of_kind("scheduler"):
        rows = page.record["tenants"]
        _add(counters, child, page.record, [(name, rows[name]) for name in TOKENS])
    for child, page in boards.of_kind("http"):
        rows = page.record["tenants"]
        told = [(REJECTED + code, rows["rejections"][:, value]) for value, code in REASON_CODES]
        _add(counters, child, page.record, [(REQUESTS, rows[REQUESTS]), *told])
    return counters


def counted_to_ns(boards: Boards) -> int:
    """Return up to which publications of every page `counters_of` has all that they show; 0 = one
    of them cannot be read.
    """
    children = [child for child in boards.heartbeats if kind_of(child) in COUNTING]
    pages = [boards.pages.get(child) for child in children]
    return min((0 if page is None else page.written_ns for page in pages), default=0)


def by_tenant(counters: Counters) -> Counters:
    """Return the sums over all processes and tenures."""
    sums: defaultdict[tuple[str, str], int] = defaultdict(int)
    for (tenant, counter), amount in counters.items():
        sums[tenant, counter.partition(OF)[0]] += amount
    return dict(sums)


def growth(counters: Counters, counted: Mapping[tuple[str, str], int]) -> Counters:
    """Return how far `counters` have grown since they stood at `counted`."""
    return {
        key: value - counted.get(key, 0)
        for key, value in counters.items()
        if value > counted.get(key, 0)
    }


def read_counted(connection: sqlite3.Connection, engine: str) -> Counters:
    """Return where the counters of `engine` stood when they were added to the usage last."""
    rows = connection.execute(
        "SELECT tenant, counter, amount FROM counted WHERE engine = ?", (engine,)
    )
    return {(tenant, counter): amount for tenant, counter, amount in rows}


def read_usage(directory: Path, engine: str, since_s: int) -> tuple[Counters, Counters]:
    """Return what was used from `since_s` on, and where the counters of `engine` stood; both are
    empty if nothing was kept. Raises StateError.
    """
    with suppress(FileNotFoundError), reading(directory) as connection:
        rows = connection.execute(
            "SELECT tenant, counter, SUM(amount) FROM usage WHERE hour_s >= ?"
            " GROUP BY tenant, counter",
            (since_s,),
        )
        used = {(tenant, counter): amount for tenant, counter, amount in rows}
        return used, read_counted(connection, engine)
    return {}, {}


def report(counters: Iterable[Counters], tenant: str | None) -> Record:
    """Return the sum of `counters` as `usage` shows it, of one tenant or all."""
    total: defaultdict[tuple[str, str], int] = defaultdict(int)
    for part in map(by_tenant, counters):
        for (name, counter), amount in part.items():
            if tenant in (None, name):
                total[name, counter] += amount
    names = sorted({name for name, _ in total})
    rows = [{"tenant": name, **_row(total, name)} for name in names]
    return {"usage": rows}


def _row(total: Mapping[tuple[str, str], int], tenant: str) -> Record:
    rejected = {
        counter.removeprefix(REJECTED): amount
        for (name, counter), amount in total.items()
        if name == tenant and counter.startswith(REJECTED)
    }
    used: Record = {name: total.get((tenant, name), 0) for name in (REQUESTS, *TOKENS)}
    return used | {"rejected": rejected}


def _add(counters: Counters, child: str, page: np.void, columns: Iterable[Column]) -> None:
    """Add what is not 0 of `columns`, each a counter and its values by row of the `page`."""
    count = int(page["num_tenants"])
    rows = page["tenants"][:count]
    names = list(map(text_of, rows["name"].tolist()))
    tenures = rows["tenure"].tolist()
    for counter, values in columns:
        for row in np.flatnonzero(values[:count]).tolist():
            key = (names[row], f"{counter}{OF}{child}/{tenures[row]}")
            counters[key] = int(values[row])


def hour_of(time_s: float) -> int:
    """Return the begin of the hour (UTC) that a time lies in, seconds since 1970."""
    return int(time_s) // HOUR_S * HOUR_S


def first_hour(since: str | None, now_s: float) -> int:
    """Return the hour from which on usage counts, None = from the beginning; raises
    ArgumentError.
    """
    return 0 if since is None else hour_of(moment_of("usage", since, now_s))
