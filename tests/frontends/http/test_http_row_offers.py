"""Tenants that were removed give up their rows in what an http process counts."""

import numpy as np
import pytest

from core.clock import NS_PER_S
from core.errors import RejectionReason
from core.tenancy.classes import TrafficClass
from core.tenancy.rows import OTHER, TenantRows
from frontends.http.row_offers import RowOffers
from frontends.http.telemetry import StreamTimer, Telemetry
from ipc.directory import DirectorySnapshot, DirectoryTenant
from ipc.pages import HTTP_PAGE
from tests.support.control_plane.boards import healthy, page


class Process:
    """What counts in an http process, with rows for two tenants."""

    def __init__(self) -> None:
        self.telemetry = Telemetry()
        forget = self.telemetry.tenants.on_reuse
        self.telemetry.tenants = TenantRows(3)
        self.telemetry.tenants.on_reuse += forget
        self.kept_ns = 0
        self.directory = DirectorySnapshot()
        self.offers = RowOffers(
            self.telemetry,
            lambda: self.directory,
            lambda: healthy({"admin.0": page("admin.0", {"kept_ns": self.kept_ns})}),
        )

    def list(self, *names: str) -> None:
        """Let these tenants be there."""
        tenants = tuple(DirectoryTenant(name=name) for name in names)
        self.directory = DirectorySnapshot(version=self.directory.version + 1, tenants=tenants)

    def serve(self, tenant: str) -> StreamTimer:
        """Begin an answer to a tenant."""
        self.telemetry.count_request(tenant)
        return StreamTimer(self.telemetry, 0, tenant, TrafficClass.STANDARD)

    def rows(self) -> dict[str, int]:
        """Return the requests of each tenant on the page."""
        shown = np.zeros((), HTTP_PAGE)
        self.telemetry.fill(shown, 0)
        rows = shown["tenants"][: int(shown["num_tenants"])]
        return {row["name"].decode(): int(row["requests"]) for row in rows}


@pytest.fixture
def process() -> Process:
    """Return a process that has served two tenants, who are there."""
    process = Process()
    process.list("a", "b", "c")
    for name in "ab":
        timer = process.serve(name)
        timer.end(NS_PER_S)
        timer.close()
    return process


def test_a_removed_tenant_makes_room_when_its_counters_are_kept(process: Process) -> None:
    """The next one begins at 0 in all that is counted."""
    process.telemetry.count_rejection(RejectionReason.TENANT_RATE, "b")
    process.list("a", "c")
    process.offers.look(NS_PER_S)
    process.kept_ns = NS_PER_S
    assert process.telemetry.tenants.row("c") == OTHER
    process.offers.look(2 * NS_PER_S)
    row = process.telemetry.tenants.row("c")
    assert row != OTHER
    assert process.rows() == {"_other": 0, "a": 1, "c": 0}
    assert process.telemetry.by_tenant.e2e.counts[row].sum() == 0
    assert process.telemetry.by_tenant.e2e.count == 1
    assert process.telemetry._tenant_rejections[row].sum() == 0
    assert process.telemetry.rejections[RejectionReason.TENANT_RATE] == 1


def test_a_tenant_keeps_its_row_while_it_is_answered(process: Process) -> None:
    """What its answers take is counted to their end."""
    timer = process.serve("b")
    process.list("a", "c")
    process.kept_ns = 100 * NS_PER_S
    for second in (1, 2):
        process.offers.look(second * NS_PER_S)
    assert process.telemetry.tenants.row("c") == OTHER
    timer.close()
    process.offers.look(3 * NS_PER_S)
    assert process.telemetry.tenants.row("c") != OTHER


def test_a_tenant_that_is_there_keeps_its_row(process: Process) -> None:
    """However long ago it has asked for anything."""
    process.kept_ns = 100 * NS_PER_S
    for second in (1, 2, 90):
        process.offers.look(second * NS_PER_S)
    assert process.telemetry.tenants.num_left == 0
    assert process.telemetry.tenants.row("c") == OTHER
