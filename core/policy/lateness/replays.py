"""When the queue is played ahead, in pieces between steps.

Owns: the pace of the replays (`fluid_replay`). Never knows: what they are told (`replay_input`),
what is done with their verdicts.

A replay begins at most once in REPLAY_MIN_NS, unless all that wait are protected. First the queues
are read, a few flows a piece, then they are played, a few requests a piece, so that nothing waits
for it.
"""

from core.clock import NS_PER_MS
from core.policy.base import WaitingRoom
from core.policy.lateness.fluid_replay import (
    FlowQueue,
    FluidReplay,
    Verdicts,
)
from core.policy.lateness.protection import Protection
from core.policy.lateness.replay_input import ReplayInput

REPLAY_MIN_NS = 100 * NS_PER_MS
REPLAY_MAX_NS = 1000 * NS_PER_MS
REPLAYS_IN_A_PROMISE = 20  # of the shortest promise seen
PIECE_NS = NS_PER_MS  # between two pieces
PIECE_FLOWS = 2  # whose queues are read in a piece
PIECE_REQUESTS = 64  # that are played in a piece


class Replays:
    """Those of one policy."""

    def __init__(self, given: ReplayInput, protection: Protection) -> None:
        """Start without any; what is given is looked at when a replay begins."""
        self._given = given
        self._protection = protection
        self._begin_ns = 0  # when the next may begin
        self._piece_ns = 0
        self._unread: list[int] = []  # flows whose queues the replay has yet to read
        self._read: list[FlowQueue] = []
        self._replay: FluidReplay | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether one has begun and not ended."""
        return bool(self._unread or self._read or self._replay)

    def begin(self, now_ns: int) -> None:
        """Begin a replay, if it is time for one."""
        if now_ns < self._begin_ns:
            return
        shortest_ns = self._protection.shortest_promise_ns() // REPLAYS_IN_A_PROMISE
        self._begin_ns = now_ns + min(max(shortest_ns, REPLAY_MIN_NS), REPLAY_MAX_NS)
        self._piece_ns = now_ns + PIECE_NS
        self._unread = self._given.flows()

    def advance(self, room: WaitingRoom, now_ns: int) -> Verdicts | None:
        """Go on by a piece, if it is time for one; return what the replay has shown at its end."""
        if now_ns < self._piece_ns:
            return None
        self._piece_ns = now_ns + PIECE_NS
        if self._unread:
            chosen, self._unread = self._unread[:PIECE_FLOWS], self._unread[PIECE_FLOWS:]
            queues = (self._given.read_flow(room, flow, now_ns) for flow in chosen)
            self._read += [each for each in queues if each.queue]
        elif self._replay is None:
            self._replay = FluidReplay(self._given.settings(now_ns), self._read)
            self._read = []
        elif self._replay.advance(PIECE_REQUESTS):
            verdicts, self._replay = self._replay.verdicts, None
            return verdicts
        return None

    def stop(self) -> None:
        """Forget the one that is under way: nobody knows any more how fast prompts are computed."""
        self._unread, self._read, self._replay = [], [], None

    def next_timer_ns(self) -> int:
        """Return when the replay wants to go on, or to begin."""
        return self._piece_ns if self.is_under_way else self._begin_ns
