"""What is written into the audit log, and counted, about the commands of one worker.

    a change          always: arguments, answer, before and after as the answer has them
    a failure         always
    a look            once a minute for each caller and command: a dashboard must not push out the
                      changes
    a late answer     to a change whose caller was told that it is not confirmed
    a caller without  counted always, written once a second at most, without what it sent
    the right key

Owns: these rules. Never knows: files (`frontends.admin.audit.log`) or how commands are carried out.
"""

from collections.abc import Callable, Mapping

from core.clock import NS_PER_S, Clock
from frontends.admin.access import Refusal
from ipc.control.declaration import Command, Effect
from ipc.messages import ControlCall, ControlReply

MAX_LOOKS = 256
LOOK_INTERVAL_NS = 60 * NS_PER_S
REFUSAL_INTERVAL_NS = NS_PER_S
MAX_ACTOR_CHARACTERS = 128
MAX_COMMAND_CHARACTERS = 64

Record = Callable[[Mapping[str, object]], None]


class Trail:
    """Counts and records; never raises, never waits."""

    def __init__(
        self, worker: str, commands: Mapping[str, Command], record: Record, clock: Clock
    ) -> None:
        """Write records of `worker` through `record`."""
        self.num_commands = 0
        self.num_refused = 0
        self._worker = worker
        self._commands = commands
        self._record = record
        self._clock = clock
        self._looks: dict[tuple[str, str], int] = {}
        self._refusal_ns: int | None = None
        self._unrecorded_refusals = 0

    def answered(self, command: Command | None, call: ControlCall, reply: ControlReply) -> None:
        """Note a command and its answer; `command` is None if there is none of that name."""
        self.num_commands += 1
        if command is None or reply.error or command.effect is Effect.WRITE:
            self._record(self._entry(call) | outcome(reply))
        elif self._is_new_look(call):
            self._record(self._entry(call))

    def answered_late(self, call: ControlCall, reply: ControlReply) -> None:
        """Note what came of a change after its caller had been sent away."""
        if self._commands[call.command].effect is Effect.WRITE:
            self._record(self._entry(call) | outcome(reply) | {"late": True})

    def refused(self, call: ControlCall, refusal: Refusal) -> None:
        """Note a caller without the right key."""
        self.num_refused += 1
        self._unrecorded_refusals += 1
        now_ns = self._clock.now_ns()
        if self._refusal_ns is not None and now_ns - self._refusal_ns < REFUSAL_INTERVAL_NS:
            return
        self._record(
            self._entry(call)
            | {"args": {}, "code": refusal.code, "refusals": self._unrecorded_refusals}
        )
        self._refusal_ns, self._unrecorded_refusals = now_ns, 0

    def _is_new_look(self, call: ControlCall) -> bool:
        now_ns, look = self._clock.now_ns(), (call.actor, call.command)
        last_ns = self._looks.get(look)
        if last_ns is not None and now_ns - last_ns < LOOK_INTERVAL_NS:
            return False
        if len(self._looks) >= MAX_LOOKS:
            self._looks.clear()
        self._looks[look] = now_ns
        return True

    def _entry(self, call: ControlCall) -> dict[str, object]:
        return {
            "worker": self._worker,
            "actor": call.actor[:MAX_ACTOR_CHARACTERS],
            "command": call.command[:MAX_COMMAND_CHARACTERS],
            "args": call.args,
        }


def outcome(reply: ControlReply) -> dict[str, object]:
    """Return what a record says of an answer."""
    return {
        "code": reply.code,
        "error": reply.error,
        "result": reply.result,
        "step": reply.step,
    }
