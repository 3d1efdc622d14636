"""Writing the rows an executor reads: everything it must know of a running sequence.

Owns: the bytes of one replica's rows (`core.scheduler.plan.row_dtype`). Never knows: when a row may
be rewritten. A new request overwrites the whole record, its generation last.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.request import Request
from core.scheduler.plan import RecordArray
from core.scheduler.running_table import Rows

_PARTS = frozenset({
    "stop_token_ids", "logit_bias_ids", "logit_bias_values", "block_table", "generation"
})  # fmt: skip


class RowWriter:
    """The one writer of a replica's rows, row_dtype[num_rows]."""

    def __init__(self, rows: RecordArray) -> None:
        """Take over the array, in shared memory or not."""
        self._rows = rows
        self._block_tables: npt.NDArray[np.int32] = rows["block_table"]
        self._generations: npt.NDArray[np.uint32] = rows["generation"]
        self._blank = np.zeros((), rows.dtype)
        names = rows.dtype.names or ()
        self._numbers: RecordArray = rows[[name for name in names if name not in _PARTS]]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def max_blocks_per_seq(self) -> int:
        """Length of a block table."""
        return int(self._block_tables.shape[1])

    def write(self, row: int, request: Request, generation: int) -> None:
        """Describe `request`, its blocks included, in `row`."""
        record, sampling = self._rows[row], request.sampling
        stops, biases = sampling.stop_token_ids, sampling.logit_bias
        self._rows[row] = self._blank
        self._numbers[row] = (
            request.request_id, sampling.seed, request.span_start, request.tokenizer,
            request.prompt_len, request.max_tokens, sampling.choice, sampling.min_tokens,
            sampling.top_k, sampling.num_logprobs, sampling.num_prompt_logprobs,
            sampling.ignore_eos, len(stops), len(biases), sampling.temperature, sampling.top_p,
            sampling.min_p, sampling.repetition_penalty, sampling.presence_penalty,
            sampling.frequency_penalty,
        )  # fmt: skip
        if stops:
            record["stop_token_ids"][: len(stops)] = stops
        if biases:
            record["logit_bias_ids"][: len(biases)] = [token_id for token_id, _ in biases]
            record["logit_bias_values"][: len(biases)] = [bias for _, bias in biases]
        self._block_tables[row, : len(request.block_ids)] = request.block_ids
        self._generations[row] = generation

    def append_blocks(
        self, rows: Rows, indexes: npt.NDArray[np.int32], block_ids: Sequence[int]
    ) -> None:
        """Set entry `indexes[i]` of the block table of `rows[i]` to `block_ids[i]`."""
        self._block_tables[rows, indexes] = block_ids
