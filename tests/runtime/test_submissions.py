"""Submissions: what makes a request, and what is refused."""

import msgspec
import numpy as np
import pytest

from core.messages.scheduler import Submit
from core.runtime.scheduler.submissions import SubmitError, request_of
from core.sampling_params import SamplingParams
from core.tenancy.classes import TrafficClass

ARENA = np.arange(1024, dtype=np.int32)
GOOD = Submit(
    request_id=2**63,
    operation_id="op",
    choice=0,
    tokenizer=0,
    tokenizer_epoch=1,
    tenant="default",
    traffic_class=TrafficClass.STANDARD,
    span_start=256,
    prompt_len=70,
    max_tokens=10,
    arrival_ns=5,
    sampling=SamplingParams(),
    digests=bytes(range(32)),
)


def test_a_submission_becomes_a_request_with_its_span_in_the_arena() -> None:
    """The span is a view: what the scheduler writes there is in the arena."""
    request = request_of(GOOD, [ARENA], block_size=32)
    assert request.token_ids.tolist() == list(range(256, 336))
    assert np.shares_memory(request.token_ids, ARENA)
    assert request.prompt_digests == (bytes(range(16)), bytes(range(16, 32)))
    assert request.num_output_tokens == 0


def test_a_resumed_submission_begins_behind_what_was_delivered() -> None:
    """`resume_from` becomes the number of output tokens."""
    submit = msgspec.structs.replace(GOOD, resume_from=4)
    assert request_of(submit, [ARENA], block_size=32).num_tokens == 74


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": -1},
        {"request_id": 2**64},
        {"tokenizer": 1},
        {"tokenizer": -1},
        {"prompt_len": 0},
        {"prompt_len": -5},
        {"max_tokens": -1},
        {"span_start": -1},
        {"span_start": 1024 - 79},
        {"span_start": 2**80},
        {"max_tokens": 2**40},
        {"resume_from": 11},
        {"resume_from": -1},
        {"digests": b"short"},
        {"digests": bytes(48)},
    ],
    ids=str,
)
def test_a_submission_out_of_bounds_is_refused_by_name(change: dict[str, object]) -> None:
    """Nothing outside its arena can be read or written through a submission."""
    submit = msgspec.structs.replace(GOOD, **change)
    with pytest.raises(SubmitError):
        request_of(submit, [ARENA], block_size=32)
