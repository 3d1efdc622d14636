"""The hard limits of tenants and classes, at arrival and before a start."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from core.clock import NS_PER_MS, NS_PER_S
from core.errors import RejectionReason
from core.policy.base import Blocked, DecodeBatch, ReplicaLoad
from core.policy.hard_limits.gates import Gates
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.scheduler.checked_engine import make_request

BATCH = TrafficClass.BATCH
INTERACTIVE = TrafficClass.INTERACTIVE
STANDARD = TrafficClass.STANDARD
NOTHING_RESERVED = ClassesConfig(
    interactive=ClassConfig(),
    standard=ClassConfig(),
    batch=ClassConfig(preemptible=True),
    administrative=ClassConfig(),
)
LOAD = ReplicaLoad(num_blocks=100, num_available_blocks=100, num_running=0)


def gates_with(
    tenants: Sequence[TenantConfig] = (),
    classes: ClassesConfig = NOTHING_RESERVED,
    *,
    paused: frozenset[str] = frozenset(),
    paused_classes: frozenset[str] = frozenset(),
    max_num_seqs: int = 8,
) -> Gates:
    """Return gates with these limits; blocks have 4 tokens."""
    limits = Limits(classes, {t.name: t for t in tenants}, paused, paused_classes)
    return Gates(
        PolicySettings(
            max_num_partial_prefills=4,
            kv_headroom_fraction=0.0,
            max_num_seqs=max_num_seqs,
            block_size=4,
            limits=limits,
        )
    )


def tenant_a(**fields: object) -> TenantConfig:
    """Return the configuration of tenant a."""
    return TenantConfig(name="a", **fields)  # type: ignore[arg-type]


def decodes(tenant_indexes: Sequence[int] = ()) -> DecodeBatch:
    """Return a decode for each of these tenants."""
    count = len(tenant_indexes)
    return DecodeBatch(
        tenant_index=np.array(tenant_indexes, np.int32),
        traffic_class=np.ones(count, np.int32),
        context_tokens=np.ones(count, np.int32),
        num_output_tokens=np.ones(count, np.int32),
        ttft_deadline_ns=np.zeros(count, np.int64),
        itl_cap_ns=np.zeros(count, np.int64),
        last_token_ns=np.zeros(count, np.int64),
    )


def wait(gates: Gates, request: Request) -> Request:
    """Let a request wait that nothing refuses."""
    request.tenant_index = 1 + "ab".index(request.tenant)
    assert gates.refusal(request, request.arrival_ns) is None
    gates.add(request)
    return request


def run(gates: Gates, request: Request, replica: int = 0) -> Request:
    """Let a waiting request run."""
    gates.remove(request)
    request.status = RequestStatus.RUNNING
    request.replica = replica
    gates.started(request)
    request.first_start_ns = request.first_start_ns or 1
    return request


def end(gates: Gates, request: Request, now_ns: int = 1) -> None:
    """End a running request."""
    gates.stopped(request)
    request.status = RequestStatus.FINISHED_STOPPED
    gates.ended(request, now_ns)


def blocked(gates: Gates, request: Request, load: ReplicaLoad = LOAD) -> Blocked:
    """Return what blocks a waiting request, and check that the flows' reasons agree."""
    of_flow = gates.open(decodes(), load, 1)[request.flow]
    reason = gates.blocked(request, load.replica)
    assert of_flow in (Blocked.NOTHING, reason)
    return reason


def test_a_class_that_the_tenant_may_not_use_is_refused() -> None:
    """A request in a class that its tenant does not have is forbidden."""
    gates = gates_with([tenant_a(classes=("standard",))])
    rejection = gates.refusal(make_request(traffic_class=BATCH), 1)
    assert rejection is not None
    assert rejection.reason is RejectionReason.TENANT_FORBIDDEN
    assert rejection.knob == "tenants[a].classes"


