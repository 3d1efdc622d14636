"""The scheduler's loop: feeds the engine core what arrives, and carries away what it decides.

Owns: the order of a round, the channels, the board page, and the operation id of every live
request. Never knows: policy (`core.engine_core`) or text. One round, never waiting:

    results → peers and inbox → plans → outputs → page

Plans leave before outputs, so that executors compute while the outputs travel. While a tokenizer
does not read nothing is planned (`core.runtime.scheduler.outbox`); deaths, aborts and commands are
heard all the same. Results and plans carry the epochs of both ends, so nothing of a predecessor is
ever mistaken for ours. A tokenizer writes into its arena only when our page says that its
predecessor's requests have ended, for we write there too. Results that were lost in their ring are
made good by treating the replica as restarted: its requests are recomputed.
"""

import logging
from collections import ChainMap
from collections.abc import Iterator, Sequence

from core.clock import NS_PER_MS, Clock
from core.engine_core import EngineCore
from core.messages.scheduler import Abort, Stop, Submit
from core.policy.limits import Limits
from core.runtime.scheduler.calls import answer
from core.runtime.scheduler.channels import (
    SchedulerChannels,
)
from core.runtime.scheduler.lifelines import Lifelines, arrivals
from core.runtime.scheduler.outbox import Outbox, refusal
from core.runtime.scheduler.page import fill_page, fill_rings
from core.runtime.scheduler.submissions import SubmitError, request_of
from core.scheduler import events as ev
from core.scheduler.frames import plan_parts, read_result
from core.scheduler.plan import OutputBatch, OutputKind
from core.tenancy.directory import tenancy_of
from ipc.channel import FrameReceiver
from ipc.errors import BrokenRingError
from ipc.heartbeat import HeartbeatState
from ipc.messages import ControlCall
from ipc.spans import Ids

INBOX_LIMIT = 256  # messages in a round
MAX_ENDED = 16_384  # operations that have ended whose name is still known
LOOK_NS = 1 * NS_PER_MS  # how old the view of the peers may be when a round begins
PUBLISH_NS = 50 * NS_PER_MS  # while something happens
PUBLISH_IDLE_NS = 500 * NS_PER_MS
OFFER_NS = 1000 * NS_PER_MS  # between two looks for tenants whose rows others may have
RETRY_NS = 1 * NS_PER_MS  # while a ring is full: nothing wakes us when it has room

FINISHED = int(OutputKind.FINISHED)  # numpy compares with an enumeration 15 times as slowly

log = logging.getLogger(__name__)


