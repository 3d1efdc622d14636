"""Which segments and doorbells an engine has, how large they are, and who is given which.

Owns: names, sizes and the table of inherited fds, so that both ends of every channel agree. Never
knows: what travels. The supervisor creates everything from here (`core.runtime.supervisor.stage`);
a child attaches to its part (`channels` of its package, `core.runtime.arrays`).
"""

from pathlib import Path

import numpy as np

from core.config.headrace import HeadraceConfig
from core.sampling_params import MAX_TOP_LOGPROBS
from core.scheduler.frames import OUTPUT_HEADER, PLAN_HEADER, RESULT_HEADER
from core.scheduler.plan import COPY, LOGPROB, OUTPUT, PLAN_ROW, RESULT_ROW, row_dtype
from core.supervision.spec import ChildKind, ChildSpec
from ipc.board import board_layout
from ipc.directory import directory_layout
from ipc.heartbeat import HEARTBEATS_LAYOUT
from ipc.layout import Layout, records_layout
from ipc.pages import (
    ADMIN_PAGE,
    EXECUTOR_PAGE,
    HTTP_PAGE,
    SCHEDULER_PAGE,
    SUPERVISOR_PAGE,
    TOKENIZER_PAGE,
)
from ipc.ring import ring_layout
from ipc.run_directory import RunDirectory
from ipc.spans import spans_layout

SUPERVISOR = "supervisor"
KEEPER = "admin.0"  # who keeps usage and changes
STATE_BELL = "state"  # rung for admin worker 0, which keeps what was changed
OUTPUT_RING_SLOTS = 32
MAX_RECORDS_PER_OUTPUT_FRAME = 1024

PAGES: dict[ChildKind, np.dtype[np.void]] = {
    ChildKind.ADMIN: ADMIN_PAGE,
    ChildKind.EXECUTOR: EXECUTOR_PAGE,
    ChildKind.SCHEDULER: SCHEDULER_PAGE,
    ChildKind.TOKENIZER: TOKENIZER_PAGE,
    ChildKind.HTTP: HTTP_PAGE,
}


def heartbeat_slots(specs: tuple[ChildSpec, ...]) -> dict[str, int]:
    """Return the heartbeat line of each child; line 0 is the supervisor's own."""
    return {SUPERVISOR: 0, **{spec.id: 1 + k for k, spec in enumerate(specs)}}


