"""From board pages and heartbeats to a `Frame`. Pure.

Owns: which field of a page becomes which field of a frame. Never knows: where pages lie or who
shows a frame. Ages are measured from stamps to the time of the read, so those of a silent process
grow.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from dashboard import vocabulary
from dashboard.frame import (
    ClassFrame,
    ExecutorFrame,
    Frame,
    Histogram,
    Liveness,
    ProcessFrame,
    ReplicaFrame,
    TenantFrame,
    Totals,
)
from dashboard.vocabulary import word
from ipc.directory import DirectoryClass, DirectorySnapshot
from ipc.heartbeat import Heartbeat
from ipc.page_sums import http_tenants
from ipc.pages import NO_BUDGET

NS_PER_S = 1_000_000_000
STALE_S = 1.2  # an idle scheduler publishes every half second

Record = Any  # numpy's structured scalars have no better type


@dataclass(frozen=True, slots=True)
class ReadPage:
    """A page as it was read."""

    record: Record = field(repr=False)
    epoch: int
    stamp_ns: int


@dataclass(frozen=True, slots=True)
class Reading:
    """All that was read at `now_ns` (CLOCK_MONOTONIC), by child id; some may be missing."""

    now_ns: int
    wall_s: float
    name: str
    pages: Mapping[str, ReadPage]
    heartbeats: Mapping[str, Heartbeat]
    directory: DirectorySnapshot = field(default_factory=DirectorySnapshot)

    def http_records(self) -> list[Record]:
        """Return the pages of the http processes."""
        return [page.record for child, page in self.pages.items() if child.startswith("http.")]

    def age_s(self, stamp_ns: int) -> float:
        """Return how old a stamp is."""
        return max(0, self.now_ns - stamp_ns) / NS_PER_S

    def known_age_s(self, stamp_ns: int) -> float | None:
        """Return how old a stamp is, None if it was never set."""
        return self.age_s(stamp_ns) if stamp_ns else None

    def time_left_s(self, until_ns: int) -> float | None:
        """Return how long it is until a moment, None if there is none."""
        return max(0, until_ns - self.now_ns) / NS_PER_S if until_ns else None


def frame_of(reading: Reading) -> Frame:
    """Return the frame of a reading; of an engine that is only starting most of it is empty."""
    supervisor, scheduler = reading.pages.get("supervisor"), reading.pages.get("scheduler")
    base = Frame(
        taken_s=reading.now_ns / NS_PER_S,
        wall_s=reading.wall_s,
        name=reading.name,
        liveness=Liveness.STALE,
        executors=tuple(_executors(reading)),
    )
    changes: dict[str, Any] = {}
    if supervisor is not None:
        changes |= {
            "uptime_s": reading.age_s(int(supervisor.record["started_ns"])),
            "stopping": bool(supervisor.record["stopping"]),
            "processes": tuple(_processes(reading, supervisor.record)),
        }
    if scheduler is not None:
        changes |= _scheduler(reading, scheduler)
    return Frame(**{name: getattr(base, name) for name in base.__struct_fields__} | changes)


def _scheduler(reading: Reading, page: ReadPage) -> dict[str, Any]:
    record, age_s = page.record, reading.age_s(page.stamp_ns)
    return {
        "liveness": Liveness.LIVE if age_s <= STALE_S else Liveness.STALE,
        "age_s": age_s,
        "scheduler_epoch": page.epoch,
        "draining": bool(record["draining"]),
        "totals": _totals(reading, record),
        "classes": tuple(_classes(reading.directory, record)),
        "tenants": tuple(_tenants(reading, record)),
        "replicas": tuple(_replicas(reading, record)),
    }


def _totals(reading: Reading, record: Record) -> Totals:
    http = reading.http_records()
    counts = (
        "waiting_tokens", "steps", "prompt_tokens", "cached_tokens", "generated_tokens",
        "preemptions", "recomputed_tokens", "swapped_out_tokens",
    )  # fmt: skip
    load = ("waiting", "running", "preempted", "swapped")
    times = ("queue_time", "step_time", "schedule_time")
    fields: dict[str, Any] = {name: int(record[f"num_{name}"]) for name in load}
    fields |= {name: int(record[name]) for name in counts}
    fields |= {name: histogram(record[name]) for name in times}
    return Totals(
        **fields,
        oldest_wait_s=int(record["oldest_wait_ns"]) / NS_PER_S,
        finished=int(record["finished"][vocabulary.FIRST_FINAL_STATUS :].sum()),
        connections=sum(int(page["num_connections"]) for page in http),
        streams=sum(int(page["num_streams"]) for page in http),
        ttft=merged([histogram(page["ttft"]) for page in http]),
        itl=merged([histogram(page["itl"]) for page in http]),
        rejections=_rejections([sum(n) for n in zip(*_told(http), strict=True)]),
        preemptions_by=_preemptions(record["preemptions_by"].tolist()),
        leftovers=_leftovers(record),
    )


def _told(http: list[Record]) -> list[list[int]]:
    """Return the refusals that clients were told, by reason, of each http process."""
    return [page["rejections"].tolist() for page in http]


def histogram(record: Record) -> Histogram:
    """Return a page's histogram."""
    return Histogram(tuple(record["counts"].tolist()), float(record["sum"]))


