"""The channels of the scheduler's and the executors' loops, and how a child attaches to its own.

Owns: who holds which end of what. Never knows: what is sent. The loops see only these records, so a
test gives them loopback ends of the same kinds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq

from core.config import HeadraceConfig
from core.messages.scheduler import ToScheduler
from core.runtime.peers import BoardPeers, PeerTable
from core.runtime.wiring import SUPERVISOR, rows_layout
from core.scheduler.plan import RecordArray
from ipc.board import BoardReader, BoardWriter
from ipc.channel import FrameReceiver, FrameSender, MessagePort
from ipc.child import Child
from ipc.codec import Codec
from ipc.doorbell import Doorbell
from ipc.heartbeat import HeartbeatState
from ipc.messages import ControlReply
from ipc.pages import EXECUTOR_PAGE, SCHEDULER_PAGE, SUPERVISOR_PAGE
from ipc.ports import RouterPort
from ipc.ring import RingReader, RingWriter
from ipc.segment import Segment
from ipc.spans import Ids, map_spans


class Stamp(Protocol):
    """The loop's own heartbeat (`ipc.child.Child.stamp`)."""

    def __call__(self, state: HeartbeatState, now_ns: int, busy_until_ns: int = 0) -> None:
        """Say that the loop runs, and until when it expects to be silent."""
        ...


@dataclass(frozen=True, slots=True)
class ExecutorChannels:
    """What an executor's loop holds: plans come in, results go out."""

    plans: FrameReceiver
    results: FrameSender
    page: BoardWriter
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class SchedulerChannels:
    """What the scheduler's loop holds; the sequences are by replica and by tokenizer."""

    inbox: MessagePort[ToScheduler, ControlReply]
    plans: Sequence[FrameSender]
    results: Sequence[FrameReceiver]
    outputs: Sequence[FrameSender]
    page: BoardWriter
    peers: PeerTable
    executor_pages: Sequence[BoardReader]


def attach_executor(
    child: Child, config: HeadraceConfig
) -> tuple[ExecutorChannels, list[Doorbell]]:
    """Return an executor's channels and what wakes its loop.

    Plans made for a predecessor are skipped, and results that it left are voided.
    """
    replica, rank = map(int, child.child_id.split(".")[1:])
    directory = child.run_directory
    bell = child.doorbell(f"plan.{replica}.{rank}")
    plans = RingReader(Segment.open(directory.plans(replica)), rank, bell)
    plans.attach_at_head()
    results = RingWriter(
        Segment.open(directory.results(replica)), [child.doorbell(f"result.{replica}")]
    )
    results.reset()
    page = BoardWriter(Segment.open(directory.board(child.child_id)), EXECUTOR_PAGE, child.epoch)
    return ExecutorChannels(plans, results, page, child.stamp), [bell]


def attach_scheduler(
    child: Child, config: HeadraceConfig
) -> tuple[SchedulerChannels, list[object]]:
    """Return the scheduler's channels and what wakes its loop.

    What a predecessor has sent and nobody has read is voided; results meant for it are skipped.
    """
    directory = child.run_directory
    replicas, tokenizers = range(config.engine.replicas), range(config.tokenizer.processes)
    inbox: RouterPort[ToScheduler, ControlReply] = RouterPort(
        zmq.Context(),
        directory.scheduler_url,
        Codec[ToScheduler](ToScheduler),
        Codec[ControlReply](ControlReply),
    )
    bells = [child.doorbell(f"result.{replica}") for replica in replicas]
    results = [RingReader(Segment.open(directory.results(r)), 0, bells[r]) for r in replicas]
    plans = [
        RingWriter(Segment.open(directory.plans(r)), [child.doorbell(f"plan.{r}.0")])
        for r in replicas
    ]
    outputs = [
        RingWriter(Segment.open(directory.outputs(t)), [child.doorbell(f"output.{t}")])
        for t in tokenizers
    ]
    for reader in results:
        reader.attach_at_head()
    for writer in (*plans, *outputs):
        writer.reset()
    supervisor = Segment.open(directory.board(SUPERVISOR), readonly=True)
    channels = SchedulerChannels(
        inbox=inbox,
        plans=plans,
        results=results,
        outputs=outputs,
        page=BoardWriter(
            Segment.open(directory.board(child.child_id)), SCHEDULER_PAGE, child.epoch
        ),
        peers=BoardPeers(BoardReader(supervisor, SUPERVISOR_PAGE), child.peer_epoch),
        executor_pages=[
            BoardReader(
                Segment.open(directory.board(f"executor.{r}.0"), readonly=True), EXECUTOR_PAGE
            )
            for r in replicas
        ],
    )
    return channels, [inbox.socket, *bells]


def attach_rows(child: Child, config: HeadraceConfig) -> list[RecordArray]:
    """Return the rows of every replica, `row_dtype[num_rows]` each, to be written."""
    layout = rows_layout(config)
    segments = (
        Segment.open(child.run_directory.rows(replica)) for replica in range(config.engine.replicas)
    )
    return [layout.views(segment)["records"] for segment in segments]


def attach_arenas(child: Child, config: HeadraceConfig) -> list[Ids]:
    """Return the token ids of every tokenizer's arena, to be written behind the prompts."""
    num_tokens = config.tokenizer.arena_tokens
    return [
        map_spans(Segment.open(child.run_directory.spans(tokenizer)), num_tokens)
        for tokenizer in range(config.tokenizer.processes)
    ]
