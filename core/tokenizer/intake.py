"""Prompts that wait to be encoded, tenants in turn.

Owns: the two rotations (short prompts are encoded between other work, long ones a piece at a time
by a worker) and the bound on their bytes. Never knows: what becomes of the ids, or the worker.
"""

from dataclasses import dataclass

from core.tokenizer.operation import Operation
from core.tokenizer.prompts import EncodeJob
from core.tokenizer.rotation import Rotation


@dataclass(slots=True, eq=False)
class Encoding:
    """One prompt of an operation, or of a `Tokenize` call (`operation` None)."""

    peer: bytes
    operation_id: str
    tenant: str
    job: EncodeJob
    operation: Operation | None = None
    prompt_index: int = 0

    def is_wanted(self) -> bool:
        """Return whether somebody still waits for the ids."""
        return self.operation is None or not self.operation.is_over


class Intake:
    """All encodings that are not done."""

    def __init__(self, max_encodings: int, max_bytes: int) -> None:
        self.num_bytes = 0
        self.max_bytes = max_bytes
        self._max_encodings = max_encodings
        self._num_encodings = 0
        self._light: Rotation[Encoding] = Rotation()
        self._heavy: Rotation[Encoding] = Rotation()

    def __len__(self) -> int:
        return self._num_encodings

    def has_room(self, num_encodings: int, num_bytes: int) -> bool:
        """Return whether so much more may be added. One operation alone always fits."""
        if self._num_encodings == 0:
            return True
        return (
            self._num_encodings + num_encodings <= self._max_encodings
            and self.num_bytes + num_bytes <= self.max_bytes
        )

    def add(self, encoding: Encoding) -> None:
        """Queue a prompt behind the others of its tenant."""
        rotation = self._light if encoding.job.is_light else self._heavy
        rotation.add(encoding.tenant, encoding)
        self._num_encodings += 1
        self.num_bytes += encoding.job.num_bytes

    def take_light(self) -> Encoding | None:
        """Return the next short prompt; it is run to its end at once."""
        return self._light.take()

    def take_heavy(self) -> Encoding | None:
        """Return the next long prompt, for one piece."""
        return self._heavy.take()

    def put_back(self, encoding: Encoding) -> None:
        """Return a long prompt that is not done."""
        self._heavy.put_back(encoding.tenant, encoding)

    def done(self, encoding: Encoding) -> None:
        """Forget a prompt that was taken and is done or not wanted any more."""
        self._num_encodings -= 1
        self.num_bytes -= encoding.job.num_bytes
