"""Queues played ahead of time: who is served in which order, and who is found late."""

from dataclasses import replace

import pytest

from core.clock import NS_PER_S
from core.policy.lateness.fluid_replay import FlowQueue, FluidReplay, Queued, ReplaySettings
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from tests.support.scheduler.checked_engine import make_request

FAST, SLOW = TrafficClass.INTERACTIVE, TrafficClass.BATCH
FAR = 1e9


def settings(
    *, class_window: float = FAR, tenant_window: float = FAR, reserve: float = 0.0
) -> ReplaySettings:
    """Return a play at 1,000 tokens a second from time 0, classes weighing 8, 4, 1, 1 to 8."""
    return ReplaySettings(
        now_ns=0,
        tokens_per_s=1000.0,
        class_weights=(1.0, 0.5, 0.125, 0.125),
        class_leads=(0.0,) * NUM_CLASSES,
        class_window_tokens=class_window,
        tenant_window_tokens=tenant_window,
        class_reserves=(reserve, 0.0, 0.0, 0.0),
    )


def flow(
    tenant: int, kind: TrafficClass, prompts: list[tuple[int, float]], *, may_be_shed: bool = True
) -> FlowQueue:
    """Return a flow with prompts of (tokens, deadline in seconds)."""
    queue = [
        Queued(
            request=make_request(tenant * 100 + number, tokens, arrival_ns=0, traffic_class=kind),
            num_tokens=tokens,
            start_by_ns=int((due_s - tokens / 1000) * NS_PER_S),
            deadline_ns=int(due_s * NS_PER_S),
            may_be_shed=may_be_shed,
        )
        for number, (tokens, due_s) in enumerate(prompts)
    ]
    return FlowQueue(tenant * NUM_CLASSES + kind, 1.0, queue)


def late(replay: FluidReplay) -> list[int]:
    """Play to the end in small pieces; return the ids of those found late."""
    while not replay.advance(3):
        pass
    return [each.request.request_id for each in replay.verdicts.late]


def test_a_queue_that_can_be_served_is_left_alone() -> None:
    """Five prompts of a second each, due a second apart."""
    assert late(FluidReplay(settings(), [flow(0, FAST, [(1000, n + 1.5) for n in range(5)])])) == []


def test_the_longest_that_is_late_behind_it_makes_room() -> None:
    """Of six seconds of prompts due in five the longest is left out, not the one found late; in
    another flow, or due later, it stays.
    """
    queue = [(3000, 5.0), (1000, 5.0), (1000, 5.0), (1000, 5.0)]
    assert late(FluidReplay(settings(), [flow(0, FAST, queue)])) == [0]
    apart = [flow(0, FAST, queue[:1]), flow(1, FAST, queue[1:])]
    assert late(FluidReplay(settings(), apart)) == [102]
    later = [(3000, 7.5), (2000, 5.5), (1000, 5.5), (3000, 5.5)]
    assert late(FluidReplay(settings(), [flow(0, FAST, later)])) == [3]


def test_quarters_of_lengths_take_turns_in_being_left_out() -> None:
    """That of which the fewest were refused is next, and there the longest."""
    queue = [(2000, 5.0), (1500, 5.0), (1000, 5.0), (500, 5.0), (2000, 5.0)]
    waiting = flow(0, FAST, queue)
    halves = [int(each.num_tokens > 1000) for each in waiting.queue]
    quartered = [replace(q, quarter=h) for q, h in zip(waiting.queue, halves, strict=True)]
    refused = replace(settings(), refusals=(0.1, 0.105), refusal=0.01)
    assert late(FluidReplay(refused, [replace(waiting, queue=quartered)])) == [2, 4]


def test_what_is_too_much_is_left_out_and_takes_no_time() -> None:
    """Ten prompts of a second are due in five seconds: five are served, and so is one after."""
    queue = [(1000, 5.0)] * 10 + [(1000, 6.5)]
    found = late(FluidReplay(settings(), [flow(0, FAST, queue)]))
    assert found == [5, 6, 7, 8, 9]


def test_a_verdict_leaves_room_for_a_better_rate() -> None:
    """A twentieth too late is not late yet: the rate may turn out that much higher."""
    assert late(FluidReplay(settings(), [flow(0, FAST, [(1050, 1.0)])])) == []
    assert late(FluidReplay(settings(), [flow(0, FAST, [(1150, 1.0)])])) == [0]


def test_who_may_not_be_shed_takes_its_time() -> None:
    """It is served although it is late, and so the next is late too."""
    first = flow(0, FAST, [(2000, 1.0)], may_be_shed=False)
    assert late(FluidReplay(settings(), [first, flow(1, FAST, [(1000, 2.5)])])) == [100]


