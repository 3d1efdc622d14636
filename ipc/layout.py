"""Named arrays at fixed offsets: how a segment's bytes are divided.

Owns: offsets, alignment, the header that says what the bytes are. Never knows: who writes what
when. A layout is computed from the same declaration by every process; the header lets each of them
check that the others computed the same.

    bytes  0..7    magic, "headrace"
           8..11   version of the layout
          12..15   fingerprint: crc32 of the name and of every array's name, dtype and shape
          16..23   total bytes
          24..63   five parameters (u64) that the declaration is made from, e.g. number of slots
          64..     the arrays in order of declaration, each at a multiple of 64 (a cache line)
"""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipc.errors import LayoutVersionError
from ipc.segment import Segment

LINE_BYTES = 64
MAX_PARAMETERS = 5
_MAGIC = b"headrace"
_HEADER = struct.Struct(f"<8sIIQ{MAX_PARAMETERS}Q")

AnyArray = npt.NDArray[Any]


def align(num_bytes: int) -> int:
    """Round up to whole cache lines."""
    return -(-num_bytes // LINE_BYTES) * LINE_BYTES


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array: dtype and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        num_items = 1
        for length in self.shape:
            num_items *= length
        return num_items * self.dtype.itemsize


class Layout:
    """Arrays by name; `name`, `version` and `parameters` go into the header. Immutable."""

    __slots__ = ("arrays", "name", "offsets", "parameters", "total_bytes", "version")

    def __init__(
        self,
        name: str,
        version: int,
        arrays: dict[str, ArraySpec],
        parameters: tuple[int, ...] = (),
    ) -> None:
        """Place the arrays one after the other."""
        assert len(parameters) <= MAX_PARAMETERS, parameters
        self.name = name
        self.version = version
        self.arrays = arrays
        self.parameters = parameters
        self.offsets: dict[str, int] = {}
        position = align(_HEADER.size)
        for array_name, spec in arrays.items():
            self.offsets[array_name] = position
            position += align(spec.num_bytes)
        self.total_bytes = position

    @property
    def fingerprint(self) -> int:
        """A number that differs when any name, dtype or shape differs."""
        words = [f"{name} {spec.dtype.descr} {spec.shape}" for name, spec in self.arrays.items()]
        return zlib.crc32("\n".join([self.name, *words]).encode())

    @property
    def header(self) -> bytes:
        """The first bytes of a segment; the arrays of a new one are zero."""
        padded = (*self.parameters, *(0,) * (MAX_PARAMETERS - len(self.parameters)))
        return _HEADER.pack(_MAGIC, self.version, self.fingerprint, self.total_bytes, *padded)

    def format(self, segment: Segment) -> None:
        """Write the header into a new segment."""
        segment.buffer[: len(self.header)] = self.header

    def views(self, segment: Segment) -> dict[str, AnyArray]:
        """Return the arrays, read-only as the segment is; LayoutVersionError if it has others."""
        self._check(segment)
        return {
            name: np.frombuffer(
                segment.buffer,
                spec.dtype,
                spec.num_bytes // spec.dtype.itemsize,
                self.offsets[name],
            ).reshape(spec.shape)
            for name, spec in self.arrays.items()
        }

    def _check(self, segment: Segment) -> None:
        version, fingerprint, total_bytes, _ = _read_header(segment)
        if version != self.version:
            raise LayoutVersionError(
                f"{segment.name}: {self.name} has version {version}, known is {self.version}"
            )
        if (fingerprint, total_bytes) != (self.fingerprint, self.total_bytes):
            raise LayoutVersionError(f"{segment.name} is no {self.name} of the expected shape")
        if total_bytes > segment.size_bytes:
            raise LayoutVersionError(f"{segment.name} is shorter than its header says")


def read_parameters(segment: Segment) -> tuple[int, ...]:
    """Return the parameters in a segment's header; LayoutVersionError if there is none."""
    return _read_header(segment)[3]


def _read_header(segment: Segment) -> tuple[int, int, int, tuple[int, ...]]:
    if segment.size_bytes < _HEADER.size:
        raise LayoutVersionError(f"{segment.name} has no header")
    magic, version, fingerprint, total_bytes, *parameters = _HEADER.unpack_from(segment.buffer)
    if magic != _MAGIC:
        raise LayoutVersionError(f"{segment.name} has no header")
    return version, fingerprint, total_bytes, tuple(parameters)


def create_segment(path: Path, layout: Layout) -> Segment:
    """Make the file at `path` with this layout's header; raises as `Segment.create`."""
    return Segment.create(path, layout.total_bytes, layout.header)


def anonymous_segment(layout: Layout) -> Segment:
    """Return memory without a file with this layout's header, for loops in one process."""
    segment = Segment.anonymous(layout.total_bytes)
    layout.format(segment)
    return segment


def records_layout(name: str, dtype: np.dtype[Any], num_records: int, version: int = 1) -> Layout:
    """Return the layout of one array called `records`, e.g. the rows of a replica."""
    return Layout(name, version, {"records": ArraySpec(dtype, (num_records,))}, (num_records,))
