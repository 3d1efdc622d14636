"""What happened to the requests, collected per tokenizer until the loop takes it.

Owns: the order of OUTPUT records and the log-probabilities they point to. Never knows: rings, text.
Records of one request leave in the order in which they were added. Tokens of a whole step are added
as one array; everything else one by one.
"""

import numpy as np
import numpy.typing as npt

from core.errors import Rejection, RejectionReason
from core.request import Request
from core.scheduler.plan import LOGPROB, OUTPUT, OutputBatch, OutputKind, RecordArray

NOBODY = -1  # tokenizer of requests whose tokenizer is dead
NOT_REFUSED = Rejection(RejectionReason.NONE)


class TokenizerOutputs:
    """The pending batch of one tokenizer."""

    def __init__(self) -> None:
        """Start empty."""
        self._parts: list[RecordArray | list[tuple[object, ...]]] = []
        self._singles: list[tuple[object, ...]] | None = None  # the last part, if it is one
        self._logprobs: list[RecordArray] = []
        self._num_logprobs = 0

    def add_single(self, record: tuple[object, ...]) -> None:
        """Append one record, fields in the order of OUTPUT."""
        if self._singles is None:
            self._singles = []
            self._parts.append(self._singles)
        self._singles.append(record)

    def add_array(self, records: RecordArray) -> None:
        """Append OUTPUT[n]."""
        self._singles = None
        self._parts.append(records)

    def add_logprobs(self, logprobs: RecordArray) -> int:
        """Append LOGPROB[n] and return the index of the first entry in the batch."""
        start = self._num_logprobs
        self._logprobs.append(logprobs)
        self._num_logprobs += len(logprobs)
        return start

    def batch(self) -> OutputBatch:
        """Return everything that was added."""
        logprobs = np.concatenate(self._logprobs) if self._logprobs else np.empty(0, LOGPROB)
        arrays = [np.asarray(part, OUTPUT) for part in self._parts]
        records = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return OutputBatch(records, logprobs)


class Outputs:
    """The pending batches of all tokenizers."""

    def __init__(self) -> None:
        """Start empty."""
        self._pending: dict[int, TokenizerOutputs] = {}

    def of(self, tokenizer: int) -> TokenizerOutputs:
        """Return the pending batch of `tokenizer`."""
        pending = self._pending.get(tokenizer)
        if pending is None:
            pending = self._pending[tokenizer] = TokenizerOutputs()
        return pending

    def add(
        self,
        request: Request,
        kind: OutputKind,
        *,
        index: int = 0,
        logprobs: RecordArray | None = None,
        queue_ns: int = 0,
    ) -> None:
        """Append a record of `request` other than a token."""
        if request.tokenizer == NOBODY:
            return
        pending = self.of(request.tokenizer)
        start, count = 0, 0
        if logprobs is not None:
            start, count = pending.add_logprobs(logprobs), len(logprobs)
        refused = request.rejection or NOT_REFUSED
        pending.add_single(
            (
                request.request_id, kind, -1, index, np.nan, start, count, request.status,
                request.prompt_len, request.num_cached_tokens, request.num_output_tokens,
                queue_ns, refused.reason, refused.retry_after_ms, refused.measured,
                refused.threshold, request.traffic_class,
            )
        )  # fmt: skip

    def add_tokens(self, tokenizers: npt.NDArray[np.int32], records: RecordArray) -> None:
        """Append the TOKEN records of a step, OUTPUT[n], each for its tokenizer, int32[n]."""
        counts = np.bincount(tokenizers)
        for tokenizer in counts.nonzero()[0].tolist():
            is_alone = counts[tokenizer] == len(records)
            its_own = records if is_alone else records[tokenizers == tokenizer]
            self.of(tokenizer).add_array(its_own)

    def forget(self, tokenizer: int) -> None:
        """Drop what a dead tokenizer will not read."""
        self._pending.pop(tokenizer, None)

    def take(self) -> dict[int, OutputBatch]:
        """Return and clear all pending batches, by tokenizer."""
        pending, self._pending = self._pending, {}
        return {tokenizer: outputs.batch() for tokenizer, outputs in pending.items()}
