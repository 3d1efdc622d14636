"""The scheduler's small parts: deadlines, drain rate, outputs, rows, running table, settings."""

import numpy as np

from core.config import EngineConfig, PolicyConfig, SchedulerConfig
from core.errors import RETRY_AFTER_MS
from core.policy.limits import Limits
from core.request import RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler.deadlines import MIN_SWEEP_SIZE, DeadlineHeap, DeadlineKind
from core.scheduler.drain_rate import MAX_RETRY_MS, MIN_RETRY_MS, DrainRate
from core.scheduler.outputs import NOBODY, Outputs
from core.scheduler.plan import LOGPROB, OUTPUT, OutputKind, row_dtype
from core.scheduler.rows import RowWriter
from core.scheduler.running_table import RunningTable
from core.scheduler.settings import EngineSettings
from core.tenancy import TrafficClass
from tests.support.scheduling import NS_PER_S, make_request


def test_deadlines_come_in_order_and_only_when_due() -> None:
    """What is due comes out earliest first, once; the rest stays."""
    heap, first, second = DeadlineHeap(), make_request(1), make_request(2)
    heap.add(20, DeadlineKind.START, second)
    heap.add(10, DeadlineKind.END, first)
    heap.add(30, DeadlineKind.END, second)
    assert heap.next_ns() == 10
    assert heap.pop_due(20) == [(DeadlineKind.END, first), (DeadlineKind.START, second)]
    assert heap.pop_due(20) == []
    assert heap.next_ns() == 30


def test_a_deadline_that_no_longer_matters_is_silent() -> None:
    """A start deadline of a running request and any deadline of a finished one are dropped."""
    heap, started, ended = DeadlineHeap(), make_request(1), make_request(2)
    heap.add(10, DeadlineKind.START, started)
    heap.add(10, DeadlineKind.END, ended)
    started.move_to(RequestStatus.RUNNING)
    ended.move_to(RequestStatus.FINISHED_ABORTED)
    assert heap.next_ns() is None
    assert heap.pop_due(99) == []


def test_stale_deadlines_are_swept() -> None:
    """Deadlines of finished requests do not pile up until they would have passed."""
    heap = DeadlineHeap()
    for i in range(5 * MIN_SWEEP_SIZE):
        request = make_request(i)
        heap.add(10**15, DeadlineKind.END, request)
        request.move_to(RequestStatus.FINISHED_ABORTED)
    assert len(heap) <= MIN_SWEEP_SIZE + 1


def test_the_time_to_retry_follows_the_drain_rate() -> None:
    """Twice the speed halves the time to wait; it stays within its bounds."""
    slow, fast = DrainRate(), DrainRate()
    for second in range(60):
        slow.observe(100, second * NS_PER_S)
        fast.observe(200, second * NS_PER_S)
    now_ns = 60 * NS_PER_S
    ratio = slow.retry_after_ms(1000, now_ns) / fast.retry_after_ms(1000, now_ns)
    assert 1.9 < ratio < 2.1
    assert fast.retry_after_ms(1, now_ns) == MIN_RETRY_MS
    assert fast.retry_after_ms(10**9, now_ns) == MAX_RETRY_MS


def test_an_engine_that_has_not_drained_anything_names_a_default() -> None:
    """Without a known rate, also long after the last departure, the default is named."""
    rate = DrainRate()
    assert rate.retry_after_ms(1000, NS_PER_S) == RETRY_AFTER_MS
    rate.observe(100, NS_PER_S)
    assert rate.retry_after_ms(1000, 1000 * NS_PER_S) == RETRY_AFTER_MS


def test_outputs_keep_the_order_of_single_records_and_arrays() -> None:
    """Records of a tokenizer leave in the order in which they were added, tokens included."""
    outputs, request = Outputs(), make_request(5)
    outputs.add(request, OutputKind.STARTED, queue_ns=3)
    tokens = np.zeros(2, OUTPUT)
    tokens["kind"] = OutputKind.TOKEN
    outputs.add_tokens(np.array([0, 1], np.int32), tokens)
    outputs.add(request, OutputKind.FINISHED)
    taken = outputs.take()
    kinds = taken[0].records["kind"].tolist()
    assert kinds == [OutputKind.STARTED, OutputKind.TOKEN, OutputKind.FINISHED]
    assert taken[1].records["kind"].tolist() == [OutputKind.TOKEN]
    assert outputs.take() == {}


def test_a_record_tells_the_class_that_serves_its_request() -> None:
    """Which may not be the one that it asked for."""
    outputs, request = Outputs(), make_request(traffic_class=TrafficClass.INTERACTIVE)
    request.traffic_class = TrafficClass.STANDARD
    outputs.add(request, OutputKind.QUEUED)
    assert outputs.take()[0].records["traffic_class"].tolist() == [TrafficClass.STANDARD]


def test_logprobs_are_numbered_within_their_batch() -> None:
    """Each record points to its own entries in the batch, whatever was added before."""
    outputs, request = Outputs(), make_request()
    entries = np.array([(1, -0.5), (2, -1.5)], LOGPROB)
    outputs.add(request, OutputKind.PROMPT_LOGPROBS, logprobs=entries[:1])
    outputs.add(request, OutputKind.PROMPT_LOGPROBS, index=1, logprobs=entries[1:])
    batch = outputs.take()[0]
    assert batch.records["logprobs_start"].tolist() == [0, 1]
    assert batch.logprobs["token_id"].tolist() == [1, 2]


def test_nobody_is_told_about_requests_of_a_dead_tokenizer() -> None:
    """What was pending for a dead tokenizer is dropped, and nothing is added."""
    outputs, request = Outputs(), make_request()
    outputs.add(request, OutputKind.QUEUED)
    outputs.forget(0)
    request.tokenizer = NOBODY
    outputs.add(request, OutputKind.FINISHED)
    assert outputs.take() == {}


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


def test_settings_follow_the_configuration() -> None:
    """Settings take the configured limits, in ns where the configuration has ms."""
    settings = EngineSettings.from_config(
        EngineConfig(max_num_seqs=32, pipeline_depth=2),
        SchedulerConfig(queue_deadline_ms=1500),
        PolicyConfig(),
        Limits(),
        max_model_len=100,
        eos_token_ids=(2,),
        digest_secret=b"x",
    )
    assert settings.num_rows == 64
    assert settings.max_blocks_per_seq == 4
    assert settings.queue_deadline_ns == 1_500_000_000
