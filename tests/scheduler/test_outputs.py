"""What tokenizers are told, collected until the loop takes it."""

import numpy as np

from core.scheduler.outputs import NOBODY, Outputs
from core.scheduler.plan import LOGPROB, OUTPUT, OutputKind
from core.tenancy.classes import TrafficClass
from tests.support.scheduler.checked_engine import make_request


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
