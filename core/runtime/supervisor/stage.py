"""Everything that must exist before the first child starts: run directory, memory, bells, sockets.

Owns: their creation, all or nothing, and that each lack is one clear line. Never knows: children.
The TCP sockets are bound here once and passed on, so an occupied port shows at start; with a
listener per process (SO_REUSEPORT) it would not.
"""

import errno
import hashlib
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from core.config.headrace import HeadraceConfig
from core.errors import StartError
from core.runtime.wiring import doorbell_names, ring_layouts, segment_layouts
from core.supervision.spec import ChildSpec
from core.tenancy.directory import snapshot_of
from core.tenancy.tenancy import Tenancy
from ipc.directory import DirectoryWriter
from ipc.doorbell import Doorbell
from ipc.errors import IpcError, SegmentSpaceError
from ipc.layout import create_segment
from ipc.ring import format_ring
from ipc.run_directory import Ports, RunDirectory
from ipc.segment import Segment, available_bytes

LISTEN_BACKLOG = 1024


@dataclass(slots=True)
class Stage:
    """What was set up. `fds` are the doorbells and listening sockets by name."""

    directory: RunDirectory
    segments: dict[Path, Segment] = field(default_factory=dict)
    doorbells: list[Doorbell] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)
    fds: dict[str, int] = field(default_factory=dict)
    death_fds: tuple[int, int] = (-1, -1)  # read end (passed on), write end (ours alone)
    ports: Ports = field(default_factory=lambda: Ports("", 0, "", 0))

    def close(self) -> None:
        """Give everything back; the run directory is deleted if it is still ours."""
        for listener in self.sockets:
            listener.close()
        for doorbell in self.doorbells:
            doorbell.close()
        for fd in self.death_fds:
            if fd >= 0:
                os.close(fd)
        for segment in self.segments.values():
            segment.close()
        self.directory.remove()


def set_up(
    config: HeadraceConfig, specs: tuple[ChildSpec, ...], tenancy: Tenancy | None = None
) -> Stage:
    """Return the stage for an engine that starts with `tenancy` (None: as configured); raises
    StartError, leaving nothing behind.
    """
    try:
        stage = Stage(RunDirectory.claim(config.name))
    except (IpcError, OSError) as error:
        raise StartError(str(error)) from error
    try:
        _listen(stage, config)
        _allocate(stage, config, specs)
        _publish_tenants(stage, config, tenancy or config.tenancy)
        _connect(stage, config)
    except (IpcError, OSError) as error:
        stage.close()
        raise StartError(str(error)) from error
    except StartError:
        stage.close()
        raise
    return stage


def _listen(stage: Stage, config: HeadraceConfig) -> None:
    """Bind both TCP ports and write them down."""
    http = listen(config.http.host, config.http.port, "http")
    stage.sockets.append(http)
    admin = listen(config.admin.host, config.admin.port, "admin")
    stage.sockets.append(admin)
    stage.fds |= {"http": http.fileno(), "admin": admin.fileno()}
    stage.ports = Ports(
        config.http.host, http.getsockname()[1], config.admin.host, admin.getsockname()[1]
    )
    stage.directory.write_ports(stage.ports)


def listen(host: str, port: int, section: str) -> socket.socket:
    """Return a listening socket; `section` is the configuration table that holds the port."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} on {host} is in use: stop what listens there, or set {section}.port"
                " to another one (0 = any)"
            ) from error
        raise StartError(f"cannot listen on {host}:{port} ({section}): {error}") from error
    listener.setblocking(False)
    return listener


def _allocate(stage: Stage, config: HeadraceConfig, specs: tuple[ChildSpec, ...]) -> None:
    """Create every segment, whole: too little room shows here and not as a SIGBUS later.

    The sum is compared first, so that what cannot fit is not half allocated before it is refused.
    """
    rings = ring_layouts(config, stage.directory)
    layouts = rings | segment_layouts(config, stage.directory, specs)
    needed_bytes = sum(layout.total_bytes for layout in layouts.values())
    room_bytes = available_bytes(stage.directory.path)
    if needed_bytes > room_bytes:
        raise SegmentSpaceError(str(stage.directory.path), needed_bytes, room_bytes)
    for path, layout in layouts.items():
        stage.segments[path] = create_segment(path, layout)
        if path in rings:
            format_ring(stage.segments[path], *layout.parameters)


def _publish_tenants(stage: Stage, config: HeadraceConfig, tenancy: Tenancy) -> None:
    """Write the first version of the tenant directory."""
    digest = config.admin.key_sha256
    if not digest:
        digest = hashlib.sha256(stage.directory.write_admin_key().encode()).hexdigest()
    writer = DirectoryWriter(stage.segments[stage.directory.directory])
    writer.publish(snapshot_of(tenancy, digest, config.tenancy))


def _connect(stage: Stage, config: HeadraceConfig) -> None:
    """Make the doorbells, and the pipe whose end tells children that we are gone."""
    for name in doorbell_names(config):
        doorbell = Doorbell.create()
        stage.doorbells.append(doorbell)
        stage.fds[name] = doorbell.fileno()
    stage.death_fds = os.pipe2(os.O_CLOEXEC)
    stage.fds["death"] = stage.death_fds[0]
