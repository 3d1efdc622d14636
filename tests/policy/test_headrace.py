"""Policy headrace on a step that grants whatever fits its budget."""

from dataclasses import replace

import pytest

from core.config.scheduling import PolicyConfig
from core.policy.base import Blocked
from core.policy.headrace import HeadracePolicy
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.policy.policy_step import PolicyStep
from tests.support.scheduler.checked_engine import make_request

INTERACTIVE, STANDARD, BATCH, ADMINISTRATIVE = TrafficClass
PLAIN = ClassConfig()
BUDGET = 100


def make(window: int = 1000, quantum: int = 512, **classes: ClassConfig) -> HeadracePolicy:
    """Return a policy with plain classes, but for those given; tenant n is called tn."""
    table = {each.label: PLAIN for each in TrafficClass} | classes
    tenants = {f"t{n}": TenantConfig(name=f"t{n}", weight=float(n)) for n in range(1, 5)}
    return HeadracePolicy(
        PolicySettings(
            max_num_partial_prefills=4,
            kv_headroom_fraction=0.0,
            max_num_batched_tokens=BUDGET,
            tuning=PolicyConfig(
                tenant_window_tokens=window, quantum_tokens=quantum, kv_price=0.0, tile_tokens=1
            ),
            limits=Limits(classes=ClassesConfig(**table), tenants=tenants),
        )
    )


class Arrivals:
    """Lets requests wait, each later than the one before; a deadline is given in ns."""

    def __init__(self, policy: HeadracePolicy) -> None:
        self.policy = policy
        self.count = 0

    def __call__(
        self,
        prompt_len: int,
        traffic_class: TrafficClass = STANDARD,
        tenant: int = 1,
        due_ns: int = 0,
        priority: int = 0,
    ) -> Request:
        self.count += 1
        request = make_request(
            self.count,
            prompt_len,
            tenant=f"t{tenant}",
            traffic_class=traffic_class,
            arrival_ns=self.count,
            order=self.count,
        )
        request.tenant_index = tenant
        request.ttft_deadline_ns = due_ns
        request.priority = priority
        self.policy.add(request)
        return request


def fill(policy: HeadracePolicy, tokens: int = BUDGET, **fields: object) -> PolicyStep:
    step = PolicyStep(policy, tokens, **fields)  # type: ignore[arg-type]
    policy.fill(step)
    policy.check_integrity()
    return step


def test_within_the_windows_the_earliest_deadline_is_first() -> None:
    """Class, tenant and arrival do not matter as long as nobody is ahead of its share."""
    policy = make()
    come = Arrivals(policy)
    come(30, BATCH, 1, due_ns=900)
    come(30, INTERACTIVE, 2, due_ns=800)
    come(30, STANDARD, 3, due_ns=700)
    assert list(fill(policy).granted()) == [3, 2, 1]


@pytest.mark.parametrize("due_ns", [0, 900])
def test_a_client_orders_its_own_requests_by_priority(due_ns: int) -> None:
    """Smaller ones go first, equal ones as they came, whoever is promised what within the flow."""
    policy = make()
    come = Arrivals(policy)
    for priority in (0, 5, -3, 0, -3, 5):
        come(10, due_ns=due_ns and 6000 - 100 * priority, priority=priority)
    come(10, due_ns=due_ns and 9_999_999, priority=-9)
    come(10, due_ns=due_ns and 1, priority=9)
    assert list(fill(policy).granted()) == [7, 3, 5, 1, 4, 2, 6, 8]


def test_who_has_begun_comes_back_to_its_place() -> None:
    """Also if another with a priority has come meanwhile."""
    policy = make()
    come = Arrivals(policy)
    come(10, priority=-5)
    begun = come(10)
    before = policy.place(begun)
    policy.remove(begun)
    begun.first_start_ns = 1
    come(10, priority=-5)
    policy.add(begun)
    assert policy.place(begun) == before
    assert list(fill(policy).granted()) == [1, 2, 3]


def test_priority_gains_no_more_than_the_place_of_another_of_the_same_flow() -> None:
    """Between tenants, and between classes, due times decide as before."""
    policy = make()
    come = Arrivals(policy)
    come(10, tenant=1, due_ns=500)
    come(10, tenant=2, due_ns=400, priority=5)
    come(10, tenant=2, due_ns=600, priority=5)
    come(10, tenant=1, due_ns=900, priority=-5)
    come(10, BATCH, tenant=1, due_ns=450, priority=9)
    assert list(fill(policy).granted()) == [2, 5, 4, 1, 3]


def test_a_place_before_the_first_of_all_times_is_a_place() -> None:
    """0 would mean that it has none."""
    policy = make()
    come = Arrivals(policy)
    come(10, due_ns=1)
    assert come(10, due_ns=900, priority=-5).start_by_ns >= 1


