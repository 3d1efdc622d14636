"""Frames become rates, quantiles and trends, over restarts and gaps."""

import gc

import msgspec
import pytest

from dashboard.frame import (
    ClassFrame,
    Frame,
    Histogram,
    Liveness,
    ProcessFrame,
    TenantFrame,
    Totals,
)
from dashboard.history import MAX_FRAMES, MAX_SAMPLES, History, View
from dashboard.journal import MAX_ENTRIES, Journal
from dashboard.quantiles import quantile, share_within, since
from ipc.pages import LATENCY_BUCKETS_S


def tenant(name: str, generated: int, rejections: dict[str, int] | None = None) -> TenantFrame:
    """Return a tenant that has got so many tokens."""
    return TenantFrame(name, False, 1.0, 0.5, 0.5, 0, 0, 0.0, 1, 0, 0, 0, 0, 1, 0, 0, generated,
                       0, 0, rejections or {})  # fmt: skip


def frame(taken_s: float, generated: int = 0, **changes: object) -> Frame:
    """Return a live frame of an engine that has generated so many tokens."""
    base = Frame(
        taken_s, taken_s, "e", Liveness.LIVE, scheduler_epoch=1,
        totals=Totals(generated_tokens=generated, steps=generated),
        tenants=(tenant("a", generated),),
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def pushed(*frames: Frame) -> View:
    """Return the view after these frames."""
    history = History()
    return [history.push(each) for each in frames][-1]


def test_the_first_frame_has_no_rates() -> None:
    """Nothing is known of a rate from one look."""
    view = pushed(frame(1.0, 500))
    assert view.generated is None
    assert view.ttft.p50_s is None


def test_a_rate_is_over_the_last_three_seconds() -> None:
    """What was before has no part in it."""
    frames = [frame(t, 100 * t) for t in range(5)] + [
        frame(5, 2400),
        frame(6, 4400),
        frame(7, 6400),
    ]
    view = pushed(*frames)
    assert view.generated == pytest.approx(2000)
    assert view.rates_of(view.frame.tenants[0]).generated == pytest.approx(2000)


def test_prompts_of_a_tenant_have_a_rate_of_their_own() -> None:
    """Tokens that were read beside those that were written."""
    frames = [
        frame(t, tenants=(msgspec.structs.replace(tenant("a", 10 * t), prompt_tokens=70 * t),))
        for t in range(5)
    ]
    rates = pushed(*frames).tenants["a"]
    assert [rates.generated, rates.prompt] == pytest.approx([10, 70])


def test_a_tenant_that_comes_back_begins_anew() -> None:
    """It was removed and its row another's, so its counters begin at 0, and no rate is negative."""

    def frame_with(taken_s: float, prompt_tokens: int, rejected: int) -> Frame:
        row = tenant("a", prompt_tokens, {"tenant_rate": rejected} if rejected else {})
        return frame(taken_s, tenants=(msgspec.structs.replace(row, prompt_tokens=prompt_tokens),))

    before, back, later = frame_with(1, 5000, 9), frame_with(2, 10, 0), frame_with(3, 110, 1)
    assert pushed(before, back).tenants == {}
    rates = pushed(before, back, later).tenants
    assert all(each.prompt >= 0 and each.generated >= 0 for each in rates.values())
    assert pushed(before, back, later, frame_with(5, 310, 3)).tenants["a"].prompt == 100


def test_another_scheduler_begins_anew() -> None:
    """Its counters begin at 0, and no rate is negative."""
    view = pushed(frame(1, 5000), frame(2, 6000), frame(3, 10, scheduler_epoch=2))
    assert view.generated is None
    view = pushed(frame(1, 5000), frame(2, 0, scheduler_epoch=2), frame(3, 100, scheduler_epoch=2))
    assert view.generated == pytest.approx(100)


def test_trends_outlive_a_scheduler_and_end_with_the_engine() -> None:
    """What an operator wants to see after a death is what was before it."""
    before = [frame(t, 100 * t, uptime_s=50.0 + t) for t in range(1, 5)]
    view = pushed(*before, frame(5, 400, uptime_s=55.0, scheduler_epoch=2))
    assert [sample.generated for sample in view.samples] == [None, 100, 100, 100]
    view = pushed(*before, frame(5, 0, uptime_s=1.0))
    assert not view.samples


def test_the_same_frame_again_changes_nothing() -> None:
    """A stopped recording keeps its rates."""
    history = History()
    for t in range(5):
        history.push(frame(t, 100 * t))
    for _ in range(2 * MAX_FRAMES):
        view = history.push(frame(4, 400))
    assert view.generated == pytest.approx(100)


def test_a_silent_engine_has_a_gap_in_its_trends() -> None:
    """A trend of an engine that says nothing is not a line at its last value."""
    stale = [frame(t, 400, liveness=Liveness.STALE) for t in (5, 6, 7)]
    view = pushed(*[frame(t, 100 * t) for t in range(5)], *stale)
    assert [sample.generated is None for sample in view.samples[-2:]] == [True, True]


@pytest.mark.slow
def test_nothing_grows_without_end() -> None:
    """After ten hours, with a death a minute, there are as many objects as after one."""
    history, journal = History(), Journal()
    process = ProcessFrame("http.0", 1, 1, "running", "idle", 0, 0.1)

    def pass_an_hour(hour: int) -> int:
        for t in range(3600 * hour, 3600 * (hour + 1)):
            dying = msgspec.structs.replace(process, epoch=1 + t // 60)
            seen = frame(float(t), t, processes=(dying,))
            journal.look(seen)
            view = history.push(seen)
        assert len(view.samples) == MAX_SAMPLES
        assert len(journal.entries()) <= MAX_ENTRIES
        del dying, seen, view
        gc.collect()
        return len(gc.get_objects())

    counts = [pass_an_hour(hour) for hour in range(10)]
    assert counts[-1] <= counts[MAX_ENTRIES // 60 + 1] + 10, counts


def test_refusals_are_those_of_the_last_seconds() -> None:
    """Old ones are history."""
    frames = [
        frame(t, t, tenants=(tenant("a", t, {"tenant_rate": 5 + (t == 20)}),)) for t in range(21)
    ]
    view = pushed(*frames)
    assert view.tenants["a"].refused == {"tenant_rate": 1}


def test_waits_by_class_are_those_of_the_last_seconds() -> None:
    """A minute-long wait of the past does not colour the present."""
    blank = (0,) * (len(LATENCY_BUCKETS_S) + 1)

    def at(t: int, counts: tuple[int, ...]) -> Frame:
        each = ClassFrame("batch", False, 1.0, 0, 0, 0, 0, 0, 0, 0.0, Histogram(counts))
        return frame(t, t, classes=(each,))

    old = (*blank[:14], 100, *blank[15:])
    new = (10, *old[1:])
    view = pushed(at(0, blank), *(at(t, old) for t in range(1, 40)), at(40, new))
    assert view.queue["batch"].p95_s is not None
    assert view.queue["batch"].p95_s < LATENCY_BUCKETS_S[0]


def test_a_quantile_is_linear_within_its_bucket() -> None:
    """Half of ten values between 1 and 3 lies at 2."""
    assert quantile(Histogram((0, 10, 0)), (1.0, 3.0), 0.5) == pytest.approx(2.0)
    assert quantile(Histogram((10, 0, 0)), (1.0, 3.0), 0.95) == pytest.approx(0.95)
    assert quantile(Histogram((0, 0, 7)), (1.0, 3.0), 0.5) == 3.0
    assert quantile(Histogram((0, 0, 0)), (1.0, 3.0), 0.5) is None
    assert quantile(Histogram(), (1.0, 3.0), 0.5) is None


def test_what_was_added_survives_a_restart() -> None:
    """A histogram that counts from 0 again is taken as it is."""
    assert since(Histogram((5, 5)), Histogram((2, 5))).counts == (3, 0)
    assert since(Histogram((1, 0)), Histogram((2, 5))).counts == (1, 0)
    assert since(Histogram((1, 0)), Histogram()).counts == (1, 0)


def test_a_share_counts_whole_buckets_only() -> None:
    """It is rather too low than too high."""
    seen = Histogram((6, 2, 2))
    assert share_within(seen, (1.0, 3.0), 1.0) == pytest.approx(0.6)
    assert share_within(seen, (1.0, 3.0), 2.9) == pytest.approx(0.6)
    assert share_within(seen, (1.0, 3.0), 3.0) == pytest.approx(0.8)
    assert share_within(Histogram((0, 0, 0)), (1.0, 3.0), 1.0) is None
