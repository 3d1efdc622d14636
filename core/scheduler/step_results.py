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
    RecordArray,
    ResultError,
    StepResult,
)
from core.scheduler.plan_rows import PlannedRows
from core.scheduler.replica import PlanInFlight, Replica
from core.scheduler.running_table import Rows, RunningTable
from core.scheduler.scheduler import Scheduler

Mask = npt.NDArray[np.bool_]

# The same as plain integers: enum members are slow to become array entries.
_NO_ERROR, _TOKEN, _RUNNING = (
    int(ResultError.NONE),
    int(OutputKind.TOKEN),
    int(RequestStatus.RUNNING),
)
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
    _note_duration(scheduler, replica, plan, result.finished_ns - result.started_ns, now_ns)
    scheduler.unpin(replica.acknowledge(plan), now_ns)  # what ends now is free at once
    _AppliedStep(scheduler, replica, plan, result, now_ns).run()
    return True


def _is_in_flight(replica: Replica, step: int) -> bool:
    return replica.acked_step < step <= replica.step and bool(replica.in_flight)


def _note_duration(
    scheduler: Scheduler, replica: Replica, plan: PlanInFlight, duration_ns: int, now_ns: int
) -> None:
    scheduler.records.trace_log.steps.add(
        plan.planned.records, plan.planned_ns, duration_ns, replica.last_result_ns, now_ns
    )
    replica.last_result_ns = now_ns
    scheduler.metering.steps += 1
    scheduler.metering.step_time.observe_ns(duration_ns)
    if not plan.num_copies:  # a step's work says nothing of the time that copies take
        scheduler.policy.measured(replica.index, plan.step, duration_ns)


def _recompute_lost(scheduler: Scheduler, replica: Replica, now_ns: int) -> None:
    """A later result came first, so this one is lost: its requests are computed again."""
    plan = replica.in_flight.popleft()
    planned = plan.planned
    current = _is_current(replica.table, planned.rows, planned.records)
    for row in planned.rows[current].tolist():
        scheduler.preempt(replica.table.request_at(row), PreemptionCause.LOST_RESULT, now_ns)
    scheduler.metering.ignored_results += 1
    scheduler.unpin(replica.acknowledge(plan), now_ns)


def _is_current(table: RunningTable, rows: Rows, records: RecordArray) -> Mask:
    """Tell which of `rows` the requests of these PLAN_ROW[n] or RESULT_ROW[n] still have."""
    mask: Mask = table.generation[rows] == records["generation"]
    mask &= table.active[rows]
    return mask


