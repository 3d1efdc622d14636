"""The running requests of one replica as a structure of arrays, one entry a row.

Owns: the token bookkeeping of everything that runs. Never knows: blocks' contents, plans in flight,
policy. A step over n decodes is a handful of vector operations here; `Request` objects are touched
only when a request starts, leaves, or has something special happen to it.

    tokens of a row   0 ……… num_computed ……… num_scheduled ……… max_length
                        acknowledged     in plans in flight
    num_tokens        prompt + delivered ids: the id of position p is in the span if p < num_tokens;
                      at p == num_tokens its id is still on the device (FEEDBACK)
    prefill           num_scheduled < prefill_end: all ids are known, chunks of any size
    decode            prefill_end ≤ num_scheduled < max_length − 1: one token a step (the last
                      token of all is sampled, but never computed)
    short             a prefill that gave tail blocks back: nothing of it is scheduled before it has
                      blocks up to prefill_end again

A row without a request has 0 in all of these, so that no mask selects it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.policy.base import RunningRows
from core.request import Request
from core.sampling_params import MAX_STOP_TOKEN_IDS
from core.scheduler.spans import Spans

Rows = npt.NDArray[np.int64]
NO_TOKEN = -1
NEARLY_WHOLE = 1  # tokens left: such a prompt does not count as one that is partly computed


class RunningTable:
    """Arrays over the rows of one replica."""

    def __init__(self, num_rows: int, eos_token_ids: Sequence[int]) -> None:
        """Start with no row in use; `eos_token_ids` end every request that does not ignore them."""
        self.num_rows = num_rows
        self.num_active = 0
        self.num_changes = 0  # rows that were given to a request or taken from one, so far
        self.requests: list[Request | None] = [None] * num_rows
        self.active = np.zeros(num_rows, np.bool_)
        self.generation = np.zeros(num_rows, np.uint32)
        self.request_id = np.zeros(num_rows, np.uint64)
        self.tokenizer = np.zeros(num_rows, np.int32)
        self.tenant_index = np.zeros(num_rows, np.int32)
        self.traffic_class = np.zeros(num_rows, np.int32)
        self.prompt_len = np.zeros(num_rows, np.int32)
        self.prefill_end = np.zeros(num_rows, np.int32)
        self.max_length = np.zeros(num_rows, np.int32)  # prompt_len + max_tokens
        self.decode_end = np.zeros(num_rows, np.int32)  # of the tokens that are ever computed
        self.min_stop_tokens = np.zeros(num_rows, np.int32)  # no stop before so many tokens
        self.num_tokens = np.zeros(num_rows, np.int32)
        self.num_computed = np.zeros(num_rows, np.int32)
        self.num_scheduled = np.zeros(num_rows, np.int32)
        self.num_blocks = np.zeros(num_rows, np.int32)
        self.num_committed_blocks = np.zeros(num_rows, np.int32)
        self.ttft_deadline_ns = np.zeros(num_rows, np.int64)
        self.itl_cap_ns = np.zeros(num_rows, np.int64)
        self.last_token_ns = np.zeros(num_rows, np.int64)  # when one was delivered last, 0 = never
        self.last_step = np.zeros(num_rows, np.int64)  # the last plan that names the row, 0 = none
        num_columns = MAX_STOP_TOKEN_IDS + len(eos_token_ids)
        self._stop_token_ids = np.full((num_columns, num_rows), NO_TOKEN, np.int32)
        self._num_stop_columns = 0  # of those, as many as any request has used
        self._spans = Spans(num_rows)
        self._eos_token_ids = tuple(eos_token_ids)
        self.view = RunningRows(
            requests=self.requests,
            active=self.active,
            tenant_index=self.tenant_index,
            traffic_class=self.traffic_class,
            prompt_len=self.prompt_len,
            num_tokens=self.num_tokens,
            num_computed=self.num_computed,
            max_length=self.max_length,
            num_blocks=self.num_blocks,
        )

    def assign(self, row: int, request: Request, num_known_tokens: int, num_hits: int) -> None:
        """Give the unused `row` to `request`: its first `num_known_tokens` need no computing, its
        first `num_hits` blocks can be found by others already.
        """
        assert not self.active[row], row
        self.num_active += 1
        self.num_changes += 1
        self.requests[row] = request
        self._spans.assign(row, request.token_ids, request.span_start)
        self.active[row] = True
        self.generation[row] += np.uint32(1)
        self.request_id[row] = request.request_id
        self.tokenizer[row] = request.tokenizer
        self.tenant_index[row] = request.tenant_index
        self.traffic_class[row] = request.traffic_class
        self.prompt_len[row] = request.prompt_len
        self.prefill_end[row] = request.num_tokens
        self.max_length[row] = request.max_length
        self.decode_end[row] = request.max_length - 1
        self.min_stop_tokens[row] = request.prompt_len + request.sampling.min_tokens
        self.num_tokens[row] = request.num_tokens
        self.num_computed[row] = num_known_tokens
        self.num_scheduled[row] = num_known_tokens
        self.num_blocks[row] = len(request.block_ids)
        self.num_committed_blocks[row] = num_hits
        self.ttft_deadline_ns[row] = request.ttft_deadline_ns
        self.itl_cap_ns[row] = request.itl_cap_ns
        self.last_token_ns[row] = 0
        self.last_step[row] = 0
        stops = request.sampling.stop_token_ids
        if not request.sampling.ignore_eos:
            stops = stops + self._eos_token_ids
        self._stop_token_ids[:, row] = NO_TOKEN
        self._stop_token_ids[: len(stops), row] = stops
        self._num_stop_columns = max(self._num_stop_columns, len(stops))
        request.row = row

    def clear(self, row: int) -> None:
        """Write the row's truth back to its request and leave the row unused."""
        request = self.requests[row]
        assert request is not None, row
        request.num_output_tokens = self.output_tokens(row)
        request.num_computed_tokens = int(self.num_computed[row])
        request.row = -1
        self.num_active -= 1
        self.num_changes += 1
        self.requests[row] = None
        self._spans.clear(row)
        self.active[row] = False
        for column in (self.prefill_end, self.num_tokens, self.num_computed, self.num_scheduled):
            column[row] = 0
        self.num_blocks[row] = self.max_length[row] = self.decode_end[row] = 0

    def fall_back(self, row: int, block_size: int) -> int:
        """Let `row` keep only what lies in the blocks its request still holds: it becomes a prompt
        under way, of all its known tokens; return how many must be computed again.
        """
        request = self.request_at(row)
        request.num_output_tokens = self.output_tokens(row)
        request.num_computed_tokens = int(self.num_computed[row])
        num_blocks = len(request.block_ids)
        num_kept = min(int(self.num_computed[row]), num_blocks * block_size)
        num_lost = int(self.num_computed[row]) - num_kept
        self.prefill_end[row] = self.num_tokens[row]
        self.num_computed[row] = num_kept
        self.num_scheduled[row] = num_kept
        self.num_blocks[row] = num_blocks
        self.num_committed_blocks[row] = min(int(self.num_committed_blocks[row]), num_blocks)
        return num_lost

    def is_decode(self, row: int) -> bool:
        """Tell whether all known tokens of a row in use are scheduled."""
        return bool(self.num_scheduled[row] >= self.prefill_end[row])

    def output_tokens(self, row: int) -> int:
        """Return how many tokens of the row were delivered."""
        return int(self.num_tokens[row] - self.prompt_len[row])

    def request_at(self, row: int) -> Request:
        """Return the request of a row in use."""
        request = self.requests[row]
        assert request is not None, row
        return request

    def requests_at(self, rows: Rows) -> list[Request]:
        """Return the requests of rows in use, [n]."""
        requests = self.requests
        return [request for row in rows.tolist() if (request := requests[row]) is not None]

    def running(self) -> list[Request]:
        """Return all requests that have a row."""
        return [request for request in self.requests if request is not None]

    def append_tokens(
        self, rows: Rows, positions: npt.NDArray[np.int32], token_ids: npt.NDArray[np.int32]
    ) -> None:
        """Write the next token of each of `rows` into its span at `positions`; all are [n]."""
        self._spans.write(rows, positions, token_ids)
        self.num_tokens[rows] = positions + 1

    def has_stopped(self, rows: Rows, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Tell which of `rows` have just sampled a stop token, `token_ids` int32[n]: bool[n]."""
        stopped = np.zeros(len(rows), np.bool_)
        for column in self._stop_token_ids[: self._num_stop_columns]:
            stopped |= column[rows] == token_ids
        found = stopped.nonzero()[0]
        if len(found):
            stopped[found] = self.num_tokens[rows[found]] >= self.min_stop_tokens[rows[found]]
        return stopped

    def decode_rows(self) -> Rows:
        """Return the rows whose next token comes after their prefill, int64[n]."""
        decodes = self.num_scheduled >= self.prefill_end
        decodes &= self.num_scheduled < self.decode_end
        return decodes.nonzero()[0]

    def prefill_rows(self) -> Rows:
        """Return the rows with known tokens left to schedule, int64[n]."""
        return (self.num_scheduled < self.prefill_end).nonzero()[0]

    def num_partial(self) -> int:
        """Return how many prompts have more than NEARLY_WHOLE tokens left to schedule."""
        return int(np.count_nonzero(self.prefill_end - self.num_scheduled > NEARLY_WHOLE))

    def outstanding_prefill_tokens(self) -> int:
        """Return the tokens of all rows that are left to prefill."""
        return int(np.maximum(self.prefill_end - self.num_scheduled, 0).sum())

    def check_integrity(self) -> None:
        """Assert the order of the counters of every row in use, and that unused ones are blank."""
        used = [row for row, request in enumerate(self.requests) if request is not None]
        assert np.flatnonzero(self.active).tolist() == used
        assert self.num_active == len(used)
        assert bool(np.all(self.num_computed <= self.num_scheduled))
        assert bool(np.all(self.num_computed <= self.num_tokens))
        most = np.maximum(self.prefill_end, self.max_length - 1)
        assert bool(np.all(self.num_scheduled <= most))
        assert bool(np.all(self.num_scheduled[~self.active] == 0))
        for row in used:
            request = self.request_at(row)
            assert request.row == row, (request.request_id, row)
            assert len(request.block_ids) == self.num_blocks[row], request.request_id
