"""The table of the engine's processes."""

from dashboard.format import NOTHING, duration, zero_is_nothing
from dashboard.frame import ProcessFrame
from dashboard.lines import Span, Tone
from dashboard.table import Column, Table

OLD_HEARTBEAT_S = 1.0
STATE_TONES = {"running": Tone.GOOD, "starting": Tone.NOTICE, "stopping": Tone.NOTICE}


def state(row: ProcessFrame) -> Span:
    """Return where the supervisor says it stands."""
    return row.state, STATE_TONES.get(row.state, Tone.ALARM)


def heartbeat(row: ProcessFrame) -> Span:
    """Return how long its loop has been silent."""
    age_s = row.heartbeat_age_s
    if age_s is None:
        return NOTHING, Tone.FAINT
    return duration(age_s), Tone.ALARM if age_s > OLD_HEARTBEAT_S else Tone.PLAIN


def restarts(row: ProcessFrame) -> Span:
    """Return how often it died."""
    return zero_is_nothing(row.restarts), Tone.NOTICE if row.restarts else Tone.FAINT


COLUMNS: tuple[Column[ProcessFrame], ...] = (
    Column("process", "PROCESS", 14, lambda r: (r.child, Tone.PLAIN), lambda r: r.child,
           "its id, as the command `restart` takes it", right=False),
    Column("state", "STATE", 9, state, lambda r: r.state, "where the supervisor says it stands",
           right=False),
    Column("activity", "ACTIVITY", 9, lambda r: (r.activity or NOTHING, Tone.PLAIN),
           lambda r: r.activity, "what its loop says of itself", right=False),
    Column("heartbeat", "BEAT", 7, heartbeat, lambda r: r.heartbeat_age_s or 0.0,
           "age of its heartbeat"),
    Column("restarts", "RESTARTS", 8, restarts, lambda r: r.restarts, "how often it died"),
    Column("epoch", "EPOCH", 6, lambda r: (str(r.epoch), Tone.PLAIN), lambda r: r.epoch,
           "which instance of it this is"),
    Column("pid", "PID", 8, lambda r: (str(r.pid), Tone.PLAIN), lambda r: r.pid,
           "its process id"),
)  # fmt: skip


def processes_table() -> Table[ProcessFrame]:
    """Return the table, by name."""
    return Table(COLUMNS, lambda row: row.child, "process", descending=False)
