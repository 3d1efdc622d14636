"""The table of the engine's processes."""

from dataclasses import dataclass

from dashboard.format import NOTHING, duration, zero_is_nothing
from dashboard.frame import ProcessFrame
from dashboard.history import View
from dashboard.lines import ALARM, FAINT, NOTICE, PLAIN, Span, Tone
from dashboard.silence import silent_too_long_s
from dashboard.table import Column, Table

STATE_TONES = {"running": Tone.GOOD, "starting": NOTICE, "stopping": NOTICE}


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process, and whether it has been silent for too long."""

    process: ProcessFrame
    looks_hung: bool


def rows_of(view: View) -> list[ProcessRow]:
    """Return a row per process."""
    frame = view.frame
    return [ProcessRow(each, silent_too_long_s(each, frame) > 0) for each in frame.processes]


def state(row: ProcessRow) -> Span:
    """Return where the supervisor says it stands, unless it looks worse."""
    if row.looks_hung:
        return "HUNG?", ALARM
    return row.process.state, STATE_TONES.get(row.process.state, ALARM)


def heartbeat(row: ProcessRow) -> Span:
    """Return how long its loop has been silent."""
    age_s = row.process.heartbeat_age_s
    if age_s is None:
        return NOTHING, FAINT
    return duration(age_s), ALARM if row.looks_hung else PLAIN


def patience(row: ProcessRow) -> Span:
    """Return for how much longer it said that it would be silent."""
    left_s = row.process.patience_s
    return (duration(left_s), PLAIN) if left_s is not None else (NOTHING, FAINT)


def restarts(row: ProcessRow) -> Span:
    """Return how often it died."""
    number = row.process.restarts
    return zero_is_nothing(number), NOTICE if number else FAINT


COLUMNS: tuple[Column[ProcessRow], ...] = (
    Column("process", "PROCESS", 14, lambda r: (r.process.child, PLAIN),
           lambda r: r.process.child, "its id, as the command `restart` takes it", right=False),
    Column("state", "STATE", 9, state, lambda r: state(r)[0],
           "where the supervisor says it stands; HUNG? = silent for longer than its work takes",
           right=False),
    Column("activity", "ACTIVITY", 9, lambda r: (r.process.activity or NOTHING, PLAIN),
           lambda r: r.process.activity, "what its loop says of itself", right=False),
    Column("heartbeat", "BEAT", 7, heartbeat, lambda r: r.process.heartbeat_age_s or 0.0,
           "age of its heartbeat"),
    Column("patience", "KILL IN", 7, patience, lambda r: r.process.patience_s or 0.0,
           "in a step: when it is killed if it stays silent"),
    Column("restarts", "RESTARTS", 8, restarts, lambda r: r.process.restarts, "how often it died"),
    Column("epoch", "EPOCH", 5, lambda r: (str(r.process.epoch), PLAIN),
           lambda r: r.process.epoch, "which instance of it this is"),
    Column("pid", "PID", 8, lambda r: (str(r.process.pid), PLAIN), lambda r: r.process.pid,
           "its process id"),
)  # fmt: skip


def processes_table() -> Table[ProcessRow]:
    """Return the table, by name."""
    return Table(COLUMNS, lambda row: row.process.child, "process", descending=False)
