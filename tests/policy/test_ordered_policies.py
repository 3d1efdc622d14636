"""fcfs, priority and static on a step that grants whatever fits its budget."""

from dataclasses import dataclass, field

from core.policy.base import Blocked, Policy, Preemption, Relief, ReplicaLoad
from core.policy.registry import make_policy
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy.classes import TrafficClass
from tests.support.policy.policy_step import PolicyStep
from tests.support.scheduler.checked_engine import make_request


@dataclass
class ShortStep(PolicyStep):
    """A step that lacks `missing` blocks until somebody gives theirs back."""

    missing: int = 0
    preempted: list[Request] = field(default_factory=list)

    def preempt(
        self, request: Request, relief: Relief = Relief.RECOMPUTE, num_blocks: int = 0
    ) -> None:
        self.preempted.append(request)
        self.missing -= len(request.block_ids)
        self.blocked.clear()

    def missing_blocks(self, request: Request) -> int:
        return self.missing


def make(name: str, window: int = 4, headroom: float = 0.1) -> Policy:
    return make_policy(
        name, PolicySettings(max_num_partial_prefills=window, kv_headroom_fraction=headroom)
    )


def waiting(policy: Policy, *prompt_lens: int, **fields: int) -> list[Request]:
    """Return requests 1, 2, … that arrived in this order and wait."""
    requests = [
        make_request(i + 1, prompt_len, arrival_ns=i + 1, order=i + 1, **fields)  # type: ignore[arg-type]
        for i, prompt_len in enumerate(prompt_lens)
    ]
    for request in requests:
        policy.add(request)
    return requests


def test_prompts_are_computed_in_the_order_of_arrival() -> None:
    """Equal prompts get whole prompts' worth of tokens in the order they came."""
    policy = make("fcfs")
    waiting(policy, 10, 10, 10)
    step = ShortStep(policy, 25)
    policy.fill(step)
    assert step.granted() == {1: 10, 2: 10, 3: 5}


def test_a_short_prompt_is_not_held_up_by_a_long_one() -> None:
    """The first prompt keeps half of the tokens; a shorter one behind it gets what it needs."""
    policy = make("fcfs")
    waiting(policy, 1000, 40)
    step = ShortStep(policy, 100)
    policy.fill(step)
    assert step.granted() == {1: 60, 2: 40}


def test_the_first_prompt_always_gets_half() -> None:
    """However many short prompts there are, the first one gets half of the step."""
    policy = make("fcfs")
    waiting(policy, 1000, *[10] * 30)
    step = ShortStep(policy, 100)
    policy.fill(step)
    assert step.granted()[1] == 50
    assert sum(step.granted().values()) == 100


def test_a_window_of_one_is_strictly_first_come_first_served() -> None:
    """With one partial prefill a long prompt gets everything until it is done."""
    policy = make("fcfs", window=1)
    waiting(policy, 1000, 40)
    step = ShortStep(policy, 100)
    policy.fill(step)
    assert step.granted() == {1: 100}


def test_a_request_without_memory_has_a_claim() -> None:
    """When the first waiting request lacks memory, none behind it starts."""
    policy = make("fcfs")
    first, _ = waiting(policy, 10, 10)
    step = ShortStep(policy, 100, blocked={first: Blocked.MEMORY})
    policy.fill(step)
    assert step.grants == []


def test_a_request_that_belongs_elsewhere_is_passed_over() -> None:
    """A request that another replica should take holds up nobody."""
    policy = make("fcfs")
    first, _ = waiting(policy, 10, 10)
    step = ShortStep(policy, 100, blocked={first: Blocked.ELSEWHERE})
    policy.fill(step)
    assert step.granted() == {2: 10}


def test_the_last_arrival_is_the_victim() -> None:
    """Memory is taken from the latest request, even if that is the one in need."""
    policy = make("fcfs")
    requests = [make_request(i, arrival_ns=i) for i in range(3)]
    load = ReplicaLoad(10, 0, 3)
    assert policy.victim(requests, requests[0], load) == Preemption(requests[2])
    assert policy.victim(requests, requests[2], load) == Preemption(requests[2])
    assert policy.victim([], requests[0], load) is None


def test_headroom_is_waived_when_nothing_runs() -> None:
    """A share of the pool stays free at a start, unless the replica is empty."""
    policy, request = make("fcfs", headroom=0.1), make_request()
    assert policy.headroom_blocks(request, ReplicaLoad(95, 95, 1)) == 10
    assert policy.headroom_blocks(request, ReplicaLoad(95, 95, 0)) == 0


def test_priority_orders_by_class_then_priority_then_arrival() -> None:
    """Administrative before interactive before standard before batch; then the smaller number."""
    policy = make("priority")
    standard = TrafficClass.STANDARD
    ordered = [
        make_request(1, arrival_ns=9, traffic_class=TrafficClass.ADMINISTRATIVE, priority=5),
        make_request(2, arrival_ns=8, traffic_class=TrafficClass.INTERACTIVE),
        make_request(3, arrival_ns=7, traffic_class=standard, priority=-1),
        make_request(4, arrival_ns=5, traffic_class=standard),
        make_request(5, arrival_ns=6, traffic_class=standard),
        make_request(6, arrival_ns=1, traffic_class=TrafficClass.BATCH),
    ]
    mixed = ordered[3:] + ordered[:3]
    assert sorted(mixed, key=policy.place) == ordered


def test_a_start_takes_memory_from_lower_priorities_last_first() -> None:
    """A request that lacks memory preempts as many lower ones as it needs, and then starts."""
    policy = make("priority")
    low = [make_request(i, priority=1, arrival_ns=i) for i in (10, 11, 12)]
    for victim in low:
        victim.block_ids = [0, 1]
    equal = make_request(13, priority=0, arrival_ns=13)
    equal.block_ids = [5] * 9
    [urgent] = waiting(policy, 10)
    step = ShortStep(
        policy, 100, decoding=[*low, equal], blocked={urgent: Blocked.MEMORY}, missing=3
    )
    policy.fill(step)
    assert step.preempted == [low[2], low[1]]
    assert step.granted() == {1: 10}


def test_nobody_is_preempted_in_vain() -> None:
    """If all lower requests together do not hold enough, none of them is preempted."""
    policy = make("priority")
    low = make_request(10, priority=1)
    low.block_ids = [0]
    [urgent] = waiting(policy, 10)
    step = ShortStep(policy, 100, decoding=[low], blocked={urgent: Blocked.MEMORY}, missing=3)
    policy.fill(step)
    assert step.preempted == []


def test_fcfs_preempts_nobody_for_a_start() -> None:
    """First come, first served never takes memory from a running request to start another."""
    policy = make("fcfs")
    later = make_request(10, arrival_ns=99)
    later.block_ids = [0] * 9
    [first] = waiting(policy, 10)
    step = ShortStep(policy, 100, decoding=[later], blocked={first: Blocked.MEMORY}, missing=1)
    policy.fill(step)
    assert step.preempted == []


def test_a_static_batch_is_closed_until_it_ends() -> None:
    """While a batch runs nobody joins; when it has ended, all who wait form the next."""
    policy = make("static")
    waiting(policy, 10, 10)
    busy = ShortStep(policy, 100, decoding=[make_request(9)])
    policy.fill(busy)
    assert busy.grants == []
    step = ShortStep(policy, 12)
    policy.fill(step)
    assert step.granted() == {1: 10, 2: 2}
    assert step.num_running == 2