def test_a_prompt_above_the_cap_of_its_class_is_refused_or_demoted() -> None:
    """`reject` refuses for good; `demote` makes it a standard request, which may wait."""
    for over_cap, demoted in (("reject", False), ("demote", True)):
        config = ClassConfig(max_prompt_tokens=10, over_cap=over_cap)
        gates = gates_with([tenant_a()], replace(NOTHING_RESERVED, interactive=config))
        request = make_request(prompt_len=11, traffic_class=INTERACTIVE)
        gates.classify(request)
        rejection = gates.refusal(request, 1)
        if demoted:
            assert request.traffic_class is STANDARD
            assert rejection is None
        else:
            assert rejection is not None
            assert rejection.reason is RejectionReason.CLASS_PROMPT_CAP
            assert (rejection.measured, rejection.threshold) == (11, 10)
            assert rejection.knob == "classes.interactive.max_prompt_tokens"


def test_a_prompt_is_not_demoted_into_a_class_its_tenant_may_not_use() -> None:
    """A tenant without class standard gets the refusal of the class it asked for."""
    config = ClassConfig(max_prompt_tokens=10, over_cap="demote")
    classes = replace(NOTHING_RESERVED, interactive=config)
    gates = gates_with([tenant_a(classes=("interactive",), default_class="interactive")], classes)
    request = make_request(prompt_len=11, traffic_class=INTERACTIVE)
    gates.classify(request)
    rejection = gates.refusal(request, 1)
    assert rejection is not None
    assert rejection.reason is RejectionReason.CLASS_PROMPT_CAP


def test_the_queue_of_a_tenant_has_two_bounds() -> None:
    """Requests and tokens of one tenant are bounded, each with its knob and numbers."""
    gates = gates_with([tenant_a(max_queued_requests=2, max_queued_tokens=100)])
    wait(gates, make_request(1, 10, 40))
    by_tokens = gates.refusal(make_request(2, 10, 41), 1)
    assert by_tokens is not None
    assert by_tokens.reason is RejectionReason.TENANT_QUEUE_FULL_TOKENS
    assert (by_tokens.measured, by_tokens.threshold) == (101, 100)
    second = wait(gates, make_request(3, 10, 40))
    by_requests = gates.refusal(make_request(4, 1, 1), 1)
    assert by_requests is not None
    assert by_requests.reason is RejectionReason.TENANT_QUEUE_FULL_REQUESTS
    assert by_requests.knob == "tenants[a].max_queued_requests"
    assert by_requests.retry_after_ms > 0
    assert gates.refusal(make_request(5, 1, 1, tenant="b"), 1) is None
    run(gates, second)
    assert gates.refusal(make_request(6, 1, 1), 1) is None


def test_a_paused_tenant_or_class_is_refused_at_arrival_and_does_not_start() -> None:
    """While paused nothing new may wait, and what waits does not start."""
    for paused, paused_classes in ((frozenset({"a"}), frozenset()), (frozenset(), {"standard"})):
        gates = gates_with([tenant_a()])
        waiting = wait(gates, make_request(1))
        limits = Limits(NOTHING_RESERVED, {}, paused, frozenset(paused_classes))
        gates.configure(limits)
        rejection = gates.refusal(make_request(2), 1)
        assert rejection is not None
        assert rejection.reason is RejectionReason.TENANT_PAUSED
        assert rejection.retry_after_ms > 0
        assert blocked(gates, waiting) is Blocked.PAUSED
        gates.configure(Limits(NOTHING_RESERVED))
        assert blocked(gates, waiting) is Blocked.NOTHING


def test_concurrency_counts_all_replicas_and_classes_of_a_tenant() -> None:
    """A tenant at its cap starts nothing anywhere until one of its requests has left its row."""
    gates = gates_with([tenant_a(max_concurrency=2)])
    first = run(gates, wait(gates, make_request(1)), 0)
    run(gates, wait(gates, make_request(2, traffic_class=BATCH)), 1)
    third = wait(gates, make_request(3))
    other = wait(gates, make_request(4, tenant="b"))
    assert blocked(gates, third) is Blocked.CONCURRENCY
    assert blocked(gates, other) is Blocked.NOTHING
    end(gates, first)
    assert blocked(gates, third) is Blocked.NOTHING


def test_a_class_has_at_most_its_sequences_on_a_replica() -> None:
    """max_seqs of a class counts all tenants of one replica."""
    classes = replace(NOTHING_RESERVED, batch=ClassConfig(max_seqs=1, preemptible=True))
    gates = gates_with([tenant_a()], classes)
    run(gates, wait(gates, make_request(1, traffic_class=BATCH)))
    second = wait(gates, make_request(2, traffic_class=BATCH))
    assert blocked(gates, second) is Blocked.CLASS_CAP
    assert blocked(gates, second, LOAD._replace(replica=1)) is Blocked.NOTHING


