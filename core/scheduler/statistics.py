"""The state of the engine core in frozen numbers, for status commands, pages and tests.

Owns: the shapes of these snapshots and how they are taken. Never knows: who looks at them.
"""

from dataclasses import dataclass

from core.kv_cache.block_pool import BlockPoolStatistics
from core.kv_cache.host_pool import HostPoolStatistics
from core.policy.base import Prediction
from core.request import Request, RequestStatus
from core.scheduler.replica import Replica, ReplicaState
from core.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """One replica."""

    state: ReplicaState
    epoch: int
    step: int
    last_result_ns: int
    plan_sent_ns: int  # of the oldest plan in flight; 0 = none
    num_in_flight: int
    num_running: int
    draining: bool
    pool: BlockPoolStatistics
    host: HostPoolStatistics
    prediction: Prediction | None = None  # how well its steps are predicted


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """The prefix cache of one replica; blocks that requests hold and blocks that nobody does."""

    replica: int
    num_blocks: int
    num_cached_blocks: int
    num_evictable_blocks: int


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """The whole engine core."""

    num_waiting: int
    waiting_tokens: int
    num_preempted: int
    num_swapped: int
    num_running: int
    oldest_arrival_ns: int  # of those that never started; 0 = none
    draining: bool
    replicas: tuple[ReplicaStatistics, ...]
    price_epoch: int = 0  # of the policy's prices; 0 = it charges nobody
    system_service: int = 0  # charged to nobody, in the policy's unit


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request as a status command shows it."""

    request_id: int
    tenant: str
    traffic_class: str
    status: RequestStatus
    replica: int  # -1 = none
    arrival_ns: int
    first_start_ns: int  # 0 = not started
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_blocks: int
    num_preemptions: int
    first_token_ns: int = 0  # 0 = none yet
    ttft_deadline_ns: int = 0
    queue_deadline_ns: int = 0


def replica_statistics(replica: Replica, prediction: Prediction | None = None) -> ReplicaStatistics:
    """Take the numbers of one replica; a replica without executor has an empty pool."""
    is_up = replica.state is ReplicaState.UP
    return ReplicaStatistics(
        state=replica.state,
        epoch=replica.epoch if is_up else 0,
        step=replica.step,
        last_result_ns=replica.last_result_ns,
        plan_sent_ns=replica.in_flight[0].planned_ns if replica.in_flight else 0,
        num_in_flight=len(replica.in_flight),
        num_running=replica.table.num_active,
        draining=replica.draining,
        pool=replica.kv.pool.statistics() if is_up else BlockPoolStatistics(0, 0, 0, 0, 0),
        host=replica.kv.host.statistics() if is_up else HostPoolStatistics(0, 0),
        prediction=prediction if is_up else None,
    )


def cache_statistics(replica: Replica, flows: range | None) -> CacheStatistics:
    """Take the numbers of one replica's prefix cache, of some `flows` or all (None)."""
    if replica.state is not ReplicaState.UP:
        return CacheStatistics(replica.index, 0, 0, 0)
    pool = replica.kv.pool
    cached = pool.cached_blocks(flows)
    return CacheStatistics(
        replica.index, pool.num_blocks, len(cached), pool.count_evictable(cached)
    )


def engine_statistics(scheduler: Scheduler) -> EngineStatistics:
    """Take the numbers of everything; costs nothing per request."""
    waiting = scheduler.waiting
    num_running = sum(replica.table.num_active for replica in scheduler.replicas)
    accounts = scheduler.policy.accounts()
    return EngineStatistics(
        num_waiting=waiting.num_waiting,
        waiting_tokens=waiting.waiting_tokens,
        num_preempted=waiting.num_preempted,
        num_swapped=waiting.num_swapped,
        num_running=num_running,
        oldest_arrival_ns=waiting.oldest_arrival_ns(),
        draining=scheduler.draining,
        replicas=tuple(
            replica_statistics(replica, scheduler.policy.prediction(replica.index))
            for replica in scheduler.replicas
        ),
        price_epoch=accounts.price_epoch,
        system_service=accounts.system_charged,
    )


def request_view(scheduler: Scheduler, request: Request) -> RequestView:
    """Take the numbers of one request, from the running table while it runs."""
    computed, output = request.num_computed_tokens, request.num_output_tokens
    if request.row >= 0:
        table = scheduler.replicas[request.replica].table
        computed, output = int(table.num_computed[request.row]), table.output_tokens(request.row)
    return RequestView(
        request_id=request.request_id,
        tenant=request.tenant,
        traffic_class=request.traffic_class.label,
        status=request.status,
        replica=request.replica if request.row >= 0 else -1,
        arrival_ns=request.arrival_ns,
        first_start_ns=request.first_start_ns,
        num_prompt_tokens=request.prompt_len,
        num_cached_tokens=request.num_cached_tokens,
        num_computed_tokens=computed,
        num_output_tokens=output,
        max_tokens=request.max_tokens,
        num_blocks=len(request.block_ids),
        num_preemptions=request.num_preemptions,
        first_token_ns=request.first_token_ns,
        ttft_deadline_ns=request.ttft_deadline_ns,
        queue_deadline_ns=request.queue_deadline_ns,
    )
