"""The tenant directory: who may use the engine, for every process that must know, versioned.

Owns: two slots of encoded snapshots and the version word. Never knows: what the fields mean (`core`
checks and applies them). The supervisor is the writer: it is the only process that lives as long as
the engine, so the directory never changes hands.

    control line  version u64 of the newest whole snapshot
    slot v mod 2  version u64 · length u64 · crc32 u64 (of version and payload), payload

Looking for a change is reading one word. The writer fills the slot of the older snapshot, then
stores the version.
"""

import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from ipc.errors import SegmentError
from ipc.layout import LINE_BYTES, ArraySpec, Layout, read_parameters
from ipc.segment import Segment

DIRECTORY_VERSION: Final = 3
DIRECTORY_BYTES: Final = 4 * 1024 * 1024  # a slot: 4096 tenants of a kilobyte
_READ_ATTEMPTS: Final = 4
_WORDS_PER_LINE: Final = LINE_BYTES // 8


class DirectoryClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class of traffic; the fields are those of `core.tenancy.classes.ClassConfig`."""

    name: str
    paused: bool = False
    weight: float = 1.0
    ttft_ms: int = 0
    itl_ms: int = 0
    queue_deadline_ms: int = 0
    max_prompt_tokens: int = 0
    over_cap: str = "reject"
    reserved_step_fraction: float = 0.0
    reserved_seqs: int = 0
    reserved_kv_fraction: float = 0.0
    max_step_fraction: float = 1.0
    max_seqs: int = 0
    max_kv_fraction: float = 1.0
    strict_first: bool = False
    preemptible: bool = False
    pausable: bool = False
    sheddable: bool = True
    output_quantile: float = 0.8


class DirectoryTenant(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant; the fields are those of `core.tenancy.tenants.TenantConfig`.

    Keys are SHA-256 in hex, classes are lower-case names.
    """

    name: str
    paused: bool = False
    key_sha256: tuple[str, ...] = ()
    default_class: str = "standard"
    classes: tuple[str, ...] = ()
    weight: float = 1.0
    max_concurrency: int = 0
    max_queued_requests: int = 0
    max_queued_tokens: int = 0
    tokens_per_minute: int = 0
    burst_tokens: int = 0
    budget_mode: str = "strict"
    kv_quota_fraction: float = 1.0
    replicas: tuple[int, ...] = ()


class DirectorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, at one version (from 1; 0 = nothing was published yet)."""

    version: int = 0
    classes: tuple[DirectoryClass, ...] = ()
    tenants: tuple[DirectoryTenant, ...] = ()
    admin_key_sha256: str = ""
    changes: str = "{}"  # what the configuration file does not say, for whoever keeps it


def directory_layout(slot_bytes: int = DIRECTORY_BYTES) -> Layout:
    """Return the layout of the segment."""
    word = np.dtype(np.uint64)
    return Layout(
        "directory",
        DIRECTORY_VERSION,
        {
            "control": ArraySpec(word, (_WORDS_PER_LINE,)),
            "words": ArraySpec(word, (2, _WORDS_PER_LINE)),
            "payloads": ArraySpec(np.dtype(np.uint8), (2, slot_bytes)),
        },
        (slot_bytes,),
    )


class _DirectoryMemory:
    """The views that both ends use."""

    __slots__ = ("control", "payloads", "slot_bytes", "words")

    def __init__(self, segment: Segment) -> None:
        self.slot_bytes = read_parameters(segment)[0]
        arrays: dict[str, Any] = directory_layout(self.slot_bytes).views(segment)
        self.control: memoryview = arrays["control"].data
        self.words: list[memoryview] = [line.data for line in arrays["words"]]
        self.payloads: list[memoryview] = [payload.data for payload in arrays["payloads"]]


class DirectoryWriter:
    """The writing end."""

    def __init__(self, segment: Segment) -> None:
        self._memory = _DirectoryMemory(segment)

    @property
    def version(self) -> int:
        """The version of the newest snapshot, 0 = none yet."""
        return int(self._memory.control[0])

    def publish(self, snapshot: DirectorySnapshot) -> DirectorySnapshot:
        """Publish `snapshot` under the next version and return it so; SegmentError if too large."""
        memory = self._memory
        snapshot = msgspec.structs.replace(snapshot, version=self.version + 1)
        payload = msgspec.msgpack.encode(snapshot)
        if len(payload) > memory.slot_bytes:
            raise SegmentError(
                f"a directory of {len(payload)} bytes exceeds its {memory.slot_bytes}:"
                " remove tenants or keys"
            )
        slot = snapshot.version % 2
        memory.words[slot][0] = 0
        memory.payloads[slot][: len(payload)] = payload
        memory.words[slot][1] = len(payload)
        memory.words[slot][2] = _checksum(snapshot.version, payload)
        memory.words[slot][0] = snapshot.version
        memory.control[0] = snapshot.version
        return snapshot


class DirectoryReader:
    """A reading end, which keeps the last snapshot."""

    def __init__(self, segment: Segment) -> None:
        self._memory = _DirectoryMemory(segment)
        self._last = DirectorySnapshot()

    def read(self) -> DirectorySnapshot:
        """Return the newest snapshot; the same object as before if nothing changed.

        A reader that is overtaken by two publications on every try returns the last one it had.
        """
        for _ in range(_READ_ATTEMPTS):
            version = self._memory.control[0]
            if version == self._last.version:
                break
            payload = self._payload(version)
            if payload is not None:
                self._last = msgspec.msgpack.decode(payload, type=DirectorySnapshot)
                break
        return self._last

    def _payload(self, version: int) -> bytes | None:
        memory = self._memory
        found, length, crc = memory.words[version % 2][:3]
        if found != version or length > memory.slot_bytes:
            return None
        payload = bytes(memory.payloads[version % 2][:length])
        return payload if _checksum(version, payload) == crc else None


class DirectoryWatch:
    """A reading end for a loop: it notices what is new and says what the loop goes by."""

    def __init__(
        self,
        read: Callable[[], DirectorySnapshot] = DirectorySnapshot,
        go_by: Callable[[int], None] = lambda version: None,
    ) -> None:
        """Look with `read`; `go_by` is told each version that is in force."""
        self._read = read
        self._go_by = go_by
        self._version = 0

    def look(self) -> DirectorySnapshot | None:
        """Return a snapshot that was not seen before, None if there is none."""
        snapshot = self._read()
        return None if snapshot.version == self._version else snapshot

    def confirm(self, snapshot: DirectorySnapshot) -> None:
        """Say that `snapshot` is in force from now on."""
        self._version = snapshot.version
        self._go_by(snapshot.version)


def _checksum(version: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(b"%d" % version))
