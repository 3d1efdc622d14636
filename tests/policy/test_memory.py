"""Who may have KV memory: admission, reserves, calling back, and the caution of admission."""

from dataclasses import replace
from random import Random

import pytest

from core.clock import NS_PER_S
from core.policy.base import Blocked
from core.policy.caution import HIGHEST, LOWEST, Caution
from core.policy.limits import Limits
from core.policy.memory import Demand, Memory
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.tenancy import ClassConfig, ClassesConfig, TrafficClass
from tests.support.kv_rig import BLOCK_SIZE, FakeLeads, FakeReplica
from tests.support.scheduling import make_request

INTERACTIVE, STANDARD, BATCH = TrafficClass.INTERACTIVE, TrafficClass.STANDARD, TrafficClass.BATCH
ADMINISTRATIVE = TrafficClass.ADMINISTRATIVE
NOTHING_RESERVED = ClassesConfig(
    interactive=ClassConfig(),
    standard=ClassConfig(),
    batch=ClassConfig(preemptible=True),
    administrative=ClassConfig(strict_first=True),
)
RESERVED = replace(
    NOTHING_RESERVED,
    interactive=ClassConfig(reserved_kv_fraction=0.2),
    administrative=ClassConfig(strict_first=True, reserved_kv_fraction=0.05),
)
POOL = 100


class Rig:
    """Memory with one replica of 100 blocks of 4 tokens."""

    def __init__(self, classes: ClassesConfig = NOTHING_RESERVED, headroom: float = 0.0) -> None:
        settings = PolicySettings(
            max_num_partial_prefills=4,
            kv_headroom_fraction=headroom,
            block_size=BLOCK_SIZE,
            limits=Limits(classes),
        )
        self.leads = FakeLeads()
        self.memory = Memory(settings, self.leads)
        self.replica = FakeReplica(POOL)
        self.replica.headroom = self.memory.headroom_blocks
        self._num_requests = 0

    def request(
        self, blocks: int, grows: int = 0, traffic_class: TrafficClass = STANDARD
    ) -> Request:
        """Return a request of so many blocks that may grow by so many."""
        self._num_requests += 1
        return make_request(
            self._num_requests,
            blocks * BLOCK_SIZE,
            max(1, grows * BLOCK_SIZE),
            order=self._num_requests,
            traffic_class=traffic_class,
        )

    def run(self, blocks: int, grows: int = 0, traffic_class: TrafficClass = STANDARD) -> Request:
        """Let such a request run."""
        request = self.request(blocks, grows, traffic_class)
        self.replica.start(request)
        self.memory.started(request)
        return request

    def demand(self, request: Request) -> Demand:
        return self.memory.demand(request, self.replica.load())

    def fits(self, request: Request) -> bool:
        return self.replica.missing_blocks(request) <= 0

    def end(self, request: Request) -> None:
        """Let a running `request` be gone."""
        request.row = -1
        del self.replica.held[request]
        self.memory.stopped(request)

    def wait(self, duration_ns: int) -> None:
        """Open a step after so long."""
        self.replica.now_ns += duration_ns
        self.open()

    def close(self, num_tokens: int) -> None:
        """Let the step compute so many tokens."""
        self.memory.close(self.replica, num_tokens)  # type: ignore[arg-type]

    def open(self) -> None:
        self.memory.open(self.replica)  # type: ignore[arg-type]

    def make_room(self, request: Request) -> bool:
        return self.memory.make_room(self.replica, request)  # type: ignore[arg-type]


def test_a_request_starts_only_if_all_can_grow_to_their_ends() -> None:
    """The blocks that those which run will come to need are not given to a new one."""
    rig = Rig()
    rig.run(40, grows=40)
    assert not rig.fits(rig.request(30, grows=30))
    assert rig.fits(rig.request(10, grows=1))


def test_what_ends_soon_makes_place_for_what_grows_late() -> None:
    """Growth after another's end is no reason to wait: the peak counts, not the sum."""
    rig = Rig()
    rig.run(60, grows=1)
    assert rig.fits(rig.request(20, grows=70))


def test_who_starts_after_a_look_counts_as_in_a_new_look() -> None:
    """What is asked for beside it is the same as if everything that runs were looked at again."""
    random = Random(5)
    known, anew = Rig(RESERVED), Rig(RESERVED)
    for rig in (known, anew):
        rig.run(5, grows=5)
    for _ in range(9):
        blocks, grows = random.randint(1, 5), random.randint(1, 40)
        traffic_class = random.choice((INTERACTIVE, STANDARD, BATCH))
        asked = random.randint(1, 8), random.randint(1, 60)
        for rig in (known, anew):
            rig.demand(rig.request(1))
            rig.run(blocks, grows, traffic_class)
        anew.memory.configure(Limits(RESERVED))
        assert known.demand(known.request(*asked)) == anew.demand(anew.request(*asked))


