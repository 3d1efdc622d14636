"""One executor as the scheduler sees it: its rows, its KV cache, its plans in flight.

Owns: which row is whose, what is fenced until which step, and the numbering of steps. Never knows:
why a request starts or leaves. A request that leaves while a plan in flight names its row keeps row
and blocks fenced until the last such plan is acknowledged:

    row     unused → occupied (generation + 1) → vacated → [fenced, last step not acked] → unused

Replicas come up under an epoch with an empty cache, go down (their plans will never be
acknowledged, so nothing stays fenced), and may be given up for good.
"""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from core.kv_cache.manager import BlockCopy, KVCacheManager, StartQuote
from core.policy.base import ReplicaLoad
from core.request import Request
from core.scheduler.events import NO_RESTRICTION, ReplicaUp
from core.scheduler.plan import RecordArray, StepPlan
from core.scheduler.plan_rows import PlannedRows
from core.scheduler.rows import RowWriter
from core.scheduler.running_table import RunningTable
from core.scheduler.settings import EngineSettings


class ReplicaState(IntEnum):
    """Whether an executor is there."""

    DOWN = 0
    UP = 1
    GONE = 2  # given up


class PlanInFlight(NamedTuple):
    """A plan that was handed out and not acknowledged."""

    step: int
    planned_ns: int
    planned: PlannedRows
    num_changes: int  # of the table when it was sent: with as many all rows are whose they were
    num_copies: int = 0


@dataclass(frozen=True, slots=True)
class Fence:
    """What a request left behind when plans in flight still named its row."""

    step: int  # everything is free once this step is acknowledged
    row: int
    request: Request
    block_ids: list[int]


