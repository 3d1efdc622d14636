"""Longest cached prefix first, within a flow and for a bounded time."""

from random import Random

import pytest

from core.clock import NS_PER_MS
from core.config.scheduling import PolicyConfig
from core.policy.base import Blocked
from core.policy.headrace import HeadracePolicy
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.policy.turns.locality import LOOKAHEAD, LOOKS, REST_NS
from core.request import Request, RequestStatus
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from tests.support.policy.policy_step import PolicyStep
from tests.support.scheduler.checked_engine import make_request

BYPASS_MS = 500
BYPASS_NS = BYPASS_MS * NS_PER_MS
LENGTH = 50


class Rig:
    """A policy, requests that wait for it, and what the cache holds of them."""

    def __init__(self, *, bypass_ms: int = BYPASS_MS, prefix_cache: bool = True) -> None:
        plain = {each.label: ClassConfig() for each in TrafficClass}
        self.policy = HeadracePolicy(
            PolicySettings(
                max_num_partial_prefills=4,
                kv_headroom_fraction=0.0,
                prefix_cache=prefix_cache,
                tuning=PolicyConfig(
                    tenant_window_tokens=1_000_000, locality_bypass_ms=bypass_ms, tile_tokens=1
                ),
                limits=Limits(ClassesConfig(**plain)),
            )
        )
        self.hits: dict[Request, int] = {}
        self.blocked: dict[Request, Blocked] = {}
        self.count = 0

    def waits(self, hits: int = 0, *, due_ns: int = 0, tenant: int = 0, at_ns: int = 0) -> Request:
        """Let a request arrive of which the cache holds `hits` tokens."""
        self.count += 1
        request = make_request(self.count, LENGTH, tenant=f"t{tenant}", order=self.count)
        request.arrival_ns, request.tenant_index = at_ns or self.count, tenant
        request.ttft_deadline_ns = due_ns
        self.hits[request] = hits
        self.policy.add(request)
        return request

    def start(self, now_ns: int = 1) -> int:
        """Return who starts in a step that has tokens for one."""
        [started] = self.fill(1, now_ns)
        return started

    def fill(self, num_tokens: int = 10 * LENGTH, now_ns: int = 1) -> list[int]:
        """Return who is granted tokens in a step of so many, in order."""
        step = PolicyStep(self.policy, num_tokens, now_ns=now_ns)
        step.hits, step.blocked = self.hits, self.blocked
        self.policy.fill(step)
        self.policy.check_integrity()
        return list(step.granted())


def test_the_longest_cached_prefix_goes_first() -> None:
    """Of those that wait in a flow; of equals the first."""
    rig = Rig()
    for hits in (10, 30, 20, 30):
        rig.waits(hits)
    assert rig.fill() == [2, 4, 3, 1]


@pytest.mark.parametrize("switch", [{"bypass_ms": 0}, {"prefix_cache": False}])
def test_without_a_cache_or_time_the_order_is_kept(switch: dict[str, int]) -> None:
    """Whatever a request could save."""
    rig = Rig(**switch)  # type: ignore[arg-type]
    for hits in (10, 30, 20):
        rig.waits(hits)
    assert rig.fill() == [1, 2, 3]


def passed_over_ns(rig: Rig, random: Random, *, due_ns: int) -> list[tuple[int, int]]:
    """Let requests come with and without hits; return for how long each was passed over, and how
    long it had waited by then.
    """
    now_ns = 1
    arrived_ns: dict[int, int] = {}  # of those that wait
    passed_ns: dict[int, tuple[int, int]] = {}  # since when, and until when
    found: list[tuple[int, int]] = []
    for _ in range(600):
        while len(arrived_ns) < LOOKAHEAD + 4:
            request = rig.waits(random.choice((0, 0, 10, 20, 40)), due_ns=due_ns, at_ns=now_ns)
            arrived_ns[request.request_id] = now_ns
        started = rig.start(now_ns)
        for other in arrived_ns:
            if other < started:
                passed_ns[other] = (passed_ns.get(other, (now_ns, 0))[0], now_ns)
        since_ns, until_ns = passed_ns.pop(started, (now_ns, now_ns))
        found.append((until_ns - since_ns, since_ns - arrived_ns.pop(started)))
        now_ns += random.randrange(20) * NS_PER_MS
    return found


def test_nobody_with_a_promise_is_passed_over_for_longer_than_the_bound() -> None:
    """Whoever comes with hits, each is passed over for `locality_bypass_ms` at the most."""
    seed = Random().randrange(2**32)
    found = passed_over_ns(Rig(), Random(seed), due_ns=10**15)
    longest_ns = max(passed_ns for passed_ns, _ in found)
    assert BYPASS_NS // 2 < longest_ns <= BYPASS_NS, f"seed {seed}: {longest_ns}"