def test_nothing_is_kept_on_a_replica_that_runs_nothing() -> None:
    """A request that fits into the pool fits, whatever is reserved, or nothing would ever run."""
    rig = Rig(RESERVED, headroom=0.1)
    assert rig.fits(rig.request(POOL))


def test_the_headroom_stays_free() -> None:
    """A share of the pool is given to nobody."""
    rig = Rig(headroom=0.1)
    rig.run(50)
    assert rig.demand(rig.request(10)).headroom == 10
    assert not rig.fits(rig.request(42))


def test_others_reserves_stay_free_but_for_droppable_work() -> None:
    """Standard leaves what interactive and administrative reserve, batch only the latter."""
    rig = Rig(RESERVED)
    rig.run(10)
    rig.end(rig.run(1, traffic_class=INTERACTIVE))
    reserves = {c: rig.demand(rig.request(30, traffic_class=c)).reserve for c in TrafficClass}
    assert reserves == {INTERACTIVE: 5, STANDARD: 25, BATCH: 5, ADMINISTRATIVE: 20}


def test_what_a_class_holds_is_no_longer_kept_for_it() -> None:
    """Only the part of a reserve that is not used is kept."""
    rig = Rig(RESERVED)
    rig.run(15, traffic_class=INTERACTIVE)
    assert rig.demand(rig.request(30)).reserve == 5 + 5


def test_batch_that_was_preempted_too_often_borrows_nothing() -> None:
    """Who cannot be preempted any more is kept out of the reserves of others."""
    rig = Rig(RESERVED)
    rig.run(10)
    batch = rig.request(10, traffic_class=BATCH)
    batch.num_preemptions = 3
    assert rig.demand(batch).reserve == 25


def test_a_quiet_class_lends_its_reserve_to_whoever_can_be_preempted() -> None:
    """A minute after its last start a class's reserve does not lie idle, until it starts again."""
    rig = Rig(RESERVED)
    rig.run(10)
    rig.end(rig.run(1, traffic_class=INTERACTIVE))
    rig.wait(60 * NS_PER_S)
    assert rig.demand(rig.request(30)).reserve == 25
    rig.wait(1)
    assert rig.demand(rig.request(30)).reserve == 5
    rig.end(rig.run(1, traffic_class=INTERACTIVE))
    assert rig.demand(rig.request(30)).reserve == 25


def test_what_a_quiet_class_lent_is_called_back_at_once() -> None:
    """Standard work in a lent reserve gives it back in the step it is wanted, whenever it came."""
    rig = Rig(RESERVED)
    standard = [rig.run(19, grows=1) for _ in range(5)]
    for each in standard:
        each.num_preemptions = 1
        rig.memory.started(each)
    urgent = rig.request(15, grows=1, traffic_class=INTERACTIVE)
    assert not rig.fits(urgent)
    assert rig.make_room(urgent)
    assert rig.fits(urgent)
    assert {each.request for each in rig.replica.preempted} <= set(standard)


def test_what_batch_may_come_to_hold_keeps_no_higher_class_out() -> None:
    """With most of the pool free an interactive request beyond its reserve starts at once, however
    long the batch work that runs may grow.
    """
    rig = Rig(RESERVED)
    rig.run(20, grows=100, traffic_class=BATCH)
    assert rig.fits(rig.request(36, grows=10, traffic_class=INTERACTIVE))
    assert not rig.fits(rig.request(36, grows=10, traffic_class=BATCH))


def test_what_batch_holds_keeps_others_out() -> None:
    """Blocks that droppable work has are not given twice."""
    rig = Rig(RESERVED)
    rig.run(20, grows=100, traffic_class=BATCH)
    assert not rig.fits(rig.request(36, grows=40, traffic_class=INTERACTIVE))


def test_batch_that_cannot_be_preempted_any_more_has_a_right_to_grow() -> None:
    """What cannot be dropped counts in full for everybody."""
    rig = Rig()
    batch = rig.run(20, grows=75, traffic_class=BATCH)
    assert rig.fits(rig.request(20, grows=50))
    batch.num_preemptions = 3
    rig.memory.stopped(batch)
    rig.memory.started(batch)
    assert not rig.fits(rig.request(20, grows=50))


