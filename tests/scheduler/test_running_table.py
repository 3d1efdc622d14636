"""The rows of a replica: what an executor reads of them, and the running table beside them."""

import numpy as np

from core.sampling_params import SamplingParams
from core.scheduler.plan import row_dtype
from core.scheduler.rows import RowWriter
from core.scheduler.running_table import RunningTable
from tests.support.scheduler.checked_engine import make_request


def test_a_row_holds_nothing_of_its_last_request() -> None:
    """Writing a row overwrites every field, those the new request does not use included."""
    rows = np.zeros(2, row_dtype(8))
    rows.view(np.uint8)[:] = 0xFF
    sampling = SamplingParams(seed=2**63 + 1, top_k=4, stop_token_ids=(3,), logit_bias=((9, -1.5),))
    request = make_request(2**64 - 1, sampling=sampling)
    request.block_ids = [6, 7]
    RowWriter(rows).write(1, request, 5)
    row = rows[1]
    assert (row["request_id"], row["generation"], row["seed"]) == (2**64 - 1, 5, 2**63 + 1)
    assert row["block_table"].tolist() == [6, 7, 0, 0, 0, 0, 0, 0]
    assert row["stop_token_ids"].tolist() == [3] + [0] * 15
    assert (row["num_stop_token_ids"], row["num_logit_bias"], row["top_k"]) == (1, 1, 4)
    assert row["logit_bias_ids"][0] == 9
    assert not row["logit_bias_values"][1:].any()


def test_an_unused_row_is_selected_by_no_mask() -> None:
    """A row that was cleared is neither a prefill nor a decode, and its request has its numbers."""
    table, request = RunningTable(3, ()), make_request(prompt_len=4, max_tokens=4)
    request.block_ids = [0, 1]
    table.assign(2, request, 0, 0)
    assert table.prefill_rows().tolist() == [2]
    table.num_scheduled[2] = table.num_computed[2] = 4
    table.append_tokens(np.array([2]), np.array([4], np.int32), np.array([77], np.int32))
    assert (table.decode_rows().tolist(), table.prefill_rows().tolist()) == ([2], [])
    table.clear(2)
    assert (table.decode_rows().tolist(), table.prefill_rows().tolist()) == ([], [])
    assert (request.num_output_tokens, request.num_computed_tokens, request.row) == (1, 4, -1)
    assert request.token_ids[4] == 77


def test_a_generation_is_new_for_every_request_of_a_row() -> None:
    """Each assignment of a row raises its generation."""
    table = RunningTable(1, ())
    for generation in (1, 2, 3):
        table.assign(0, make_request(generation), 0, 0)
        assert table.generation[0] == generation
        table.clear(0)


def test_stop_tokens_of_one_row_do_not_stop_another() -> None:
    """A row stops at EOS unless it ignores it, and at its own stop ids, never before min_tokens."""
    table = RunningTable(4, (7,))
    samplings = [
        SamplingParams(),
        SamplingParams(ignore_eos=True, stop_token_ids=(3, 4)),
        SamplingParams(min_tokens=2),
        SamplingParams(ignore_eos=True),
    ]
    for row, sampling in enumerate(samplings):
        table.assign(row, make_request(row, 4, 4, sampling=sampling), 0, 0)
    rows = np.arange(4)

    def stopped(token_id: int) -> list[bool]:
        result: list[bool] = table.has_stopped(rows, np.full(4, token_id, np.int32)).tolist()
        return result

    table.num_tokens[:] = 5
    assert stopped(7) == [True, False, False, False]
    assert stopped(4) == [False, True, False, False]
    table.num_tokens[:] = 6
    assert stopped(7) == [True, False, True, False]
