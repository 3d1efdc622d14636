"""When running requests give memory back for others, and who."""

from core.tenancy.classes import TrafficClass
from tests.support.policy.memory_rig import RESERVED, MemoryRig

INTERACTIVE, STANDARD, BATCH, ADMINISTRATIVE = TrafficClass


def test_what_a_quiet_class_lent_is_called_back_at_once() -> None:
    """Standard work in a lent reserve gives it back in the step it is wanted, whenever it came."""
    rig = MemoryRig(RESERVED)
    standard = [rig.run(19, grows=1) for _ in range(5)]
    for each in standard:
        each.num_preemptions = 1
        rig.memory.started(each)
    urgent = rig.request(15, grows=1, traffic_class=INTERACTIVE)
    assert not rig.fits(urgent)
    assert rig.make_room(urgent)
    assert rig.fits(urgent)
    assert {each.request for each in rig.replica.preempted} <= set(standard)


def test_a_reserve_is_called_back_at_once() -> None:
    """Lower work gives memory back for a request within the reserve of its class: P6."""
    rig = MemoryRig(RESERVED)
    batch = [rig.run(19, grows=1, traffic_class=BATCH) for _ in range(5)]
    urgent = rig.request(15, grows=1, traffic_class=INTERACTIVE)
    assert not rig.fits(urgent)
    assert rig.make_room(urgent)
    assert rig.fits(urgent)
    assert rig.replica.preempted
    assert {each.request for each in rig.replica.preempted} <= set(batch)


def test_a_standard_head_calls_back_only_what_is_over_its_share() -> None:
    """Batch that was served no more than its share stays; when it was, it gives."""
    rig = MemoryRig()
    rig.run(95, grows=5, traffic_class=BATCH)
    head = rig.request(30, grows=1)
    assert not rig.make_room(head)
    rig.leads.ahead.add(BATCH)
    assert rig.make_room(head)
    assert rig.fits(head)


def test_what_starts_behind_a_claim_is_dropped_for_it() -> None:
    """Droppable work that backfills behind a head without memory gives way to that head."""
    rig = MemoryRig()
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
    rig = MemoryRig(headroom=0.05)
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
    rig = MemoryRig(RESERVED)
    rig.run(90, grows=1, traffic_class=ADMINISTRATIVE)
    rig.run(5, grows=1, traffic_class=BATCH)
    assert not rig.make_room(rig.request(15, grows=1, traffic_class=INTERACTIVE))
    assert not rig.replica.preempted


def test_below_the_low_mark_droppable_work_gives_way_first() -> None:
    """With less than a hundredth free, batch gives before those above it have to wait."""
    rig = MemoryRig()
    rig.run(50, grows=1)
    batch = rig.run(50, grows=1, traffic_class=BATCH)
    rig.open()
    assert [each.request for each in rig.replica.preempted] == [batch]


def test_above_the_low_mark_nobody_is_preempted() -> None:
    """With a hundredth free, nothing happens."""
    rig = MemoryRig()
    rig.run(50, grows=1)
    rig.run(49, grows=1, traffic_class=BATCH)
    rig.open()
    assert not rig.replica.preempted


def test_who_cannot_grow_and_has_nobody_below_gives_itself() -> None:
    """The lowest that runs is its own victim; one above others waits while those make progress."""
    rig = MemoryRig()
    first, second = rig.run(50, grows=1), rig.run(50, grows=1)
    load = rig.replica.load()
    victim = rig.memory.victim([first, second], second, load)
    assert victim is not None
    assert victim.request is second
    second.num_preemptions = 1
    rig.memory.started(second)
    assert rig.memory.victim([first, second], first, load) is None


def test_without_credit_nothing_starts_behind_a_claim() -> None:
    """Droppable work that could not be dropped again does not backfill, and gives nothing back."""
    rig = MemoryRig()
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
