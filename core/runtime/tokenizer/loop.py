"""The tokenizer's loop: text in from http, tokens in from the scheduler, and both out again.

Owns: the order of a step, how long encoding may take in it, and the watch over the epochs of http
processes and of the scheduler. Never knows: what a message means (`core.tokenizer.operations`) or
what the text is.

    a step     look at the peers · read all outputs · resubmit if the scheduler is another one ·
               take messages · encode short prompts for a while, long ones by the worker · send

Order matters at a restart of the scheduler: its predecessor's outputs are read (or voided by it)
before anything is submitted again, so no token can be delivered twice. And nothing is sent to a
scheduler whose epoch has not been seen, so that no submission can reach it twice. Nor is anything
encoded, and so written into the arena, before a scheduler has dropped our predecessor's requests,
into whose spans it would write.
"""

import logging

from core.clock import NS_PER_MS, Clock
from core.runtime.tokenizer.channels import (
    TokenizerChannels,
)
from core.scheduler.frames import RecordFrameError, read_outputs
from core.tenancy.directory import tenancy_of
from core.tokenizer.choice import SequenceGapError
from core.tokenizer.intake import Encoding
from core.tokenizer.operations import Operations
from core.tokenizer.outputs import OutputReader
from ipc.errors import BrokenRingError
from ipc.heartbeat import HeartbeatState
from ipc.spans import SpanArena

LOOK_NS = 5 * NS_PER_MS  # far shorter than the start of any process
PUBLISH_NS = 50 * NS_PER_MS
RETRY_NS = 5 * NS_PER_MS
ENCODE_NS = 2 * NS_PER_MS  # of short prompts in one step
MESSAGES_PER_STEP = 64
SCHEDULER = "scheduler"

log = logging.getLogger(__name__)


