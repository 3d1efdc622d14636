"""The first two lines: which engine, how it is, how old what is shown is; and the screens."""

from functools import cache

from textual import events

from dashboard.format import Glyphs, duration
from dashboard.frame import Frame, Liveness
from dashboard.keymap import SCREENS
from dashboard.lines import Line, Span, Tone, crop, fit, width_of
from dashboard.messages import ScreenWanted
from dashboard.widgets.lines_view import LinesView

TONES = {Liveness.LIVE: Tone.GOOD, Liveness.STALE: Tone.ALARM, Liveness.GONE: Tone.ALARM}


def state_line(
    frame: Frame,
    marks: tuple[str, ...],
    clock: str,
    width: int,
    glyphs: Glyphs,
    alert: Span | None = None,
) -> Line:
    """Return the first line; `marks` are words such as FROZEN. What needs attention takes the place
    of the model's name.
    """
    left: Line = (
        (f" {glyphs.dot} ", TONES[frame.liveness]),
        (frame.name, Tone.TITLE),
        (f" {state_of(frame)} ", TONES[frame.liveness]),
    )
    right = f"{' '.join(marks)}  up {duration(frame.uptime_s)}  {clock} "
    room = max(1, width - width_of(left) - len(right))
    model = frame.executors[0].model.rsplit("/", 1)[-1] if frame.executors else ""
    words, tone = (f"! {alert[0]}", alert[1]) if alert else (model, Tone.FAINT)
    middle = fit(words, room, ellipsis=glyphs.ellipsis)
    return crop((*left, (middle, tone), (right, Tone.NOTICE if marks else Tone.FAINT)), width)


def state_of(frame: Frame) -> str:
    """Return in words whether what is shown is what is."""
    if frame.fault:
        return frame.fault
    if frame.liveness is Liveness.GONE:
        return (
            f"GONE {duration(frame.age_s)} ago, looking for it"
            if frame.processes
            else "not running, looking for it"
        )
    if frame.liveness is Liveness.STALE:
        return f"SILENT for {duration(frame.age_s)}" if frame.age_s else "starting"
    return "stopping" if frame.stopping else "draining" if frame.draining else "live"


@cache
def tabs_line(active: str) -> Line:
    """Return the second line: the screens and their keys."""
    spans: list[Span] = []
    for number, name in enumerate(SCREENS, 1):
        is_here = name == active
        text = f"[{number} {name}]" if is_here else f" {number} {name} "
        spans.append((text, Tone.CURSOR if is_here else Tone.FAINT))
    return tuple(spans)


class HeaderBar(LinesView):
    """Both lines; a click on a screen's name goes there."""

    def on_click(self, event: events.Click) -> None:
        """Go to the screen whose name was hit."""
        end = 0
        for name in SCREENS:
            end += len(name) + 4
            if event.y == 1 and event.x < end:
                self.post_message(ScreenWanted(name))
                return
