"""Control commands that change the tenant directory: `set`, `pause`, `resume`, `add-tenant`,
`remove-tenant`, `rotate-key`; and the tenancy of a configuration file that is read again.

Owns: the directory's writing end, the order check → publish → ring, and the answers. Never knows:
what a setting means (`core.tenancy.changes`), or when the others have taken it over: each says so
in its heartbeat line. With every version goes what of it the configuration file does not say, for
admin worker 0, which keeps it. The file itself is never written.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from core.config.headrace import HeadraceConfig
from core.errors import ConfigError, UnknownTenantError
from core.runtime.supervisor.stage import Stage
from core.runtime.wiring import directory_doorbells
from core.tenancy.changes import (
    Change,
    add_tenant,
    remove_tenant,
    rotate_key,
    set_paused,
    set_value,
)
from core.tenancy.classes import CLASS_NAMES
from core.tenancy.difference import changed_paths, difference, laid_over
from core.tenancy.directory import snapshot_of, tenancy_of
from core.tenancy.in_use import Held, InUse, broken_promises
from core.tenancy.tenancy import Room, Tenancy
from ipc.board import BoardReader
from ipc.control.declaration import ArgumentError, NotFoundError
from ipc.directory import DirectoryReader, DirectoryWriter
from ipc.doorbell import Doorbell
from ipc.pages import SCHEDULER_PAGE

COMMANDS = ("set", "pause", "resume", "add-tenant", "remove-tenant", "rotate-key")

Args = Mapping[str, object]
Record = dict[str, object]


class TenantCommands:
    """Carries out changes, one at a time."""

    def __init__(self, config: HeadraceConfig, stage: Stage) -> None:
        """Go on from the first version, which `stage` has published; `config` is as configured."""
        segment = stage.segments[stage.directory.directory]
        first = DirectoryReader(segment).read()
        self.tenancy = tenancy_of(first)
        self._configured = config.tenancy
        self._room = Room(config.engine.replicas, config.engine.max_num_seqs)
        self._admin_key_sha256 = first.admin_key_sha256
        self._writer = DirectoryWriter(segment)
        self._page = BoardReader(stage.segments[stage.directory.board("scheduler")], SCHEDULER_PAGE)
        self._bells: Sequence[Doorbell] = [
            Doorbell(stage.fds[name]) for name in directory_doorbells(config)
        ]

    def carry_out(self, command: str, args: Args) -> Record:
        """Publish a change and return the answer; raises ArgumentError, changing nothing."""
        try:
            change = self._change(command, args)
        except UnknownTenantError as error:
            raise NotFoundError(f"{command}: {error}") from None
        except ConfigError as error:
            raise ArgumentError(f"{command}: {error}") from None
        self._check_promises(command, change.tenancy)
        if change.tenancy != self.tenancy:
            self._publish(change.tenancy)
        return {"version": self._writer.version, "before": change.before, "after": change.after}

    def reload(self, config: HeadraceConfig) -> Record:
        """Lay over what runs what a new `config`, which was checked, says otherwise than the one
        before; raises ArgumentError, changing nothing.
        """
        configured = config.tenancy
        changes = difference(self._configured, configured)
        tenancy = laid_over(self.tenancy, changes)
        faults = list(tenancy.faults(self._room))
        if faults:
            raise ArgumentError(f"reload: {'; '.join(faults)}")
        self._check_promises("reload", tenancy)
        if configured != self._configured or tenancy != self.tenancy:
            self._configured = configured
            self._publish(tenancy)
        return {"version": self._writer.version, "changed": changed_paths(changes)}

    def _check_promises(self, command: str, tenancy: Tenancy) -> None:
        broken = list(broken_promises(self.tenancy, tenancy, in_use(self._page)))
        if broken:
            raise ArgumentError(f"{command}: {'; '.join(broken)}")

    def _publish(self, tenancy: Tenancy) -> None:
        self._writer.publish(snapshot_of(tenancy, self._admin_key_sha256, self._configured))
        self.tenancy = tenancy
        for bell in self._bells:
            bell.ring()

    def _change(self, command: str, args: Args) -> Change:
        tenancy, room = self.tenancy, self._room
        name, digest = str(args.get("tenant", "")), str(args.get("digest", ""))
        match command:
            case "set":
                return set_value(tenancy, str(args["path"]), str(args["value"]), room)
            case "pause" | "resume":
                kind = "tenant" if "tenant" in args else "class"
                return set_paused(tenancy, kind, str(args[kind]), command == "pause")
            case "add-tenant":
                return add_tenant(tenancy, name, digest, room)
            case "remove-tenant":
                return remove_tenant(tenancy, name)
            case _:
                keep_old = args.get("old") == "keep"
                return rotate_key(tenancy, name, digest, keep_old, room)


def in_use(reader: BoardReader) -> InUse:
    """Return what the scheduler's page says is held; nothing if it was never written."""
    page = reader.read().page.reshape(1)[0]
    num_replicas = int(page["num_replicas"])
    tenants = page["tenants"][: int(page["num_tenants"])]
    return InUse(
        num_blocks=int(page["replicas"]["num_blocks"][:num_replicas].sum()),
        num_replicas=max(1, num_replicas),
        classes=dict(zip(CLASS_NAMES, map(_held, page["classes"]), strict=True)),
        tenants={row["name"].decode(): _held(row) for row in tenants},
    )


def _held(row: np.void) -> Held:
    return Held(int(row["num_running"]), int(row["held_blocks"]))
