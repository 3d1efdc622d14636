"""The channels of the scheduler's loop, and how the process attaches to them.

Owns: who holds which end of what. Never knows: what is sent. The loop sees only this record, so a
test gives it loopback ends of the same kinds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from core.config.headrace import HeadraceConfig
from core.messages.scheduler import ToScheduler
from core.peers import BoardPeers, PeerTable
from core.runtime.wiring import KEEPER, SUPERVISOR, plan_doorbells
from ipc.board import BoardReader, BoardWriter
from ipc.channel import FrameReceiver, FrameSender, FrameStatistics, MessagePort
from ipc.child import Child
from ipc.codec import Codec
from ipc.directory import DirectoryWatch
from ipc.messages import ControlReply
from ipc.pages import ADMIN_PAGE, EXECUTOR_PAGE, SCHEDULER_PAGE, SUPERVISOR_PAGE
from ipc.ports import RouterPort
from ipc.ring import RingReader, RingWriter
from ipc.segment import Segment


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
    directory: DirectoryWatch = field(default_factory=DirectoryWatch)
    keeper_page: BoardReader | None = None

    def kept_ns(self) -> int:
        """Return up to which pages whoever sums the counters has them."""
        return 0 if self.keeper_page is None else int(self.keeper_page.read().page["kept_ns"])

    def rings(self) -> Iterator[tuple[str, FrameStatistics]]:
        """Yield the statistics of every ring, by the name of its segment."""
        ends: dict[str, Sequence[FrameSender | FrameReceiver]] = {
            "plans": self.plans,
            "results": self.results,
            "outputs": self.outputs,
        }
        for kind, rings in ends.items():
            for index, ring in enumerate(rings):
                yield f"{kind}.{index}", ring.statistics()


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
    for reader in results:
        reader.attach_at_head()
    channels = SchedulerChannels(
        inbox=inbox,
        plans=[
            _attach_writer(child, directory.plans(r), plan_doorbells(r, config)) for r in replicas
        ],
        results=results,
        outputs=[_attach_writer(child, directory.outputs(t), [f"output.{t}"]) for t in tokenizers],
        page=child.page(SCHEDULER_PAGE),
        peers=BoardPeers(child.page_of(SUPERVISOR, SUPERVISOR_PAGE), child.peer_epoch),
        executor_pages=[child.page_of(f"executor.{r}.0", EXECUTOR_PAGE) for r in replicas],
        directory=child.directory(),
        keeper_page=child.page_of(KEEPER, ADMIN_PAGE),
    )
    return channels, [inbox.socket, *bells]


def _attach_writer(child: Child, ring: Path, doorbells: Sequence[str]) -> RingWriter:
    """Return the writing end of a ring without what a predecessor left in it."""
    writer = RingWriter(Segment.open(ring), [child.doorbell(name) for name in doorbells])
    writer.reset()
    return writer
