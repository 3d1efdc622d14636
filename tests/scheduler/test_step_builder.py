"""The limits of a step hold whatever a policy asks for."""

import numpy as np

from core.kv_cache.manager import StartQuote
from core.metering import Metering
from core.policy.base import Blocked, Grant
from core.policy.plain.fcfs import FcfsPolicy
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.scheduler.events import ReplicaUp
from core.scheduler.plan import row_dtype
from core.scheduler.replica import Replica
from core.scheduler.scheduler import Scheduler
from core.scheduler.step_builder import StepBuilder
from core.simulation.engine import BUCKETS
from tests.support.scheduler.checked_engine import make_request, make_settings


def make_scheduler(num_blocks: int = 100, **overrides: object) -> Scheduler:
    """Return a scheduler with one replica that is up; the test plays the policy."""
    settings = make_settings(**overrides)
    rows = np.zeros(settings.num_rows, row_dtype(settings.max_blocks_per_seq))
    replica = Replica(0, rows, settings)
    policy = FcfsPolicy(PolicySettings(max_num_partial_prefills=99, kv_headroom_fraction=0.0))
    scheduler = Scheduler(settings, [replica], policy, Metering(BUCKETS, 4))
    replica.come_up(ReplicaUp(0, 1, num_blocks))
    return scheduler


def accept(scheduler: Scheduler, *prompt_lens: int, max_tokens: int = 4) -> list[Request]:
    requests = [
        make_request(i, prompt_len, max_tokens, first_token=100 * i)
        for i, prompt_len in enumerate(prompt_lens)
    ]
    for request in requests:
        scheduler.accept_or_reject(request, 1)
    return requests


def open_step(scheduler: Scheduler) -> StepBuilder:
    builder = StepBuilder(scheduler, scheduler.replicas[0], 1)
    builder.add_decodes()
    return builder


def test_a_step_never_exceeds_its_tokens() -> None:
    """Grants are clipped to what is left, then refused."""
    scheduler = make_scheduler(max_num_batched_tokens=16)
    first, second, third = accept(scheduler, 10, 10, 10)
    step = open_step(scheduler)
    assert step.grant(first, 99) == Grant(10)
    assert step.grant(second, 99) == Grant(6)
    assert step.grant(third, 99) == Grant(0, Blocked.TOKENS)
    assert third.status is RequestStatus.WAITING


def test_a_step_never_leaves_too_many_prompts_partly_computed() -> None:
    """A prompt that would be one too many partial is refused unless it can be completed."""
    scheduler = make_scheduler(max_num_partial_prefills=2)
    requests = accept(scheduler, 8, 8, 8)
    step = open_step(scheduler)
    assert [step.grant(request, 1).blocked for request in requests] == [
        Blocked.NOTHING, Blocked.NOTHING, Blocked.PARTIAL_PREFILLS,
    ]  # fmt: skip
    assert requests[2].status is RequestStatus.WAITING
    assert step.grant(requests[2], 8) == Grant(8)
    assert step.grant(requests[0], 7) == Grant(7)


def test_a_prompt_with_one_token_left_is_not_partly_computed() -> None:
    """As many as like may keep their last token, in this step and in the next."""
    scheduler = make_scheduler(max_num_partial_prefills=2, pipeline_depth=2)
    requests = accept(scheduler, 8, 8, 8, 8, 8)
    step = open_step(scheduler)
    assert [step.grant(request, 7) for request in requests[:3]] == [Grant(7)] * 3
    assert step.finish() is not None
    assert scheduler.replicas[0].table.num_partial() == 0
    step = open_step(scheduler)
    assert [step.grant(request, 6) for request in requests[3:]] == [Grant(6)] * 2
    assert [step.grant(request, 1) for request in requests[:3]] == [Grant(1)] * 3
    assert step.finish() is not None
    assert scheduler.replicas[0].table.num_partial() == 2


def test_two_grants_to_one_request_are_one_row() -> None:
    """Whatever a request is granted in a step becomes one row of the plan."""
    scheduler = make_scheduler()
    [request] = accept(scheduler, 8)
    step = open_step(scheduler)
    step.grant(request, 3)
    step.grant(request, 3)
    plan = step.finish()
    assert plan is not None
    assert plan.rows["num_new_tokens"].tolist() == [6]


def test_rows_limit_the_sequences() -> None:
    """With max_num_seqs running, nothing starts, and a step says so in advance."""
    scheduler = make_scheduler(max_num_seqs=1)
    first, second = accept(scheduler, 4, 4)
    step = open_step(scheduler)
    assert step.may_start_requests
    step.grant(first, 4)
    assert not step.may_start_requests
    assert step.grant(second, 4) == Grant(0, Blocked.SEQUENCES)


def test_a_draining_replica_starts_nothing() -> None:
    """A draining replica refuses starts with its reason."""
    scheduler = make_scheduler()
    [request] = accept(scheduler, 4)
    scheduler.replicas[0].draining = True
    assert open_step(scheduler).start(request) is Blocked.DRAINING


def test_nothing_starts_in_a_step_that_had_to_preempt() -> None:
    """Memory that was taken from a victim goes to the one in need, not to a newcomer."""
    scheduler = make_scheduler(7)
    first, second, third = accept(scheduler, 12, 12, 4, max_tokens=8)
    step = open_step(scheduler)
    step.grant(first, 12)
    step.grant(second, 12)
    compute(scheduler, step)
    step = open_step(scheduler)
    assert second.status is RequestStatus.PREEMPTED
    assert step.grant(third, 4) == Grant(0, Blocked.MEMORY)
    compute(scheduler, step)
    assert open_step(scheduler).grant(third, 4) == Grant(4)


def test_a_preemption_takes_its_tokens_out_of_the_step() -> None:
    """A request that is preempted in the step it was granted tokens in is not in the plan."""
    scheduler = make_scheduler(max_num_batched_tokens=16)
    first, second = accept(scheduler, 8, 8)
    step = open_step(scheduler)
    step.grant(first, 8)
    step.grant(second, 8)
    step.preempt(second)
    assert step.tokens_left == 8
    plan = step.finish()
    assert plan is not None
    assert len(plan.rows) == 1
    assert second.status is RequestStatus.PREEMPTED
    assert second in scheduler.waiting
    scheduler.check_integrity()


def test_a_quote_promises_what_a_start_takes() -> None:
    """A quote names the blocks that a start then holds."""
    scheduler = make_scheduler()
    [request] = accept(scheduler, 9)
    quote = scheduler.routing.quote(request, scheduler.replicas[0])
    assert quote == StartQuote([], 3, 3)
    open_step(scheduler).grant(request, 1)
    assert len(request.block_ids) == 3


def compute(scheduler: Scheduler, step: StepBuilder) -> None:
    """Send the step, and acknowledge it with token 9 for whoever samples."""
    plan = step.finish()
    assert plan is not None
    replica = scheduler.replicas[0]
    table = replica.table
    rows = plan.rows["row"].astype(np.int64)
    table.num_computed[rows] += plan.rows["num_new_tokens"]
    samples = rows[table.num_computed[rows] == table.num_tokens[rows]]
    table.append_tokens(samples, table.num_tokens[samples], np.full(len(samples), 9, np.int32))
    scheduler.unpin(replica.acknowledge(replica.in_flight.popleft()), 1)
