"""Typed frames of the control plane, between ctl, admin workers, scheduler and supervisor.

A control command travels as `ControlCall` and is answered by exactly one `ControlReply`. Which
commands exist, their arguments, help, permission and confirmation is declared in `ipc.control`.
"""

import msgspec


class ControlCall(msgspec.Struct, frozen=True, tag="control"):
    """Call `command` with `args` (JSON-like, checked against the declaration by both ends)."""

    call_id: int
    command: str
    args: dict[str, object] = {}
    key: str = ""  # admin key; checked by the admin pool, empty behind it
    actor: str = ""  # who asked, for the audit log


class ControlReply(msgspec.Struct, frozen=True, tag="control_reply"):
    """The answer to one call. `error` "" = done; `step` = the boundary at which it was applied."""

    call_id: int
    result: dict[str, object] = {}
    error: str = ""
    code: str = ""
    step: int = 0
    as_of_ns: int = 0  # CLOCK_MONOTONIC of the data in `result`
