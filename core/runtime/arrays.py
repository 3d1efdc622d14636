"""The shared arrays that both the scheduler and the executors map: rows and token arenas.

Owns: the mapping. Never knows: who writes what when (`core.scheduler.plan`, `ipc.spans`).
"""

from core.config.headrace import HeadraceConfig
from core.runtime.wiring import rows_layout
from core.scheduler.plan import RecordArray
from ipc.child import Child
from ipc.segment import Segment
from ipc.spans import Ids, map_spans


def attach_rows(child: Child, config: HeadraceConfig) -> list[RecordArray]:
    """Return the rows of every replica, `row_dtype[num_rows]` each, to be written."""
    layout = rows_layout(config)
    segments = (
        Segment.open(child.run_directory.rows(replica)) for replica in range(config.engine.replicas)
    )
    return [layout.views(segment)["records"] for segment in segments]


def attach_arenas(child: Child, config: HeadraceConfig) -> list[Ids]:
    """Return the token ids of every tokenizer's arena, to be written behind the prompts."""
    num_tokens = config.tokenizer.arena_tokens
    return [
        map_spans(Segment.open(child.run_directory.spans(tokenizer)), num_tokens)
        for tokenizer in range(config.tokenizer.processes)
    ]
