"""Two executors, as replicas or as ranks of one: killing one under load costs nobody a token.

How: as in `test_kill`; and what the engine counts is compared with what the clients were given.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.engine import Engine, Json, running_engine, wait_until
from tests.support.processes.open_files import open_files
from tests.support.processes.streams import join, start_streams, wait_for_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_TOKENS = 100
BODIES: list[Json] = [
    {
        "prompt": "once upon a time " * (1 + 2 * k),
        "max_tokens": NUM_TOKENS,
        "seed": k,
        "temperature": k % 2,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    for k in range(6)
]
WAYS = {
    "replicas": ("engine.replicas=2", "executor.1.0"),
    "ranks": ("engine.tensor_parallel=2", "executor.0.1"),
}


@pytest.fixture(scope="module", params=sorted(WAYS))
def way(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> Iterator[tuple[Engine, str]]:
    """Return an engine with two executors, and the one to kill."""
    setting, victim = WAYS[request.param]
    overrides = ["engine.executor=local", "engine.dtype=float32", "engine.threads=1", setting]
    with running_engine(tmp_path_factory.mktemp("home"), tiny_model, overrides) as engine:
        yield engine, victim


def num_generated(engine: Engine) -> int:
    """Return how many output tokens the engine has counted."""
    return int(engine.scheduler_page().page["generated_tokens"])


def test_the_death_of_one_of_two_executors_loses_and_doubles_nothing(
    way: tuple[Engine, str],
) -> None:
    """Every stream has the tokens of the undisturbed run, and they are counted once."""
    engine, victim = way
    undisturbed = join(start_streams(engine.client(), BODIES))
    assert {len(stream.token_ids) for stream in undisturbed} == {NUM_TOKENS}
    delivered = NUM_TOKENS * len(BODIES)
    wait_until(lambda: num_generated(engine) == delivered, "the count of the first run")
    streams = start_streams(engine.client(), BODIES)
    wait_for_tokens(streams, 5)
    row = engine.kill_child(victim)
    join(streams)
    assert [stream.error for stream in streams] == [None] * len(streams)
    assert [s.token_ids for s in streams] == [s.token_ids for s in undisturbed]
    assert {stream.completion_tokens for stream in streams} == {NUM_TOKENS}
    engine.wait_restarted(victim, row.epoch)
    wait_until(lambda: num_generated(engine) == 2 * delivered, "the count of the second run")
    assert join(start_streams(engine.client(), BODIES[:1]))[0].finish_reason == "length"


def test_the_ranks_of_a_replica_are_one_instance(way: tuple[Engine, str]) -> None:
    """Whoever of a group was restarted, all its members have one epoch."""
    engine, _ = way
    epochs: dict[str, set[int]] = {}
    for child_id, row in engine.children().items():
        if child_id.startswith("executor."):
            epochs.setdefault(child_id.split(".")[1], set()).add(row.epoch)
    assert all(len(found) == 1 for found in epochs.values()), epochs


LISTENING = "0A"  # in /proc/net/tcp


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports on which a process listens."""
    sockets = {file.name.removeprefix("socket:[").rstrip("]") for file in open_files(pid)}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == LISTENING and row[9] in sockets
    }


def test_only_the_http_ports_listen(way: tuple[Engine, str]) -> None:
    """Executors that compute together meet in the run directory, where no other user comes."""
    engine, _ = way
    ports = {port for pid in engine.pids() for port in listening_ports(pid)}
    assert ports == {engine.ports.http_port, engine.ports.admin_port}


def test_a_rank_that_hangs_holds_nobody_up_for_ever(tmp_path: Path, tiny_model: Path) -> None:
    """The others wait for it no longer than a step may take; then the group starts again and the
    streams go on.
    """
    overrides = [
        "engine.executor=local",
        "engine.dtype=float32",
        "engine.threads=1",
        WAYS["ranks"][0],
        "supervision.step_timeout_ms=5000",
        "supervision.hang_timeout_ms=5000",
    ]
    with running_engine(tmp_path, tiny_model, overrides) as engine:
        streams = start_streams(engine.client(), BODIES)
        wait_for_tokens(streams, 5)
        row = engine.kill_child("executor.0.1", signal.SIGSTOP)
        engine.wait_restarted("executor.0.1", row.epoch)
        join(streams)
        assert {len(stream.token_ids) for stream in streams} == {NUM_TOKENS}
        epochs = {engine.children()[f"executor.0.{rank}"].epoch for rank in (0, 1)}
        assert epochs == {row.epoch + 1}
