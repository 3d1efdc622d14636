"""kill -9 of every kind of child under streaming load: what the restart table promises.

How: the same seeded requests run once undisturbed and once with a kill in the middle; what clients
were told must be equal, or end with an error that says to try again.
"""

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.models.tiny_model import write_tiny_model
from tests.support.processes.engine import STOP_TIMEOUT_S, Engine, Json, running_engine, wait_until
from tests.support.processes.streams import Stream, join, start_streams, wait_for_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_TOKENS = 100
BODIES: list[Json] = [
    {
        "prompt": "once upon a time " * (1 + 3 * k),
        "max_tokens": NUM_TOKENS,
        "seed": k,
        "temperature": 1.0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    for k in range(5)
]
NUM_LONG = 3000  # seconds, even for an executor that computes: still there when killed
LONG_BODIES = [{**body, "max_tokens": NUM_LONG} for body in BODIES]
SLOW_STEP_MS = 20
SLOW_STEPS = ("engine.executor=simulated", f"engine.simulated_step_us={SLOW_STEP_MS * 1000}")
KINDS = {
    "simulated": ("engine.executor=simulated", "engine.simulated_step_us=5000"),
    "local": ("engine.executor=local", "engine.dtype=float32"),
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """Return an engine that survives all kills of this module, and takes long requests."""
    overrides = [*KINDS[request.param], "supervision.intensity=100"]
    home = tmp_path_factory.mktemp("home")
    model = write_tiny_model(home / "tiny", max_position=2 * NUM_LONG)
    with running_engine(home, model, overrides) as engine:
        yield engine


@pytest.fixture(scope="module")
def undisturbed(engine: Engine) -> list[list[int]]:
    """Return the token ids of all requests when nothing happens."""
    streams = join(start_streams(engine.client(), BODIES))
    assert all(len(stream.token_ids) == NUM_TOKENS for stream in streams)
    return [stream.token_ids for stream in streams]


def kill_under_load(engine: Engine, child_id: str, bodies: Sequence[Json] = BODIES) -> list[Stream]:
    """Kill a child while all streams run; return them after their end, the child serving again."""
    streams = start_streams(engine.client(), bodies)
    wait_for_tokens(streams, 5)
    row = engine.kill_child(child_id)
    join(streams)
    engine.wait_restarted(child_id, row.epoch)
    wait_until(lambda: is_served(engine), "an answer")
    return streams


def is_served(engine: Engine) -> bool:
    """Return whether a request is answered; while processes find each other again it may get a
    retryable refusal, or no connection.
    """
    try:
        answer = engine.client().post("/v1/completions", {"prompt": "hello", "max_tokens": 1})
    except OSError:
        return False
    assert answer.status in (200, 503), answer
    return answer.status == 200


def assert_intact(streams: list[Stream], undisturbed: list[list[int]]) -> None:
    """Every stream came to its end with the tokens of the undisturbed run."""
    assert [stream.error for stream in streams] == [None] * len(streams)
    assert [stream.token_ids for stream in streams] == undisturbed
    assert {stream.finish_reason for stream in streams} == {"length"}


def assert_agrees(stream: Stream, undisturbed: list[int]) -> None:
    """A stream that did not come to its end had the tokens of the undisturbed run."""
    assert len(stream.token_ids) < NUM_LONG
    common = min(len(stream.token_ids), len(undisturbed))
    assert stream.token_ids[:common] == undisturbed[:common]


def assert_serves(engine: Engine, undisturbed: list[list[int]]) -> None:
    """The engine answers as if nothing had been."""
    assert_intact(join(start_streams(engine.client(), BODIES)), undisturbed)


@pytest.mark.parametrize("child_id", ["executor.0.0", "scheduler", "admin.0", "janitor"])
def test_streams_go_on_after_the_death_of(
    child_id: str, engine: Engine, undisturbed: list[list[int]]
) -> None:
    """No token is lost, doubled or changed."""
    assert_intact(kill_under_load(engine, child_id), undisturbed)


def test_streams_end_with_a_retryable_error_when_their_tokenizer_dies(
    engine: Engine, undisturbed: list[list[int]]
) -> None:
    """What was delivered is a prefix of the truth; the next requests are served."""
    streams = kill_under_load(engine, "tokenizer.0", LONG_BODIES)
    for stream, expected in zip(streams, undisturbed, strict=True):
        assert stream.error is not None
        assert stream.error["code"] == "engine_restarted"
        assert_agrees(stream, expected)
    assert_serves(engine, undisturbed)


def test_streams_break_off_when_their_http_process_dies(
    engine: Engine, undisturbed: list[list[int]]
) -> None:
    """The scheduler frees what the streams held, and the next requests are served."""
    streams = kill_under_load(engine, "http.0", LONG_BODIES)
    for stream, expected in zip(streams, undisturbed, strict=True):
        assert stream.is_broken or not stream.finish_reason
        assert_agrees(stream, expected)
    wait_until(lambda: int(engine.scheduler_page().page["num_running"]) == 0, "the rows to be free")
    assert_serves(engine, undisturbed)


def test_a_stopped_executor_fails_progress_and_is_replaced(
    tmp_path: Path, tiny_model: Path
) -> None:
    """Progress health says 503 while it hangs, and after the step timeout the streams go on."""
    overrides = [
        *SLOW_STEPS,
        "supervision.step_timeout_ms=5000",
        "supervision.progress_limit_ms=300",
        "supervision.hang_timeout_ms=5000",
    ]
    with running_engine(tmp_path, tiny_model, overrides) as engine:
        streams = start_streams(engine.client(), BODIES)
        wait_for_tokens(streams, 5)
        row = engine.kill_child("executor.0.0", signal.SIGSTOP)
        client = engine.client()
        wait_until(lambda: client.get("/health/progress").status == 503, "progress to fail")
        assert client.get("/health/live").status == 200
        assert engine.children()["executor.0.0"].pid == row.pid
        engine.wait_restarted("executor.0.0", row.epoch)
        join(streams)
        assert {stream.finish_reason for stream in streams} == {"length"}
        assert "executor.0.0" in engine.log_text()


def test_a_stopped_supervisor_kills_nobody_when_it_goes_on(
    tmp_path: Path, tiny_model: Path
) -> None:
    """Its own pause, longer than anybody may be silent, is no proof of anybody's death."""
    silence_ms = NUM_TOKENS * SLOW_STEP_MS * 3 // 4  # the streams last longer
    overrides = [
        *SLOW_STEPS,
        f"supervision.hang_timeout_ms={silence_ms}",
        "supervision.heartbeat_ms=50",
    ]
    with running_engine(tmp_path, tiny_model, overrides) as engine:
        before = engine.children()
        engine.process.send_signal(signal.SIGSTOP)
        streams = join(start_streams(engine.client(), BODIES))
        engine.process.send_signal(signal.SIGCONT)
        assert {stream.finish_reason for stream in streams} == {"length"}
        join(start_streams(engine.client(), [{**BODIES[0], "max_tokens": 25}]))
        assert engine.children() == before


def test_a_crash_loop_ends_the_engine_loudly(tmp_path: Path, tiny_model: Path) -> None:
    """One death more than the intensity: the streams hear of it, the exit code is not zero, and the
    log says who.
    """
    overrides = [
        *SLOW_STEPS,
        "supervision.intensity=1",
        "scheduler.poison_crashes=9",
    ]
    with running_engine(tmp_path, tiny_model, overrides) as engine:
        streams = start_streams(engine.client(), LONG_BODIES)
        wait_for_tokens(streams, 5)
        row = engine.kill_child("executor.0.0")
        engine.wait_restarted("executor.0.0", row.epoch)
        engine.kill_child("executor.0.0")
        for stream in join(streams):
            assert stream.error is not None
            assert stream.error["code"] == "no_replica"
        assert engine.process.wait(STOP_TIMEOUT_S) == 70
        assert "executor.0.0 is given up" in engine.log_text()
        assert not engine.path.exists()


def test_sigterm_lets_running_streams_finish(tmp_path: Path, tiny_model: Path) -> None:
    """New requests get 503 at once, running ones come to their end, the exit code is zero."""
    with running_engine(tmp_path, tiny_model, SLOW_STEPS) as engine:
        client = engine.client()
        streams = start_streams(client, BODIES)
        wait_for_tokens(streams, 5)
        with engine.stopped("executor.0.0"):  # nothing ends before all has been looked at
            engine.process.send_signal(signal.SIGTERM)
            wait_until(lambda: client.get("/health/ready").status == 503, "readiness to go")
            late = {"prompt": "late", "max_tokens": 1}
            wait_until(lambda: client.post("/v1/completions", late).status == 503, "a refusal")
        assert {stream.finish_reason for stream in join(streams)} == {"length"}
        assert engine.process.wait(STOP_TIMEOUT_S) == 0


def test_a_second_signal_ends_at_once(tmp_path: Path, tiny_model: Path) -> None:
    """Nothing is waited for any more, and nothing is left."""
    with running_engine(tmp_path, tiny_model, SLOW_STEPS) as engine:
        streams = start_streams(engine.client(), LONG_BODIES[:1])
        wait_for_tokens(streams, 5)
        engine.process.send_signal(signal.SIGTERM)
        wait_until(lambda: engine.client().get("/health/ready").status == 503, "the first signal")
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(STOP_TIMEOUT_S) == 130
        assert not join(streams)[0].finish_reason
        assert not engine.path.exists()