def test_reserved_sequences_are_lent_only_to_those_that_can_be_preempted() -> None:
    """A fixed class stops before the reserve of another; a preemptible one goes on."""
    classes = replace(NOTHING_RESERVED, interactive=ClassConfig(reserved_seqs=2))
    gates = gates_with([tenant_a()], classes, max_num_seqs=3)
    run(gates, wait(gates, make_request(1)))
    standard = wait(gates, make_request(2))
    batch = wait(gates, make_request(3, traffic_class=BATCH))
    interactive = wait(gates, make_request(4, traffic_class=INTERACTIVE))
    assert blocked(gates, standard) is Blocked.RESERVE
    assert blocked(gates, batch) is Blocked.NOTHING
    assert blocked(gates, interactive) is Blocked.NOTHING
    assert gates.owed_rows(0) == {INTERACTIVE: 2}
    run(gates, interactive)
    assert blocked(gates, standard) is Blocked.RESERVE


def test_reserves_leave_one_sequence_to_others() -> None:
    """Reserves as large as the replica do not keep everybody else out for ever."""
    classes = replace(NOTHING_RESERVED, interactive=ClassConfig(reserved_seqs=8))
    gates = gates_with([tenant_a()], classes, max_num_seqs=2)
    standard = wait(gates, make_request(1))
    assert blocked(gates, standard) is Blocked.NOTHING
    run(gates, standard)
    assert blocked(gates, wait(gates, make_request(2))) is Blocked.RESERVE


def test_a_quota_counts_what_requests_may_come_to_hold() -> None:
    """A start that could make the tenant exceed its quota later does not happen."""
    gates = gates_with([tenant_a(kv_quota_fraction=0.1)])  # 10 blocks
    first = run(gates, wait(gates, make_request(1, 4, 24)))  # 7 blocks
    second = wait(gates, make_request(2, 4, 12))  # 4 blocks
    assert blocked(gates, second) is Blocked.KV_QUOTA
    assert blocked(gates, wait(gates, make_request(3, 4, 8))) is Blocked.NOTHING
    assert blocked(gates, second, LOAD._replace(replica=1)) is Blocked.NOTHING
    end(gates, first)
    assert blocked(gates, second) is Blocked.NOTHING


def test_a_limit_tells_the_two_numbers_that_were_compared() -> None:
    """What there would be with the request, or is without it, and what may be."""
    quota = gates_with([tenant_a(kv_quota_fraction=0.1)])  # 10 blocks
    concurrency = gates_with([tenant_a(max_concurrency=1)])
    classes = replace(NOTHING_RESERVED, standard=ClassConfig(max_seqs=1))
    cap = gates_with([tenant_a()], classes)
    share = gates_with([tenant_a()], replace(classes, standard=ClassConfig(max_kv_fraction=0.1)))
    reserved = replace(NOTHING_RESERVED, interactive=ClassConfig(reserved_seqs=2))
    reserve = gates_with([tenant_a()], reserved, max_num_seqs=3)
    for gates, reason, numbers in (
        (quota, Blocked.KV_QUOTA, (14, 10)),
        (concurrency, Blocked.CONCURRENCY, (1, 1)),
        (cap, Blocked.CLASS_CAP, (1, 1)),
        (share, Blocked.CLASS_CAP, (14, 10)),
        (reserve, Blocked.RESERVE, (1, 1)),
    ):
        run(gates, wait(gates, make_request(1, 4, 24)))  # 7 blocks
        waiting = wait(gates, make_request(2, 4, 24))
        assert blocked(gates, waiting) is reason
        assert gates.numbers(waiting, reason) == numbers
        assert gates.numbers(waiting, Blocked.MEMORY) == (0, 0)


