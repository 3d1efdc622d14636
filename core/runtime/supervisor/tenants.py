"""Control commands that change the tenant directory: `set`, `pause`, `resume`, `add-tenant`,
`remove-tenant`, `rotate-key`.

Owns: the directory's writing end, the order check → publish → ring, and the answers. Never knows:
what a setting means (`core.tenancy_changes`), or when the others have taken it over: each says so
in its heartbeat line. The configuration file is never written; `kept_tenants` keeps tenants and
keys over a restart.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from core.config import HeadraceConfig
from core.errors import ConfigError
from core.runtime.supervisor.kept_tenants import KeptTenants
from core.runtime.supervisor.stage import Stage
from core.runtime.wiring import directory_doorbells
from core.tenancy import CLASS_NAMES, Room
from core.tenancy_changes import (
    Change,
    add_tenant,
    remove_tenant,
    rotate_key,
    set_paused,
    set_value,
)
from core.tenancy_in_use import Held, InUse, broken_promises
from core.tenant_directory import snapshot_of, tenancy_of
from ipc.board import BoardReader
from ipc.control.declaration import ArgumentError
from ipc.directory import DirectoryReader, DirectoryWriter
from ipc.doorbell import Doorbell
from ipc.pages import SCHEDULER_PAGE

COMMANDS = ("set", "pause", "resume", "add-tenant", "remove-tenant", "rotate-key")
KEPT_COMMANDS = ("add-tenant", "remove-tenant", "rotate-key")

Args = Mapping[str, object]


class TenantCommands:
    """Carries out changes, one at a time."""

    def __init__(self, config: HeadraceConfig, stage: Stage, kept: KeptTenants) -> None:
        """Go on from the first version, which `stage` has published."""
        segment = stage.segments[stage.directory.directory]
        first = DirectoryReader(segment).read()
        self.tenancy = tenancy_of(first)
        self._kept = kept
        self._is_kept = True
        self._room = Room(config.engine.replicas, config.engine.max_num_seqs)
        self._admin_key_sha256 = first.admin_key_sha256
        self._writer = DirectoryWriter(segment)
        self._page = BoardReader(stage.segments[stage.directory.board("scheduler")], SCHEDULER_PAGE)
        self._bells: Sequence[Doorbell] = [
            Doorbell(stage.fds[name]) for name in directory_doorbells(config)
        ]

    def carry_out(self, command: str, args: Args) -> dict[str, object]:
        """Publish a change and return the answer; raises ArgumentError, changing nothing."""
        try:
            change = self._change(command, args)
        except ConfigError as error:
            raise ArgumentError(f"{command}: {error}") from None
        broken = list(broken_promises(self.tenancy, change.tenancy, in_use(self._page)))
        if broken:
            raise ArgumentError(f"{command}: {'; '.join(broken)}")
        if change.tenancy != self.tenancy:
            self._writer.publish(snapshot_of(change.tenancy, self._admin_key_sha256))
            self.tenancy = change.tenancy
            for bell in self._bells:
                bell.ring()
            self._is_kept = self._kept.save(self.tenancy.tenants)
        answer = {"version": self._writer.version, "before": change.before, "after": change.after}
        return answer | ({"kept": self._is_kept} if command in KEPT_COMMANDS else {})

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
