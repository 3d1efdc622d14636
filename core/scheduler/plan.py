"""The fixed-layout words between scheduler and executor (rows, plans, results), and outputs.

Owns: the dtypes and their meaning. Never knows: where the bytes lie (shared memory or loopback),
how a decision is made, how a forward is run.

    who writes                record       who reads
    scheduler, per replica    row_dtype    all ranks of the replica; a row is rewritten only after
                                           the last plan that names it is acknowledged
    scheduler, per step       PLAN_ROW     all ranks
    scheduler, on a swap      COPY         all ranks
    rank 0, per step          RESULT_ROW   scheduler
    scheduler, per step       OUTPUT       the tokenizer that owns the request
"""

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.sampling_params import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS

RecordArray = npt.NDArray[np.void]


def row_dtype(max_blocks_per_seq: int) -> np.dtype[np.void]:
    """Return the layout of one row: everything an executor must know of a running sequence.

    All per-row state is here, so a new request in the row overwrites all of it (`generation` is
    written last). The span is ids [span_start, span_start + prompt_len + max_tokens) of arena
    `tokenizer`, int32.
    """
    return np.dtype(
        [
            ("request_id", np.uint64),
            ("seed", np.uint64),
            ("span_start", np.int64),
            ("generation", np.uint32),
            ("tokenizer", np.int32),
            ("prompt_len", np.int32),
            ("max_tokens", np.int32),
            ("choice", np.int32),
            ("min_tokens", np.int32),
            ("top_k", np.int32),
            ("num_logprobs", np.int32),
            ("num_prompt_logprobs", np.int32),
            ("ignore_eos", np.int32),
            ("num_stop_token_ids", np.int32),
            ("num_logit_bias", np.int32),
            ("temperature", np.float32),
            ("top_p", np.float32),
            ("min_p", np.float32),
            ("repetition_penalty", np.float32),
            ("presence_penalty", np.float32),
            ("frequency_penalty", np.float32),
            ("stop_token_ids", np.int32, (MAX_STOP_TOKEN_IDS,)),
            ("logit_bias_ids", np.int32, (MAX_LOGIT_BIAS,)),
            ("logit_bias_values", np.float32, (MAX_LOGIT_BIAS,)),
            ("block_table", np.int32, (max_blocks_per_seq,)),
        ],
        align=True,
    )


class PlanFlag(IntFlag):
    """What to do with a row of a plan beyond computing its new tokens."""

    SAMPLE = 1  # sample a token after the last new position
    FEEDBACK = 2  # the first new token is the one this row sampled last; the span has it later
    # Return a group of log-probabilities for the prompt token at each new position (NaN at 0). All
    # chunks of a prompt have the flag: the executor keeps the state before the next one.
    PROMPT_LOGPROBS = 4


PLAN_ROW = np.dtype(
    [
        ("row", np.int32),
        ("generation", np.uint32),
        ("num_new_tokens", np.int32),
        ("first_position", np.int32),  # = tokens of the row already in the KV cache
        ("flags", np.uint32),
    ]
)

COPY = np.dtype(
    [
        ("direction", np.int32),  # CopyDirection
        ("block", np.int32),  # in the pool
        ("host_block", np.int32),  # in the host pool
    ]
)


class CopyDirection(IntEnum):
    """Which way the content of a KV block goes."""

    OUT = 0  # to the host
    IN = 1  # from the host


LOGPROB = np.dtype([("token_id", np.int32), ("logprob", np.float32)])

RESULT_ROW = np.dtype(
    [
        ("row", np.int32),
        ("generation", np.uint32),
        ("token_id", np.int32),  # -1: not sampled in this step
        ("logprob", np.float32),  # of token_id, from the raw logits; NaN: not asked for
        ("logprobs_start", np.int32),  # the best alternatives of token_id in `logprobs`
        ("num_logprobs", np.int32),
        # Groups of 1 + num_prompt_logprobs (of the row) entries, the actual token first.
        ("prompt_logprobs_start", np.int32),
        ("num_prompt_logprobs", np.int32),  # entries, not groups
        ("error", np.uint32),  # ResultError
    ]
)


class ResultError(IntEnum):
    """What went wrong with one row; the other rows are unharmed."""

    NONE = 0
    STALE_ROW = 1  # generation of plan and row differ
    BAD_TOKEN = 2  # an id outside the vocabulary in the span
    NON_FINITE = 3  # logits with NaN


class OutputKind(IntEnum):
    """What an OUTPUT record says of its request, in this order of a request's life."""

    QUEUED = 0  # accepted into the waiting queue
    STARTED = 1  # first scheduled: `queue_ns`, `num_cached_tokens` are set
    PROMPT_LOGPROBS = 2  # groups of entries; the first is about the prompt token at `index`
    TOKEN = 3  # token_id at output `index`
    FINISHED = 4  # the one terminal record: status, usage, and the rejection if any
    RELEASED = 5  # no plan names the span any more: its owner may reuse it


OUTPUT = np.dtype(
    [
        ("request_id", np.uint64),
        ("kind", np.int32),  # OutputKind
        ("token_id", np.int32),
        ("index", np.int32),
        ("logprob", np.float32),
        ("logprobs_start", np.int32),
        ("num_logprobs", np.int32),
        ("status", np.int32),  # RequestStatus
        ("num_prompt_tokens", np.int32),
        ("num_cached_tokens", np.int32),
        ("num_output_tokens", np.int32),
        ("queue_ns", np.int64),
        ("reason", np.int32),  # RejectionReason
        ("retry_after_ms", np.int32),
        ("measured", np.float64),
        ("threshold", np.float64),
        ("traffic_class", np.int32),  # TrafficClass that it is served in; not with a TOKEN
    ]
)


def empty_logprobs() -> RecordArray:
    """Return LOGPROB[0]."""
    return np.empty(0, LOGPROB)


NO_COPIES: RecordArray = np.empty(0, COPY)


class StepPlan(NamedTuple):
    """One step of one replica: which rows compute how many tokens from which position.

    Decode rows come first. Copies are made before anything is computed, those out before those in;
    there may be plans with copies and no rows.
    """

    replica: int
    epoch: int  # of the executor it is meant for; others drop it
    step: int  # per replica, from 1, without gaps
    rows: RecordArray  # PLAN_ROW[n]
    scheduler_epoch: int = 0  # which scheduler instance planned it; set by the scheduler's loop
    copies: RecordArray = NO_COPIES  # COPY[m]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a replica computed for one plan: rows with SAMPLE, PROMPT_LOGPROBS or an error only."""

    replica: int
    epoch: int
    step: int
    started_ns: int
    finished_ns: int
    rows: RecordArray  # RESULT_ROW[n]
    logprobs: RecordArray = field(default_factory=empty_logprobs)  # LOGPROB[m]
    scheduler_epoch: int = 0  # of the plan; schedulers of another epoch drop the result


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """What happened to the requests of one tokenizer, in order."""

    records: RecordArray  # OUTPUT[n]
    logprobs: RecordArray = field(default_factory=empty_logprobs)  # LOGPROB[m]
