"""Who gives memory back, and how it comes back."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.clock import NS_PER_MS
from core.policy.base import Relief
from core.policy.cost_model import CostBasis
from core.policy.kv_memory.preemption import Need, Victims
from core.policy.kv_memory.restore_cost import RestoreCosts
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from tests.support.policy.kv_rig import BLOCK_SIZE, FakeLeads, FakeReplica
from tests.support.scheduler.checked_engine import make_request

BASIS = CostBasis(1e6, 1000.0, 10.0, 1.0, 1000.0)  # ns: a step, a token, a pair, …
SETTINGS = PolicySettings(
    max_num_partial_prefills=4,
    kv_headroom_fraction=0.0,
    block_size=BLOCK_SIZE,
    limits=Limits(ClassesConfig(batch=ClassConfig(preemptible=True))),
)
INTERACTIVE, STANDARD, BATCH = TrafficClass.INTERACTIVE, TrafficClass.STANDARD, TrafficClass.BATCH
POOL = 1000


def victims_with(leads: FakeLeads | None = None) -> Victims:
    costs = RestoreCosts(SETTINGS, BASIS)
    return Victims(SETTINGS, leads or FakeLeads(), costs)


def requests_on(replica: FakeReplica, *classes: TrafficClass) -> list[Request]:
    """Let one request of each class run, admitted in this order."""
    made = []
    for order, traffic_class in enumerate(classes):
        request = make_request(order + 1, 20, 20, order=order, traffic_class=traffic_class)
        replica.start(request)
        made.append(request)
    return made


def chosen(
    victims: Victims,
    replica: FakeReplica,
    beneficiary: Request,
    num_blocks: int = 100,
    now_ns: int = 0,
    *,
    only_droppable: bool = False,
) -> Request | None:
    need = Need(beneficiary, num_blocks, replica.load(), now_ns, only_droppable)
    preemption = victims.choose(replica.running(), need)
    return None if preemption is None else preemption.request


def test_the_lowest_class_gives() -> None:
    """Batch gives before standard, to whoever is higher; nobody gives to a lower class."""
    replica = FakeReplica(POOL)
    interactive, standard, batch = requests_on(replica, INTERACTIVE, STANDARD, BATCH)
    victims = victims_with()
    assert chosen(victims, replica, interactive) is batch
    assert chosen(victims, replica, standard) is batch
    assert chosen(victims, replica, batch) is None


def test_within_a_class_who_had_more_than_its_share_gives() -> None:
    """A tenant that is ahead gives to one that is not, whoever came first."""
    replica = FakeReplica(POOL)
    first, second = requests_on(replica, STANDARD, STANDARD)
    first.tenant_index = 1
    victims = victims_with(FakeLeads({first.flow: 10}))
    assert chosen(victims, replica, second) is first
    assert chosen(victims, replica, first) is None


def test_within_a_flow_the_later_admitted_gives() -> None:
    """Equal otherwise, who came last gives."""
    replica = FakeReplica(POOL)
    first, second = requests_on(replica, STANDARD, STANDARD)
    assert chosen(victims_with(), replica, first) is second
    assert chosen(victims_with(), replica, second) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(list(TrafficClass)), st.integers(0, 2), st.integers(0, 3)),
        min_size=2,
        max_size=8,
    )
)
def test_no_two_requests_can_preempt_each_other(drawn: list[tuple[TrafficClass, int, int]]) -> None:
    """Being lower is a strict total order, whatever the classes and the shares."""
    requests, leads = [], FakeLeads()
    for order, (traffic_class, tenant, lead) in enumerate(drawn):
        request = make_request(order + 1, order=order, traffic_class=traffic_class)
        request.tenant_index = tenant
        leads.of_flow[request.flow] = lead
        requests.append(request)
    victims = victims_with(leads)
    lower = {r: set(victims.lower(requests, r)) for r in requests}
    assert sorted(len(each) for each in lower.values()) == list(range(len(requests)))
    assert all(r not in lower[r] for r in requests)
    ranked = sorted(requests, key=victims.standing)
    assert all(lower[r] == set(ranked[:i]) for i, r in enumerate(ranked))


def test_the_least_restore_cost_per_block_decides() -> None:
    """Short contexts are cheaper to compute again than long ones, block for block."""
    replica = FakeReplica(POOL)
    standard, _ = requests_on(replica, STANDARD, BATCH)
    short, long = (make_request(9, n, 4, order=9, traffic_class=BATCH) for n in (8, 800))
    replica.start(long)
    replica.start(short)
    assert chosen(victims_with(), replica, standard, num_blocks=1000) is short


def test_only_as_much_of_a_tail_is_given_as_is_wanted() -> None:
    """Who holds far more than is needed gives its last blocks, the last time everything."""
    replica = FakeReplica(POOL)
    [standard] = requests_on(replica, STANDARD)
    long = make_request(9, 800, 4, order=9, traffic_class=BATCH)
    replica.start(long)
    need = Need(standard, 7, replica.load(), 0)
    preemption = victims_with().choose([long], need)
    assert preemption is not None
    assert preemption.num_blocks == 7
    long.num_preemptions = SETTINGS.max_preemptions - 1
    preemption = victims_with().choose([long], need)
    assert preemption is not None
    assert preemption.num_blocks == 0


def test_it_is_swapped_if_that_is_cheaper_by_a_margin_and_there_is_room() -> None:
    """Copies win over computing anew only with a quarter to spare, and with host blocks."""
    replica = FakeReplica(POOL)
    [standard] = requests_on(replica, STANDARD)
    long = make_request(9, 800, 4, order=9, traffic_class=BATCH)
    replica.start(long)
    replica.block_bytes = 100
    need = Need(standard, 200, replica.load(), 0)
    without_room = victims_with().choose([long], need)
    replica.num_free_host_blocks = 200
    with_room = victims_with().choose([long], replace(need, load=replica.load()))
    replica.block_bytes = 200_000_000
    too_slow = victims_with().choose([long], replace(need, load=replica.load()))
    reliefs = [each and each.relief for each in (without_room, with_room, too_slow)]
    assert reliefs == [Relief.RECOMPUTE, Relief.SWAP, Relief.RECOMPUTE]


def test_a_whole_request_is_copied_if_that_costs_less_than_its_tail_anew() -> None:
    """Fast copies spare even the few tokens that a tail would cost."""
    replica = FakeReplica(POOL)
    [standard] = requests_on(replica, STANDARD)
    long = make_request(9, 800, 4, order=9, traffic_class=BATCH)
    replica.start(long)
    replica.num_free_host_blocks = 200
    for block_bytes, relief, num_blocks in ((100, Relief.SWAP, 0), (40_000, Relief.RECOMPUTE, 50)):
        replica.block_bytes = block_bytes
        preemption = victims_with().choose([long], Need(standard, 50, replica.load(), 0))
        assert preemption is not None
        assert (preemption.relief, preemption.num_blocks) == (relief, num_blocks)


def test_a_measured_speed_of_copies_counts_instead_of_the_configured_one() -> None:
    """Copies that are slower than configured are no longer cheaper than computing anew."""
    replica = FakeReplica(POOL)
    [standard] = requests_on(replica, STANDARD)
    long = make_request(9, 800, 4, order=9, traffic_class=BATCH)
    replica.start(long)
    replica.num_free_host_blocks, replica.block_bytes = 200, 10_000
    reliefs = []
    for replica.swap_gb_per_s in (0.0, 50.0, 0.05):
        preemption = victims_with().choose([long], Need(standard, 200, replica.load(), 0))
        reliefs.append(preemption and preemption.relief)
    assert reliefs == [Relief.SWAP, Relief.SWAP, Relief.RECOMPUTE]


def test_without_a_cost_model_nothing_is_swapped() -> None:
    """Tokens and times cannot be compared."""
    replica = FakeReplica(POOL)
    replica.num_free_host_blocks, replica.block_bytes = 500, 1
    costs, sizes = RestoreCosts(SETTINGS, None), (np.array([800], np.int32), np.array([200]))
    assert np.isinf(costs.swap(replica.load(), *sizes)).all()
    costs.calibrate(0, BASIS)
    assert np.isfinite(costs.swap(replica.load(), *sizes)).all()


def test_between_two_preemptions_there_is_progress() -> None:
    """Who has just come back is no victim of its own class until it had tokens or time."""
    tuning = SETTINGS.tuning
    for tokens, passed_ms, is_victim in (
        (0, 0, False),
        (tuning.progress_tokens - 1, tuning.progress_ms - 1, False),
        (tuning.progress_tokens, 0, True),
        (0, tuning.progress_ms, True),
    ):
        replica, victims = FakeReplica(POOL), victims_with()
        [first] = requests_on(replica, STANDARD)
        second = make_request(2, 20, 100, order=2)
        second.num_preemptions = 1
        victims.started(second, 0)
        second.num_output_tokens = tokens
        replica.start(second)
        victim = chosen(victims, replica, first, now_ns=passed_ms * NS_PER_MS)
        assert (victim is second) is is_victim, (tokens, passed_ms)


def test_a_higher_class_calls_back_what_it_lent_at_any_moment() -> None:
    """Droppable work that has just come back is still a victim of a higher class."""
    replica, victims = FakeReplica(POOL), victims_with()
    [standard] = requests_on(replica, STANDARD)
    batch = make_request(2, 20, 20, order=2, traffic_class=BATCH)
    batch.num_preemptions = 1
    victims.started(batch, 0)
    replica.start(batch)
    assert chosen(victims, replica, standard) is batch


def test_who_was_preempted_often_enough_is_not_droppable_any_more() -> None:
    """After so many preemptions a batch request may hold nothing that is lent."""
    victims = victims_with()
    batch = make_request(traffic_class=BATCH)
    assert victims.is_droppable(batch)
    batch.num_preemptions = SETTINGS.max_preemptions
    assert not victims.is_droppable(batch)
    assert not victims.is_droppable(make_request(traffic_class=STANDARD))