def test_starts_are_told_of_those_that_are_in_time() -> None:
    """Each begins when those before it are done; who is late does not begin."""
    replay = FluidReplay(settings(), [flow(0, FAST, [(1000, 1.5), (1000, 1.6), (500, 1.7)])])
    late(replay)
    starts = {each.request_id: ns for each, ns in replay.verdicts.starts_ns.items()}
    assert starts == {0: 0, 2: NS_PER_S}


@pytest.mark.parametrize(("window", "found"), [(FAR, [100, 101]), (1.0, [2, 3])])
def test_a_tenant_is_late_by_its_own_queue_inside_a_window(window: float, found: list[int]) -> None:
    """Two tenants, four seconds: four prompts that are due first, and two that are due last."""
    flows = [flow(0, FAST, [(1000, 4.0)] * 4), flow(1, FAST, [(1000, 4.1)] * 2)]
    assert late(FluidReplay(settings(tenant_window=window), flows)) == found


def test_classes_share_by_weight_inside_a_window() -> None:
    """Batch is due first and weighs an eighth: outside its window it waits for the other class."""
    flows = [flow(0, SLOW, [(1000, 4.0)] * 4), flow(0, FAST, [(1000, 4.5)] * 4)]
    assert len(late(FluidReplay(settings(), flows))) == 4
    narrow = FluidReplay(
        settings(class_window=1.0),
        [flow(0, SLOW, [(1000, 4.0)] * 4), flow(0, FAST, [(1000, 4.5)] * 4)],
    )
    late(narrow)
    classes = [each.request.traffic_class for each in narrow.verdicts.late]
    assert classes.count(SLOW) > classes.count(FAST)


def test_predictions_are_told_as_shares_of_the_promise() -> None:
    """A second and two of a promise of four."""
    replay = FluidReplay(settings(), [flow(0, FAST, [(1000, 4.0), (1000, 4.0)])])
    late(replay)
    assert replay.verdicts.shares == {FAST: pytest.approx([0.25, 0.5])}


@pytest.mark.parametrize(("reserve", "found"), [(0.0, 4), (0.5, 2)])
def test_a_reserve_is_served_first(reserve: float, found: int) -> None:
    """Interactive has had far more than its share, and still gets what is reserved."""
    flows = [flow(0, SLOW, [(1000, 6.0)] * 6), flow(0, FAST, [(1000, 4.5)] * 4)]
    ahead = replace(settings(class_window=1.0, reserve=reserve), class_leads=(9e9, 0.0, 0.0, 0.0))
    replay = FluidReplay(ahead, flows)
    late(replay)
    classes = [each.request.traffic_class for each in replay.verdicts.late]
    assert classes.count(FAST) == found


def coming(tenant: int, kind: TrafficClass, prompts: list[tuple[int, float]]) -> FlowQueue:
    """Return a flow of some that are yet to come: (tokens, when in seconds), due a second later."""
    queue = [
        Queued(None, tokens, int((come_s + 1) * NS_PER_S), 0, False, come_ns=int(come_s * NS_PER_S))
        for tokens, come_s in prompts
    ]
    return FlowQueue(tenant * NUM_CLASSES + kind, 1.0, queue)


def starts(replay: FluidReplay) -> dict[int, float]:
    """Play to the end; return when each begins, s."""
    late(replay)
    return {each.request_id: ns / NS_PER_S for each, ns in replay.verdicts.starts_ns.items()}


def test_those_who_are_yet_to_come_take_their_time_once_they_are_here() -> None:
    """Four prompts of a second, due last; after the first two one comes that is due before."""
    waiting = flow(0, FAST, [(1000, 20.0 + n) for n in range(4)])
    replay = FluidReplay(settings(), [waiting, coming(1, FAST, [(3000, 1.5)])])
    assert starts(replay) == {0: 0, 1: 1, 2: 5, 3: 6}


def test_who_waits_behind_those_yet_to_come_waits_for_the_first_that_is_here() -> None:
    """In one flow: the one that is due last is played when time has gone on to it."""
    queue = flow(0, FAST, [(1000, 20.0)]).queue
    alone = FlowQueue(FAST, 1.0, [*coming(0, FAST, [(500, 3.0)]).queue, *queue])
    assert starts(FluidReplay(settings(), [alone])) == {0: 3.5}


@pytest.mark.parametrize("kind", [FAST, SLOW])
def test_who_comes_has_saved_up_a_window_at_the_most(kind: TrafficClass) -> None:
    """A prompt a second; after five another flow of the class, or another class, comes with ten
    that are due first, and was far behind: it gets two or three more than its half, not all ten.
    """
    waiting = flow(0, FAST, [(1000, 50.0 + n) for n in range(10)])
    other = replace(coming(1, kind, [(1000, 4.5)] * 10), lead_tokens=-1e6)
    level = replace(
        settings(class_window=2000.0, tenant_window=2000.0), class_weights=(1.0,) * NUM_CLASSES
    )
    found = starts(FluidReplay(level, [waiting, other]))
    assert found[4] == 4.0
    assert 7.0 <= found[5] <= 10.0
