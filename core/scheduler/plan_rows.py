"""The rows of a plan, from the running table: decodes as arrays, prompts one by one.

Owns: positions and flags of PLAN_ROW, the same as columns for whoever takes the result in, and as
sums for whoever wants to know what it costs. Never knows: who is in the step, or why.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.policy.cost_model import StepWork
from core.request import Request
from core.sampling_params import NO_LOGPROBS
from core.scheduler.plan import PLAN_ROW, PlanFlag, RecordArray
from core.scheduler.running_table import Rows, RunningTable

PlanRow = tuple[int, int, int, int, int]

_SAMPLE = np.uint32(PlanFlag.SAMPLE)
_SAMPLE_BIT = int(PlanFlag.SAMPLE)
_FEEDBACK = np.uint32(PlanFlag.FEEDBACK)


class PlannedRows(NamedTuple):
    """What a plan computes: decodes first, then prompts."""

    records: RecordArray  # PLAN_ROW[n]
    rows: Rows  # [n]
    ends: npt.NDArray[np.int32]  # [n]: tokens of each row that are computed after the step

    @property
    def samples(self) -> npt.NDArray[np.bool_]:
        """Which rows sample a token, bool[n]."""
        mask: npt.NDArray[np.bool_] = (self.records["flags"] & _SAMPLE) != 0
        return mask

    def chosen(self, places: Rows) -> "PlannedRows":
        """Return the rows of the plan at `places`."""
        return PlannedRows(self.records[places], self.rows[places], self.ends[places])


def plan_rows(table: RunningTable, decodes: Rows, prompts: Mapping[Request, int]) -> PlannedRows:
    """Return a plan that computes a token of each of `decodes`, [n], and so many of `prompts`."""
    count = len(decodes)
    records = np.empty(count + len(prompts), PLAN_ROW)
    rows, ends = decodes, _write_decodes(table, decodes, records[:count])
    if prompts:
        records[count:] = [prefill_row(table, *prompt) for prompt in prompts.items()]
        added = records[count:]
        rows = np.concatenate([decodes, added["row"]])
        ends = np.concatenate([ends, added["first_position"] + added["num_new_tokens"]])
    return PlannedRows(records, rows, ends)


def _write_decodes(table: RunningTable, rows: Rows, out: RecordArray) -> npt.NDArray[np.int32]:
    """Write one token each of `rows` into PLAN_ROW[n] `out`; return how many each has then."""
    positions = table.num_scheduled[rows]
    out["row"] = rows
    out["generation"] = table.generation[rows]
    out["num_new_tokens"] = 1
    out["first_position"] = positions
    out["flags"] = _SAMPLE
    fed_back = (positions >= table.num_tokens[rows]).nonzero()[0]
    if len(fed_back):
        out["flags"][fed_back] = _SAMPLE | _FEEDBACK
    ends: npt.NDArray[np.int32] = positions + np.int32(1)
    return ends


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


def work_of_rows(rows: RecordArray) -> StepWork:
    """Return the sums of a plan, PLAN_ROW[n], whose decodes come first; one token that is followed
    by a sample counts as a decode.
    """
    work, num_decodes = StepWork(), len(rows)
    while num_decodes:
        _, _, num_tokens, context, flags = rows[num_decodes - 1].item()
        samples = bool(flags & _SAMPLE_BIT)
        if num_tokens == 1 and samples:
            break
        work = work.with_prefill(num_tokens, context, ends=samples)
        num_decodes -= 1
    return work._replace(
        num_decodes=num_decodes,
        decode_context=int(rows["first_position"][:num_decodes].sum()),
        num_outputs=work.num_outputs + num_decodes,
    )
