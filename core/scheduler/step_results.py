"""Taking in what a replica computed: tokens, finishes, blocks that others may now find.

Owns: the reading of a StepResult. Never knows: what comes next. Work on all rows of the step is
vectorized; a `Request` is touched only if something special happened to it. A row whose request has
left in the meantime is dropped here: its token is neither delivered, counted nor cached.
"""

import numpy as np
import numpy.typing as npt

from core.errors import Rejection, RejectionReason
from core.metering import PreemptionCause
from core.request import Request, RequestStatus
from core.scheduler.plan import (
    OUTPUT,
    OutputKind,
    PlanFlag,
    RecordArray,
    ResultError,
    StepResult,
)
from core.scheduler.replica import PlanInFlight, Replica
from core.scheduler.running_table import Rows
from core.scheduler.scheduler import Scheduler

Mask = npt.NDArray[np.bool_]

_SAMPLE = np.uint32(PlanFlag.SAMPLE)
_STOPPED = RequestStatus.FINISHED_STOPPED
_LENGTH = RequestStatus.FINISHED_LENGTH


def apply_result(scheduler: Scheduler, replica: Replica, result: StepResult, now_ns: int) -> bool:
    """Apply `result`; False = it belongs to no plan in flight and was ignored."""
    if result.epoch != replica.epoch or not _is_in_flight(replica, result.step):
        scheduler.metering.ignored_results += 1
        return False
    while replica.in_flight[0].step < result.step:
        _recompute_lost(scheduler, replica, now_ns)
    plan = replica.in_flight.popleft()
    duration_ns = result.finished_ns - result.started_ns
    scheduler.records.trace_log.steps.add(
        plan.rows, plan.planned_ns, duration_ns, replica.last_result_ns, now_ns
    )
    replica.last_result_ns = now_ns
    scheduler.metering.steps += 1
    scheduler.metering.step_time.observe_ns(duration_ns)
    if not plan.num_copies:  # a step's work says nothing of the time that copies take
        scheduler.policy.measured(replica.index, result.step, duration_ns)
    _AppliedStep(scheduler, replica, plan, result, now_ns).run()
    scheduler.unpin(replica.acknowledge(plan), now_ns)
    return True


def _is_in_flight(replica: Replica, step: int) -> bool:
    return any(plan.step == step for plan in replica.in_flight)


def _recompute_lost(scheduler: Scheduler, replica: Replica, now_ns: int) -> None:
    """A later result came first, so this one is lost: its requests are computed again."""
    plan = replica.in_flight.popleft()
    rows = _current_rows(replica, plan)
    for row in rows.tolist():
        scheduler.preempt(replica.table.request_at(row), PreemptionCause.LOST_RESULT, now_ns)
    scheduler.metering.ignored_results += 1
    scheduler.unpin(replica.acknowledge(plan), now_ns)


def _current_rows(replica: Replica, plan: PlanInFlight) -> Rows:
    """Return the rows of `plan` that the same request still has."""
    rows: Rows = plan.rows["row"].astype(np.int64)
    current = _is_current(replica, rows, plan.rows["generation"])
    return rows[current]


def _is_current(replica: Replica, rows: Rows, generations: npt.NDArray[np.uint32]) -> Mask:
    mask: Mask = replica.table.active[rows] & (replica.table.generation[rows] == generations)
    return mask


def _all(mask: Mask) -> bool:
    """Tell whether all of `mask`, bool[n], is True; several times as fast as its own `all`."""
    return bool(np.count_nonzero(mask) == len(mask))


