"""Frames on disk: what `--record` writes and `--replay` reads.

Owns: the file. First a line that says what it is, then a frame a line, as a JSON array. A file that
was cut off in a line, as by a full disk or a kill, is good up to there. Nothing in it is a prompt
or a key. Reading keeps the place of each frame, not the frames, so that hours fit.
"""

from bisect import bisect_right
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import msgspec

from dashboard.frame import RECORDING_VERSION, Frame

MAX_RECORDING_BYTES = 2**30
KIND = "headrace dashboard recording"


class RecordingError(Exception):
    """A recording cannot be written or read; the message names the file."""


class Header(msgspec.Struct, frozen=True):
    """The first line."""

    kind: str
    version: int


class RecordingWriter:
    """Appends frames; past MAX_RECORDING_BYTES they are dropped."""

    def __init__(self, path: Path) -> None:
        """Begin a new file; raises RecordingError if it exists or cannot be written."""
        try:
            self._file = path.open("xb")
        except OSError as error:
            raise RecordingError(f"cannot record to {path}: {error.strerror}") from error
        self._size = 0
        self._write(msgspec.json.encode(Header(KIND, RECORDING_VERSION)))

    def __enter__(self) -> "RecordingWriter":
        """Write until the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Close the file."""
        self._file.close()

    @property
    def is_full(self) -> bool:
        """True once frames are dropped."""
        return self._size >= MAX_RECORDING_BYTES

    def write(self, frame: Frame) -> None:
        """Append one frame; raises RecordingError if it does not fit on the disk."""
        if not self.is_full:
            self._write(msgspec.json.encode(frame))

    def _write(self, line: bytes) -> None:
        try:
            self._size += self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            raise RecordingError(f"cannot record: {error.strerror}") from error


class Recording:
    """A recording that is open for reading: frames by number."""

    def __init__(self, path: Path) -> None:
        """Find all frames; raises RecordingError if there is none."""
        self._decoder = msgspec.json.Decoder(Frame)
        self._offsets: list[int] = []
        self._times_s: list[float] = []
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise RecordingError(f"cannot read {path}: {error.strerror}") from error
        with ExitStack() as stack:
            stack.callback(self._file.close)
            _check_header(path, self._file.readline())
            self._find_frames()
            stack.pop_all()

    def __len__(self) -> int:
        """How many frames there are."""
        return len(self._offsets)

    def frame(self, index: int) -> Frame:
        """Return a frame by its number."""
        self._file.seek(self._offsets[index])
        return self._decoder.decode(self._file.readline())

    def time_s(self, index: int) -> float:
        """Return when a frame was taken, on the recording's own clock."""
        return self._times_s[index]

    def at(self, time_s: float) -> int:
        """Return the number of the last frame at that time, of the first one before it."""
        return max(0, bisect_right(self._times_s, time_s) - 1)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _find_frames(self) -> None:
        offset = self._file.tell()
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                frame = self._decoder.decode(line)
            except msgspec.DecodeError as error:
                raise RecordingError(f"{self.path}: not a frame: {error}") from error
            self._offsets.append(offset)
            self._times_s.append(frame.taken_s)
            offset += len(line)
        if not self._offsets:
            raise RecordingError(f"{self.path} has no frames")


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.DecodeError as error:
        raise RecordingError(f"{path} is not a recording of `headrace top`") from error
    if header.kind != KIND or header.version != RECORDING_VERSION:
        raise RecordingError(
            f"{path} is a recording of version {header.version}, not {RECORDING_VERSION}"
        )