def test_what_exceeds_a_share_of_every_pool_is_refused_for_good() -> None:
    """Once pools are known, more than quota or class share of the largest one never fits."""
    classes = replace(NOTHING_RESERVED, batch=ClassConfig(max_kv_fraction=0.05, preemptible=True))
    gates = gates_with([tenant_a(kv_quota_fraction=0.1)], classes)
    assert gates.refusal(make_request(1, 4, 37), 1) is None
    gates.know_pools({0: 50, 1: 0})
    assert gates.refusal(make_request(1, 4, 37), 1) is None
    gates.know_pools({0: 50, 1: 100})
    assert gates.refusal(make_request(2, 4, 36), 1) is None
    for request, numbers, knob in (
        (make_request(3, 4, 37), (11, 10), "tenants[a].kv_quota_fraction"),
        (make_request(4, 4, 20, traffic_class=BATCH), (6, 5), "classes.batch.max_kv_fraction"),
    ):
        rejection = gates.refusal(request, 1)
        assert rejection is not None
        assert rejection.reason is RejectionReason.KV_NEVER_FITS
        assert (rejection.measured, rejection.threshold) == numbers
        assert (rejection.knob, rejection.retry_after_ms) == (knob, 0)


def test_a_tenant_runs_only_on_its_replicas() -> None:
    """A replica that does not serve the tenant starts nothing of it."""
    gates = gates_with([tenant_a(replicas=(1,))])
    request = wait(gates, make_request(1))
    assert blocked(gates, request) is Blocked.INCOMPATIBLE
    assert gates.blocked_everywhere(request) is Blocked.INCOMPATIBLE
    assert blocked(gates, request, LOAD._replace(replica=1)) is Blocked.NOTHING
    assert gates.blocked_everywhere(request) is Blocked.NOTHING


def test_a_preempted_request_is_not_debited_or_counted_twice() -> None:
    """Back in the queue it takes no place of the tenant's queue and no tokens of its budget."""
    gates = gates_with([tenant_a(tokens_per_minute=60, burst_tokens=20, max_queued_requests=1)])
    request = run(gates, wait(gates, make_request(1, 4, 4)))
    gates.stopped(request)
    request.status = RequestStatus.PREEMPTED
    gates.add(request)
    assert gates.refusal(make_request(2, 4, 8), 1) is None
    assert gates.refusal(make_request(3, 4, 9), 1) is not None
    gates.check_integrity()


def test_an_overdrawn_postpaid_tenant_starts_nothing_until_it_has_paid() -> None:
    """Decodes are debited as they are scheduled; the timer says when starts go on."""
    tenant = tenant_a(tokens_per_minute=60, burst_tokens=10, budget_mode="postpaid")
    gates = gates_with([tenant])
    run(gates, wait(gates, make_request(1, 4, 100)))  # 5 tokens
    waiting = wait(gates, make_request(2, 4, 4))
    for step in range(1, 8):
        reasons = gates.open(decodes([1]), LOAD, step * NS_PER_S)
    assert reasons[waiting.flow] == Blocked.NOTHING
    for _ in range(10):
        gates.open(decodes([1]), LOAD, 7 * NS_PER_S + 1)
    reasons = gates.open(decodes([1]), LOAD, 8 * NS_PER_S)
    assert reasons[waiting.flow] == Blocked.RATE
    ready_ns = gates.next_timer_ns()
    assert ready_ns is not None
    assert gates.ready_ns(waiting) == ready_ns
    debt_ms, burst_ms = gates.numbers(waiting, Blocked.RATE)
    assert debt_ms - burst_ms == pytest.approx((ready_ns - 8 * NS_PER_S) / NS_PER_MS)
    assert burst_ms == 10_000
    assert gates.open(decodes(), LOAD, ready_ns - 1)[waiting.flow] == Blocked.RATE
    gates.tend(ready_ns)
    assert gates.open(decodes(), LOAD, ready_ns)[waiting.flow] == Blocked.NOTHING
    assert gates.next_timer_ns() is None


@pytest.mark.parametrize("key", ["max_concurrency", "weight"])
def test_new_limits_rule_from_the_next_step_on(key: str) -> None:
    """A raised cap lets the next request start; what is unrelated changes nothing."""
    gates = gates_with([tenant_a(max_concurrency=1)])
    run(gates, wait(gates, make_request(1)))
    waiting = wait(gates, make_request(2))
    assert blocked(gates, waiting) is Blocked.CONCURRENCY
    changed = tenant_a(**{"max_concurrency": 1, key: 2})
    gates.configure(Limits(NOTHING_RESERVED, {"a": changed}))
    expected = Blocked.NOTHING if key == "max_concurrency" else Blocked.CONCURRENCY
    assert blocked(gates, waiting) is expected
