"""Every fault that `ipc` can report, by meaning; imports nothing, so that anyone may catch them.

    IpcError
    ├── SegmentError               a shared-memory file that cannot be made, mapped or trusted
    │   ├── SegmentSpaceError      its file system is too small: needed and available bytes
    │   └── LayoutVersionError     its bytes follow another layout or another version of it
    ├── BrokenRingError            frames were lost; the reader already stands behind them
    ├── FrameError                 bytes that are no message, or a message that is no legal frame
    ├── ChildSetupError            a process was not started by its supervisor
    └── RunDirectoryError          a run directory that cannot be used
        ├── RunDirectoryBusyError  a live engine owns the name: its pid
        ├── ForeignDirectoryError  the place is not a private directory of this user
        └── EngineNotFoundError    no live engine has the name: which names there are

Broken invariants of our own are `assert`s, not errors.
"""


class IpcError(Exception):
    """A fault of the world seen by `ipc`, said in one line."""


class SegmentError(IpcError):
    """A shared-memory file cannot be made, mapped or trusted; the message names the path."""


class SegmentSpaceError(SegmentError):
    """The file system of a segment has too little room."""

    def __init__(self, path: str, needed_bytes: int, available_bytes: int) -> None:
        super().__init__(
            f"{path} needs {needed_bytes} bytes but only {available_bytes} are available there:"
            " enlarge /dev/shm or configure smaller pools"
        )
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class LayoutVersionError(SegmentError):
    """The bytes of a segment follow another layout than the one that was asked for."""


class BrokenRingError(IpcError):
    """`num_lost` frames were lost (a gap or a bad checksum); reading goes on after them."""

    def __init__(self, num_lost: int, cause: str) -> None:
        super().__init__(f"{num_lost} frames lost: {cause}")
        self.num_lost = num_lost


class FrameError(IpcError):
    """Received bytes are no message, or a message does not fit into a frame."""


class ChildSetupError(IpcError):
    """This process has no readable setup from a living supervisor."""


class RunDirectoryError(IpcError):
    """A run directory cannot be used; the message names the path."""


class RunDirectoryBusyError(RunDirectoryError):
    """A live engine of this user already has the name."""

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(
            f"an engine named {name!r} is already running (pid {pid}):"
            " stop it or choose another name"
        )
        self.name = name
        self.pid = pid


class ForeignDirectoryError(RunDirectoryError):
    """A path that should be a private directory of this user is something else."""


class EngineNotFoundError(RunDirectoryError):
    """No live engine of this user has the name; `others` are the names that live ones have."""

    def __init__(self, name: str, others: tuple[str, ...]) -> None:
        there = f"; with --name there is {', '.join(others)}" if others else ""
        super().__init__(
            f"no engine named {name!r} is running: start it with `headrace serve --name {name}`"
            f"{there}"
        )
