"""The supervisor's control socket: `shutdown`, `restart`, `reload`, `log-level` and changes of
tenants and classes, asked for by the admin pool.

Owns: the socket, the check of arguments and the answers. Never knows: how a child is stopped, or
what a change means (`tenants`, `reload`, `log_levels`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import zmq

from core.runtime.supervisor.log_levels import LogLevels
from core.runtime.supervisor.reload import Reload
from core.runtime.supervisor.tenants import COMMANDS as TENANT_COMMANDS
from core.runtime.supervisor.tenants import Args, Record, TenantCommands
from core.supervision.tree import SupervisionTree
from ipc.codec import Codec
from ipc.control.declaration import ArgumentError, NotFoundError, ReplyCode
from ipc.control.registry import COMMANDS
from ipc.messages import ControlCall, ControlReply
from ipc.ports import Context, RouterPort
from ipc.run_directory import RunDirectory

CALLS_PER_TURN = 64


@dataclass(frozen=True, slots=True)
class StopOrRestart:
    """What was asked for: restart the child `restart`, or, if it is "", stop within `drain_s`."""

    restart: str = ""
    drain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Executors:
    """Those who carry out what is done at once."""

    tenants: TenantCommands
    reload: Reload
    log_levels: LogLevels

    def carry_out(self, command: str, args: Args) -> Record | None:
        """Carry out a command and return its answer, None if it is another's; raises
        ArgumentError.
        """
        if command in TENANT_COMMANDS:
            return self.tenants.carry_out(command, args)
        if command == "reload":
            return self.reload.carry_out()
        if command == "log-level":
            return self.log_levels.set(str(args["level"]))
        return None


class SupervisorCalls:
    """The serving end of `supervisor.sock`."""

    def __init__(self, context: Context, directory: RunDirectory, executors: Executors) -> None:
        self._executors = executors
        self._port: RouterPort[ControlCall, ControlReply] = RouterPort(
            context,
            directory.supervisor_url,
            Codec[ControlCall](ControlCall),
            Codec[ControlReply](ControlReply),
        )

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The socket, for a poller."""
        return self._port.socket

    def receive(
        self,
        tree: SupervisionTree,
        default_drain_s: float,
        now_ns: int,
        stop: Callable[[float], None],
    ) -> list[str]:
        """Answer the calls that have come; return the children to be restarted.

        A stop is begun before it is confirmed, by `stop(drain_s)`: what is asked next must find it.
        A restart comes after, since the answer may go by the child itself.
        """
        restarts = []
        for received in self._port.receive(CALLS_PER_TURN):
            call = received.message
            try:
                request, result = self._carry_out(call, tree, default_drain_s)
            except ArgumentError as error:
                reply = ControlReply(
                    call.call_id, error=str(error), code=error.code, as_of_ns=now_ns
                )
            else:
                if request is not None and request.restart:
                    restarts.append(request.restart)
                elif request is not None:
                    stop(request.drain_s)
                reply = ControlReply(call.call_id, result=result, as_of_ns=now_ns)
            self._port.send(reply, received.peer)
        return restarts

    def _carry_out(
        self, call: ControlCall, tree: SupervisionTree, default_drain_s: float
    ) -> tuple[StopOrRestart | None, Record]:
        """Change what can be changed at once; a stop or restart is the caller's to carry out."""
        if call.command not in COMMANDS:
            raise UnknownCommandError(f"the supervisor knows no command {call.command!r}")
        args = COMMANDS[call.command].check(call.args)
        result = self._executors.carry_out(call.command, args)
        if result is not None:
            return None, result
        return _understand(call.command, args, tree, default_drain_s)

    def close(self) -> None:
        """Close the socket."""
        self._port.close()


class UnknownCommandError(ArgumentError):
    """There is no such command here."""

    code = ReplyCode.UNKNOWN_COMMAND


def _understand(
    command: str, args: Args, tree: SupervisionTree, default_drain_s: float
) -> tuple[StopOrRestart, Record]:
    """Return what a stop or restart asks for and its answer; raises ArgumentError."""
    if command == "shutdown":
        drain_s = float(str(args.get("drain", default_drain_s)))
        return StopOrRestart(drain_s=drain_s), {"stopping": True, "drain_s": drain_s}
    if command != "restart":
        raise UnknownCommandError(f"the supervisor knows no command {command!r}")
    child_id = str(args["child"])
    if child_id not in tree.children:
        raise NotFoundError(
            f"there is no process {child_id!r}: use one of {', '.join(tree.children)}"
        )
    epoch = tree.children[child_id].epoch
    return StopOrRestart(restart=child_id), {"child": child_id, "epoch_before": epoch}
