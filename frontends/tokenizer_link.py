"""The way to one tokenizer: which instance serves, its operations, and what waits to be sent.

Owns: the order of messages to it. Never knows: what the operations are, or when to try again.
Messages wait here while nobody serves (a tokenizer that starts, for the first time or again) and
while the port takes nothing because it is full or not connected yet: requests for `UNSENT_LIMIT_NS`
at the most, cancellations until they are out or the instance is gone.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from core.clock import NS_PER_S
from core.messages.http import ToHttp
from core.messages.tokenizer import Cancel, ToTokenizer
from ipc.channel import Received

MAX_UNSENT = 256
UNSENT_LIMIT_NS = 2 * NS_PER_S

OperationT = TypeVar("OperationT")


class EnginePort(Protocol):
    """What a link needs of `ipc.async_port.AsyncPort`."""

    @property
    def dropped_frames(self) -> int:
        """Frames that were no message."""
        ...

    async def receive(self, limit: int) -> list[Received[ToHttp]]:
        """Wait for messages; return 1 to `limit` of them."""
        ...

    def send_nowait(self, message: ToTokenizer) -> bool:
        """Send without waiting; False = nothing was sent."""
        ...

    def reconnect(self) -> None:
        """Turn to the instance that serves now."""
        ...

    def close(self) -> None:
        """Close the socket."""
        ...


@dataclass(slots=True, eq=False)
class TokenizerLink(Generic[OperationT]):
    """One tokenizer. `epoch` 0: no instance serves."""

    port: EnginePort
    epoch: int = 0
    operations: dict[str, OperationT] = field(default_factory=dict)
    _unsent: deque[tuple[int, ToTokenizer]] = field(default_factory=deque)

    @property
    def has_unsent(self) -> bool:
        """True while messages wait."""
        return bool(self._unsent)

    def send_now(self, message: ToTokenizer) -> bool:
        """Send if an instance serves, nothing waits and the port takes it; False = nothing done."""
        return bool(self.epoch) and not self._unsent and self.port.send_nowait(message)

    def send_soon(self, message: ToTokenizer, now_ns: int) -> bool:
        """Let a message wait; False = too many do."""
        if len(self._unsent) >= MAX_UNSENT and not isinstance(message, Cancel):
            return False
        self._unsent.append((now_ns, message))
        return True

    def flush(self, now_ns: int) -> list[str]:
        """Send what can be sent; return the operations whose requests have waited too long."""
        while self.epoch and self._unsent and self.port.send_nowait(self._unsent[0][1]):
            self._unsent.popleft()
        late = [
            message.operation_id
            for since_ns, message in self._unsent
            if now_ns - since_ns >= UNSENT_LIMIT_NS and not isinstance(message, Cancel)
        ]
        if late:
            self.withdraw(set(late))
        return late

    def reset(self, epoch: int) -> None:
        """Turn to another instance, which must not see what was meant for the last one; what came
        while nobody served was meant for whoever comes.
        """
        if self.epoch:
            self._unsent.clear()
        self.epoch = epoch
        self.port.reconnect()

    def take_over(self, other: "TokenizerLink[OperationT]") -> None:
        """Let wait here what waits at `other`, where nobody serves."""
        self._unsent.extend(other._unsent)
        other._unsent.clear()

    def withdraw(self, operation_ids: set[str]) -> None:
        """Forget all that waits for these operations, their cancellations too."""
        kept = [entry for entry in self._unsent if entry[1].operation_id not in operation_ids]
        self._unsent = deque(kept)
