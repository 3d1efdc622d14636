"""The table of tenants: what each has, is due, and is refused."""

from collections.abc import Callable
from operator import attrgetter

import msgspec

from dashboard.format import NOTHING, count, duration, most_common, percent, rate, zero_is_nothing
from dashboard.frame import TenantFrame
from dashboard.history import TenantRates, View
from dashboard.lines import ALARM, FAINT, NOTICE, PLAIN, Span, Tone
from dashboard.table import Column, Table
from dashboard.vocabulary import PROMISE_BREAKS

OTHER = "_other"
LONG_WAIT_S = 10.0
FAIRNESS_GAP = 0.1  # of the service, beyond which a share is worth a look


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant and what it got lately."""

    tenant: TenantFrame
    rates: TenantRates

    @property
    def state(self) -> Span:
        """What it is doing, in a word."""
        tenant = self.tenant
        if tenant.removed:
            return "gone", FAINT
        if tenant.paused:
            return "paused", NOTICE
        if self.rates.refused:
            return "refuse", NOTICE
        if tenant.running:
            return "run", Tone.GOOD
        return ("wait", NOTICE) if tenant.waiting else ("idle", FAINT)

    @property
    def refusals(self) -> int:
        """Requests that were refused since the start."""
        return sum(self.tenant.rejections.values())

    @property
    def breaks(self) -> int:
        """Refusals because a promise could not be kept."""
        return sum(self.tenant.rejections.get(reason, 0) for reason in PROMISE_BREAKS)


def rows_of(view: View) -> list[TenantRow]:
    """Return a row per tenant; the row of all who have none of their own only if it is used."""
    return [
        TenantRow(tenant, view.rates_of(tenant))
        for tenant in view.frame.tenants
        if tenant.name != OTHER or tenant.requests
    ]


def over(row: TenantRow) -> Span:
    """Return by how many percent of the service it is beyond its share, or short of it."""
    tenant = row.tenant
    gap = tenant.share_used - tenant.share_due
    if round(gap * 100) == 0:
        return NOTHING, FAINT
    is_short = gap < -FAIRNESS_GAP and tenant.waiting > 0
    return f"{gap * 100:+.0f}", NOTICE if is_short or gap > FAIRNESS_GAP else PLAIN


def oldest(row: TenantRow) -> Span:
    """Return the oldest wait."""
    wait_s = row.tenant.oldest_wait_s
    if not row.tenant.waiting:
        return NOTHING, FAINT
    return duration(wait_s), NOTICE if wait_s > LONG_WAIT_S else PLAIN


def held(row: TenantRow) -> Span:
    """Return the KV blocks held; at the quota they stand out."""
    tenant = row.tenant
    is_full = 0 < tenant.quota_blocks <= tenant.held_blocks
    text = zero_is_nothing(tenant.held_blocks)
    return (text, NOTICE) if is_full else plain(text)


def refused(row: TenantRow) -> Span:
    """Return the refusals; such that broke a promise are an alarm while they happen."""
    recent = row.rates.refused
    text = zero_is_nothing(row.refusals)
    if not recent:
        return plain(text)
    return text, ALARM if any(r in recent for r in PROMISE_BREAKS) else NOTICE


def reason(row: TenantRow) -> Span:
    """Return why it was refused: lately, or mostly."""
    recent = most_common(row.rates.refused)
    return (recent, NOTICE) if recent else (most_common(row.tenant.rejections), FAINT)


def budget(row: TenantRow) -> Span:
    """Return what is left of the token budget."""
    tenant = row.tenant
    if tenant.budget_tokens is None:
        return NOTHING, FAINT
    is_low = tenant.budget_limit > 0 and tenant.budget_tokens < tenant.budget_limit * 0.1
    return count(tenant.budget_tokens), NOTICE if is_low else PLAIN


def plain(text: str) -> Span:
    """Return a cell that says nothing beyond its text."""
    return text, FAINT if text == NOTHING else PLAIN


def count_column(
    key: str, title: str, width: int, help_: str, field: str = ""
) -> Column[TenantRow]:
    """Return a column of a count of a tenant, the field `key` if it is not named otherwise; a dash
    for none.
    """
    number: Callable[[TenantRow], int] = attrgetter(f"tenant.{field or key}")
    return Column(key, title, width, lambda r: plain(zero_is_nothing(number(r))), number, help_)


def speed(per_s: float) -> Span:
    """Return a number a second; a dash for none."""
    return plain(rate(per_s) if per_s else NOTHING)


def first_token(quantile_s: float | None) -> Span:
    """Return a time to first token; a dash for none."""
    return plain(NOTHING if quantile_s is None else duration(quantile_s))


NAME: Column[TenantRow] = Column(
    "tenant", "TENANT", 12, lambda r: (r.tenant.name, PLAIN), lambda r: r.tenant.name,
    "its name", right=False)  # fmt: skip
STATE: Column[TenantRow] = Column(
    "state", "STATE", 6, lambda r: r.state, lambda r: r.state[0],
    "gone: removed, and listed for what it used; paused; refuse: some of its requests were refused "
    "in the last seconds; run; wait; idle",
    right=False)  # fmt: skip
WEIGHT: Column[TenantRow] = Column(
    "weight", "WT", 4, lambda r: (f"{r.tenant.weight:g}", PLAIN), lambda r: r.tenant.weight,
    "its weight among the tenants of a class")  # fmt: skip
USED: Column[TenantRow] = Column(
    "used",
    "USED",
    5,
    lambda r: plain(percent(r.tenant.share_used)),
    lambda r: r.tenant.share_used,
    "its share of the last 10 s of service",
)
DUE: Column[TenantRow] = Column(
    "due", "DUE", 5, lambda r: plain(percent(r.tenant.share_due)), lambda r: r.tenant.share_due,
    "the share that is due to it by weight, while it has work")  # fmt: skip
OVER: Column[TenantRow] = Column(
    "over", "OVER", 4, over, lambda r: r.tenant.share_used - r.tenant.share_due,
    "percent of the service beyond its share (+), or short of it (-)")  # fmt: skip
WAITING = count_column("waiting", "WAIT", 5, "requests in its queue")
OLDEST: Column[TenantRow] = Column(
    "oldest",
    "OLDEST",
    6,
    oldest,
    lambda r: r.tenant.oldest_wait_s,
    "how long the oldest has waited",
)
RUNNING = count_column("running", "RUN", 4, "requests that run")
PREEMPTED = count_column("preempted", "PRE", 4, "requests that gave memory back and wait")
HELD: Column[TenantRow] = Column(
    "held", "KV", 5, held, lambda r: r.tenant.held_blocks, "KV blocks that it holds"
)
QUOTA = count_column("quota", "QUOTA", 5, "KV blocks that it may hold", "quota_blocks")
TOKENS: Column[TenantRow] = Column(
    "tokens", "TOK/S", 5, lambda r: speed(r.rates.generated),
    lambda r: r.rates.generated, "tokens generated a second, over 3 s")  # fmt: skip
FIRST_P50: Column[TenantRow] = Column(
    "ttft-p50", "TTFT50", 6, lambda r: first_token(r.rates.ttft.p50_s),
    lambda r: r.rates.ttft.p50_s or 0.0, "median time to its first tokens, over 15 s")  # fmt: skip
FIRST_P95: Column[TenantRow] = Column(
    "ttft-p95", "TTFT95", 6, lambda r: first_token(r.rates.ttft.p95_s),
    lambda r: r.rates.ttft.p95_s or 0.0,
    "time within which 95 % of its first tokens came, over 15 s")  # fmt: skip
REFUSED: Column[TenantRow] = Column(
    "refused", "REJ", 5, refused, lambda r: float(r.refusals), "requests refused since the start"
)
BUDGET: Column[TenantRow] = Column(
    "budget", "BUDGET", 6, budget,
    lambda r: -1 if r.tenant.budget_tokens is None else r.tenant.budget_tokens,
    "tokens left of its token budget")  # fmt: skip
REASON: Column[TenantRow] = Column(
    "reason", "REJECTED FOR", 26, reason, lambda r: reason(r)[0],
    "the reason of most refusals, of the last seconds if there are any", right=False)  # fmt: skip
PROMPT: Column[TenantRow] = Column(
    "prompt", "IN/S", 5, lambda r: speed(r.rates.prompt),
    lambda r: r.rates.prompt, "prompt tokens a second, over 3 s")  # fmt: skip
SWAPPED = count_column("swapped", "SWAP", 4, "requests whose memory is in host memory")
AGAIN = count_column(
    "again", "AGAIN", 5, "tokens computed again after preemptions", "recomputed_tokens"
)
REQUESTS = count_column("requests", "REQS", 5, "requests since the start")
BROKEN: Column[TenantRow] = Column(
    "broken", "BROKEN", 6,
    lambda r: (zero_is_nothing(r.breaks), ALARM if r.breaks else FAINT),
    lambda r: float(r.breaks), "refused because a promise could not be kept")  # fmt: skip

MISSED = count_column(
    "missed", "MISSED", 6, "promised first tokens that came late or never", "deadline_misses"
)

COLUMNS = (
    NAME, STATE, WEIGHT, USED, DUE, OVER, WAITING, OLDEST, RUNNING, HELD, TOKENS, REFUSED,
    FIRST_P50, FIRST_P95, QUOTA, PREEMPTED, BUDGET, REASON, PROMPT, SWAPPED, AGAIN, REQUESTS,
)  # fmt: skip
BRIEF = (
    NAME, STATE, USED, DUE, OVER, WAITING, OLDEST, RUNNING, HELD, TOKENS, REFUSED, FIRST_P95,
    REASON,
)  # fmt: skip


PROMISES = (NAME, MISSED, BROKEN, REQUESTS, REFUSED, REASON, WAITING, OLDEST, AGAIN, DUE, USED)


def promises_table() -> Table[TenantRow]:
    """Return whose promises were missed, the most first."""
    return Table(PROMISES, lambda row: row.tenant.name, "missed")


def tenants_table() -> Table[TenantRow]:
    """Return the table, busiest tenant first."""
    return Table(COLUMNS, lambda row: row.tenant.name, "used")


def brief_table() -> Table[TenantRow]:
    """Return what of it the overview has room for."""
    return Table(BRIEF, lambda row: row.tenant.name, "used")
