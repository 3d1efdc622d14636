"""What each place says: both ports, control commands, the dashboard; and how they differ.

Owns: reading them, and naming every number that differs. Never knows: what load was applied.
"""

import asyncio
import json
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from core.terminal import ExitCode
from scripts.bench.harness.client import Client
from scripts.bench.harness.engine import Engine

WATCH_EVERY_S = 0.1
OF_REQUESTS = ("prompt_tokens", "cached_tokens", "generated_tokens")  # known by class as well
COMMAND_S = 60.0
COMMAND_TRIES = 10  # a busy engine may answer late, and every command twice is the same as once
# What a scrape or a command changes by itself.
OF_THE_ASKING = (
    "headrace_http_requests_total", "headrace_http_responses_total",
    "headrace_admin_commands_total", "headrace_admin_refused_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scrape:
    """One exposition: each series as written, with its value, and the kind of each family."""

    values: Mapping[str, float] = field(repr=False)
    kinds: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, text: str) -> "Scrape":
        """Read an exposition."""
        values, kinds = {}, {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                kinds[name] = kind
            elif not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                values[series] = float(value)
        return cls(values, kinds)

    def counters(self) -> dict[str, float]:
        """Return all that may only grow, but for what asking itself changes."""
        kept = {}
        for series, value in self.values.items():
            name = series.partition("{")[0]
            if name not in OF_THE_ASKING and self.kinds.get(family_of(name)) != "gauge":
                kept[series] = value
        return kept

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of the series of `name` by one label."""
        found: dict[str, float] = {}
        for series, value in self.values.items():
            if series.startswith(name + "{"):
                key = label_of(series, label)
                found[key] = found.get(key, 0) + value
        return found

    def total(self, name: str) -> float:
        """Return the sum over all series of `name`."""
        return sum(v for s, v in self.values.items() if s.partition("{")[0] == name)

    def bucket_of(self, name: str, labels: str, q: float) -> tuple[int, tuple[float, ...]]:
        """Return in which bucket of a histogram a quantile lies, and all upper bounds."""
        buckets = [
            (float(label_of(series, "le")), value)
            for series, value in self.values.items()
            if series.startswith(f"{name}_bucket{{") and labels in series
        ]
        bounds = tuple(bound for bound, _ in buckets)
        counts = [count for _, count in buckets]
        return bisect_left(counts, q * counts[-1]) if counts else 0, bounds


def family_of(name: str) -> str:
    """Return the family that a series belongs to."""
    for suffix in ("_bucket", "_count", "_sum"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def label_of(series: str, label: str) -> str:
    """Return the value of a label of a series as it is written; "" if it has none."""
    _, found, rest = series.partition(f'{label}="')
    return rest.partition('"')[0] if found else ""


class Watch:
    """Scrapes again and again and notes counters that have fallen."""

    def __init__(self, client: Client) -> None:
        """Scrape through `client`."""
        self.fallen: list[str] = []
        self.num_scrapes = 0
        self._client = client
        self._before: dict[str, float] = {}

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(WATCH_EVERY_S)

    async def look(self) -> Scrape:
        """Scrape once."""
        scrape = await scraped(self._client)
        now = scrape.counters()
        self.fallen += [
            f"{series}: {value} → {now.get(series)}"
            for series, value in self._before.items()
            if now.get(series, -inf) < value
        ]
        self._before, self.num_scrapes = now, self.num_scrapes + 1
        return scrape


@dataclass(frozen=True, slots=True)
class Places:
    """All that is said at one moment at which nothing runs."""

    http: Scrape
    admin: Scrape
    status: Mapping[str, Any] = field(repr=False)
    usage: Mapping[str, Any] = field(repr=False)
    top: Mapping[str, Any] = field(repr=False)

    def differences_of_ports(self) -> Iterator[str]:
        """Yield the counters that the two ports do not show alike."""
        ours, theirs = self.http.counters(), self.admin.counters()
        yield from differences("port", ours, theirs)

    def differences_of_sums(self) -> Iterator[str]:
        """Yield the totals that are not the sums over tenants, or over classes."""
        totals = {
            "prompt_tokens": "vllm:prompt_tokens_total",
            "generated_tokens": "vllm:generation_tokens_total",
            "cached_tokens": "headrace_cached_tokens_total",
            "preemptions": "vllm:num_preemptions_total",
            "recomputed_tokens": "headrace_recomputed_tokens_total",
        }
        for name, family in totals.items():
            whole = self.http.total(family)
            for by in ("tenant", "class") if name.endswith(OF_REQUESTS) else ("tenant",):
                parts = self.http.total(f"headrace_{by}_{name}_total")
                yield from differs(f"{by} {name}", parts, whole)
        times = {
            "time_to_first_token": "vllm:time_to_first_token",
            "inter_token_latency": "vllm:inter_token_latency",
            "e2e_request_latency": "vllm:e2e_request_latency",
            "queue_time": "vllm:request_queue_time",
        }
        for name, family in times.items():
            whole = self.http.total(f"{family}_seconds_count")
            for by in ("tenant", "class"):
                parts = self.http.total(f"headrace_{by}_{name}_seconds_count")
                yield from differs(f"{by} {name}", parts, whole)
        refused = self.http.by_label("headrace_rejections_total", "process")
        told = sum(count for process, count in refused.items() if process.startswith("http."))
        yield from differs("refusals", self.http.total("headrace_tenant_rejections_total"), told)

    def differences_of_status(self) -> Iterator[str]:
        """Yield the numbers of `ctl status` that a scrape does not have."""
        rows = {row["tenant"]: row for row in self.status["tenants"]}
        yield from self._of_rows("status", rows, "rejections", ("preemptions",))
        for name, family in (
            ("prompt_tokens", "vllm:prompt_tokens_total"),
            ("generated_tokens", "vllm:generation_tokens_total"),
            ("steps", "headrace_steps_total"),
        ):
            yield from differs(name, self.status["load"][name], self.http.total(family))

    def differences_of_usage(self) -> Iterator[str]:
        """Yield the numbers of `ctl usage` that a scrape does not have."""
        rows = {row["tenant"]: row for row in self.usage["usage"]}
        yield from self._of_rows("usage", rows, "rejected", (), requests="http_requests")

    def differences_of_top(self) -> Iterator[str]:
        """Yield the numbers of `top --once --json` that a scrape does not have."""
        rows = {row["name"]: row for row in self.top["tenants"]}
        yield from self._of_rows("top", rows, "rejections", ("preemptions", "recomputed_tokens"))
        totals = self.top["totals"]
        for name in ("ttft", "itl"):
            family = {"ttft": "time_to_first_token", "itl": "inter_token_latency"}[name]
            count = self.http.total(f"vllm:{family}_seconds_count")
            yield from differs(f"top {name}", sum(totals[name]["counts"]), count)
        first_tokens = self.http.by_label(
            "headrace_tenant_time_to_first_token_seconds_count", "tenant"
        )
        shown = {name: sum(row["ttft"]["counts"]) for name, row in rows.items()}
        yield from differences("top ttft", without_zeros(shown), without_zeros(first_tokens))

    def _of_rows(
        self,
        where: str,
        rows: Mapping[str, Any],
        rejected: str,
        more: Sequence[str],
        requests: str = "requests",
    ) -> Iterator[str]:
        """`requests` is what the metric of the requests counted there is called."""
        names = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens", *more)
        for name in names:
            metric = requests if name == "requests" else name
            scraped_counts = self.http.by_label(f"headrace_tenant_{metric}_total", "tenant")
            shown = {tenant: row[name] for tenant, row in rows.items()}
            what = f"{where} {name}"
            yield from differences(what, without_zeros(shown), without_zeros(scraped_counts))
        for tenant, row in rows.items():
            counts = self.refused(tenant)
            yield from differences(f"{where} {tenant} refused", dict(row[rejected]), counts)

    def refused(self, tenant: str) -> dict[str, float]:
        """Return what a scrape says that a tenant was refused, by reason."""
        name = f'headrace_tenant_rejections_total{{tenant="{tenant}"'
        return {label_of(s, "reason"): v for s, v in self.http.values.items() if s.startswith(name)}


async def read_places(engine: Engine, http: Client, admin: Client) -> Places:
    """Read all places, one after the other."""
    status = await told(engine, "ctl", "status", "--json")
    usage = await told(engine, "ctl", "usage", "--json")
    top = await told(engine, "top", "--once", "--json")
    return Places(await scraped(http), await scraped(admin), status, usage, top)


async def scraped(client: Client) -> Scrape:
    """Scrape one port; raises RuntimeError if it does not answer."""
    status, body = await client.get("/metrics")
    if status != 200:
        raise RuntimeError(f"GET {client.url}/metrics: {status} {body[:200]!r}")
    return Scrape.of(body.decode())


async def told(engine: Engine, *words: str) -> dict[str, Any]:
    """Return the JSON that a command of `headrace` writes; RuntimeError if it fails every time, or
    otherwise than by a late answer.
    """
    command = [sys.executable, "-P", "-m", "frontends.cli.main", *words, "--name", engine.name]
    err = b""
    for _ in range(COMMAND_TRIES):
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), COMMAND_S)
        if not process.returncode:
            answer: dict[str, Any] = json.loads(out)
            return answer
        if process.returncode != ExitCode.FAILED or b"Traceback" in err:
            break
    raise RuntimeError(f"{' '.join(words)}: {err.decode()[-400:]}")


def differs(what: str, ours: float, theirs: float) -> Iterator[str]:
    """Yield a line if two numbers are not the same."""
    if ours != theirs:
        yield f"{what}: {ours} ≠ {theirs}"


def differences(what: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each entry that is not the same in both."""
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            yield f"{what} {key}: {ours.get(key)} ≠ {theirs.get(key)}"


def without_zeros(counts: Mapping[str, float]) -> dict[str, float]:
    """Return the entries that are not 0; some places leave them out."""
    return {key: count for key, count in counts.items() if count}