def rows_layout(config: HeadraceConfig) -> Layout:
    """Return the layout of a replica's rows: with two plans in flight a row outlives its request
    by a step, so there are `pipeline_depth` times as many as running sequences.
    """
    engine = config.engine
    max_blocks_per_seq = -(-engine.max_model_len // engine.block_size)
    num_rows = engine.max_num_seqs * engine.pipeline_depth
    return records_layout("rows", row_dtype(max_blocks_per_seq), num_rows)


def plan_ring_layout(config: HeadraceConfig) -> Layout:
    """Return the layout of scheduler → ranks: twice as many slots as plans in flight."""
    slot_bytes = PLAN_HEADER.itemsize + config.engine.max_num_seqs * PLAN_ROW.itemsize
    slot_bytes += config.engine.max_copies * COPY.itemsize
    num_slots, num_ranks = 2 * config.engine.pipeline_depth, config.engine.tensor_parallel
    return ring_layout(num_slots, slot_bytes, num_ranks)


def result_ring_layout(config: HeadraceConfig) -> Layout:
    """Return the layout of executor → scheduler."""
    slot_bytes = RESULT_HEADER.itemsize + config.engine.max_num_seqs * RESULT_ROW.itemsize
    return ring_layout(
        2 * config.engine.pipeline_depth, slot_bytes + max_logprobs(config) * LOGPROB.itemsize
    )


def output_ring_layout(config: HeadraceConfig) -> Layout:
    """Return the layout of scheduler → tokenizer; a frame takes at least one record with all the
    log-probabilities that one step of one replica can have.
    """
    slot_bytes = OUTPUT_HEADER.itemsize + MAX_RECORDS_PER_OUTPUT_FRAME * OUTPUT.itemsize
    return ring_layout(OUTPUT_RING_SLOTS, slot_bytes + max_logprobs(config) * LOGPROB.itemsize)


def max_logprobs(config: HeadraceConfig) -> int:
    """Return how many log-probabilities one result can have at the most."""
    engine = config.engine
    num_positions = engine.max_num_seqs + engine.max_num_batched_tokens
    return num_positions * (1 + MAX_TOP_LOGPROBS)


def ring_layouts(config: HeadraceConfig, directory: RunDirectory) -> dict[Path, Layout]:
    """Return every ring of the engine by its file."""
    layouts = {}
    for replica in range(config.engine.replicas):
        layouts[directory.plans(replica)] = plan_ring_layout(config)
        layouts[directory.results(replica)] = result_ring_layout(config)
    for tokenizer in range(config.tokenizer.processes):
        layouts[directory.outputs(tokenizer)] = output_ring_layout(config)
    return layouts


def segment_layouts(
    config: HeadraceConfig, directory: RunDirectory, specs: tuple[ChildSpec, ...]
) -> dict[Path, Layout]:
    """Return every other segment of the engine by its file."""
    layouts = {directory.heartbeats: HEARTBEATS_LAYOUT, directory.directory: directory_layout()}
    for replica in range(config.engine.replicas):
        layouts[directory.rows(replica)] = rows_layout(config)
    for tokenizer in range(config.tokenizer.processes):
        layouts[directory.spans(tokenizer)] = spans_layout(config.tokenizer.arena_tokens)
    layouts[directory.board(SUPERVISOR)] = board_layout(SUPERVISOR_PAGE)
    for spec in specs:
        if spec.kind in PAGES:
            layouts[directory.board(spec.id)] = board_layout(PAGES[spec.kind])
    return layouts


def doorbell_names(config: HeadraceConfig) -> list[str]:
    """Return the name of every doorbell of the engine."""
    replicas, tokenizers = range(config.engine.replicas), range(config.tokenizer.processes)
    return [
        *(name for replica in replicas for name in plan_doorbells(replica, config)),
        *(f"result.{replica}" for replica in replicas),
        *(f"output.{tokenizer}" for tokenizer in tokenizers),
        *(f"directory.{process}" for process in range(config.http.processes)),
        STATE_BELL,
    ]


def plan_doorbells(replica: int, config: HeadraceConfig) -> list[str]:
    """Return the doorbells beside a replica's plan ring, a rank each."""
    return [f"plan.{replica}.{rank}" for rank in range(config.engine.tensor_parallel)]


def directory_doorbells(config: HeadraceConfig) -> list[str]:
    """Return the doorbells that make everybody look at a changed tenant directory."""
    names = doorbell_names(config)
    chosen = (name for name in names if name.startswith(("output.", "directory.", STATE_BELL)))
    return ["result.0", *chosen]


def inherited_names(spec: ChildSpec, config: HeadraceConfig) -> list[str]:
    """Return the names of the doorbells and listening sockets that a child is given."""
    match spec.kind:
        case ChildKind.SCHEDULER:
            rung = ("plan.", "result.", "output.")
            return [name for name in doorbell_names(config) if name.startswith(rung)]
        case ChildKind.EXECUTOR:
            own = [f"plan.{spec.index}.{spec.rank}"]
            return own if spec.rank else [*own, f"result.{spec.index}"]
        case ChildKind.TOKENIZER:
            return [f"output.{spec.index}"]
        case ChildKind.HTTP:
            return ["http", f"directory.{spec.index}"]
        case ChildKind.ADMIN:
            return ["admin", STATE_BELL] if spec.index == 0 else ["admin"]
        case ChildKind.JANITOR:
            return []
