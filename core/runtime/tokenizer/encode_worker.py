"""Long prompts off the loop: one thread that encodes one piece at a time.

Owns: the thread, and the bell that wakes the loop when a piece is done. Never knows: whose turn it
is (`core.tokenizer.intake`). There is at most one piece with the worker, so nothing queues here.
The tokenizer library releases the interpreter while it works; the loop goes on meanwhile.
"""

import queue
import threading
from typing import Protocol

from core.tokenizer.intake import Encoding
from ipc.doorbell import Doorbell


class EncodeWorker(Protocol):
    """Somebody who advances one encoding by one piece."""

    @property
    def is_busy(self) -> bool:
        """Whether a piece is with the worker, done or not."""
        ...

    def start(self, encoding: Encoding) -> None:
        """Take a piece; only when not busy."""
        ...

    def take_done(self) -> tuple[Encoding, bool] | None:
        """Return the encoding and whether its job is done, once its piece is; else None."""
        ...


class ThreadEncodeWorker:
    """The worker of the process: a daemon thread, which ends with it."""

    def __init__(self, bell: Doorbell) -> None:
        """Start the thread; `bell` is rung when a piece is done."""
        self._bell = bell
        self._is_busy = False
        self._pieces: queue.SimpleQueue[Encoding] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Encoding, bool | BaseException]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="encode", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether a piece is with the thread, or done and not taken."""
        return self._is_busy

    def start(self, encoding: Encoding) -> None:
        """Give the thread a piece."""
        assert not self._is_busy
        self._is_busy = True
        self._pieces.put(encoding)

    def take_done(self) -> tuple[Encoding, bool] | None:
        """Return a piece that is done; a fault of our own in the thread is raised here."""
        self._bell.clear()  # before looking, so that a piece done meanwhile rings again
        try:
            encoding, outcome = self._done.get_nowait()
        except queue.Empty:
            return None
        self._is_busy = False
        if isinstance(outcome, BaseException):
            raise outcome
        return encoding, outcome

    def _run(self) -> None:
        while True:
            encoding = self._pieces.get()
            outcome: bool | BaseException
            try:
                outcome = encoding.job.advance()
            except BaseException as error:  # noqa: BLE001 the loop raises it and ends the process
                outcome = error
            self._done.put((encoding, outcome))
            self._bell.ring()
