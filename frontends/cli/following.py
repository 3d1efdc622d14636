"""Asking again and again for what is new, until Ctrl-C: `ctl events --follow`.

Owns: the pace, and which record was shown last. Never knows: what the records are. A process that
is silent for a while is waited for; one that has started anew counts from 0 again, which is
noticed because its `next` is smaller.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from core.terminal import CommandError, Terminal
from frontends.cli.render import cell
from ipc.control.declaration import ASK_AGAIN
from ipc.messages import ControlReply

INTERVAL_S = 0.5

Ask = Callable[[Mapping[str, object]], ControlReply]


@dataclass(slots=True)
class Follower:
    """Shows the records of the answers' list `field`, a line each, once."""

    ask: Ask
    field: str
    terminal: Terminal
    as_json: bool
    _complaint: str = ""

    def run(
        self, args: Mapping[str, object], pause: Callable[[float], None] = time.sleep
    ) -> NoReturn:
        """Show what is there and what comes, until interrupted or refused."""
        args = self.look(args)
        while True:
            pause(INTERVAL_S)
            args = self.look(args)

    def look(self, args: Mapping[str, object]) -> Mapping[str, object]:
        """Ask once, show the answer, and return the next question; raises CommandError."""
        reply = self.ask(args)
        if reply.error:
            self._complain(reply)
            return args
        self._complaint = ""
        rows, next_number = reply.result[self.field], int(str(reply.result["next"]))
        assert isinstance(rows, list), type(rows)
        for row in rows:
            self.terminal.print(self._line(row))
        has_restarted = next_number < int(str(args.get("since", 0)))
        return {**args, "since": 0 if has_restarted else next_number}

    def _complain(self, reply: ControlReply) -> None:
        """Say once that there is no answer; raise if there never will be one."""
        if reply.code not in ASK_AGAIN:
            raise CommandError(reply.error)
        if reply.code != self._complaint:
            self.terminal.note(f"waiting: {reply.error}")
            self._complaint = reply.code

    def _line(self, row: Mapping[str, object]) -> str:
        if self.as_json:
            return json.dumps(row, ensure_ascii=False, default=str)
        return "  ".join(f"{name} {cell(value)}" for name, value in row.items())
