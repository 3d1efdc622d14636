"""More tenants than an engine can tell apart at once: added, served and removed in turn."""

import hashlib
import time
from pathlib import Path

import pytest

from ipc.board import BoardReader
from ipc.pages import ADMIN_PAGE, MAX_PAGE_TENANTS
from ipc.segment import Segment
from tests.support.processes.commands import done, in_force
from tests.support.processes.engine import Engine, running_engine, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FAST_STEPS = ("engine.executor=simulated", "engine.simulated_step_us=100")
AT_ONCE = 55
NUM_ROUNDS = 6  # AT_ONCE tenants in each
WAIT_S = 60


def key_of(name: str) -> str:
    """Return the API key of a tenant."""
    return f"sk-{name}"


def come_and_go(engine: Engine, names: list[str]) -> None:
    """Add tenants, have a request of each served, remove them."""
    for name in names:
        digest = hashlib.sha256(key_of(name).encode()).hexdigest()
        done(engine, "add-tenant", tenant=name, digest=digest)
    in_force(engine, "set", path="classes.standard.weight", value="4")
    for name in names:
        engine.client(key_of(name)).complete("hello", max_tokens=2)
    for name in names:
        done(engine, "remove-tenant", tenant=name)


def wait_for_names(engine: Engine) -> None:
    """Wait until as many tenants as come at once can be told apart by all processes: until the
    counters of those that went are kept.
    """

    def are_left() -> bool:
        return int(done(engine, "tenants")["names_left"]) >= AT_ONCE

    wait_until(are_left, "names of tenants to be left", WAIT_S)


def wait_until_kept(engine: Engine) -> None:
    """Wait until the state database has what all pages show now."""
    path, now_ns = engine.directory.board("admin.0"), time.monotonic_ns()
    reader = BoardReader(Segment.open(path, readonly=True), ADMIN_PAGE)
    wait_until(lambda: int(reader.read().page["kept_ns"]) > now_ns, "all to be kept", WAIT_S)


def test_more_tenants_than_rows_are_served_and_counted_one_by_one(
    tmp_path: Path, tiny_model: Path
) -> None:
    """Though scheduler and http process are killed in between; none of them is counted as
    `_other`, and the usage has what each of them used.
    """
    names = [f"t{number}" for number in range(AT_ONCE * NUM_ROUNDS)]
    assert len(names) > MAX_PAGE_TENANTS
    with running_engine(tmp_path, tiny_model, FAST_STEPS) as engine:
        for number in range(NUM_ROUNDS):
            come_and_go(engine, names[number * AT_ONCE : (number + 1) * AT_ONCE])
            wait_until_kept(engine)
            if number == NUM_ROUNDS - 2:  # rows have passed on, and do so again
                for child in ("scheduler", "http.0"):
                    engine.wait_restarted(child, engine.kill_child(child).epoch)
            wait_for_names(engine)
        rows = {row["tenant"]: row for row in done(engine, "usage")["usage"]}
        assert sorted(rows) == sorted(names)
        assert {row["requests"] for row in rows.values()} == {1}
        assert {row["generated_tokens"] for row in rows.values()} == {2}
        assert len({row["prompt_tokens"] for row in rows.values()}) == 1
