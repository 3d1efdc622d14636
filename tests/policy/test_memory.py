"""Who may have KV memory: admission by growth, reserves, headroom."""

from random import Random

import pytest

from core.clock import NS_PER_S
from core.policy.base import Blocked
from core.policy.limits import Limits
from core.request import RequestStatus
from core.tenancy.classes import TrafficClass
from tests.support.policy.memory_rig import POOL, RESERVED, MemoryRig

INTERACTIVE, STANDARD, BATCH, ADMINISTRATIVE = TrafficClass


def test_a_request_starts_only_if_all_can_grow_to_their_ends() -> None:
    """The blocks that those which run will come to need are not given to a new one."""
    rig = MemoryRig()
    rig.run(40, grows=40)
    assert not rig.fits(rig.request(30, grows=30))
    assert rig.fits(rig.request(10, grows=1))


def test_what_ends_soon_makes_place_for_what_grows_late() -> None:
    """Growth after another's end is no reason to wait: the peak counts, not the sum."""
    rig = MemoryRig()
    rig.run(60, grows=1)
    assert rig.fits(rig.request(20, grows=70))


def test_who_starts_after_a_look_counts_as_in_a_new_look() -> None:
    """What is asked for beside it is the same as if everything that runs were looked at again."""
    random = Random(5)
    known, anew = MemoryRig(RESERVED), MemoryRig(RESERVED)
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
    rig = MemoryRig(RESERVED, headroom=0.1)
    assert rig.fits(rig.request(POOL))


def test_the_headroom_stays_free() -> None:
    """A share of the pool is given to nobody."""
    rig = MemoryRig(headroom=0.1)
    rig.run(50)
    assert rig.demand(rig.request(10)).headroom == 10
    assert not rig.fits(rig.request(42))


def test_others_reserves_stay_free_but_for_droppable_work() -> None:
    """Standard leaves what interactive and administrative reserve, batch only the latter."""
    rig = MemoryRig(RESERVED)
    rig.run(10)
    rig.end(rig.run(1, traffic_class=INTERACTIVE))
    reserves = {c: rig.demand(rig.request(30, traffic_class=c)).reserve for c in TrafficClass}
    assert reserves == {INTERACTIVE: 5, STANDARD: 25, BATCH: 5, ADMINISTRATIVE: 20}


def test_what_a_class_holds_is_no_longer_kept_for_it() -> None:
    """Only the part of a reserve that is not used is kept."""
    rig = MemoryRig(RESERVED)
    rig.run(15, traffic_class=INTERACTIVE)
    assert rig.demand(rig.request(30)).reserve == 5 + 5


def test_batch_that_was_preempted_too_often_borrows_nothing() -> None:
    """Who cannot be preempted any more is kept out of the reserves of others."""
    rig = MemoryRig(RESERVED)
    rig.run(10)
    batch = rig.request(10, traffic_class=BATCH)
    batch.num_preemptions = 3
    assert rig.demand(batch).reserve == 25


def test_a_quiet_class_lends_its_reserve_to_whoever_can_be_preempted() -> None:
    """A minute after its last start a class's reserve does not lie idle, until it starts again."""
    rig = MemoryRig(RESERVED)
    rig.run(10)
    rig.end(rig.run(1, traffic_class=INTERACTIVE))
    rig.wait(60 * NS_PER_S)
    assert rig.demand(rig.request(30)).reserve == 25
    rig.wait(1)
    assert rig.demand(rig.request(30)).reserve == 5
    rig.end(rig.run(1, traffic_class=INTERACTIVE))
    assert rig.demand(rig.request(30)).reserve == 25


def test_what_batch_may_come_to_hold_keeps_no_higher_class_out() -> None:
    """With most of the pool free an interactive request beyond its reserve starts at once, however
    long the batch work that runs may grow.
    """
    rig = MemoryRig(RESERVED)
    rig.run(20, grows=100, traffic_class=BATCH)
    assert rig.fits(rig.request(36, grows=10, traffic_class=INTERACTIVE))
    assert not rig.fits(rig.request(36, grows=10, traffic_class=BATCH))


def test_what_batch_holds_keeps_others_out() -> None:
    """Blocks that droppable work has are not given twice."""
    rig = MemoryRig(RESERVED)
    rig.run(20, grows=100, traffic_class=BATCH)
    assert not rig.fits(rig.request(36, grows=40, traffic_class=INTERACTIVE))


def test_batch_that_cannot_be_preempted_any_more_has_a_right_to_grow() -> None:
    """What cannot be dropped counts in full for everybody."""
    rig = MemoryRig()
    batch = rig.run(20, grows=75, traffic_class=BATCH)
    assert rig.fits(rig.request(20, grows=50))
    batch.num_preemptions = 3
    rig.memory.stopped(batch)
    rig.memory.started(batch)
    assert not rig.fits(rig.request(20, grows=50))


def test_standard_counts_on_the_end_of_batch_only_while_work_may_be_thrown_away() -> None:
    """After too much was preempted, admission is as if batch could not be dropped."""
    rig = MemoryRig()
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
    rig = MemoryRig(RESERVED)
    rig.run(70, grows=30)
    inside, beyond = (rig.request(n, 1, INTERACTIVE) for n in (15, 25))
    assert rig.memory.has_reserve(inside, rig.replica.load())
    assert rig.fits(inside)
    assert not rig.memory.has_reserve(beyond, rig.replica.load())
    assert not rig.fits(beyond)


def test_who_was_preempted_comes_back_above_the_high_mark() -> None:
    """A preempted request waits until a twentieth of the pool stays free behind it."""
    rig = MemoryRig()
    rig.run(10)
    request = rig.request(10)
    request.num_preemptions = 1
    assert rig.demand(request).headroom == 5


def test_history_makes_admission_bolder() -> None:
    """Once outputs are known to be short, what a request may ask for does not count."""
    rig = MemoryRig()
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
    rig = MemoryRig()
    rig.run(10)
    candidate = rig.request(10, grows=60)
    before = rig.demand(candidate)
    for _ in range(20):
        ended = rig.request(1, grows=10)
        ended.num_output_tokens, ended.status = 4, RequestStatus.FINISHED_ABORTED
        rig.memory.ended(ended)
    assert rig.demand(candidate) == before


@pytest.mark.parametrize(("blocks", "blocked"), [(60, Blocked.MEMORY), (45, Blocked.HEADROOM)])
def test_the_reason_tells_what_is_missing(blocks: int, blocked: Blocked) -> None:
    """Blocks are missing, or only the room in which those that run grow."""
    rig = MemoryRig()
    rig.run(50, grows=30)
    request = rig.request(blocks, grows=1)
    assert rig.memory.blocked(rig.replica, request) is blocked  # type: ignore[arg-type]