def test_who_has_no_promise_comes_after_all_who_have_one() -> None:
    """And then by arrival."""
    policy = make()
    come = Arrivals(policy)
    come(10, tenant=1)
    come(10, tenant=2)
    come(10, tenant=3, due_ns=10**12)
    assert list(fill(policy).granted()) == [3, 1, 2]


def test_a_tenant_ahead_of_its_window_waits_for_the_others() -> None:
    """After its window is used up an urgent tenant gives way to one that is less served."""
    policy = make(window=20, quantum=10)
    come = Arrivals(policy)
    come(500, tenant=1, due_ns=1)
    come(500, tenant=1, due_ns=2)
    come(500, tenant=2, due_ns=900)
    first = fill(policy, 60)
    # With weights 1 and 2 and a window of 20 of the heavier: 1 may lead by 10, rounded up.
    assert first.granted() == {1: 20, 3: 40}


def test_nobody_else_wants_it_so_who_is_ahead_goes_on() -> None:
    """A window never leaves a step empty."""
    policy = make(window=0, quantum=10)
    come = Arrivals(policy)
    come(500, tenant=1)
    assert fill(policy).granted() == {1: 100}


def test_one_grant_is_a_quantum_at_the_most() -> None:
    """So that nobody overshoots its window by more."""
    policy = make(quantum=16)
    Arrivals(policy)(100)
    assert [count for _, count in fill(policy).grants] == [16] * 6 + [4]


def test_a_strict_class_is_first_up_to_its_cap() -> None:
    """Its requests come before any deadline, but take no more than their part of the step."""
    policy = make(administrative=ClassConfig(strict_first=True, max_step_fraction=0.1))
    come = Arrivals(policy)
    come(500, STANDARD, due_ns=1)
    come(500, ADMINISTRATIVE, due_ns=10**12)
    step = fill(policy)
    assert step.granted() == {2: 10, 1: 90}


def test_a_cap_is_a_reason_to_wait_and_to_leave_tokens() -> None:
    """With nobody else there the rest of the step is left, put down to the cap of the class."""
    policy = make(administrative=ClassConfig(strict_first=True, max_step_fraction=0.1))
    come = Arrivals(policy)
    come(500, ADMINISTRATIVE)
    behind = come(500, ADMINISTRATIVE)
    step = fill(policy)
    assert step.granted() == {1: 10}
    assert policy.leftovers() == {Blocked.CLASS_CAP: 90}
    wait = policy.why(behind)
    assert wait is not None
    assert wait.blocked is Blocked.CLASS_CAP


def test_a_reserved_part_of_the_step_goes_to_its_class_first() -> None:
    """Later deadlines of a class with a reserve come first, until the reserve is used (P6)."""
    policy = make(interactive=ClassConfig(reserved_step_fraction=0.5))
    come = Arrivals(policy)
    come(500, STANDARD, due_ns=1)
    come(500, INTERACTIVE, due_ns=10**12)
    assert fill(policy).granted() == {2: 50, 1: 50}


def test_a_reserve_that_nobody_wants_is_lent() -> None:
    """Others fill the step."""
    policy = make(interactive=ClassConfig(reserved_step_fraction=0.5))
    Arrivals(policy)(500, BATCH)
    assert fill(policy).granted() == {1: 100}


def test_a_blocked_head_stops_its_own_flow_alone() -> None:
    """What is not for this replica, or too long, keeps nobody else from starting."""
    policy = make()
    come = Arrivals(policy)
    blocked, behind, other = come(10, tenant=1), come(10, tenant=1), come(10, tenant=2)
    step = fill(policy, blocked={blocked: Blocked.ELSEWHERE})
    assert list(step.granted()) == [other.request_id]
    wait = policy.why(behind)
    assert wait is not None
    assert (wait.blocked, wait.place) == (Blocked.ELSEWHERE, 1)


def test_a_head_that_lacks_memory_has_a_claim() -> None:
    """Nothing starts behind it but what can be dropped for it."""
    policy = make(batch=ClassConfig(preemptible=True))
    come = Arrivals(policy)
    blocked = come(10, STANDARD, 1, due_ns=1)
    kept_out = come(10, INTERACTIVE, 2, due_ns=2)
    backfill = come(10, BATCH, 3)
    step = fill(policy, blocked={blocked: Blocked.MEMORY})
    assert list(step.granted()) == [backfill.request_id]
    waits = [policy.why(request) for request in (blocked, kept_out)]
    reasons = [wait.blocked for wait in waits if wait is not None]
    assert reasons[0] in (Blocked.MEMORY, Blocked.HEADROOM)
    assert reasons[1] is Blocked.CLAIM