class TokenizerLoop:
    """The loop of one tokenizer process."""

    def __init__(self, operations: Operations, arena: SpanArena) -> None:
        self._operations = operations
        self._reader = OutputReader(operations)
        self._arena = arena
        self._scheduler_epoch = 0
        self._is_scheduler_ready = False
        self._is_arena_ours = False
        self._looked_ns = 0
        self._published_ns = 0
        self._has_unsent = False
        self._ring_errors = 0
        self._now_ns = 0

    def step(self, channels: TokenizerChannels, clock: Clock) -> bool:
        """Do what can be done now; False = there was nothing to do."""
        self._now_ns = now_ns = clock.now_ns()
        self._go_by_directory(channels)
        has_new_scheduler = self._look(channels)
        has_worked = self._read_outputs(channels)
        if has_new_scheduler:
            channels.scheduler.reconnect()
            self._operations.scheduler_restarted()
        has_worked |= self._take_messages(channels)
        has_worked |= self._is_arena_ours and self._encode(channels, clock)
        self._operations.tick(now_ns)
        self._reader.flush()
        has_worked |= self._send(channels)
        if now_ns - self._published_ns >= PUBLISH_NS:
            self._publish(channels)
        return has_worked

    def next_timer_ns(self) -> int | None:
        """Retry what could not be done; else wake for what the operations have due."""
        if self._has_unsent or not self._is_arena_ours:
            return self._now_ns + RETRY_NS
        return self._operations.next_timer_ns()

    def state(self) -> HeartbeatState:
        """Idle between two steps."""
        return HeartbeatState.IDLE

    def close(self, channels: TokenizerChannels, clock: Clock) -> None:
        """Publish the page a last time, for whoever goes on from it."""
        self._now_ns = clock.now_ns()
        self._publish(channels)

    def _go_by_directory(self, channels: TokenizerChannels) -> None:
        snapshot = channels.directory.look()
        if snapshot is not None:
            self._operations.tenancy = tenancy_of(snapshot)
            channels.directory.confirm(snapshot)

    def _look(self, channels: TokenizerChannels) -> bool:
        """Notice deaths and arrivals; return whether there is a scheduler that knows nothing."""
        if self._looked_ns and self._now_ns - self._looked_ns < LOOK_NS:
            return False
        self._looked_ns = self._now_ns
        peers = channels.peers
        peers.look()
        self._operations.drop_peers(
            lambda identity: peers.peer(http_child(identity)).living_epoch != http_epoch(identity)
        )
        self._is_arena_ours = self._is_arena_ours or self._has_been_announced(channels)
        scheduler = peers.peer(SCHEDULER)
        if scheduler.is_given_up:
            self._operations.fail_all()
        self._is_scheduler_ready = scheduler.serving_epoch != 0
        if scheduler.serving_epoch in (0, self._scheduler_epoch):
            return False
        log.info("scheduler %d serves", scheduler.serving_epoch)
        self._scheduler_epoch = scheduler.serving_epoch
        return True

    def _has_been_announced(self, channels: TokenizerChannels) -> bool:
        """Return whether a scheduler, alive or not, has seen this instance begin."""
        facts = self._operations.facts
        epochs = channels.scheduler_page.read().page["tokenizer_epochs"]
        return int(epochs[facts.index]) == facts.epoch

    def _read_outputs(self, channels: TokenizerChannels) -> bool:
        """Apply every frame that is there; lost ones make all requests go on under new names."""
        has_read = False
        try:
            while (frame := channels.outputs.receive()) is not None:
                has_read = True
                self._reader.apply(read_outputs(frame))
                channels.outputs.acknowledge()
        except (BrokenRingError, SequenceGapError, RecordFrameError) as error:
            log.warning("outputs were lost: %s", error)
            channels.outputs.acknowledge()
            self._ring_errors += 1
            self._operations.outputs_lost(self._now_ns)
        return has_read

    def _take_messages(self, channels: TokenizerChannels) -> bool:
        received = channels.front.receive(MESSAGES_PER_STEP)
        for item in received:
            self._operations.accept(item.peer, item.message)
        return bool(received)

    def _encode(self, channels: TokenizerChannels, clock: Clock) -> bool:
        """Encode short prompts for ENCODE_NS at the most, and keep the worker busy."""
        intake, worker = self._operations.intake, channels.worker
        has_worked = False
        deadline_ns = clock.now_ns() + ENCODE_NS
        while clock.now_ns() <= deadline_ns and (encoding := intake.take_light()) is not None:
            has_worked = True
            while encoding.is_wanted() and not encoding.job.advance():
                pass
            self._operations.encoded(encoding, self._now_ns)
        done = worker.take_done()
        if done is not None:
            has_worked = True
            self._take_piece(*done)
        while not worker.is_busy and (encoding := intake.take_heavy()) is not None:
            has_worked = True
            if encoding.is_wanted():
                worker.start(encoding)
            else:
                self._operations.encoded(encoding, self._now_ns)
        return has_worked

    def _take_piece(self, encoding: Encoding, is_done: bool) -> None:
        if is_done or not encoding.is_wanted():
            self._operations.encoded(encoding, self._now_ns)
        else:
            self._operations.intake.put_back(encoding)

    def _send(self, channels: TokenizerChannels) -> bool:
        """Send what the peers take; what they do not take stays in order."""
        outbox, to_scheduler = self._operations.to_http, self._operations.requests.to_scheduler
        num_before = len(outbox) + len(to_scheduler)
        slow_peers = outbox.send(channels.front.send)
        if slow_peers:
            log.warning("%s do not read; their operations are cancelled", slow_peers)
            self._operations.drop_peers(slow_peers.__contains__)
        while self._is_scheduler_ready and to_scheduler:
            if not channels.scheduler.send(to_scheduler[0]):
                break
            to_scheduler.popleft()
        num_after = len(outbox) + len(to_scheduler)
        self._has_unsent = num_after > 0
        return num_after < num_before

    def _publish(self, channels: TokenizerChannels) -> None:
        page, before = channels.page.page, channels.page.predecessor
        operations, arena = self._operations, self._arena.statistics()
        page["num_operations"] = len(operations)
        page["longest_token_bytes"] = operations.encoder.vocabulary.longest_token_bytes
        page["arena_used_chunks"] = arena.num_used_chunks
        page["arena_chunks"] = arena.num_chunks
        for name, count in (
            ("encoded_tokens", operations.num_encoded_tokens),
            ("decoded_tokens", self._reader.num_decoded_tokens),
            ("resubmitted_requests", operations.requests.num_resubmitted),
            ("ring_errors", self._ring_errors),
            ("dropped_frames", channels.front.dropped_frames),
        ):
            page[name] = before[name] + count
        page["rejections"] = before["rejections"]
        for reason, count in operations.rejections.items():
            page["rejections"][reason] += count
        channels.page.publish(self._now_ns)
        self._published_ns = self._now_ns


def http_child(identity: bytes) -> str:
    """Return the child id in the identity `http.K.EPOCH` of a peer."""
    return identity.rpartition(b".")[0].decode("ascii", "replace")


def http_epoch(identity: bytes) -> int:
    """Return the epoch in the identity of a peer; -1 if there is none."""
    digits = identity.rpartition(b".")[2]
    return int(digits) if digits.isdigit() else -1
