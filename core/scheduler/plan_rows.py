"""The rows of a plan, from the running table: decodes as arrays, prompts one by one.

Owns: positions and flags of PLAN_ROW. Never knows: who is in the step, or why.
"""

import numpy as np

from core.request import Request
from core.sampling_params import NO_LOGPROBS
from core.scheduler.plan import PlanFlag, RecordArray
from core.scheduler.running_table import Rows, RunningTable

PlanRow = tuple[int, int, int, int, int]

_SAMPLE = np.uint32(PlanFlag.SAMPLE)
_SAMPLE_FED_BACK = np.uint32(PlanFlag.SAMPLE | PlanFlag.FEEDBACK)


def write_decodes(table: RunningTable, rows: Rows, out: RecordArray) -> None:
    """Write one token each of `rows` into PLAN_ROW[n] `out`."""
    positions = table.num_scheduled[rows]
    out["row"] = rows
    out["generation"] = table.generation[rows]
    out["num_new_tokens"] = 1
    out["first_position"] = positions
    out["flags"] = np.where(positions < table.num_tokens[rows], _SAMPLE, _SAMPLE_FED_BACK)


def prefill_row(table: RunningTable, request: Request, num_tokens: int) -> PlanRow:
    """Return the fields of the PLAN_ROW that computes `num_tokens` more of a prompt."""
    row = request.row
    first = int(table.num_scheduled[row])
    end = first + num_tokens
    flags = 0
    if end == table.prefill_end[row] and request.max_tokens > 0:
        flags |= PlanFlag.SAMPLE
    wants_logprobs = request.sampling.num_prompt_logprobs != NO_LOGPROBS
    if wants_logprobs and first < request.prompt_len > request.num_scored_tokens:
        flags |= PlanFlag.PROMPT_LOGPROBS
    return row, int(table.generation[row]), num_tokens, first, int(flags)
