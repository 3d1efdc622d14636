"""Where a request may start, what that takes, and whether another replica is the better place.

Owns: the hard limits of a start, which replicas are candidates for a request, and the comparison of
their predicted times to its first token. Never knows: why the request is next, or how it starts.
The flows are one for all replicas: each asks at its own step boundary whether the request whose
turn it is should start here and now, or be left for another one.

A prediction is the work before the request plus its own tokens that the cache does not hold, in
steps as full as they may be, with the decodes that will still run when it is done rather than those
that run now. It is a time if the policy has a cost model for every candidate, else it is in tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from core.kv_cache.manager import StartQuote
from core.policy.base import Blocked, Policy
from core.policy.cost_model import CostModel, StepWork
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.scheduler.replica import Replica, ReplicaState
from core.scheduler.settings import EngineSettings

TOKENS_PER_RUNNING_REQUEST = 128  # what a running request weighs, in prefill tokens
STALLED_AFTER_NS = 1_000_000_000  # a replica that owes a result for so long attracts nothing


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a replica would need until the first token of a request, in one unit for all."""

    cost: float
    step: float  # of a full step: what a request waits for that comes while it runs


@dataclass(frozen=True, slots=True)
class Route:
    """The comparison for one request at one replica; `elsewhere` is inf if nobody else fits."""

    is_here: bool
    here: float
    elsewhere: float

    @property
    def is_choice(self) -> bool:
        """Whether there was another place at all."""
        return self.elsewhere < inf


