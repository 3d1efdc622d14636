"""The channels of a tokenizer's loop, and how the process attaches to them.

Owns: who holds which end of what. Never knows: what is sent.
"""

from dataclasses import dataclass, field

import zmq

from core.config.headrace import HeadraceConfig
from core.messages.http import ToHttp
from core.messages.scheduler import ToScheduler
from core.messages.tokenizer import ToTokenizer
from core.peers import BoardPeers, PeerTable
from core.runtime.tokenizer.encode_worker import EncodeWorker, ThreadEncodeWorker
from core.runtime.wiring import SUPERVISOR
from ipc.board import BoardReader, BoardWriter
from ipc.channel import ClientPort, FrameReceiver, MessagePort
from ipc.child import Child
from ipc.codec import Codec
from ipc.directory import DirectoryWatch
from ipc.doorbell import Doorbell
from ipc.messages import ControlReply
from ipc.pages import SCHEDULER_PAGE, SUPERVISOR_PAGE, TOKENIZER_PAGE
from ipc.ports import DealerPort, RouterPort
from ipc.ring import RingReader
from ipc.segment import Segment
from ipc.spans import SpanArena, map_spans


@dataclass(frozen=True, slots=True)
class TokenizerChannels:
    """What a tokenizer's loop holds."""

    front: MessagePort[ToTokenizer, ToHttp]
    scheduler: ClientPort[ControlReply, ToScheduler]  # nothing comes back this way
    outputs: FrameReceiver
    worker: EncodeWorker
    peers: PeerTable
    page: BoardWriter
    scheduler_page: BoardReader
    directory: DirectoryWatch = field(default_factory=DirectoryWatch)


def attach_tokenizer(child: Child) -> tuple[TokenizerChannels, list[object]]:
    """Return the channels of tokenizer `child` and what wakes its loop.

    Outputs meant for a predecessor are skipped.
    """
    index = tokenizer_index(child.child_id)
    directory, context = child.run_directory, zmq.Context()
    bell, worker_bell = child.doorbell(f"output.{index}"), Doorbell.create()
    outputs = RingReader(Segment.open(directory.outputs(index)), 0, bell)
    outputs.attach_at_head()
    front: RouterPort[ToTokenizer, ToHttp] = RouterPort(
        context, directory.tokenizer_url(index), Codec[ToTokenizer](ToTokenizer),
        Codec[ToHttp](ToHttp),
    )  # fmt: skip
    scheduler: DealerPort[ControlReply, ToScheduler] = DealerPort(
        context, directory.scheduler_url, f"{child.child_id}.{child.epoch}".encode(),
        Codec[ControlReply](ControlReply), Codec[ToScheduler](ToScheduler),
    )  # fmt: skip
    channels = TokenizerChannels(
        front=front,
        scheduler=scheduler,
        outputs=outputs,
        worker=ThreadEncodeWorker(worker_bell),
        peers=BoardPeers(child.page_of(SUPERVISOR, SUPERVISOR_PAGE), child.peer_epoch),
        page=child.page(TOKENIZER_PAGE),
        scheduler_page=child.page_of("scheduler", SCHEDULER_PAGE),
        directory=child.directory(),
    )
    return channels, [front.socket, bell, worker_bell]


def attach_own_arena(child: Child, config: HeadraceConfig) -> SpanArena:
    """Return the allocator over this tokenizer's arena; it starts empty."""
    path = child.run_directory.spans(tokenizer_index(child.child_id))
    return SpanArena(map_spans(Segment.open(path), config.tokenizer.arena_tokens))


def tokenizer_index(child_id: str) -> int:
    """Return T of `tokenizer.T`."""
    return int(child_id.rpartition(".")[2])
