"""The encoding thread: one piece at a time, a bell when it is done, faults in the open."""

import select

import pytest

from core.messages.tokenizer import TextPrompt
from core.runtime.tokenizer.encode_worker import ThreadEncodeWorker
from core.tokenizer.intake import Encoding
from core.tokenizer.prompts import EncodeJob, PromptEncoder
from ipc.doorbell import Doorbell
from tests.support.models.tiny_vocabulary import tiny_vocabulary

WAIT_S = 60.0


class BrokenJob(EncodeJob):
    """A job with a bug of ours in it."""

    def advance(self) -> bool:
        """Fail."""
        raise ZeroDivisionError("our own fault")


def encoder() -> PromptEncoder:
    """Return an encoder of small pieces."""
    return PromptEncoder(tiny_vocabulary(), None, 10_000, 100)


def wait_for(bell: Doorbell) -> None:
    """Wait until the bell is rung, as the loop does."""
    assert select.select([bell], [], [], WAIT_S)[0]


def test_pieces_come_back_until_the_job_is_done() -> None:
    """Each start does one piece and rings the bell; together they encode the text."""
    bell, text = Doorbell.create(), "the rest of the street " * 20
    worker = ThreadEncodeWorker(bell)
    encoding = Encoding(b"peer", "op", "tenant", encoder().start(TextPrompt(text)))
    is_done, num_pieces = False, 0
    while not is_done:
        assert not worker.is_busy
        worker.start(encoding)
        assert worker.is_busy
        wait_for(bell)
        done = worker.take_done()
        assert done is not None
        assert done[0] is encoding
        is_done, num_pieces = done[1], num_pieces + 1
    assert worker.take_done() is None
    assert not bell.clear()
    assert num_pieces > 3
    assert encoding.job.token_ids == tiny_vocabulary().encode(text)


def test_a_fault_in_the_thread_ends_the_loop() -> None:
    """A bug in the thread is raised where the loop takes the piece."""
    bell = Doorbell.create()
    worker = ThreadEncodeWorker(bell)
    worker.start(Encoding(b"p", "op", "tenant", BrokenJob(encoder(), TextPrompt("x"))))
    wait_for(bell)
    with pytest.raises(ZeroDivisionError, match="our own fault"):
        worker.take_done()
