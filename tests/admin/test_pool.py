"""Real admin workers, alone on the stage of an engine: they answer whoever else is silent."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
import zmq

from core.state_database import open_to_write, reading
from frontends.admin.audit.log import audit_path
from ipc.control.declaration import Effect
from ipc.control.registry import COMMANDS
from ipc.control_client import AdminWorkers
from ipc.messages import ControlReply
from ipc.run_directory import RunDirectory
from tests.admin.admin_stage import TENANT_KEY, WAIT_S, AdminStage
from tests.support.control_plane.boards import replica_fields, scheduler_fields, supervisor_fields
from tests.support.http.async_client import Reply, request
from tests.support.processes.commands import SLOW_DISK
from tests.support.processes.engine import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@pytest.fixture
def stage(socket_directory: Path) -> Iterator[AdminStage]:
    """Give a stage whose missing processes left their pages a moment ago."""
    directory = RunDirectory.claim("x", socket_directory / "run")
    with AdminStage(directory, socket_directory / "state") as stage:
        leave_pages(stage)
        yield stage


def leave_pages(stage: AdminStage) -> None:
    """Have the processes that are not there leave their pages now."""
    now_ns = time.monotonic_ns()
    row = replica_fields(last_step_ns=now_ns, num_running=2, num_held_blocks=50)
    stage.publish("supervisor", supervisor_fields(started_ns=now_ns), now_ns)
    stage.publish("scheduler", scheduler_fields(replicas=[row], num_running=2), now_ns)
    for child in ("executor.0.0", "tokenizer.0", "http.0"):
        stage.publish(child, {}, now_ns)


def call(
    stage: AdminStage, workers: Sequence[int], command: str, args: Mapping[str, object]
) -> ControlReply:
    """Return the first answer of these workers as `ctl` gets it, asked again while a busy machine
    or a slow disk keeps them from giving one.
    """
    urls = tuple(stage.directory.admin_url(worker) for worker in workers)
    engine = AdminWorkers(urls, stage.key, "ctl")
    replies: list[ControlReply] = []

    def is_answered() -> bool:
        reply = engine.call(command, args)
        if reply is None or SLOW_DISK in reply.error:
            return False
        replies.append(reply)
        return True

    wait_until(is_answered, f"an answer to {command}")
    return replies[0]


def wait_until_serving(stage: AdminStage, *workers: int) -> None:
    """Return once the workers' doors are open: zmq connects only to somebody who serves."""
    with zmq.Context() as context:
        for worker in workers:
            with context.socket(zmq.DEALER) as probe:
                probe.set(zmq.IMMEDIATE, 1)
                probe.connect(stage.directory.admin_url(worker))
                assert probe.poll(WAIT_S * 1000, zmq.POLLOUT), "the worker does not serve"


