"""Control commands that the scheduler answers: checked, carried out between two steps, answered.

Owns: which function carries out which command, and the form of the reply. Never knows: sockets, or
what a command does (`insight` for those that look, `changes` for the others). A reply names the
step boundary at which the command was applied.
"""

from collections.abc import Callable, Mapping

from core.engine_core import EngineCore
from core.runtime.scheduler import changes, insight
from core.runtime.scheduler.question import Question, Record
from ipc.control.declaration import ArgumentError, ReplyCode
from ipc.control.registry import COMMANDS
from ipc.messages import ControlCall, ControlReply

ANSWERS: Mapping[str, Callable[[Question], Record]] = {
    "requests": insight.requests,
    "show": insight.show,
    "events": insight.events,
    "record-trace": insight.record_trace,
    "cache-stats": insight.cache_stats,
    "cancel": changes.cancel,
    "preempt": changes.preempt,
    "drain": changes.drain,
    "undrain": changes.undrain,
    "cache-drop": changes.cache_drop,
}


def answer(
    call: ControlCall, core: EngineCore, operations: Mapping[int, str], now_ns: int
) -> ControlReply:
    """Carry out a command and return its reply; `operations` has the operation of each request."""
    if call.command not in ANSWERS:
        message = f"the scheduler knows no command {call.command!r}"
        return refusal(call, message, ReplyCode.UNKNOWN_COMMAND, now_ns)
    try:
        args = COMMANDS[call.command].check(call.args)
        result = ANSWERS[call.command](Question(core, args, operations, now_ns))
    except ArgumentError as error:
        return refusal(call, str(error), error.code, now_ns)
    return ControlReply(call.call_id, result=result, step=core.step, as_of_ns=now_ns)


def refusal(call: ControlCall, message: str, code: ReplyCode, now_ns: int) -> ControlReply:
    """Return the reply to a call that was not carried out."""
    return ControlReply(call.call_id, error=message, code=code, as_of_ns=now_ns)
