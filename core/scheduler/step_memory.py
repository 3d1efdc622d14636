"""The memory of one step in the making: blocks for those that grow, and who gives some back.

Owns: the relief of pressure (wait for fenced blocks, then a victim of the policy's choice), the
copies of the step, and the end of a standstill. Never knows: tokens, or who is in the step.

    RECOMPUTE   everything is given back; the request waits for its start at its old place
    SWAP        the same, and what it shares with nobody is copied to host memory by this plan
    partial     tail blocks are given back; the request keeps row and head, and goes on when it can
                have blocks for all its known tokens again

Executors carry out plans in order, a plan's copies out before its copies in and both before it
computes anything. So blocks that a swap frees may be written in the very plan that copies them, and
host blocks that this plan reads are only written by later ones (`HostPool.settle`). What plans in
flight still compute for a victim is not waited for: a swap keeps what was acknowledged, its blocks
stay fenced as after any preemption, and a partial preemption becomes a whole one.
"""

from collections.abc import Sequence

import numpy as np

from core.kv_cache.manager import BlockCopy, StartQuote
from core.metering import PreemptionCause
from core.policy.base import Relief
from core.request import Request
from core.scheduler.plan import COPY, NO_COPIES, CopyDirection, RecordArray
from core.scheduler.replica import Replica
from core.scheduler.running_table import Rows
from core.scheduler.scheduler import Scheduler
from core.tenancy.classes import NUM_CLASSES


class StepMemory:
    """Blocks and copies of one step."""

    def __init__(self, scheduler: Scheduler, replica: Replica, now_ns: int) -> None:
        """Begin with nobody in need."""
        self.under_pressure = False
        self._scheduler = scheduler
        self._replica = replica
        self._table = replica.table
        self._pool = replica.kv.pool
        self._now_ns = now_ns
        self._out: list[BlockCopy] = []
        self._in: dict[Request, list[BlockCopy]] = {}
        self._starved: dict[Request, None] = {}
        self._has_freed = False
        replica.kv.host.settle()

    def candidates(self) -> list[Request]:
        """Return the running requests that may be preempted."""
        limit = self._scheduler.settings.max_preemptions
        return [r for r in self._table.running() if r.num_preemptions < limit]

    def has_room_for(self, copies: Sequence[int]) -> bool:
        """Tell whether the plan can make so many copies more."""
        return len(copies) <= self._copies_left()

    def start(self, request: Request, quote: StartQuote) -> None:
        """Give a waiting `request` row and blocks, and fill them with what was swapped."""
        copies = self._scheduler.start(request, self._replica, quote, self._now_ns)
        if copies:
            self._in[request] = copies

    def grow(self, rows: Rows, needing: Rows) -> Rows:
        """Append a block to each of `needing`; return `rows` without those that must wait."""
        if len(needing) > self._pool.num_available:
            waiting = self._relieve([self._table.request_at(row) for row in needing.tolist()])
            rows = self._still_decodes(rows, waiting)
            needing = self._still_decodes(needing, waiting)
        kv, table = self._replica.kv, self._table
        flows = table.tenant_index[needing] * NUM_CLASSES + table.traffic_class[needing]
        block_ids = kv.grow(table.requests_at(needing), flows.tolist())
        self._replica.rows.append_blocks(needing, table.num_blocks[needing], block_ids)
        table.num_blocks[needing] += 1
        return rows

    def regrow(self, request: Request) -> bool:
        """Give a prompt under way the blocks that it gave back, if it did and all of them fit."""
        kv, held = self._replica.kv, len(request.block_ids)
        if held >= kv.blocks_for(int(self._table.prefill_end[request.row])):
            return True
        missing = kv.blocks_for(self._scheduler.routing.tokens_to_hold(request)) - held
        if self.under_pressure or missing > self._pool.num_available:
            self._starved[request] = None
            return False
        self._replica.extend(request, missing)
        return True

    def give_up(
        self, request: Request, relief: Relief, num_blocks: int, cause: PreemptionCause
    ) -> None:
        """Take memory from a running request, as much and in the way that is possible."""
        self._has_freed = True
        if 0 < num_blocks < len(request.block_ids) and self._may_keep_row(request):
            self._scheduler.give_back(request, num_blocks, cause, self._now_ns)
            return
        if self._in.pop(request, None):  # its blocks hold nothing yet
            relief = Relief.RECOMPUTE
        self._out += self._scheduler.preempt(
            request, cause, self._now_ns, relief, self._copies_left()
        )

    def end_standstill(self) -> bool:
        """See to it that the next try comes to something; False = there is nothing to do.

        For a step that came to nothing. If no plan in flight will free blocks either, all that run
        wait for each other, and the last of them is preempted.
        """
        if self._replica.in_flight:
            return False
        starved = [request for request in self._starved if request.row >= 0]
        if starved:
            last = max(starved, key=self._scheduler.policy.place)
            self._scheduler.preempt(last, PreemptionCause.STANDSTILL, self._now_ns)
        return bool(starved) or self._has_freed

    def copies(self) -> RecordArray:
        """Return the copies of the step, COPY[m]."""
        if not self._out and not self._in:
            return NO_COPIES
        out = [(CopyDirection.OUT, each.block_id, each.host_block) for each in self._out]
        back = [
            (CopyDirection.IN, each.block_id, each.host_block)
            for copies in self._in.values()
            for each in copies
        ]
        return np.array(out + back, COPY)

    def _relieve(self, needing: list[Request]) -> list[int]:
        """Make room for a block for each of `needing`; return the rows that must wait."""
        self.under_pressure = True
        waiting: list[int] = []
        num_promised = num_awaited = 0
        for request in sorted(needing, key=self._scheduler.policy.place):
            while self._is_decode(request):
                if self._pool.num_available > num_promised:
                    num_promised += 1
                    break
                if self._pool.num_fenced > num_awaited:
                    num_awaited += 1
                    waiting.append(request.row)
                    break
                if not self._preempt_victim(request):
                    waiting.append(request.row)
                    self._starved[request] = None
                    break
        return waiting

    def _preempt_victim(self, beneficiary: Request) -> bool:
        policy = self._scheduler.policy
        victim = policy.victim(self.candidates(), beneficiary, self._replica.load())
        if victim is None:
            return False
        self.give_up(victim.request, victim.relief, victim.num_blocks, PreemptionCause.GROWTH)
        return True

    def _is_decode(self, request: Request) -> bool:
        return request.row >= 0 and self._table.is_decode(request.row)

    def _still_decodes(self, rows: Rows, waiting: list[int]) -> Rows:
        """Return those of `rows` that have lost nothing, without the `waiting` ones."""
        table = self._table
        whole = table.active[rows] & (table.num_scheduled[rows] >= table.prefill_end[rows])
        left: Rows = np.setdiff1d(rows[whole], waiting, assume_unique=True)
        return left

    def _may_keep_row(self, request: Request) -> bool:
        is_settled = request not in self._in and not self._replica.is_named(request)
        return is_settled and not request.is_being_scored

    def _copies_left(self) -> int:
        used = len(self._out) + sum(map(len, self._in.values()))
        return self._scheduler.settings.max_copies - used
