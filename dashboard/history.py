"""What was seen lately: frames become rates, quantiles of the last seconds, and trends.

Owns: how long a while is, and that nothing grows without end. Never knows: where frames come from
or what is drawn. Rates and quantiles start anew with another scheduler, whose counters may have
lost what its predecessor counted last; trends go on, and end only with the engine, or where a
recording is wound back.
"""

from collections import deque
from collections.abc import Mapping
from functools import cached_property, lru_cache

import msgspec

from dashboard.frame import Frame, Histogram, Liveness, TenantFrame
from dashboard.quantiles import quantile, since
from ipc.pages import ITL_BUCKETS_S, LATENCY_BUCKETS_S, STEP_BUCKETS_S, TTFT_BUCKETS_S

RATE_WINDOW_S = 3.0
QUANTILE_WINDOW_S = 15.0
SAMPLE_EVERY_S = 1.0
MAX_SAMPLES = 600
MAX_FRAMES = 256  # 15 s at 16 Hz, which nobody asks for


class Times(msgspec.Struct, frozen=True, gc=False):
    """Two quantiles of a time, seconds; None = nothing was measured."""

    p50_s: float | None = None
    p95_s: float | None = None


class TenantRates(msgspec.Struct, frozen=True, dict=True):
    """What a tenant got lately, a second; refusals and preemptions of the last 15 s. Of so many
    tenants few are on the screen, so quantiles are found for those that somebody asks for.
    """

    generated: float = 0.0
    prompt: float = 0.0
    refused: Mapping[str, int] = {}
    preempted: int = 0
    ttft_now: Histogram = Histogram()
    ttft_then: Histogram = Histogram()

    @cached_property
    def ttft(self) -> Times:
        """Time to its first tokens."""
        return _times(self.ttft_now, self.ttft_then, TTFT_BUCKETS_S)


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One point of every trend."""

    taken_s: float
    generated: float | None = None
    prompt: float | None = None
    ttft_p95_s: float | None = None
    itl_p95_s: float | None = None
    step_p50_s: float | None = None


class View(msgspec.Struct, frozen=True):
    """All that a screen draws: the newest frame and what follows from those before it."""

    frame: Frame
    generated: float | None = None  # tokens a second
    prompt: float | None = None
    steps: float | None = None
    finished: float | None = None
    refused: float | None = None
    ttft: Times = Times()
    itl: Times = Times()
    step: Times = Times()
    queue: Mapping[str, Times] = {}  # by class
    tenants: Mapping[str, TenantRates] = {}
    preempted_by: Mapping[str, int] = {}  # in the last 15 s
    samples: tuple[Sample, ...] = ()

    def rates_of(self, tenant: TenantFrame) -> TenantRates:
        """Return a tenant's rates; zeros if it is new."""
        return self.tenants.get(tenant.name, TenantRates())


