"""`ctl events --follow`: every record once, whatever becomes of the process that has them."""

import io
import json
from collections.abc import Mapping

import pytest

from core.terminal import CommandError, Terminal
from frontends.cli.following import Follower
from ipc.control.declaration import ReplyCode
from ipc.messages import ControlReply


class Log:
    """A process with numbered records, as the scheduler has them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self.silence = ""

    def ask(self, args: Mapping[str, object]) -> ControlReply:
        """Answer a question, or be silent with a code."""
        if self.silence:
            return ControlReply(1, error="no answer", code=self.silence)
        rows = self.rows[int(str(args.get("since", 0))) :]
        next_number = int(str(rows[-1]["number"])) + 1 if rows else len(self.rows)
        return ControlReply(1, {"events": rows, "next": next_number})

    def note(self, kind: str) -> None:
        """Add a record."""
        self.rows.append({"number": len(self.rows), "kind": kind})


@pytest.fixture
def log() -> Log:
    """Return an empty log."""
    return Log()


def follower(log: Log, as_json: bool = True) -> tuple[Follower, io.StringIO, io.StringIO]:
    """Return a follower and what it writes on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err, io.StringIO(), {})
    return Follower(log.ask, "events", terminal, as_json), out, err


def kinds(out: io.StringIO) -> list[str]:
    """Return the kinds of the records on stdout."""
    return [json.loads(line)["kind"] for line in out.getvalue().splitlines()]


def test_each_record_is_shown_once(log: Log) -> None:
    """What is there, then what comes; an answer without records shows nothing."""
    follow, out, _ = follower(log)
    log.note("queue")
    args = follow.look({})
    args = follow.look(args)
    log.note("shed")
    follow.look(args)
    assert kinds(out) == ["queue", "shed"]


def test_a_process_that_starts_anew_is_followed_from_its_first_record(log: Log) -> None:
    """Its numbers begin at 0 again."""
    follow, out, _ = follower(log)
    for kind in ("queue", "shed"):
        log.note(kind)
    args = follow.look({})
    log.rows.clear()
    log.note("epoch")
    args = follow.look(args)
    follow.look(args)
    assert kinds(out) == ["queue", "shed", "epoch"]


def test_silence_is_said_once_and_waited_for(log: Log) -> None:
    """Nothing is missed by it."""
    follow, out, err = follower(log)
    args = follow.look({})
    log.silence = ReplyCode.NOT_CONFIRMED
    for _ in range(3):
        args = follow.look(args)
    assert err.getvalue() == "waiting: no answer\n"
    log.silence = ""
    log.note("queue")
    follow.look(args)
    assert kinds(out) == ["queue"]


def test_a_refusal_ends_it(log: Log) -> None:
    """A wrong key does not become right by asking again."""
    log.silence = ReplyCode.UNAUTHENTICATED
    with pytest.raises(CommandError, match="no answer"):
        follower(log)[0].run({}, pause=lambda seconds: None)


def test_people_get_a_line_with_names(log: Log) -> None:
    """One record, one line, nothing that moves a cursor."""
    follow, out, _ = follower(log, as_json=False)
    log.note("qu\x1b[2Jeue")
    follow.look({})
    assert out.getvalue() == "number 0  kind qu?[2Jeue\n"