class _AppliedStep:
    """One result being applied, phase by phase."""

    def __init__(
        self,
        scheduler: Scheduler,
        replica: Replica,
        plan: PlanInFlight,
        result: StepResult,
        now_ns: int,
    ) -> None:
        self._scheduler = scheduler
        self._replica = replica
        self._table = replica.table
        self._plan = plan
        self._now_ns = now_ns
        self._logprobs = result.logprobs
        self._rows = self._valid_rows(result.rows)

    def run(self) -> None:
        """Advance the rows of the plan, deliver, commit, and end what has ended; in this order."""
        planned, must_sample = self._advance()
        self._deliver_prompt_logprobs()
        rows, tokens = self._deliver_tokens()
        self._commit_blocks(planned)
        if len(rows) != len(must_sample):
            self._fail_rows(must_sample)
        self._end_rows(rows, tokens)
        self._end_unsampled(planned)

    def _valid_rows(self, rows: RecordArray) -> RecordArray:
        """Return the records of the result whose request still has the row."""
        indexes = rows["row"]
        in_range = (indexes >= 0) & (indexes < self._table.num_rows)
        if not _all(in_range):
            rows = rows[in_range]
        current = _is_current(self._replica, rows["row"].astype(np.int64), rows["generation"])
        return rows if _all(current) else rows[current]

    def _advance(self) -> tuple[Rows, Rows]:
        """Count the plan's tokens as computed; return its current rows, and those that sample."""
        plan, table = self._plan.rows, self._table
        rows: Rows = plan["row"].astype(np.int64)
        current = _is_current(self._replica, rows, plan["generation"])
        if not _all(current):
            plan, rows = plan[current], rows[current]
        table.num_computed[rows] = plan["first_position"] + plan["num_new_tokens"]
        return rows, rows[(plan["flags"] & _SAMPLE) != 0]

    def _deliver_tokens(self) -> tuple[Rows, npt.NDArray[np.int32]]:
        """Append the sampled ids to spans and outputs; return the rows that have one, the ids."""
        table, results = self._table, self._rows
        rows: Rows = results["row"].astype(np.int64)
        sampled = (results["token_id"] >= 0) & (results["error"] == ResultError.NONE)
        sampled &= table.num_computed[rows] == table.num_tokens[rows]
        if not _all(sampled):
            results, rows = results[sampled], rows[sampled]
        tokens: npt.NDArray[np.int32] = results["token_id"]
        if not len(rows):
            return rows, tokens
        positions = table.num_tokens[rows]
        table.append_tokens(rows, positions, tokens)
        table.last_token_ns[rows] = self._now_ns
        indexes = positions - table.prompt_len[rows]
        self._note_first_tokens(rows[indexes == 0])
        self._scheduler.metering.count_generated(table.tenant_index[rows])
        self._output_tokens(results, rows, indexes)
        return rows, tokens

    def _output_tokens(
        self, results: RecordArray, rows: Rows, indexes: npt.NDArray[np.int32]
    ) -> None:
        tokenizers = self._table.tokenizer[rows]
        records = np.zeros(len(rows), OUTPUT)
        records["request_id"] = self._table.request_id[rows]
        records["kind"] = OutputKind.TOKEN
        records["status"] = RequestStatus.RUNNING
        records["index"] = indexes
        records["num_output_tokens"] = indexes + 1
        for name in ("token_id", "logprob"):
            records[name] = results[name]
        for i in np.flatnonzero(results["num_logprobs"]).tolist():
            entries = self._entries(results["logprobs_start"][i], results["num_logprobs"][i])
            outputs = self._scheduler.outputs.of(int(tokenizers[i]))
            records["logprobs_start"][i] = outputs.add_logprobs(entries)
            records["num_logprobs"][i] = len(entries)
        self._scheduler.outputs.add_tokens(tokenizers, records)

    def _note_first_tokens(self, rows: Rows) -> None:
        for row in rows.tolist():
            request = self._table.request_at(row)
            request.first_token_ns = self._now_ns
            self._scheduler.metering.prefill_time.observe_ns(self._now_ns - request.first_start_ns)

    def _deliver_prompt_logprobs(self) -> None:
        """Pass on the entries about prompt tokens that were not delivered before a preemption."""
        scored = self._rows["num_prompt_logprobs"] > 0
        if not np.count_nonzero(scored):
            return
        plan = self._plan.rows
        first_positions = dict(
            zip(plan["row"].tolist(), plan["first_position"].tolist(), strict=True)
        )
        for record in self._rows[scored]:
            request = self._table.request_at(int(record["row"]))
            width = 1 + request.sampling.num_prompt_logprobs
            entries = self._entries(record["prompt_logprobs_start"], record["num_prompt_logprobs"])
            start = first_positions[int(record["row"])]
            end = start + len(entries) // width
            skipped = max(request.num_scored_tokens - start, 0)
            if start + skipped < end:
                request.num_scored_tokens = end
                self._scheduler.outputs.add(
                    request,
                    OutputKind.PROMPT_LOGPROBS,
                    index=start + skipped,
                    logprobs=entries[skipped * width :],
                )

    def _entries(self, start: int, count: int) -> RecordArray:
        return self._logprobs[int(start) : int(start) + int(count)]

    def _commit_blocks(self, rows: Rows) -> None:
        """Let blocks that are full and acknowledged be found by others."""
        table = self._table
        num_full = table.num_computed[rows] // self._scheduler.settings.block_size
        filled = num_full > table.num_committed_blocks[rows]
        for row, end in zip(rows[filled].tolist(), num_full[filled].tolist(), strict=True):
            first = int(table.num_committed_blocks[row])
            self._replica.kv.commit(table.request_at(row), first, end)
            table.num_committed_blocks[row] = end

    def _fail_rows(self, must_sample: Rows) -> None:
        """End the requests whose row has an error, or should have a token and has none."""
        errors = self._rows[self._rows["error"] != ResultError.NONE]
        for record in errors:
            self._fail(int(record["row"]), int(record["error"]))
        table = self._table
        lacking = table.num_tokens[must_sample] <= table.num_computed[must_sample]
        for row in must_sample[lacking].tolist():
            self._fail(row, ResultError.BAD_TOKEN)

    def _fail(self, row: int, error: int) -> None:
        request = self._table.requests[row]
        if request is not None:
            fault = Rejection(RejectionReason.EXECUTOR_FAULT, measured=error)
            self._finish(request, RequestStatus.FINISHED_ERROR, fault)

    def _end_rows(self, rows: Rows, tokens: npt.NDArray[np.int32]) -> None:
        """End what has sampled a stop token or its last token."""
        table = self._table
        stopped = table.has_stopped(rows, tokens)
        ended = stopped | (table.num_tokens[rows] >= table.max_length[rows])
        for row, has_stopped in zip(rows[ended].tolist(), stopped[ended].tolist(), strict=True):
            request = table.request_at(row)
            self._finish(request, _STOPPED if has_stopped else _LENGTH)

    def _end_unsampled(self, rows: Rows) -> None:
        """End requests that only wanted their prompt computed (`max_tokens` 0)."""
        table = self._table
        done = table.active[rows] & (table.num_computed[rows] >= table.max_length[rows])
        for row in rows[done].tolist():
            self._finish(table.request_at(row), _LENGTH)

    def _finish(
        self, request: Request, status: RequestStatus, fault: Rejection | None = None
    ) -> None:
        self._scheduler.finish(request, status, self._now_ns, rejection=fault)