class History:
    """The frames of the last seconds and the samples of the last minutes."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._frames: deque[Frame] = deque(maxlen=MAX_FRAMES)
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def push(self, frame: Frame) -> View:
        """Take a frame in and return what is to be seen now."""
        if self._frames and not _is_of_same_engine(frame, self._frames[-1]):
            self._samples.clear()
        if self._frames and not _follows(frame, self._frames[-1]):
            self._frames.clear()
        is_new = not self._frames or frame.taken_s > self._frames[-1].taken_s
        if is_new and (frame.liveness is Liveness.LIVE or not self._frames):
            self._frames.append(frame)
        oldest_s = frame.taken_s - QUANTILE_WINDOW_S
        while len(self._frames) > 2 and self._frames[1].taken_s <= oldest_s:
            self._frames.popleft()
        view = self._view(frame)
        if not self._samples or frame.taken_s - self._samples[-1].taken_s >= SAMPLE_EVERY_S * 0.99:
            self._samples.append(_sample(view))
        return view

    def _view(self, frame: Frame) -> View:
        before, now = self._before(frame.taken_s - RATE_WINDOW_S), frame.totals
        elapsed_s = frame.taken_s - before.taken_s
        if elapsed_s <= 0:
            return View(frame, samples=tuple(self._samples))
        first, then = self._frames[0].totals, before.totals
        return View(
            frame,
            generated=(now.generated_tokens - then.generated_tokens) / elapsed_s,
            prompt=(now.prompt_tokens - then.prompt_tokens) / elapsed_s,
            steps=(now.steps - then.steps) / elapsed_s,
            finished=(now.finished - then.finished) / elapsed_s,
            refused=(sum(now.rejections.values()) - sum(then.rejections.values())) / elapsed_s,
            ttft=_times(now.ttft, first.ttft, TTFT_BUCKETS_S),
            itl=_times(now.itl, first.itl, ITL_BUCKETS_S),
            step=_times(now.step_time, first.step_time, STEP_BUCKETS_S),
            queue=_queue_times(frame, self._frames[0]),
            tenants=_tenant_rates(frame, before, self._frames[0], elapsed_s),
            preempted_by=_added(now.preemptions_by, first.preemptions_by),
            samples=tuple(self._samples),
        )

    def _before(self, taken_s: float) -> Frame:
        """Return the newest frame that is at least as old, or the oldest there is."""
        for frame in reversed(self._frames):
            if frame.taken_s <= taken_s:
                return frame
        return self._frames[0]


def _is_of_same_engine(frame: Frame, before: Frame) -> bool:
    """Tell whether time goes on from one frame to the other, in the engine as for the looker."""
    if frame.liveness is Liveness.GONE:
        return True
    return (
        frame.name == before.name
        and frame.taken_s >= before.taken_s
        and frame.uptime_s >= before.uptime_s
    )


def _follows(frame: Frame, before: Frame) -> bool:
    """Tell whether counters go on from one frame to the other."""
    if frame.liveness is Liveness.GONE:
        return True
    return (
        _is_of_same_engine(frame, before)
        and frame.scheduler_epoch == before.scheduler_epoch
        and frame.totals.steps >= before.totals.steps
    )


@lru_cache(maxsize=1024)  # of most tenants no first token has come between two looks
def _times(now: Histogram, then: Histogram, bounds_s: tuple[float, ...]) -> Times:
    if now.counts == then.counts:
        return Times()
    lately = since(now, then)
    return Times(quantile(lately, bounds_s, 0.5), quantile(lately, bounds_s, 0.95))


def _queue_times(frame: Frame, first: Frame) -> dict[str, Times]:
    then = {each.name: each.queue_time for each in first.classes}
    return {
        each.name: _times(each.queue_time, then.get(each.name, each.queue_time), LATENCY_BUCKETS_S)
        for each in frame.classes
    }


def _tenant_rates(
    frame: Frame, before: Frame, first: Frame, elapsed_s: float
) -> dict[str, TenantRates]:
    then = {tenant.name: tenant for tenant in before.tenants}
    earliest = {tenant.name: tenant for tenant in first.tenants}
    rates = {}
    for tenant in frame.tenants:
        old = then.get(tenant.name)
        if old is not None and _goes_on(tenant, old):
            first_seen = earliest.get(tenant.name, old)
            first_seen = first_seen if _goes_on(tenant, first_seen) else old
            rates[tenant.name] = TenantRates(
                (tenant.generated_tokens - old.generated_tokens) / elapsed_s,
                (tenant.prompt_tokens - old.prompt_tokens) / elapsed_s,
                _added(tenant.rejections, first_seen.rejections),
                tenant.preemptions - first_seen.preemptions,
                tenant.ttft,
                first_seen.ttft,
            )
    return rates


def _goes_on(now: TenantFrame, then: TenantFrame) -> bool:
    """Tell whether a tenant's counters are those of `then`; those of one that was removed and comes
    back begin at 0 if its row was another's meanwhile.
    """
    is_of_scheduler = now.prompt_tokens >= then.prompt_tokens
    return is_of_scheduler and sum(now.ttft.counts) >= sum(then.ttft.counts)


def _added(now: Mapping[str, int], then: Mapping[str, int]) -> dict[str, int]:
    if now == then:
        return {}
    return {key: n - then.get(key, 0) for key, n in now.items() if n > then.get(key, 0)}


def _sample(view: View) -> Sample:
    frame = view.frame
    if frame.liveness is not Liveness.LIVE:
        return Sample(frame.taken_s)
    return Sample(
        frame.taken_s,
        view.generated,
        view.prompt,
        view.ttft.p95_s,
        view.itl.p95_s,
        view.step.p50_s,
    )