class Routing:
    """The places there are."""

    def __init__(
        self, settings: EngineSettings, replicas: Sequence[Replica], policy: Policy
    ) -> None:
        """Look at `replicas` as they are whenever asked."""
        self.limits = settings.limits
        self._settings = settings
        self._replicas = replicas
        self._policy = policy

    def configure(self, limits: Limits) -> None:
        """Let tenants use other replicas from now on."""
        self.limits = limits

    def may_start(self, request: Request, replica: Replica) -> tuple[Blocked, StartQuote | None]:
        """Check the hard limits of a start; return what blocks it, or what it would take."""
        if not replica.starts_requests:
            return Blocked.DRAINING, None
        if not self.accepts(replica, request):
            return Blocked.INCOMPATIBLE, None
        if self.needed_blocks(request) > replica.num_blocks or self._is_at_home(request, replica):
            return Blocked.ELSEWHERE, None
        if not replica.has_free_row:
            return Blocked.SEQUENCES, None
        quote = self.quote(request, replica)
        if quote.num_needed + self.headroom(request, replica) > replica.kv.pool.num_available:
            return Blocked.MEMORY, None
        return Blocked.NOTHING, quote

    def accepts(self, replica: Replica, request: Request) -> bool:
        """Tell whether `replica` is a candidate for `request` at all.

        Whoever computes another model than the engine serves is one for nobody. What was begun
        with certain numerics is not continued with others, as long as there is a replica that has
        them. KV blocks never move between replicas, so their format is no question.
        """
        offer, chosen = replica.offer, self.limits.tenant(request.tenant).replicas
        if chosen and replica.index not in chosen:
            return False
        if offer.model and self._settings.model not in ("", offer.model):
            return False
        if offer.classes and request.traffic_class not in offer.classes:
            return False
        if offer.adapters and request.adapter not in offer.adapters:
            return False
        if not request.num_output_tokens or request.numerics in ("", offer.numerics):
            return True
        others = [r for r in self._replicas if r.state is not ReplicaState.GONE]
        return all(each.offer.numerics != request.numerics for each in others)

    def quote(self, request: Request, replica: Replica) -> StartQuote:
        """Work out the blocks of a start."""
        return replica.kv.quote(request, self.tokens_to_hold(request))

    def tokens_to_hold(self, request: Request) -> int:
        """Return for how many tokens a request that starts or regrows needs blocks: for all known
        ones, so that a prompt once begun can be computed to its end. One that was preempted takes a
        block more, or it would be in need again at once; one that is not to be preempted any more
        takes all it can come to need.
        """
        most = request.max_length
        if request.num_preemptions >= self._settings.max_preemptions:
            return most
        spare = self._settings.block_size if request.num_preemptions else 0
        return min(request.num_tokens + spare, most)

    def headroom(self, request: Request, replica: Replica) -> int:
        """Return the blocks that must stay available on `replica` when `request` starts there."""
        return self._policy.headroom_blocks(request, replica.load())

    def needed_blocks(self, request: Request) -> int:
        """Return the blocks that `request` could come to hold."""
        return -(-request.max_length // self._settings.block_size)

    def max_pool_blocks(self) -> int:
        """Return the size of the largest pool there is or may be again; 0 = some are unknown."""
        sizes = self.pools().values()
        return max(sizes) if sizes and min(sizes) > 0 else 0

    def pools(self) -> dict[int, int]:
        """Return the blocks of each pool there is or may be again, by replica; 0 = not known."""
        return {r.index: r.num_blocks for r in self._replicas if r.state is not ReplicaState.GONE}

    def has_replica(self) -> bool:
        """Tell whether an executor is there or may come back."""
        return any(replica.state is not ReplicaState.GONE for replica in self._replicas)

    def has_choice(self) -> bool:
        """Tell whether there is more than one place."""
        return len(self._replicas) > 1

    def route(self, request: Request, here: Replica, now_ns: int) -> Route:
        """Compare `here`, where `request` could start, with all others where it could.

        One that can plan at once wins if it is better at all; a busy one must be better by a step,
        because the request would wait for the end of the one that runs.
        """
        others = [
            each
            for each in self._replicas
            if each is not here and not _is_stalled(each, now_ns) and self._fits(request, each)
        ]
        if not others or request.status is RequestStatus.SWAPPED:
            return Route(True, 0.0, inf)
        predictions = self._predictions(request, [here, *others])
        costs = [
            each.cost + (0 if other.can_plan else each.step)
            for other, each in zip(others, predictions[1:], strict=True)
        ]
        return Route(min(costs) >= predictions[0].cost, predictions[0].cost, min(costs))

    def _fits(self, request: Request, replica: Replica) -> bool:
        return self.may_start(request, replica)[1] is not None

    def _is_at_home(self, request: Request, replica: Replica) -> bool:
        """Tell whether the blocks of a swapped request wait at another replica that is serving."""
        if request.status is not RequestStatus.SWAPPED or request.replica == replica.index:
            return False
        return self._replicas[request.replica].starts_requests

    def _predictions(self, request: Request, replicas: Sequence[Replica]) -> list[Prediction]:
        models = [self._policy.cost_model(replica.index) for replica in replicas]
        known = [model for model in models if model is not None]
        if len(known) < len(replicas):
            return [self._in_tokens(request, replica) for replica in replicas]
        return [self._in_time(request, *each) for each in zip(replicas, known, strict=True)]

    def _in_tokens(self, request: Request, replica: Replica) -> Prediction:
        ahead, uncached = self._tokens_until_first(request, replica)
        running = TOKENS_PER_RUNNING_REQUEST * len(self._decodes_by_then(replica, ahead + uncached))
        return Prediction(ahead + uncached + running, self._settings.max_num_batched_tokens)

    def _in_time(self, request: Request, replica: Replica, model: CostModel) -> Prediction:
        ahead, uncached = self._tokens_until_first(request, replica)
        contexts = self._decodes_by_then(replica, ahead + uncached)
        decodes = StepWork(
            num_decodes=len(contexts), decode_context=int(contexts.sum()), num_outputs=len(contexts)
        )
        room = max(1, self._settings.max_num_batched_tokens - len(contexts))
        chunk = min(room, max(1, ahead + uncached))
        step_ns = model.duration_ns(decodes.with_prefill(chunk, request.num_tokens // 2))
        return Prediction((ahead + uncached) / chunk * step_ns, step_ns)

    def _tokens_until_first(self, request: Request, replica: Replica) -> tuple[int, int]:
        """Return the tokens before `request` and its own that must be computed."""
        uncached = request.num_tokens - replica.kv.hit_tokens(request)
        return replica.table.outstanding_prefill_tokens(), uncached

    def _decodes_by_then(
        self, replica: Replica, num_tokens: int
    ) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return the contexts of those that may still decode after `num_tokens` of prefill."""
        num_steps = -(-num_tokens // self._settings.max_num_batched_tokens)
        table = replica.table
        left = table.max_length - np.maximum(table.num_tokens, table.prefill_end)
        contexts: np.ndarray[tuple[int], np.dtype[np.int32]]
        contexts = table.num_tokens[table.active & (left > num_steps)] + np.int32(num_steps)
        return contexts


def _is_stalled(replica: Replica, now_ns: int) -> bool:
    in_flight = replica.in_flight
    return bool(in_flight) and now_ns - in_flight[0].planned_ns > STALLED_AFTER_NS
