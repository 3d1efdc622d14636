"""The metrics by replica: its blocks, its steps, and how well these are predicted.

Owns: these families and which page fields they show. Never knows: executors' own pages.
"""

import numpy as np

from frontends.boards import Boards
from frontends.metrics.exposition import Exposition
from frontends.metrics.shown import S_PER_NS, Rows, Shown, add_fields, counter, gauge
from ipc.pages import STEP_REGIMES

BY_FIELD = (
    Shown(gauge("headrace_replica_step", "Number of the last step.", "replica"), "step"),
    Shown(gauge("headrace_replica_epoch", "Epoch of its executor; 0 = none.", "replica"), "epoch"),
    Shown(gauge("headrace_replica_requests_running", "Running.", "replica"), "num_running"),
    Shown(gauge("headrace_replica_draining", "1 while it drains.", "replica"), "draining"),
    Shown(
        counter(
            "headrace_replica_infeasible_steps_total",
            "Steps whose decodes alone broke a promised gap.",
            "replica",
        ),
        "infeasible_steps",
    ),
    Shown(
        counter(
            "headrace_replica_predicted_step_seconds_total",
            "How long the steps that could be predicted were to take, together.",
            "replica",
        ),
        "predicted_ns",
        S_PER_NS,
    ),
    Shown(
        counter(
            "headrace_replica_measured_step_seconds_total",
            "How long the same steps took.",
            "replica",
        ),
        "measured_ns",
        S_PER_NS,
    ),
)
COST_FACTOR = gauge(
    "headrace_replica_cost_factor",
    "Steps, by what was measured at the start; 0 = nothing is predicted.",
    "replica", "regime",
)  # fmt: skip
COST_SIGMA = gauge(
    "headrace_replica_cost_sigma", "Relative scatter of steps around their prediction.",
    "replica", "regime",
)  # fmt: skip
BLOCKS = gauge("headrace_kv_blocks", "KV blocks by state.", "replica", "state")
HOST_BLOCKS = gauge(
    "headrace_host_blocks", "Blocks of host memory for swapped requests.", "replica", "state"
)
STEP_AGE = gauge("headrace_replica_last_step_age_seconds", "Time since its last result.", "replica")
PLAN_AGE = gauge(
    "headrace_replica_plan_age_seconds", "Age of its oldest plan in flight; 0 = none.", "replica"
)

FAMILIES = (
    *(each.family for each in BY_FIELD),
    COST_FACTOR,
    COST_SIGMA,
    BLOCKS,
    HOST_BLOCKS,
    STEP_AGE,
    PLAN_AGE,
)


def add(out: Exposition, boards: Boards) -> None:
    """Append all families."""
    rows = [
        ((("replica", str(index)),), row)
        for index, row in enumerate(replicas_of(boards.record("scheduler")))
    ]
    add_fields(out, BY_FIELD, rows)
    add_blocks(out, rows)
    for family, field in ((COST_FACTOR, "cost_factors"), (COST_SIGMA, "cost_sigmas")):
        by_regime = [
            ((*labels, ("regime", regime)), float(value))
            for labels, row in rows
            for regime, value in zip(STEP_REGIMES, row[field], strict=True)
        ]
        out.add(family, by_regime)
    for family, field in ((STEP_AGE, "last_step_ns"), (PLAN_AGE, "plan_sent_ns")):
        stamps = [(labels, int(row[field])) for labels, row in rows]
        out.add(family, [(labels, boards.age_s(ns) if ns else 0.0) for labels, ns in stamps])


def add_blocks(out: Exposition, rows: Rows) -> None:
    """Append the blocks of pools and host memory by state."""
    for family, counts_of in ((BLOCKS, block_counts), (HOST_BLOCKS, host_block_counts)):
        blocks = [
            ((*labels, ("state", state)), count)
            for labels, row in rows
            for state, count in counts_of(row).items()
        ]
        out.add(family, blocks)


def replicas_of(scheduler: np.void) -> list[np.void]:
    """Return the rows of the replicas there are."""
    return list(scheduler["replicas"][: int(scheduler["num_replicas"])])


def block_counts(replica: np.void) -> dict[str, int]:
    """Return the KV blocks of a replica by state; free ones are what is left."""
    counts = {
        state: int(replica[f"num_{state}_blocks"]) for state in ("held", "evictable", "fenced")
    }
    return counts | {"free": max(0, int(replica["num_blocks"]) - sum(counts.values()))}


def host_block_counts(replica: np.void) -> dict[str, int]:
    """Return the blocks of a replica's host memory by state."""
    held = int(replica["num_held_host_blocks"])
    return {"held": held, "free": int(replica["num_host_blocks"]) - held}