def test_standard_counts_on_the_end_of_batch_only_while_work_may_be_thrown_away() -> None:
    """After too much was preempted, admission is as if batch could not be dropped."""
    rig = Rig()
    lost = rig.run(20, grows=75, traffic_class=BATCH)
    rig.run(20, grows=75, traffic_class=BATCH)
    head = rig.request(20, grows=35)
    assert rig.fits(head)
    given = rig.memory.victim([lost], head, rig.replica.load())
    assert given is not None
    rig.replica.preempt(given.request)
    rig.memory.stopped(lost)
    rig.close(10)
    assert not rig.fits(head)


def test_within_its_reserve_a_request_needs_no_peak() -> None:
    """What others will come to need does not keep a class out of its own."""
    rig = Rig(RESERVED)
    rig.run(70, grows=30)
    inside, beyond = (rig.request(n, 1, INTERACTIVE) for n in (15, 25))
    assert rig.memory.has_reserve(inside, rig.replica.load())
    assert rig.fits(inside)
    assert not rig.memory.has_reserve(beyond, rig.replica.load())
    assert not rig.fits(beyond)


def test_who_was_preempted_comes_back_above_the_high_mark() -> None:
    """A preempted request waits until a twentieth of the pool stays free behind it."""
    rig = Rig()
    rig.run(10)
    request = rig.request(10)
    request.num_preemptions = 1
    assert rig.demand(request).headroom == 5


def test_history_makes_admission_bolder() -> None:
    """Once outputs are known to be short, what a request may ask for does not count."""
    rig = Rig()
    rig.run(10, grows=60)
    candidate = rig.request(10, grows=60)
    before = rig.demand(candidate).growth
    for _ in range(20):
        ended = rig.request(1, grows=10)
        ended.num_output_tokens, ended.status = 4, RequestStatus.FINISHED_STOPPED
        rig.memory.ended(ended)
    rig.open()
    assert rig.demand(candidate).growth < before / 10


def test_aborted_outputs_teach_nothing() -> None:
    """The length of what a client broke off is not that of an output."""
    rig = Rig()
    rig.run(10)
    candidate = rig.request(10, grows=60)
    before = rig.demand(candidate)
    for _ in range(20):
        ended = rig.request(1, grows=10)
        ended.num_output_tokens, ended.status = 4, RequestStatus.FINISHED_ABORTED
        rig.memory.ended(ended)
    assert rig.demand(candidate) == before


def test_a_reserve_is_called_back_at_once() -> None:
    """Lower work gives memory back for a request within the reserve of its class: P6."""
    rig = Rig(RESERVED)
    batch = [rig.run(19, grows=1, traffic_class=BATCH) for _ in range(5)]
    urgent = rig.request(15, grows=1, traffic_class=INTERACTIVE)
    assert not rig.fits(urgent)
    assert rig.make_room(urgent)
    assert rig.fits(urgent)
    assert rig.replica.preempted
    assert {each.request for each in rig.replica.preempted} <= set(batch)


def test_a_standard_head_calls_back_only_what_is_over_its_share() -> None:
    """Batch that was served no more than its share stays; when it was, it gives."""
    rig = Rig()
    rig.run(95, grows=5, traffic_class=BATCH)
    head = rig.request(30, grows=1)
    assert not rig.make_room(head)
    rig.leads.ahead.add(BATCH)
    assert rig.make_room(head)
    assert rig.fits(head)


def test_what_starts_behind_a_claim_is_dropped_for_it() -> None:
    """Droppable work that backfills behind a head without memory gives way to that head."""
    rig = Rig()
    rig.run(50, grows=1)
    rig.open()
    head = rig.request(60, grows=1)
    assert not rig.make_room(head)
    backfill = rig.run(30, grows=1, traffic_class=BATCH)
    rig.replica.requests[0].row = -1
    del rig.replica.held[rig.replica.requests[0]]
    rig.memory.stopped(rig.replica.requests[0])
    rig.open()
    rig.run(20, grows=1)
    assert rig.make_room(head)
    assert rig.replica.preempted[0].request is backfill