def get(stage: AdminStage, path: str, key: str = "") -> Reply:
    """Return the answer of the admin port."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return asyncio.run(request(stage.port, "GET", path, headers))


def test_a_worker_serves_commands_health_and_metrics_alone(stage: AdminStage) -> None:
    """With nobody else alive it still tells what the pages say, and it stamps and counts."""
    stage.start_worker(0)
    wait_until_serving(stage, 0)
    status = call(stage, [0], "status", {})
    assert status.error == ""
    assert status.result["name"] == "x"
    assert status.result["model"] == "smol"
    assert status.result["load"]["num_running"] == 2  # type: ignore[index]
    requests = call(stage, [0], "requests", {})
    assert requests.result["stale"] is True
    drain = call(stage, [0], "drain", {})
    assert drain.code == "not_delivered"
    leave_pages(stage)  # a start may have taken longer than anybody may be silent
    assert get(stage, "/health/live").status == 200
    assert get(stage, "/metrics").status == 401
    assert get(stage, "/metrics", TENANT_KEY).status == 403
    scrape = get(stage, "/metrics", stage.key).body.decode()
    assert 'vllm:num_requests_running{model_name="smol",engine="0"} 2' in scrape
    assert stage.serving_epoch("admin.0") == 1
    code, said = stage.stop_worker(0)
    assert (code, said) == (0, "")
    audit = (stage.state / "headrace" / "x" / "audit.jsonl").read_text().splitlines()
    commands = [json.loads(line)["command"] for line in audit]
    assert commands[:3] == ["status", "requests", "drain"]
    assert stage.key not in "".join(audit)


def test_usage_says_whether_it_is_kept(stage: AdminStage) -> None:
    """Not while the database takes nothing, as on a full disk, and again once it does; the metric
    says so too.
    """

    def wait_until_kept(expected: bool) -> None:
        wait_until(
            lambda: call(stage, [0], "usage", {}).result["kept"] is expected, f"kept: {expected}"
        )

    with closing(open_to_write(stage.state / "headrace" / "x")) as other:
        other.execute("BEGIN IMMEDIATE")
        stage.start_worker(0)
        wait_until_serving(stage, 0)
        wait_until_kept(False)
        scrape = get(stage, "/metrics", stage.key).body.decode()
        assert re.search(r'headrace_admin_keep_failures{process="admin.0"} [1-9]', scrape)
        other.execute("ROLLBACK")
    wait_until_kept(True)


ARGUMENTS: dict[str, dict[str, object]] = {
    "add-tenant": {"tenant": "new", "digest": "a" * 64},
    "cancel": {"tenant": "acme"},
    "log-level": {"level": "INFO"},
    "pause": {"tenant": "acme"},
    "preempt": {"request": "1"},
    "remove-tenant": {"tenant": "acme"},
    "restart": {"child": "scheduler"},
    "resume": {"tenant": "acme"},
    "rotate-key": {"tenant": "acme", "digest": "a" * 64},
    "set": {"path": "tenants.acme.weight", "value": "3"},
    "show": {"request": "1"},
}


def test_an_engine_that_starts_or_stops_answers_every_command(stage: AdminStage) -> None:
    """Whoever carries it out is not there yet, or no more: looks are told what is known, changes
    that nothing was done; there is no traceback.
    """
    stage.start_worker(0)
    wait_until_serving(stage, 0)
    for name, command in COMMANDS.items():
        reply = call(stage, [0], name, ARGUMENTS.get(name, {}))
        if command.effect is Effect.WRITE:
            assert reply.code == "not_delivered", name
            assert "nothing was done" in reply.error
        else:
            assert reply.code in ("", "not_delivered"), (name, reply.error)
    now_ns = time.monotonic_ns()
    stage.publish("supervisor", supervisor_fields(started_ns=now_ns, stopping=1), now_ns)
    for name, command in COMMANDS.items():
        if command.effect is Effect.WRITE and not command.while_stopping:
            reply = call(stage, [0], name, ARGUMENTS.get(name, {}))
            assert reply.code == "stopping", name
    assert stage.stop_worker(0) == (0, "")


def test_a_stopped_worker_is_passed_over(stage: AdminStage) -> None:
    """`ctl` gets its answer from the next worker, and HTTP from whoever accepts."""
    for index in (0, 1):
        stage.start_worker(index)
    wait_until_serving(stage, 0, 1)
    os.kill(stage.processes["admin.0"].pid, signal.SIGSTOP)
    reply = call(stage, [0, 1], "status", {})
    assert (reply.call_id, reply.error) == (1, "")
    os.kill(stage.processes["admin.0"].pid, signal.SIGCONT)
    for index in (0, 1):
        assert stage.stop_worker(index) == (0, "")


def test_a_killed_worker_is_replaced_under_the_next_epoch(stage: AdminStage) -> None:
    """The successor takes over socket, page and heartbeat of its predecessor."""
    stage.start_worker(0)
    stage.kill_worker(0)
    stage.start_worker(0, epoch=2)
    wait_until_serving(stage, 0)
    assert call(stage, [0], "status", {}).error == ""
    assert stage.serving_epoch("admin.0") == 2
    assert stage.stop_worker(0) == (0, "")


def test_both_workers_commands_are_in_the_table_once_over_kills_of_its_writer(
    stage: AdminStage,
) -> None:
    """Worker 0 is killed again and again while both are commanded: the table has the lines of the
    log, each once, and `audit` tells the same before it has caught up.
    """
    asked_of_1: set[str] = set()
    stage.start_worker(1)
    for epoch in range(1, 4):
        stage.start_worker(0, epoch)
        wait_until_serving(stage, 0, 1)
        for number in range(40):
            tenant = f"t{epoch}.{number}"
            asked_of_1 |= {tenant} if number % 2 else set()
            assert call(stage, [number % 2], "pause", {"tenant": tenant}).code
        stage.kill_worker(0)
    stage.start_worker(0, epoch=4)
    wait_until_serving(stage, 0, 1)
    wait_until(lambda: asked_of_1 <= set(logged(stage)), "the lines that were to be written")
    assert len(logged(stage)) > len(asked_of_1)
    wait_until(lambda: in_table(stage) == logged(stage), "the table to have the log")
    assert audited(stage, 0) == audited(stage, 1) == logged(stage)
    assert stage.stop_worker(0) == stage.stop_worker(1) == (0, "")


def logged(stage: AdminStage) -> list[str]:
    """Return the tenants of the changes in the log, sorted."""
    text = audit_path(stage.state / "headrace" / "x").read_text()
    records = [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]  # whole ones
    return sorted(each["args"]["tenant"] for each in records if each["command"] == "pause")


def in_table(stage: AdminStage) -> list[str]:
    """Return the tenants of the changes in the table, sorted."""
    with reading(stage.state / "headrace" / "x", WAIT_S) as connection:
        rows = connection.execute("SELECT tenant FROM audit").fetchall()
    return sorted(tenant for (tenant,) in rows)


def audited(stage: AdminStage, worker: int) -> list[str]:
    """Return the tenants of the changes in a worker's answer, sorted."""
    reply = call(stage, [worker], "audit", {"limit": 500, "command": "pause"})
    assert reply.error == ""
    commands = cast("list[dict[str, dict[str, str]]]", reply.result["commands"])
    return sorted(each["args"]["tenant"] for each in commands)


def test_a_full_disk_does_not_stop_a_command(stage: AdminStage) -> None:
    """Where the audit log cannot be written the worker says so and answers all the same."""
    stage.state.write_text("a file where a directory should be")
    stage.start_worker(0)
    wait_until_serving(stage, 0)
    assert call(stage, [0], "status", {}).error == ""
    code, said = stage.stop_worker(0)
    assert code == 0
    assert "audit log" in said