class SchedulerLoop:
    """The loop of the scheduler process, under its `epoch`; `arenas` are by tokenizer."""

    def __init__(
        self, core: EngineCore, arenas: Sequence[Ids], epoch: int, num_replicas: int, outbox: Outbox
    ) -> None:
        self.core = core
        self.lifelines = Lifelines(num_replicas, len(arenas))
        self._arenas = arenas
        self._epoch = epoch
        self._outbox = outbox
        self._operations: list[dict[int, str]] = [{} for _ in arenas]  # of unfinished requests
        self._ended: dict[int, str] = {}  # the last operations that have, which events may name
        self._looked_ns = -LOOK_NS
        self._published_ns = -PUBLISH_IDLE_NS
        self._offered_ns = -OFFER_NS
        self._is_page_old = True
        self._retry_ns = 0
        self._result_ns = 0  # what taking in the last result cost; counted with the next plan
        self.ring_errors = 0
        self.stale_frames = 0
        self.refused_submits = 0

    @property
    def num_operations(self) -> int:
        """Requests whose operation is remembered: those that have not finished."""
        return sum(map(len, self._operations))

    def step(self, channels: SchedulerChannels, clock: Clock) -> bool:
        """Do one round; False = nothing came and nothing was decided."""
        now_ns = clock.now_ns()
        self._outbox.flush(channels.outputs, now_ns)
        took_results = self._take_results(channels, clock, now_ns)
        took_events = self._take_events(channels, now_ns)
        planned = not self._outbox.is_blocked(now_ns) and self._send_plans(channels, clock)
        self._send_outputs(channels, now_ns)
        for receiver in channels.results:
            receiver.acknowledge()
        is_active = took_results or took_events or planned
        self._is_page_old |= is_active
        self._publish(channels, now_ns)
        return is_active

    def next_timer_ns(self) -> int | None:
        """Return the core's next deadline; sooner while a ring is full."""
        timer_ns = self.core.next_timer()
        if self._outbox.is_empty:
            return timer_ns
        return self._retry_ns if timer_ns is None else min(timer_ns, self._retry_ns)

    def state(self) -> HeartbeatState:
        """Idle or draining; a scheduler is never silent for long."""
        return HeartbeatState.DRAINING if self.core.is_draining else HeartbeatState.IDLE

    def close(self, channels: SchedulerChannels, clock: Clock) -> None:
        """Publish the page a last time, for whoever goes on from it."""
        self._show(channels, clock.now_ns())

    def _take_results(self, channels: SchedulerChannels, clock: Clock, now_ns: int) -> bool:
        took = False
        for replica, receiver in enumerate(channels.results):
            while (frame := self._receive(receiver, replica, channels, now_ns)) is not None:
                result = read_result(frame)
                took = True
                if result.scheduler_epoch != self._epoch:
                    self.stale_frames += 1
                    continue
                began_ns = clock.now_ns()
                self.core.on_result(result, now_ns)
                self._result_ns = clock.now_ns() - began_ns
        return took

    def _receive(
        self, receiver: FrameReceiver, replica: int, channels: SchedulerChannels, now_ns: int
    ) -> memoryview | None:
        """Return the next result; when some were lost, start anew with the replica."""
        try:
            return receiver.receive()
        except BrokenRingError as error:
            log.error("results of replica %d: %s; its requests are recomputed", replica, error)
            self.ring_errors += 1
            epoch = self.lifelines.executor_epochs[replica]
            up = arrivals(channels.executor_pages)(replica, epoch) if epoch else None
            if up is not None:
                self.core.on_events([ev.ReplicaDown(replica), up], now_ns)
            return None

    def _take_events(self, channels: SchedulerChannels, now_ns: int) -> bool:
        """Tell the core of deaths first, then of what the living say, in order of arrival."""
        self._go_by_directory(channels, now_ns)
        events: list[ev.Event] = []
        if now_ns - self._looked_ns >= LOOK_NS:
            events += self._look(channels, now_ns)
        received = channels.inbox.receive(INBOX_LIMIT)
        for item in received:
            message = item.message
            if isinstance(message, ControlCall):
                if events:
                    self.core.on_events(events, now_ns)
                    events = []
                operations = ChainMap(*self._operations, self._ended)
                reply = answer(message, self.core, operations, now_ns)
                channels.inbox.send(reply, item.peer)
            else:
                events += self._events_of(message, channels, now_ns)
        timer_ns = self.core.next_timer()
        if events or (timer_ns is not None and timer_ns <= now_ns):
            self.core.on_events(events, now_ns)
        return bool(received or events)

    def _go_by_directory(self, channels: SchedulerChannels, now_ns: int) -> None:
        """Let a new version of the tenant directory rule from the next step on."""
        snapshot = channels.directory.look()
        if snapshot is not None:
            limits = Limits.of_tenancy(tenancy_of(snapshot))
            self.core.on_events([ev.Configure(limits)], now_ns)
            channels.directory.confirm(snapshot)

    def _look(self, channels: SchedulerChannels, now_ns: int) -> list[ev.Event]:
        self._looked_ns = now_ns
        channels.peers.look()
        known_tokenizers = list(self.lifelines.tokenizer_epochs)
        events = list(self.lifelines.events(channels.peers, arrivals(channels.executor_pages)))
        if self.lifelines.tokenizer_epochs != known_tokenizers:
            self._published_ns = now_ns - PUBLISH_IDLE_NS  # a tokenizer waits for the page
        for event in events:
            log.info("%s", event)
            if isinstance(event, ev.TokenizerDown):
                self._outbox.forget(event.tokenizer)
                self._operations[event.tokenizer].clear()
        return events

    def _events_of(
        self, message: Submit | Abort | Stop, channels: SchedulerChannels, now_ns: int
    ) -> Iterator[ev.Event]:
        match message:
            case Submit():
                yield from self._submit_events(message, channels, now_ns)
            case Abort(request_id=request_id, closed_ns=closed_ns):
                yield ev.Abort(request_id, closed_ns)
            case Stop(request_id=request_id, num_output_tokens=num_output_tokens):
                yield ev.Stop(request_id, num_output_tokens)

    def _submit_events(
        self, submit: Submit, channels: SchedulerChannels, now_ns: int
    ) -> Iterator[ev.Event]:
        """Yield the arrival of a request, unless it makes no sense or its sender is dead."""
        try:
            request = request_of(submit, self._arenas, self.core.settings.block_size)
        except SubmitError as error:
            self._refuse(submit, str(error))
            return
        epochs = self.lifelines.tokenizer_epochs
        if submit.tokenizer_epoch > epochs[submit.tokenizer]:
            yield from self._look(channels, now_ns)
        if submit.tokenizer_epoch != epochs[submit.tokenizer]:
            self.refused_submits += 1
            return
        self._operations[submit.tokenizer][request.request_id] = submit.operation_id
        yield ev.Submit(request)

    def _refuse(self, submit: Submit, fault: str) -> None:
        log.error("refused a submission of tokenizer %d: %s", submit.tokenizer, fault)
        self.refused_submits += 1
        if 0 <= submit.tokenizer < len(self._arenas) and 0 <= submit.request_id < 2**64:
            self._outbox.put({submit.tokenizer: refusal(submit.request_id)})

    def _send_plans(self, channels: SchedulerChannels, clock: Clock) -> bool:
        planned = False
        for replica, sender in enumerate(channels.plans):
            began_ns = clock.now_ns()
            while sender.has_room and (plan := self.core.next_plan(replica, began_ns)):
                planned = True
                spent_ns = clock.now_ns() - began_ns + self._result_ns
                self.core.metering.schedule_time.observe_ns(spent_ns)
                self.core.metering.step_tokens.observe(int(plan.rows["num_new_tokens"].sum()))
                self._result_ns = 0
                sent = sender.send(plan_parts(plan._replace(scheduler_epoch=self._epoch)))
                assert sent, f"plan ring {replica} is full"
                began_ns = clock.now_ns()
        return planned

    def _send_outputs(self, channels: SchedulerChannels, now_ns: int) -> None:
        batches = self.core.take_outputs()
        for tokenizer, batch in batches.items():
            self._forget_finished(tokenizer, batch)
        self._outbox.put(batches)
        self._outbox.flush(channels.outputs, now_ns)
        self._retry_ns = now_ns + RETRY_NS

    def _forget_finished(self, tokenizer: int, batch: OutputBatch) -> None:
        finished = batch.records["kind"] == FINISHED
        for request_id in batch.records["request_id"][finished].tolist():
            self._remember_ended(request_id, self._operations[tokenizer].pop(request_id, None))

    def _remember_ended(self, request_id: int, operation_id: str | None) -> None:
        if operation_id is not None:
            self._ended[request_id] = operation_id
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _publish(self, channels: SchedulerChannels, now_ns: int) -> None:
        """Show the state if it has changed, and now and then that it has not."""
        age_ns = now_ns - self._published_ns
        if age_ns >= PUBLISH_IDLE_NS or (age_ns >= PUBLISH_NS and self._is_page_old):
            self.show(channels, now_ns)

    def show(self, channels: SchedulerChannels, now_ns: int) -> None:
        """Publish the page; at the end too, for what was counted last."""
        self._published_ns, self._is_page_old = now_ns, False
        if now_ns - self._offered_ns >= OFFER_NS:
            self._offered_ns = now_ns
            self.core.offer_tenant_rows(channels.kept_ns(), now_ns)
        self._show(channels, now_ns)

    def _show(self, channels: SchedulerChannels, now_ns: int) -> None:
        page, before = channels.page.page, channels.page.predecessor
        fill_page(page, self.core, now_ns, before)
        fill_rings(page, channels.rings())
        page["held_output_bytes"] = self._outbox.num_bytes
        epochs = self.lifelines.tokenizer_epochs
        page["tokenizer_epochs"][: len(epochs)] = epochs
        page["ring_errors"] = before["ring_errors"] + self.ring_errors
        num_dropped = self.refused_submits + channels.inbox.dropped_frames
        page["dropped_frames"] = before["dropped_frames"] + num_dropped
        page["stale_frames"] = before["stale_frames"] + self.stale_frames
        channels.page.publish(now_ns)