def test_who_fits_only_alone_gets_what_backfills_out_of_the_way() -> None:
    """A head that leaves no headroom starts once nothing but droppable work runs: all of it goes,
    or it would be replaced by more of its kind for ever.
    """
    rig = Rig(headroom=0.05)
    first = rig.run(50, grows=1)
    rig.open()
    head = rig.request(97, grows=1)
    assert not rig.make_room(head)
    backfill = [rig.run(15, grows=1, traffic_class=BATCH) for _ in range(2)]
    rig.open()
    assert not rig.make_room(head)
    rig.end(first)
    rig.open()
    assert rig.make_room(head)
    assert rig.fits(head)
    assert [each.request for each in rig.replica.preempted] == backfill


def test_nobody_is_preempted_if_that_would_not_be_enough() -> None:
    """Room is made for a request as a whole or not at all."""
    rig = Rig(RESERVED)
    rig.run(90, grows=1, traffic_class=ADMINISTRATIVE)
    rig.run(5, grows=1, traffic_class=BATCH)
    assert not rig.make_room(rig.request(15, grows=1, traffic_class=INTERACTIVE))
    assert not rig.replica.preempted


def test_below_the_low_mark_droppable_work_gives_way_first() -> None:
    """With less than a hundredth free, batch gives before those above it have to wait."""
    rig = Rig()
    rig.run(50, grows=1)
    batch = rig.run(50, grows=1, traffic_class=BATCH)
    rig.open()
    assert [each.request for each in rig.replica.preempted] == [batch]


def test_above_the_low_mark_nobody_is_preempted() -> None:
    """With a hundredth free, nothing happens."""
    rig = Rig()
    rig.run(50, grows=1)
    rig.run(49, grows=1, traffic_class=BATCH)
    rig.open()
    assert not rig.replica.preempted


def test_who_cannot_grow_and_has_nobody_below_gives_itself() -> None:
    """The lowest that runs is its own victim; one above others waits while those make progress."""
    rig = Rig()
    first, second = rig.run(50, grows=1), rig.run(50, grows=1)
    load = rig.replica.load()
    victim = rig.memory.victim([first, second], second, load)
    assert victim is not None
    assert victim.request is second
    second.num_preemptions = 1
    rig.memory.started(second)
    assert rig.memory.victim([first, second], first, load) is None


@pytest.mark.parametrize(("blocks", "blocked"), [(60, Blocked.MEMORY), (45, Blocked.HEADROOM)])
def test_the_reason_tells_what_is_missing(blocks: int, blocked: Blocked) -> None:
    """Blocks are missing, or only the room in which those that run grow."""
    rig = Rig()
    rig.run(50, grows=30)
    request = rig.request(blocks, grows=1)
    assert rig.memory.blocked(rig.replica, request) is blocked  # type: ignore[arg-type]


def test_caution_grows_with_what_is_thrown_away_and_fades_without() -> None:
    """Nothing preempted makes admission bolder step by step, too much at once more careful."""
    caution = Caution(0.05)
    for _ in range(1000):
        caution.computed(2000, 0)
    assert caution.factor == LOWEST
    caution.preempted(200)
    caution.computed(2000, 0)
    assert caution.factor >= 1.25 * LOWEST
    for _ in range(1000):
        caution.preempted(1000)
        caution.computed(2000, 0)
    assert caution.factor == HIGHEST


def test_caution_rests_where_little_is_thrown_away() -> None:
    """A fifth of what may be preempted moves the factor nowhere."""
    caution = Caution(0.05)
    for _ in range(100):
        caution.preempted(20)
        caution.computed(2000, 0)
    assert caution.factor == pytest.approx(1.0)


def test_what_is_called_back_by_choice_is_paid_for_by_what_was_computed() -> None:
    """Half of what may be thrown away can be called back without need; debt is worked off."""
    caution = Caution(0.05)
    assert caution.has_credit
    caution.preempted(50)
    assert not caution.has_credit
    caution.computed(1999, 10**6)
    assert not caution.has_credit
    caution.computed(1, 10**6)
    assert caution.has_credit


def test_without_credit_nothing_starts_behind_a_claim() -> None:
    """Droppable work that could not be dropped again does not backfill, and gives nothing back."""
    rig = Rig()
    rig.run(50, grows=1)
    rig.run(30, grows=1, traffic_class=BATCH)
    rig.leads.ahead.add(BATCH)
    rig.open()
    head, backfill = rig.request(40, grows=1), rig.request(5, grows=1, traffic_class=BATCH)
    assert rig.make_room(head)
    assert rig.fits(backfill)
    rig.memory.close(rig.replica, 0)  # type: ignore[arg-type]
    rig.run(40, grows=1, traffic_class=BATCH)
    assert not rig.make_room(head)
    assert not rig.fits(backfill)