def merged(parts: list[Histogram]) -> Histogram:
    """Return the sum of histograms with the same buckets."""
    if not parts:
        return Histogram()
    counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
    return Histogram(counts, sum(part.sum_s for part in parts))


def _rejections(counts: list[int]) -> dict[str, int]:
    return {word(vocabulary.REJECTIONS, i): count for i, count in enumerate(counts) if count}


def _preemptions(counts: list[list[int]]) -> dict[str, int]:
    return {
        f"{word(vocabulary.PREEMPTION_KINDS, k)} for {word(vocabulary.PREEMPTION_CAUSES, c)}": count
        for k, row in enumerate(counts)
        for c, count in enumerate(row)
        if count
    }


def _leftovers(record: Record) -> dict[str, int]:
    rows = record["leftovers"][: int(record["num_leftovers"])].tolist()
    return {text(reason): tokens for reason, tokens in rows if tokens}


def _classes(directory: DirectorySnapshot, record: Record) -> Iterator[ClassFrame]:
    promises = {each.name: each for each in directory.classes}
    for index, row in enumerate(record["classes"]):
        name = word(vocabulary.CLASSES, index)
        promised = promises.get(name, DirectoryClass(name=name))
        yield ClassFrame(
            name=name,
            paused=bool(row["paused"]),
            weight=float(row["weight"]),
            waiting=int(row["num_waiting"]),
            running=int(row["num_running"]),
            held_blocks=int(row["held_blocks"]),
            reserved_blocks=int(row["reserved_blocks"]),
            reserved_seqs=int(row["reserved_seqs"]),
            reserved_step_tokens=int(row["reserved_step_tokens"]),
            virtual_lead=float(row["virtual_lead"]),
            queue_time=histogram(row["queue_time"]),
            ttft_ms=promised.ttft_ms,
            itl_ms=promised.itl_ms,
            queue_deadline_ms=promised.queue_deadline_ms,
            deadline_misses=int(row["deadline_misses"]),
        )


RENAMED = {
    "waiting": "num_waiting",
    "oldest_wait_s": "oldest_wait_ns",
    "running": "num_running",
    "preempted": "num_preempted",
    "swapped": "num_swapped",
    "quota_blocks": "kv_quota_blocks",
}
"""Fields of a tenant's frame that its row on the page calls otherwise."""

ELSEWHERE = ("budget_limit", "rejections", "ttft")  # not from the scheduler's page

TENANT_COLUMNS = tuple(
    RENAMED.get(name, name) for name in TenantFrame.__struct_fields__ if name not in ELSEWHERE
)


def _tenants(reading: Reading, record: Record) -> Iterator[TenantFrame]:
    """Yield a frame a row; a column at a time, which is several times as fast."""
    rows = record["tenants"][: int(record["num_tenants"])]
    columns = {name: rows[name].tolist() for name in TENANT_COLUMNS}
    columns["name"] = names = list(map(text, columns["name"]))
    for flag in ("paused", "removed"):
        columns[flag] = list(map(bool, columns[flag]))
    columns["oldest_wait_ns"] = [wait_ns / NS_PER_S for wait_ns in columns["oldest_wait_ns"]]
    columns |= _as_clients_saw(reading, names)
    columns["budget_tokens"] = [n if n != NO_BUDGET else None for n in columns["budget_tokens"]]
    tenants = reading.directory.tenants
    limits = {each.name: each.burst_tokens or each.tokens_per_minute for each in tenants}
    columns["budget_limit"] = [limits.get(name, 0) for name in names]
    ordered = [columns[RENAMED.get(name, name)] for name in TenantFrame.__struct_fields__]
    for values in zip(*ordered, strict=True):
        yield TenantFrame(*values)


