"""One step of one replica in the making: reap → decodes → what the policy grants → plan.

Owns: the hard limits of a step (tokens, rows, partial prefills) and what is in it so far. Never
knows: in which order requests deserve anything; it is the `Step` that a policy fills. Nothing is
marked as scheduled before `finish`, so a request can still be preempted out of the step.

Memory (`step_memory`) for decodes comes first. When none is left, memory on its way (fenced) is
waited for, and only then is a victim preempted; in such a step nothing new starts, unless the
policy preempts somebody for it.
"""

import numpy as np
import numpy.typing as npt

from core.errors import Rejection
from core.kv_cache.manager import StartQuote
from core.metering import PreemptionCause
from core.policy.base import Blocked, DecodeBatch, Grant, Relief, ReplicaLoad
from core.request import Request, RequestStatus
from core.scheduler.plan import StepPlan
from core.scheduler.plan_rows import plan_rows
from core.scheduler.replica import Replica
from core.scheduler.routing import Route
from core.scheduler.running_table import NEARLY_WHOLE, Rows
from core.scheduler.scheduler import Scheduler
from core.scheduler.step_memory import StepMemory


class StepBuilder:
    """The mechanism behind `core.policy.base.Step`."""

    def __init__(self, scheduler: Scheduler, replica: Replica, now_ns: int) -> None:
        """Open a step; `replica` can take a plan."""
        self.now_ns = now_ns
        self.replica = replica.index  # whose step it is
        self.number = replica.step + 1  # of the step, if it becomes one
        self.tokens_left = scheduler.settings.max_num_batched_tokens
        self._scheduler = scheduler
        self._settings = scheduler.settings
        self._replica = replica
        self._table = replica.table
        self._pool = replica.kv.pool
        self._memory = StepMemory(scheduler, replica, now_ns)
        self._decode_rows: Rows = np.empty(0, np.int64)
        self._decode_batch: DecodeBatch | None = None
        self._prefill_tokens: dict[Request, int] = {}
        self._left: dict[Request, int] = {}  # of prompts under way, behind what the step has
        self._partial: set[Request] = set()
        self._route: Route | None = None  # of the request that was looked at last

    @property
    def num_running(self) -> int:
        """Requests that have a row."""
        return self._table.num_active

    @property
    def may_start_requests(self) -> bool:
        """Whether a waiting request could start in this step at all."""
        return self._replica.starts_requests and self._replica.has_free_row

    def add_decodes(self) -> None:
        """Put every decode that has memory for its next token into the step."""
        table = self._table
        rows = table.decode_rows()
        num_slots = table.num_blocks[rows] * self._settings.block_size
        full = rows[num_slots <= table.num_scheduled[rows]]
        if len(full):
            rows = self._memory.grow(rows, full)
        self._decode_rows = rows
        self.tokens_left -= len(rows)
        for row in table.prefill_rows().tolist():
            request = table.request_at(row)
            self._count_left(request)
            if table.last_step[row] > 0 and self._left[request] > NEARLY_WHOLE:
                self._partial.add(request)

    def prefills(self) -> list[Request]:
        """Return the running requests with tokens left to prefill."""
        return list(self._left)

    def decodes(self) -> DecodeBatch:
        """Return the decodes in the step; the same object as long as they are the same."""
        table, rows = self._table, self._decode_rows
        if self._decode_batch is not None and self._decode_batch.rows is rows:
            return self._decode_batch
        contexts, num_tokens = table.num_scheduled[rows], table.num_tokens[rows]
        last_token_ns = table.last_token_ns[rows]
        last_token_ns[contexts >= num_tokens] = 0  # it is on its way
        self._decode_batch = DecodeBatch(
            tenant_index=table.tenant_index[rows],
            traffic_class=table.traffic_class[rows],
            context_tokens=contexts,
            num_output_tokens=num_tokens - table.prompt_len[rows],
            ttft_deadline_ns=table.ttft_deadline_ns[rows],
            itl_cap_ns=table.itl_cap_ns[rows],
            last_token_ns=last_token_ns,
            rows=rows,
        )
        return self._decode_batch

    def defer(self, decodes: npt.NDArray[np.bool_]) -> None:
        """Leave some decodes out of this step; they keep their blocks."""
        self.tokens_left += int(decodes.sum())
        self._decode_rows = self._decode_rows[~decodes]

    def load(self) -> ReplicaLoad:
        """Return the replica's numbers as they are now."""
        return self._replica.load()

    def running(self) -> list[Request]:
        """Return the running requests that may be preempted."""
        return self._memory.candidates()

    def remaining(self, request: Request) -> int:
        """Return the tokens left to prefill; of a waiting request all."""
        if request.status is not RequestStatus.RUNNING:
            return request.num_tokens
        return self._left.get(request, 0)

    def hit_tokens(self, request: Request) -> int:
        """Return how many tokens of a waiting `request` the prefix cache holds, or the host."""
        return self._replica.kv.hit_tokens(request)

    def start(self, request: Request) -> Blocked:
        """Give a waiting `request` its row and blocks without any token yet."""
        blocked, quote = self._may_start(request)
        if quote is None:
            self._note_wait(request, blocked)
        else:
            self._start(request, quote)
        return blocked

    def grant(self, request: Request, max_tokens: int) -> Grant:
        """Compute up to `max_tokens` more prompt tokens of `request`; start it if it waits."""
        if self.tokens_left <= 0:
            return Grant(0, Blocked.TOKENS)
        if request.status is not RequestStatus.RUNNING:
            if self._is_one_too_many(request, max_tokens):
                return Grant(0, Blocked.PARTIAL_PREFILLS)
            blocked, quote = self._may_start(request)
            if quote is None:
                self._note_wait(request, blocked)
                return Grant(0, blocked)
            unknown = request.num_tokens - quote.num_known
            if not self._may_be_computed(request, unknown, max_tokens):
                return Grant(0, Blocked.PARTIAL_PREFILLS)
            self._start(request, quote)
        return self._grant_running(request, max_tokens)

    def preempt(
        self, request: Request, relief: Relief = Relief.RECOMPUTE, num_blocks: int = 0
    ) -> None:
        """Take back memory of a running request and what this step holds for it."""
        in_step = self._decode_rows == request.row
        if in_step.any():
            self._decode_rows = self._decode_rows[~in_step]
            self.tokens_left += 1
        self.tokens_left += self._prefill_tokens.pop(request, 0)
        self._partial.discard(request)
        self._left.pop(request, None)
        self._memory.give_up(request, relief, num_blocks, PreemptionCause.ADMISSION)
        self._memory.under_pressure = False  # what comes free is for a start, not for growth
        if request.row >= 0:
            self._count_left(request)

    def shed(self, request: Request, rejection: Rejection) -> None:
        """Refuse a waiting `request`."""
        self._scheduler.shed(request, rejection, self.now_ns)

    def missing_blocks(self, request: Request) -> int:
        """Return how many blocks must be freed, besides fenced ones, before `request` fits."""
        return self._blocks_to_start(request) - self._pool.num_available - self._pool.num_fenced

    def finish(self) -> StepPlan | None:
        """Make the plan and mark its tokens as scheduled; None if there is nothing to do."""
        copies = self._memory.copies()
        if not len(self._decode_rows) and not self._prefill_tokens and not len(copies):
            return None
        planned = plan_rows(self._table, self._decode_rows, self._prefill_tokens)
        return self._replica.send(planned, copies, self.now_ns)

    def end_standstill(self) -> bool:
        """Free memory if a step came to nothing because all that run wait for it."""
        return self._memory.end_standstill()

    def _may_start(self, request: Request) -> tuple[Blocked, StartQuote | None]:
        """Check everything that can keep a waiting request from starting here and now."""
        self._route = None
        blocked, quote = self._scheduler.routing.may_start(request, self._replica)
        if quote is None:
            return blocked, None
        if self._memory.under_pressure:
            return Blocked.MEMORY, None
        if not self._memory.has_room_for(quote.copies):
            return Blocked.TOKENS, None
        if self._scheduler.routing.has_choice() and not self._is_best_here(request):
            return Blocked.ELSEWHERE, None
        return Blocked.NOTHING, quote

    def _is_best_here(self, request: Request) -> bool:
        """Compare this replica, where `request` could start, with all others."""
        self._route = self._scheduler.routing.route(request, self._replica, self.now_ns)
        return self._route.is_here

    def _start(self, request: Request, quote: StartQuote) -> None:
        if self._route is not None and self._route.is_choice:
            records, replica = self._scheduler.records, self._replica.index
            records.routed(request, replica, self._route.here, self._route.elsewhere, self.now_ns)
        self._memory.start(request, quote)
        self._count_left(request)

    def _count_left(self, request: Request) -> None:
        """Look up how much of a running prompt is not scheduled, if any."""
        row = request.row
        left = int(self._table.prefill_end[row]) - int(self._table.num_scheduled[row])
        if left > 0:
            self._left[request] = left

    def _note_wait(self, request: Request, blocked: Blocked) -> None:
        """Note once what keeps a request from its start, and the numbers that were compared."""
        if request.noted_waits >> blocked & 1:
            return
        measured = threshold = 0.0
        if blocked is Blocked.MEMORY:
            measured, threshold = self._blocks_to_start(request), self._pool.num_available
            request.noted_waits |= 1 << blocked
            if self._scheduler.routing.quote(request, self._replica).num_needed <= threshold:
                blocked = Blocked.HEADROOM
        elif self._route is not None and not self._route.is_here:
            measured, threshold = self._route.here, self._route.elsewhere
        self._scheduler.records.waits(
            request, self._replica.index, blocked, measured, threshold, self.now_ns
        )

    def _is_one_too_many(self, request: Request, max_tokens: int) -> bool:
        """Tell, before memory is looked at, whether a waiting prompt cannot be computed up to its
        last token while no more may be computed in part.
        """
        if len(self._partial) < self._settings.max_num_partial_prefills:
            return False
        nearly_whole = request.num_tokens - self.hit_tokens(request) - NEARLY_WHOLE
        return min(max_tokens, self.tokens_left) < nearly_whole

    def _blocks_to_start(self, request: Request) -> int:
        routing = self._scheduler.routing
        needed = routing.quote(request, self._replica).num_needed
        return needed + routing.headroom(request, self._replica)

    def _may_be_computed(self, request: Request, remaining: int, max_tokens: int) -> bool:
        """Tell whether so many tokens leave no more prompts partly computed than may be."""
        completes = min(max_tokens, self.tokens_left) >= remaining - NEARLY_WHOLE
        has_room = len(self._partial) < self._settings.max_num_partial_prefills
        return completes or has_room or request in self._partial

    def _grant_running(self, request: Request, max_tokens: int) -> Grant:
        remaining = self.remaining(request)
        if not self._may_be_computed(request, remaining, max_tokens):
            return Grant(0, Blocked.PARTIAL_PREFILLS)
        if not self._memory.regrow(request):
            return Grant(0, Blocked.MEMORY)
        num_tokens = min(remaining, max_tokens, self.tokens_left)
        self._prefill_tokens[request] = self._prefill_tokens.get(request, 0) + num_tokens
        self.tokens_left -= num_tokens
        left = remaining - num_tokens
        if left:
            self._left[request] = left
        else:
            self._left.pop(request, None)
        if left > NEARLY_WHOLE:
            self._partial.add(request)
        else:
            self._partial.discard(request)
        return Grant(num_tokens)