def test_who_was_promised_nothing_is_passed_over_for_as_long_again_as_it_has_waited() -> None:
    """Or for `locality_bypass_ms`, if that is longer: nobody waits twice as long and more."""
    seed = Random().randrange(2**32)
    found = passed_over_ns(Rig(bypass_ms=50), Random(seed), due_ns=0)
    for passed_ns, waited_ns in found:
        assert passed_ns <= max(50 * NS_PER_MS, waited_ns), f"seed {seed}"
    assert max(passed_ns for passed_ns, _ in found) > 50 * NS_PER_MS, f"seed {seed}"


def test_nobody_goes_before_a_request_that_is_due_soon() -> None:
    """Once it is due within the time that others may go before it."""
    rig = Rig()
    rig.waits(0, due_ns=BYPASS_NS * 3)
    for _ in range(2):
        rig.waits(40, due_ns=BYPASS_NS * 4)
    assert rig.start() == 2
    assert rig.start(now_ns=2 * BYPASS_NS) == 1


def test_nobody_goes_before_one_that_ran_before() -> None:
    """A preempted request has a client that is reading."""
    rig = Rig()
    first = rig.waits(0)
    rig.policy.remove(first)
    first.move_to(RequestStatus.RUNNING)
    first.move_to(RequestStatus.PREEMPTED)
    rig.policy.add(first)
    rig.waits(40)
    assert rig.fill() == [1, 2]


def test_nobody_goes_who_is_due_after_a_protected_request() -> None:
    """Whichever flow that waits in; what was counted in when it was promised may go."""
    rig = Rig()
    rig.waits(0, due_ns=BYPASS_NS * 10)
    rig.waits(20, due_ns=BYPASS_NS * 12)
    rig.waits(40, due_ns=BYPASS_NS * 14)
    protect(rig, rig.waits(0, due_ns=BYPASS_NS * 13, tenant=1))
    assert rig.fill() == [2, 1, 4, 3]


def test_a_protected_request_is_passed_over_by_nobody_who_is_due_later() -> None:
    """Not even where nobody else waits."""
    rig = Rig()
    protect(rig, rig.waits(0, due_ns=BYPASS_NS * 10))
    rig.waits(40, due_ns=BYPASS_NS * 12)
    assert rig.fill() == [1, 2]


def test_who_is_blocked_gives_its_turn_back() -> None:
    """A request with hits that cannot start keeps nobody from starting, and is tried again."""
    rig = Rig()
    rig.waits(0)
    rig.blocked[rig.waits(40)] = Blocked.MEMORY
    for hits in (0, 20, 0, 20):
        rig.waits(hits)
    assert rig.start() == 1
    rig.blocked.clear()
    assert [rig.start() for _ in range(5)] == [2, 4, 6, 3, 5]


def test_who_is_blocked_twice_in_a_step_ends_the_turns_of_its_flow() -> None:
    """Once those before it have started it is the first, and has nobody to give its turn to."""
    rig = Rig()
    rig.waits(0)
    rig.blocked[rig.waits(40)] = Blocked.MEMORY
    assert rig.fill() == [1]
    rig.waits(20)
    for now_ns in (1, 1 + REST_NS, 1 + BYPASS_NS):
        rig.fill(now_ns=now_ns)  # it returns


def test_a_flow_without_hits_is_looked_at_once_in_a_while() -> None:
    """And not further than a few requests."""
    rig = Rig()
    for _ in range(LOOKAHEAD):
        rig.waits(0)
    rig.waits(40)
    assert rig.start() == 1
    assert rig.start() == 2
    assert rig.start(now_ns=1 + REST_NS) == LOOKAHEAD + 1


def test_a_step_looks_at_a_bounded_number_of_requests() -> None:
    """However many flows have their turn."""
    rig = Rig()
    heads = [rig.waits(10, tenant=tenant) for tenant in range(2 * LOOKS // LOOKAHEAD)]
    for head in heads:
        for _ in range(LOOKAHEAD):
            rig.waits(20, tenant=head.tenant_index)
    step = PolicyStep(rig.policy)
    step.hits = rig.hits
    locality = rig.policy._locality
    locality.open()
    chosen = [locality.first(step, head) for head in heads]
    assert len(step.looks) == LOOKS
    first_tenants = LOOKS // LOOKAHEAD
    assert [a is b for a, b in zip(chosen, heads, strict=True)] == [
        tenant >= first_tenants for tenant in range(len(heads))
    ]


def protect(rig: Rig, request: Request) -> None:
    """Let a waiting `request` have passed the demand test."""
    rig.policy._shedding.protection.protect(request)