def test_nothing_is_backfilled_behind_a_claim_of_its_own_kind() -> None:
    """A long batch request is not starved by short ones that could not be dropped for it."""
    policy = make(batch=ClassConfig(preemptible=True))
    come = Arrivals(policy)
    blocked = come(10, BATCH, 1)
    come(10, BATCH, 2)
    assert fill(policy, blocked={blocked: Blocked.MEMORY}).granted() == {}


@pytest.mark.parametrize("blocked", [Blocked.SEQUENCES, Blocked.DRAINING])
def test_without_a_row_nothing_starts_and_prompts_under_way_go_on(blocked: Blocked) -> None:
    """One refusal is enough; the tokens left are put down to it."""
    policy = make()
    come = Arrivals(policy)
    begun = come(150, tenant=1)
    first = fill(policy)
    head = come(10, tenant=2)
    come(10, tenant=3)
    step = fill(
        policy, under_way=[begun], left=first.left, blocked={head: blocked}
    )  # fmt: skip
    assert step.granted() == {begun.request_id: 50}
    assert policy.leftovers() == {blocked: 50}


def test_an_empty_queue_leaves_tokens_without_a_reason() -> None:
    """Idle capacity is nobody's fault."""
    policy = make()
    Arrivals(policy)(10)
    fill(policy)
    assert policy.leftovers() == {}


def test_a_full_step_makes_the_rest_wait_for_tokens() -> None:
    """Or for those of its flow that are due sooner."""
    policy = make()
    come = Arrivals(policy)
    come(200, tenant=1)
    head, behind = come(50, tenant=2), come(50, tenant=2)
    fill(policy)
    waits = [policy.why(request) for request in (head, behind)]
    assert [wait.blocked for wait in waits if wait is not None] == [
        Blocked.TOKENS,
        Blocked.DEADLINE_ORDER,
    ]


def test_who_is_ahead_is_told_so_with_both_numbers() -> None:
    """WINDOW comes with the lead and the window."""
    policy = make(window=10, quantum=50)
    come = Arrivals(policy)
    come(60, tenant=1)
    come(200, tenant=2)
    ahead = come(60, tenant=1)
    fill(policy)
    wait = policy.why(ahead)
    assert wait is not None
    assert wait.blocked is Blocked.WINDOW
    assert wait.measured > wait.threshold == 10_000


def test_a_request_that_returns_keeps_its_place() -> None:
    """After a preemption it is before all that came later."""
    policy = make()
    come = Arrivals(policy)
    first = come(10, tenant=1)
    step = fill(policy)
    come(10, tenant=1)
    policy.stopped(first)
    first.row = -1
    first.move_to(RequestStatus.PREEMPTED)
    policy.add(first)
    assert list(fill(policy).granted()) == [1, 2]
    assert step.granted() == {1: 10}


def test_work_done_again_is_charged_to_the_system() -> None:
    """The flow pays for a prompt once."""
    policy = make()
    come = Arrivals(policy)
    first = come(10, tenant=1)
    fill(policy)
    charged = policy.standing(1)
    policy.stopped(first)
    first.move_to(RequestStatus.PREEMPTED)
    policy.add(first)
    fill(policy)
    again = policy.standing(1)
    assert charged is not None
    assert again is not None
    assert again.charged.tolist() == charged.charged.tolist()
    assert int(again.charged.sum()) == 10_000


@pytest.mark.parametrize(
    ("status", "charged"),
    [
        (RequestStatus.FINISHED_ERROR, 0),
        (RequestStatus.FINISHED_ABORTED, 10_000),
        (RequestStatus.FINISHED_EXPIRED, 10_000),
        (RequestStatus.FINISHED_LENGTH, 10_000),
    ],
)
def test_what_failed_is_refunded_once_and_what_was_cancelled_is_not(
    status: RequestStatus, charged: int
) -> None:
    """Only the engine's own faults are borne by the system."""
    policy = make()
    request = Arrivals(policy)(10)
    fill(policy)
    policy.stopped(request)
    request.move_to(status)
    policy.ended(request, 2)
    standing = policy.standing(2)
    assert standing is not None
    assert int(standing.charged.sum()) == charged
    policy.check_integrity()


def test_weights_can_change_while_requests_wait() -> None:
    """The next step goes by the new ones."""
    policy = make(window=0, quantum=10)
    come = Arrivals(policy)
    come(5000, tenant=1)
    come(5000, tenant=2)
    before = fill(policy, 90)
    limits = policy._shares.limits
    even = {name: replace(config, weight=1.0) for name, config in limits.tenants.items()}
    policy.configure(replace(limits, tenants=even))
    after = fill(policy, 100, under_way=before.under_way, left=before.left)
    assert before.granted() == {1: 30, 2: 60}
    assert after.granted() == {1: 50, 2: 50}