def _some(mask: Mask) -> Rows | None:
    """Return where `mask`, bool[n], is True; None: everywhere."""
    places: Rows = mask.nonzero()[0]
    return None if len(places) == len(mask) else places


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
        self._planned = self._still_planned()
        self._results, self._rows = self._still_valid(result.rows)

    def run(self) -> None:
        """Advance the rows of the plan, deliver, commit, and end what has ended; in this order."""
        planned = self._planned
        self._table.num_computed[planned.rows] = planned.ends
        self._deliver_prompt_logprobs()
        rows, tokens = self._deliver_tokens()
        self._commit_blocks()
        sampling = _some(planned.samples)
        must_sample = planned.rows if sampling is None else planned.rows[sampling]
        if len(rows) != len(must_sample):
            self._fail_rows(must_sample)
        self._end_rows(rows, tokens)
        if sampling is not None:
            self._end_unsampled(planned.rows[~planned.samples])

    def _still_planned(self) -> PlannedRows:
        """Return what was planned for requests that still have their rows."""
        planned = self._plan.planned
        if self._plan.num_changes == self._table.num_changes:
            return planned
        current = _some(_is_current(self._table, planned.rows, planned.records))
        return planned if current is None else planned.chosen(current)

    def _still_valid(self, records: RecordArray) -> tuple[RecordArray, Rows]:
        """Return the results, and their rows, whose requests still have these."""
        rows: Rows = records["row"].astype(np.int64)
        in_range = _some(rows.view(np.uint64) < self._table.num_rows)
        if in_range is not None:
            records, rows = records[in_range], rows[in_range]
        current = _some(_is_current(self._table, rows, records))
        return (records, rows) if current is None else (records[current], rows[current])

    def _deliver_tokens(self) -> tuple[Rows, npt.NDArray[np.int32]]:
        """Append the sampled ids to spans and outputs; return the rows that have one, the ids."""
        table, results, rows = self._table, self._results, self._rows
        positions = table.num_tokens[rows]
        is_sampled = table.num_computed[rows] == positions
        is_sampled &= results["token_id"] >= 0
        is_sampled &= results["error"] == _NO_ERROR
        sampled = _some(is_sampled)
        if sampled is not None:
            results, rows, positions = results[sampled], rows[sampled], positions[sampled]
        tokens: npt.NDArray[np.int32] = results["token_id"]
        if not len(rows):
            return rows, tokens
        table.append_tokens(rows, positions, tokens)
        table.last_token_ns[rows] = self._now_ns
        indexes = positions - table.prompt_len[rows]
        self._note_first_tokens(rows[indexes == 0])
        metering = self._scheduler.metering
        metering.count_generated(table.tenant_index[rows], table.traffic_class[rows])
        self._output_tokens(results, rows, indexes)
        return rows, tokens

    def _output_tokens(
        self, results: RecordArray, rows: Rows, indexes: npt.NDArray[np.int32]
    ) -> None:
        tokenizers = self._table.tokenizer[rows]
        records = np.zeros(len(rows), OUTPUT)
        records["request_id"] = self._table.request_id[rows]
        records["kind"] = _TOKEN
        records["status"] = _RUNNING
        records["index"] = indexes
        records["num_output_tokens"] = indexes + np.int32(1)
        records["token_id"] = results["token_id"]
        records["logprob"] = results["logprob"]
        for i in results["num_logprobs"].nonzero()[0].tolist():
            entries = self._entries(results["logprobs_start"][i], results["num_logprobs"][i])
            outputs = self._scheduler.outputs.of(int(tokenizers[i]))
            records["logprobs_start"][i] = outputs.add_logprobs(entries)
            records["num_logprobs"][i] = len(entries)
        self._scheduler.outputs.add_tokens(tokenizers, records)

    def _note_first_tokens(self, rows: Rows) -> None:
        for row in rows.tolist():
            self._scheduler.records.first_token(self._table.request_at(row), self._now_ns)

    def _deliver_prompt_logprobs(self) -> None:
        """Pass on the entries about prompt tokens that were not delivered before a preemption."""
        scored = self._results[self._results["num_prompt_logprobs"] > 0]
        if not len(scored):
            return
        planned = self._planned
        starts = planned.records["first_position"].tolist()
        first_positions = dict(zip(planned.rows.tolist(), starts, strict=True))
        for record in scored:
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

    def _commit_blocks(self) -> None:
        """Let blocks that are full and acknowledged be found by others."""
        table, rows = self._table, self._planned.rows
        size, ends = self._scheduler.settings.block_size, self._planned.ends
        num_committed = table.num_committed_blocks[rows]
        filled = (ends - num_committed * size >= size).nonzero()[0]
        if not len(filled):
            return
        rows, num_full = rows[filled], ends[filled] // size
        table.num_committed_blocks[rows] = num_full
        requests = table.requests_at(rows)
        computed = zip(requests, num_committed[filled].tolist(), num_full.tolist(), strict=True)
        self._replica.kv.commit(computed)

    def _fail_rows(self, must_sample: Rows) -> None:
        """End the requests whose row has an error, or should have a token and has none."""
        failed = self._results["error"] != _NO_ERROR
        errors = self._results["error"][failed].tolist()
        for row, error in zip(self._rows[failed].tolist(), errors, strict=True):
            self._fail(row, error)
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
        ended = (stopped | (table.num_tokens[rows] >= table.max_length[rows])).nonzero()[0]
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
