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


class RowWriter:
    """The one writer of a replica's rows, row_dtype[num_rows]."""

    def __init__(self, rows: RecordArray) -> None:
        """Take over the array, in shared memory or not."""
        self._rows = rows
        self._block_tables: npt.NDArray[np.int32] = rows["block_table"]
        self._blank = np.zeros((), rows.dtype)

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
        record = self._rows[row]
        self._rows[row] = self._blank
        record["request_id"] = request.request_id
        record["span_start"] = request.span_start
        record["tokenizer"] = request.tokenizer
        record["prompt_len"] = request.prompt_len
        record["max_tokens"] = request.max_tokens
        self._write_sampling(record, request)
        self._block_tables[row, : len(request.block_ids)] = request.block_ids
        record["generation"] = generation

    def append_blocks(
        self, rows: Rows, indexes: npt.NDArray[np.int32], block_ids: Sequence[int]
    ) -> None:
        """Set entry `indexes[i]` of the block table of `rows[i]` to `block_ids[i]`."""
        self._block_tables[rows, indexes] = block_ids

    def _write_sampling(self, record: np.void, request: Request) -> None:
        sampling = request.sampling
        for name in (
            "seed", "choice", "min_tokens", "top_k", "num_logprobs", "num_prompt_logprobs",
            "ignore_eos", "temperature", "top_p", "min_p", "repetition_penalty",
            "presence_penalty", "frequency_penalty",
        ):  # fmt: skip
            record[name] = getattr(sampling, name)
        num_stops, num_biases = len(sampling.stop_token_ids), len(sampling.logit_bias)
        record["num_stop_token_ids"] = num_stops
        record["stop_token_ids"][:num_stops] = sampling.stop_token_ids
        record["num_logit_bias"] = num_biases
        record["logit_bias_ids"][:num_biases] = [token_id for token_id, _ in sampling.logit_bias]
        record["logit_bias_values"][:num_biases] = [bias for _, bias in sampling.logit_bias]