class Replica:
    """The scheduler's half of one executor."""

    def __init__(self, index: int, rows: RecordArray, settings: EngineSettings) -> None:
        """Start without an executor; `rows` is row_dtype[num_rows], shared with it."""
        self.index = index
        self.state = ReplicaState.DOWN
        self.draining = False
        self.epoch = 0
        self.num_blocks = 0  # of the last pool; 0 = never up
        self.block_bytes = 0
        self.swap_gb_per_s = 0.0
        self.offer = NO_RESTRICTION
        self.step = 0
        self.acked_step = 0
        self.last_result_ns = 0
        self.in_flight: deque[PlanInFlight] = deque()
        self.table = RunningTable(len(rows), settings.eos_token_ids)
        self.rows = RowWriter(rows)
        self.kv = self._empty_cache(settings, 1, 0)
        self._fences: list[Fence] = []
        self._free_rows = list(range(len(rows) - 1, -1, -1))
        self._settings = settings
        assert self.rows.max_blocks_per_seq >= settings.max_blocks_per_seq

    @property
    def can_plan(self) -> bool:
        """Whether the executor can take another plan."""
        return self.state is ReplicaState.UP and len(self.in_flight) < self._settings.pipeline_depth

    @property
    def starts_requests(self) -> bool:
        """Whether waiting requests may start here at all."""
        return self.state is ReplicaState.UP and not self.draining

    @property
    def has_free_row(self) -> bool:
        """Whether one more request may run."""
        return bool(self._free_rows) and self.table.num_active < self._settings.max_num_seqs

    def load(self) -> ReplicaLoad:
        """Return the numbers that policies decide by."""
        pool, table = self.kv.pool, self.table
        return ReplicaLoad(
            pool.num_blocks, pool.num_available, table.num_active, self.index, pool.num_fenced,
            self.kv.host.num_free, self.block_bytes, self.swap_gb_per_s, table.view,
        )  # fmt: skip

    def come_up(self, up: ReplicaUp) -> None:
        """Attach a new executor with empty pools."""
        assert self.state is not ReplicaState.UP, self.index
        assert not self.table.num_active, self.index
        self.state = ReplicaState.UP
        self.epoch = up.epoch
        self.num_blocks = up.num_blocks
        self.block_bytes = up.block_bytes
        self.swap_gb_per_s = up.swap_gb_per_s
        self.offer = up.offer
        self.kv = self._empty_cache(self._settings, up.num_blocks, up.num_host_blocks)

    def go_down(self, state: ReplicaState) -> list[Fence]:
        """Detach the executor, after every request was evicted; return the fences that fell."""
        assert not self.table.num_active, self.index
        self.state = state
        self.in_flight.clear()
        self.acked_step = self.step
        fences, self._fences = self._fences, []
        self._free_rows = list(range(self.table.num_rows - 1, -1, -1))
        return fences

    def occupy(self, request: Request, quote: StartQuote) -> list[BlockCopy]:
        """Give `request` a free row and the blocks of `quote`; return the copies that fill them."""
        copies = self.kv.start(request, quote)
        row = self._free_rows.pop()
        request.replica = self.index
        self.table.assign(row, request, quote.num_known, len(quote.hits))
        self.rows.write(row, request, int(self.table.generation[row]))
        return copies

    def is_named(self, request: Request) -> bool:
        """Tell whether a plan in flight names the row of `request`."""
        return bool(self.table.last_step[request.row] > self.acked_step)

    def give_back(self, request: Request, num_blocks: int) -> int:
        """Take tail blocks from `request`, which no plan in flight names; return how many tokens it
        has lost.
        """
        assert not self.is_named(request), request.request_id
        self.kv.give_back(request, num_blocks)
        return self.table.fall_back(request.row, self._settings.block_size)

    def extend(self, request: Request, num_blocks: int) -> None:
        """Append available blocks to the row of `request`."""
        row, first = request.row, len(request.block_ids)
        block_ids = self.kv.extend(request, num_blocks)
        rows = np.full(num_blocks, row, np.int64)
        indexes = np.arange(first, first + num_blocks, dtype=np.int32)
        self.rows.append_blocks(rows, indexes, block_ids)
        self.table.num_blocks[row] += num_blocks

    def vacate(self, request: Request) -> bool:
        """Take row and blocks from `request`; True = they are fenced until a plan is acked."""
        row, last_step = request.row, int(self.table.last_step[request.row])
        is_named = self.is_named(request)
        self.table.clear(row)
        if is_named:
            self._fences.append(Fence(last_step, row, request, self.kv.fence(request)))
            return True
        self.kv.release(request)
        self._free_rows.append(row)
        return False

    def evict(self, request: Request) -> None:
        """Take the row from `request` when the executor, and with it every block, is lost."""
        self.table.clear(request.row)
        request.block_ids = []

    def send(self, planned: PlannedRows, copies: RecordArray, now_ns: int) -> StepPlan:
        """Number a plan with COPY[m], mark its tokens as scheduled, remember it as in flight."""
        assert self.can_plan, self.index
        self.step += 1
        num_changes = self.table.num_changes
        self.in_flight.append(PlanInFlight(self.step, now_ns, planned, num_changes, len(copies)))
        self.table.num_scheduled[planned.rows] = planned.ends
        self.table.last_step[planned.rows] = self.step
        return StepPlan(self.index, self.epoch, self.step, planned.records, copies=copies)

    def acknowledge(self, plan: PlanInFlight) -> list[Fence]:
        """Let go of what was fenced for `plan` and earlier ones; return those fences."""
        self.acked_step = plan.step
        if not self._fences:
            return []
        fallen = [fence for fence in self._fences if fence.step <= plan.step]
        self._fences = [fence for fence in self._fences if fence.step > plan.step]
        for fence in fallen:
            self.kv.release_fenced(fence.block_ids)
            self._free_rows.append(fence.row)
        return fallen

    def requests_in_flight(self) -> set[Request]:
        """Return the running requests that plans in flight name."""
        named = self.table.active & (self.table.last_step > self.acked_step)
        return {self.table.request_at(row) for row in np.flatnonzero(named).tolist()}

    def check_integrity(self) -> None:
        """Assert that rows, blocks, fences and plans in flight add up."""
        self.table.check_integrity()
        fenced_rows = [fence.row for fence in self._fences]
        used = [request.row for request in self.table.running()]
        assert sorted(fenced_rows + used + self._free_rows) == list(range(self.table.num_rows))
        assert len(self.in_flight) <= self._settings.pipeline_depth
        assert self.table.num_active <= self._settings.max_num_seqs
        steps = [plan.step for plan in self.in_flight]
        assert steps == list(range(self.acked_step + 1, self.step + 1))
        if self.state is ReplicaState.UP:
            self._check_blocks()

    def _check_blocks(self) -> None:
        self.kv.check_integrity()
        references = sum(len(request.block_ids) for request in self.table.running())
        references += sum(len(fence.block_ids) for fence in self._fences)
        assert references == self.kv.pool.num_references(), references

    @staticmethod
    def _empty_cache(
        settings: EngineSettings, num_blocks: int, num_host_blocks: int
    ) -> KVCacheManager:
        return KVCacheManager(
            num_blocks,
            settings.block_size,
            settings.digest_secret,
            prefix_cache=settings.prefix_cache,
            num_host_blocks=num_host_blocks,
        )
