"""Control commands to a running engine over its admin port, whatever else keeps the machine busy.

Owns: asking again. A worker answers within 100 ms: if the process that carries a command out, or
the disk, has not answered it by then, the answer says so, and whoever asks may ask again, since
every command twice is the same as once. Never knows: what a command does.
"""

from http.client import HTTPException

from ipc.control.declaration import ASK_AGAIN
from ipc.errors import RunDirectoryError
from tests.support.processes.engine import Answer, Engine, Json, wait_until

SLOW_DISK = "cannot be read within"


def command(engine: Engine, name: str, **args: object) -> Answer:
    """Give a command until somebody has carried it out or refused it; return the answer."""
    answers: list[Answer] = []

    def is_answered() -> bool:
        answers.append(engine.admin().post(f"/admin/commands/{name}", args))
        return not is_silence(answers[-1])

    wait_until(is_answered, f"an answer to {name}")
    return answers[-1]


def shut_down(engine: Engine, **args: object) -> None:
    """Tell the engine to stop until it says that it will, or nobody is left to say so."""

    def has_begun() -> bool:
        if engine.process.poll() is not None:
            return True
        try:
            answer = engine.admin().post("/admin/commands/shutdown", args)
        except (OSError, HTTPException, RunDirectoryError):
            return False  # it is about to end, or has
        return answer.status == 200

    wait_until(has_begun, "the engine to begin to stop")


def is_silence(answer: Answer) -> bool:
    """Return whether an answer says only that there was none within its time."""
    if answer.status == 200:
        return False
    error = answer.json["error"]
    return error["code"] in ASK_AGAIN or SLOW_DISK in error["message"]


def done(engine: Engine, name: str, **args: object) -> Json:
    """Give a command that must be carried out; return its result."""
    answer = command(engine, name, **args)
    assert answer.status == 200, answer.body
    result: Json = answer.json["result"]
    return result


def until(engine: Engine, fact: str, name: str, **args: object) -> Json:
    """Give a command until its result says `fact`; return that result."""
    results: list[Json] = []

    def is_so() -> bool:
        results.append(done(engine, name, **args))
        return bool(results[-1][fact])

    wait_until(is_so, f"{fact} in the answer to {name}")
    return results[-1]


def in_force(engine: Engine, name: str, **args: object) -> Json:
    """Give a command until all processes go by it; return that result."""
    return until(engine, "in_force", name, **args)
