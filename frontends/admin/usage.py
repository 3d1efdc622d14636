"""What each tenant has used: the board's counters, summed by the hour.

Owns: which counters are kept, how far they have grown, and the answer to `usage`. Never knows: who
writes the database (`frontends.admin.keeper`). The board counts from the start of the engine, over
restarts of its processes; the database has where each counter stood when it was added last. So an
answer is exact at any moment: what is in the database, and what has grown since.

No counter of the board falls while the engine runs, so one that is smaller than it was is one whose
page could not be read just now: it has not grown.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from core.state_database import reading
from frontends.admin.since import moment_of
from frontends.boards import Boards, text_of
from frontends.refusals import refusals
from ipc.page_sums import http_tenants

HOUR_S = 3600
REQUESTS = "requests"
TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")
REJECTED = "rejected."

Counters = dict[tuple[str, str], int]  # by tenant and counter
Record = dict[str, object]


def counters_of(boards: Boards) -> Counters:
    """Return the counters that are not 0: what clients asked for, the tokens that the scheduler
    counts, and what clients were refused.
    """
    page = boards.record("scheduler")
    asked = http_tenants([page.record for _, page in boards.of_kind("http")])
    counters: Counters = {
        (text_of(row["name"]), REQUESTS): int(row[REQUESTS]) for row in asked if row[REQUESTS]
    }
    for row in page["tenants"][: int(page["num_tenants"])]:
        tenant = text_of(row["name"])
        counters |= {(tenant, name): int(row[name]) for name in TOKENS if row[name]}
    for tenant, told in refusals(boards).items():
        counters |= {(tenant, REJECTED + code): count for code, count in told.items()}
    return counters


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
    for part in counters:
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


def hour_of(time_s: float) -> int:
    """Return the begin of the hour (UTC) that a time lies in, seconds since 1970."""
    return int(time_s) // HOUR_S * HOUR_S


def first_hour(since: str | None, now_s: float) -> int:
    """Return the hour from which on usage counts, None = from the beginning; raises
    ArgumentError.
    """
    return 0 if since is None else hour_of(moment_of("usage", since, now_s))
