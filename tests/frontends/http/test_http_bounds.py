"""How long a connection waits and how much it takes in: the bounds alone, in made-up time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from core.config.processes import HttpConfig
from frontends.http.connection.deadlines import READ_FIRST_S, Deadline, ReaderWatch
from frontends.http.connection.limits import NUM_WHOLE_BODIES, ByteBudget, ConnectionLimits
from frontends.http.connection.weight import RequestWeight

LIMITS = ConnectionLimits.of(HttpConfig(max_header_bytes=1024, max_body_bytes=4096))


@dataclass(slots=True)
class Timer:
    """One call that is due."""

    due_s: float
    callback: Callable[[], object]
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Call nothing."""
        self.is_cancelled = True


@dataclass(slots=True)
class TimerLoop:
    """The timers of a loop, on a clock that the test moves."""

    now_s: float = 0.0
    timers: list[Timer] = field(default_factory=list)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Note what is due."""
        timer = Timer(self.now_s + delay, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass, and call what becomes due in it."""
        end_s = self.now_s + seconds
        while due := [t for t in self.timers if t.due_s <= end_s and not t.is_cancelled]:
            timer = min(due, key=lambda each: each.due_s)
            self.timers.remove(timer)
            self.now_s = timer.due_s
            timer.callback()
        self.now_s = end_s


def test_a_deadline_waits_for_one_thing() -> None:
    """The one that was set last, once, and for nothing when it is stopped."""
    loop, called = TimerLoop(), list[str]()
    deadline = Deadline(loop)
    deadline.set(1.0, lambda: called.append("first"))
    deadline.set(2.0, lambda: called.append("second"))
    loop.advance(5.0)
    assert called == ["second"]
    deadline.set(1.0, lambda: called.append("third"))
    deadline.stop()
    loop.advance(5.0)
    assert called == ["second"]


def test_what_has_come_is_read_before_anybody_is_late() -> None:
    """At the end of its time a client has one more round of the loop, and may be in time in it."""
    loop, called = TimerLoop(), list[str]()
    deadline = Deadline(loop)
    deadline.set_after_reading(1.0, lambda: called.append("late"))
    loop.advance(1.0)
    assert called == []
    deadline.stop()
    loop.advance(1.0)
    assert called == []
    deadline.set_after_reading(1.0, lambda: called.append("late"))
    loop.advance(1.0 + 2 * READ_FIRST_S)
    assert called == ["late"]


def test_a_reader_is_stuck_when_it_took_nothing_for_a_whole_time() -> None:
    """However little it takes, it is waited for; it is given up once, and never when stopped."""
    loop, unsent, stuck = TimerLoop(), [100], list[float]()
    watch = ReaderWatch(loop, 10.0, lambda: unsent[0], lambda: stuck.append(loop.now_s))
    watch.start()
    for _ in range(5):
        unsent[0] -= 1
        loop.advance(10.0)
    assert stuck == []
    loop.advance(100.0)
    assert stuck == [60.0]
    watch.start()
    watch.stop()
    loop.advance(100.0)
    assert stuck == [60.0]


def weight(budget: ByteBudget | None = None) -> RequestWeight:
    """Return the weight of a request under LIMITS."""
    return RequestWeight(LIMITS, budget or ByteBudget(LIMITS.max_buffered_body_bytes))


def test_a_head_is_counted_anew_for_each_request() -> None:
    """A connection that is kept may send many heads below the limit, and none above it."""
    counted = weight()
    for _ in range(3):
        counted.begin()
        assert not counted.has_head
        assert counted.add_head(100) is None
        assert counted.add_head(LIMITS.max_header_bytes - 100) is None
        assert counted.has_head
    refusal = counted.add_head(1)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (431, "header_too_large")


def test_a_body_is_refused_by_its_announcement_or_by_its_bytes() -> None:
    """To the byte; without an announcement it is counted as it comes."""
    counted = weight()
    assert counted.announce_body([(b"host", b"x"), (b"content-length", b"4096")]) is None
    refusal = counted.announce_body([(b"content-length", b"4097")])
    assert refusal is not None
    assert refusal.status == 413
    assert counted.add_body(4096) is None
    refusal = counted.add_body(1)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (413, "body_too_large")


def test_bodies_share_a_budget_until_they_are_complete() -> None:
    """A refused part takes nothing, and what is released can be taken by another connection."""
    budget = ByteBudget(LIMITS.max_buffered_body_bytes)
    others = [weight(budget) for _ in range(NUM_WHOLE_BODIES)]
    assert all(each.add_body(4096) is None for each in others)
    late = weight(budget)
    refusal = late.add_body(1)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (503, "too_many_bodies")
    others[0].release()
    assert late.add_body(4096) is None
    for each in (*others, late):
        each.release()
    assert budget.used_bytes == 0
