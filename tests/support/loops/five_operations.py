"""Five seeded operations through the real loops: more than there are rows, longer than a step.

Owns: the operations, and what http is told of them when nothing happens. Never knows: what a test
does in between.
"""

from collections.abc import Iterable

from core.sampling_params import SamplingParams
from tests.support.loops.loop_rig import LoopRig

OPERATIONS = {f"op{k}": "once upon a time there was a long story " * (1 + 2 * k) for k in range(5)}
NUM_TOKENS = 12


def send_all(rig: LoopRig, order: Iterable[str] = tuple(OPERATIONS)) -> None:
    """Send five operations of different lengths: more than rows, longer than a step."""
    for operation_id in order:
        rig.send(
            operation_id,
            text=OPERATIONS[operation_id],
            max_tokens=NUM_TOKENS,
            sampling=SamplingParams(seed=int(operation_id[-1])),
        )


def told(rig: LoopRig) -> dict[str, list[int]]:
    """Return the token ids of all operations."""
    return {operation_id: rig.token_ids(operation_id) for operation_id in OPERATIONS}


def run_undisturbed(pipeline_depth: int = 1) -> dict[str, list[int]]:
    """Return what http is told when nothing happens."""
    rig = LoopRig(pipeline_depth=pipeline_depth)
    send_all(rig)
    rig.run()
    assert {rig.finish_reason(operation_id) for operation_id in OPERATIONS} == {"length"}
    rig.check_idle()
    return told(rig)


UNDISTURBED = run_undisturbed()


def assert_intact(rig: LoopRig) -> None:
    """Every operation has come to its end with the tokens of the undisturbed run."""
    assert told(rig) == UNDISTURBED
    assert {rig.finish_reason(operation_id) for operation_id in OPERATIONS} == {"length"}
    rig.check_idle()