def _as_clients_saw(reading: Reading, names: list[str]) -> dict[str, list[Any]]:
    """Return refusals and times to first token of tenants, summed over the http processes."""
    rows = http_tenants(reading.http_records())
    there, told, ttft = list(map(text, rows["name"].tolist())), rows["rejections"], rows["ttft"]
    refusals = {
        there[row]: _rejections(told[row].tolist())
        for row in np.flatnonzero(np.any(told, 1)).tolist()
    }
    times = zip(there, ttft["counts"].tolist(), ttft["sum"].tolist(), strict=True)
    first_tokens = {name: Histogram(tuple(counts), total) for name, counts, total in times}
    return {
        "rejections": [refusals.get(name, {}) for name in names],
        "ttft": [first_tokens.get(name, Histogram()) for name in names],
    }


def _replicas(reading: Reading, record: Record) -> Iterator[ReplicaFrame]:
    for row in record["replicas"][: int(record["num_replicas"])]:
        yield ReplicaFrame(
            epoch=int(row["epoch"]),
            step=int(row["step"]),
            running=int(row["num_running"]),
            num_blocks=int(row["num_blocks"]),
            held_blocks=int(row["num_held_blocks"]),
            evictable_blocks=int(row["num_evictable_blocks"]),
            fenced_blocks=int(row["num_fenced_blocks"]),
            host_blocks=int(row["num_host_blocks"]),
            held_host_blocks=int(row["num_held_host_blocks"]),
            draining=bool(row["draining"]),
            last_step_age_s=reading.known_age_s(int(row["last_step_ns"])),
            plan_age_s=reading.known_age_s(int(row["plan_sent_ns"])),
            cost_factors=tuple(row["cost_factors"].tolist()),
            cost_sigmas=tuple(row["cost_sigmas"].tolist()),
            infeasible_steps=int(row["infeasible_steps"]),
            expected_step_s=int(row["expected_step_ns"]) / NS_PER_S,
        )


def _executors(reading: Reading) -> Iterator[ExecutorFrame]:
    for child, page in sorted(reading.pages.items()):
        if child.startswith("executor."):
            record = page.record
            counts = ("steps", "tokens", "weights_bytes", "kv_bytes", "block_bytes", "threads")
            words = ("kernel_path", "device_name", "model")
            fields: dict[str, Any] = {name: int(record[name]) for name in counts}
            fields |= {name: text(bytes(record[name])) for name in words}
            step_time = histogram(record["step_time"])
            yield ExecutorFrame(child=child, step_time=step_time, **fields)


def _processes(reading: Reading, record: Record) -> Iterator[ProcessFrame]:
    for row in record["children"][: int(record["num_children"])]:
        child = text(bytes(row["name"]))
        beat = reading.heartbeats.get(child)
        yield ProcessFrame(
            child=child,
            pid=int(row["pid"]),
            epoch=int(row["epoch"]),
            state=word(vocabulary.PROCESS_STATES, int(row["state"])),
            activity=beat.state.name.lower() if beat else "",
            restarts=int(row["restarts"]),
            heartbeat_age_s=reading.known_age_s(beat.stamp_ns) if beat else None,
            patience_s=reading.time_left_s(beat.busy_until_ns) if beat else None,
            fault=text(bytes(row["fault"])),
        )


@lru_cache(maxsize=1024)
def text(value: bytes) -> str:
    """Return a text field without anything that could move a terminal's cursor."""
    decoded = value.decode("utf-8", "replace")
    return (
        decoded
        if decoded.isprintable()
        else "".join(c if c.isprintable() else "?" for c in decoded)
    )


def child_names(supervisor: np.void) -> list[str]:
    """Return the children on the supervisor's page, in the order of their heartbeat lines."""
    return [
        text(bytes(row["name"]))
        for row in supervisor["children"][: int(supervisor["num_children"])]
    ]
