"""The real tokenizer, scheduler and executor loops in one thread, over loopback, in virtual time.

Owns: the channels, the peer table (the test is the supervisor), the clock, and the order in which
the loops take their steps. Never knows: what should come out. A loop can be killed between any two
steps and started under the next epoch, exactly as its process would be: the new one attaches to
what the old one left in the channels.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.config.engine import EngineConfig
from core.config.scheduling import PolicyConfig, SchedulerConfig
from core.engine_core import EngineCore
from core.executor.protocol import ExecutorSettings
from core.executor.simulated import SimulatedExecutor
from core.messages.http import ToHttp
from core.messages.scheduler import ToScheduler
from core.messages.tokenizer import ToTokenizer
from core.peers import Peer
from core.policy.limits import Limits
from core.runtime.executor.channels import ExecutorChannels
from core.runtime.executor.loop import ExecutorLoop, show_info
from core.runtime.scheduler.channels import SchedulerChannels
from core.runtime.scheduler.loop import SchedulerLoop
from core.runtime.scheduler.outbox import Outbox
from core.runtime.scheduler.page import resumed_metering
from core.runtime.tokenizer.channels import TokenizerChannels
from core.runtime.tokenizer.loop import TokenizerLoop
from core.scheduler.plan import row_dtype
from core.scheduler.settings import EngineSettings
from core.simulation.virtual_clock import VirtualClock
from core.tenancy.classes import ClassConfig, ClassesConfig
from core.tokenizer.chat_template import ChatTemplate
from core.tokenizer.operation import TokenizerFacts
from core.tokenizer.operations import Operations
from core.tokenizer.prompts import PromptEncoder
from ipc.board import BoardReader, BoardWriter, board_layout
from ipc.codec import Codec
from ipc.heartbeat import HeartbeatState
from ipc.layout import anonymous_segment
from ipc.loopback import (
    LoopbackDealer,
    LoopbackNetwork,
    LoopbackRing,
    LoopbackRingReader,
    LoopbackRingWriter,
    LoopbackRouter,
)
from ipc.messages import ControlCall, ControlReply
from ipc.pages import EXECUTOR_PAGE, SCHEDULER_PAGE, TOKENIZER_PAGE
from ipc.spans import SpanArena
from tests.support.loops.tokenizer_rig import (
    FRONT_URL,
    SCHEDULER_URL,
    FakePeers,
    HttpPeer,
    PieceWorker,
    generate,
)
from tests.support.models.tiny_model import CHAT_TEMPLATE
from tests.support.models.tiny_vocabulary import VOCAB_SIZE, tiny_vocabulary
from tests.support.scheduler.preempting_policies import WhimsicalPolicy

MAX_MODEL_LEN = 512
ARENA_TOKENS = 64 * 256
ROUND_NS = 5_000_000  # as long as a tokenizer's view of its peers may be old
STEP_US = 1000
STEP_TIMEOUT_NS = 1_000_000_000
MAX_ROUNDS = 20_000
SECRET = b"secret"


@dataclass
class TokenizerSide:
    """A tokenizer instance."""

    loop: TokenizerLoop
    channels: TokenizerChannels
    operations: Operations
    arena: SpanArena
    worker: PieceWorker


@dataclass
class SchedulerSide:
    """A scheduler instance."""

    loop: SchedulerLoop
    channels: SchedulerChannels


@dataclass
class ExecutorSide:
    """An executor instance."""

    loop: ExecutorLoop
    channels: ExecutorChannels


class LoopRig:
    """One tokenizer, one scheduler and `num_replicas` executors, all started."""

    def __init__(
        self,
        *,
        num_replicas: int = 1,
        pipeline_depth: int = 1,
        num_blocks: int = 64,
        output_slots: int = 32,
        poison_crashes: int = 100,
        whims: int | None = None,
    ) -> None:
        """`whims` is the seed of needless preemptions."""
        self.whims = whims
        self.clock = VirtualClock()
        self.network = LoopbackNetwork()
        self.peers = FakePeers()
        self.num_blocks = num_blocks
        self.stamps: list[tuple[HeartbeatState, int]] = []
        engine = EngineConfig(
            max_model_len=MAX_MODEL_LEN, max_num_seqs=4, max_num_batched_tokens=48, block_size=16,
            pipeline_depth=pipeline_depth, replicas=num_replicas,
        )  # fmt: skip
        self.settings = EngineSettings.from_config(
            engine,
            SchedulerConfig(poison_crashes=poison_crashes),
            PolicyConfig(),
            Limits(ClassesConfig(interactive=ClassConfig(), administrative=ClassConfig())),
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=(),
            digest_secret=SECRET,
        )
        dtype = row_dtype(self.settings.max_blocks_per_seq)
        self.rows = [np.zeros(self.settings.num_rows, dtype) for _ in range(num_replicas)]
        self.ids = np.zeros(ARENA_TOKENS, np.int32)
        self.plan_rings = [LoopbackRing(2 * pipeline_depth, 1 << 16) for _ in range(num_replicas)]
        self.result_rings = [LoopbackRing(2 * pipeline_depth, 1 << 20) for _ in range(num_replicas)]
        self.output_ring = LoopbackRing(output_slots, 1 << 20)
        self.executor_pages = [
            anonymous_segment(board_layout(EXECUTOR_PAGE)) for _ in range(num_replicas)
        ]
        self.scheduler_page = anonymous_segment(board_layout(SCHEDULER_PAGE))
        self._epochs: dict[str, int] = {}
        self.tokenizer: TokenizerSide | None = None
        self.scheduler: SchedulerSide | None = None
        self.executors: list[ExecutorSide | None] = [None] * num_replicas
        self.http = HttpPeer(self.network, 0, 1)
        self.start_scheduler()
        self.start_tokenizer()
        for replica in range(num_replicas):
            self.start_executor(replica)
        self.plan_only()  # its page announces the tokenizer, long before such a process is ready
        self.peers.peers["http.0"] = Peer(1, 1)

    def start_tokenizer(self) -> None:
        """Start the next instance: an empty arena, and only new outputs."""
        epoch = self._begin("tokenizer.0")
        arena, worker = SpanArena(self.ids), PieceWorker()
        vocabulary = tiny_vocabulary()
        template = ChatTemplate(CHAT_TEMPLATE, {}, vocabulary, self.clock, 1000, 1 << 22)
        facts = TokenizerFacts(
            index=0, epoch=epoch, max_model_len=MAX_MODEL_LEN, max_operations=100,
            max_pending_bytes=1 << 20, arena_tokens=ARENA_TOKENS, block_size=16,
            digest_secret=SECRET,
        )  # fmt: skip
        encoder = PromptEncoder(vocabulary, template, MAX_MODEL_LEN, 256)
        operations = Operations(facts, encoder, arena)
        reader = LoopbackRingReader(self.output_ring)
        reader.attach_at_head()
        channels = TokenizerChannels(
            front=LoopbackRouter[ToTokenizer, ToHttp](
                self.network, FRONT_URL, Codec[ToTokenizer](ToTokenizer), Codec[ToHttp](ToHttp)
            ),
            scheduler=LoopbackDealer[ControlReply, ToScheduler](
                self.network, SCHEDULER_URL, f"tokenizer.0.{epoch}".encode(),
                Codec[ControlReply](ControlReply), Codec[ToScheduler](ToScheduler),
            ),
            outputs=reader,
            worker=worker,
            peers=self.peers,
            page=BoardWriter(
                anonymous_segment(board_layout(TOKENIZER_PAGE)), TOKENIZER_PAGE, epoch
            ),
            scheduler_page=BoardReader(self.scheduler_page, SCHEDULER_PAGE),
        )  # fmt: skip
        loop = TokenizerLoop(operations, arena)
        self.tokenizer = TokenizerSide(loop, channels, operations, arena, worker)
        self.http.port.reconnect()

    def start_scheduler(self) -> None:
        """Start the next instance: what its predecessor sent and nobody read is void."""
        epoch = self._begin("scheduler")
        results = [LoopbackRingReader(ring) for ring in self.result_rings]
        plans = [LoopbackRingWriter(ring) for ring in self.plan_rings]
        outputs = LoopbackRingWriter(self.output_ring)
        for reader in results:
            reader.attach_at_head()
        for writer in (*plans, outputs):
            writer.reset()
        channels = SchedulerChannels(
            inbox=LoopbackRouter[ToScheduler, ControlReply](
                self.network, SCHEDULER_URL, Codec[ToScheduler](ToScheduler),
                Codec[ControlReply](ControlReply),
            ),
            plans=plans,
            results=results,
            outputs=[outputs],
            page=BoardWriter(self.scheduler_page, SCHEDULER_PAGE, epoch),
            peers=self.peers,
            executor_pages=[
                BoardReader(segment, EXECUTOR_PAGE) for segment in self.executor_pages
            ],
        )  # fmt: skip
        policy = None if self.whims is None else WhimsicalPolicy(self.settings, self.whims)
        metering = resumed_metering(channels.page.predecessor)
        core = EngineCore(self.settings, self.rows, metering, policy)
        loop = SchedulerLoop(core, [self.ids], epoch, len(self.rows), Outbox(1, 1024, 1 << 16))
        self.scheduler = SchedulerSide(loop, channels)

    def start_executor(self, replica: int = 0) -> None:
        """Start the next instance: plans for its predecessor are skipped, its results void."""
        child_id = f"executor.{replica}.0"
        epoch = self._begin(child_id)
        settings = ExecutorSettings(
            model_directory=Path(), cache_directory=Path(), block_size=16,
            num_kv_blocks=self.num_blocks, simulated_step_us=STEP_US, simulated_token_us=0.0,
            swap_memory_bytes=2**24,
        )  # fmt: skip
        executor = SimulatedExecutor(
            settings, self.rows[replica], [self.ids], self.clock, self._sleep, vocab_size=VOCAB_SIZE
        )
        plans = LoopbackRingReader(self.plan_rings[replica])
        plans.attach_at_head()
        results = LoopbackRingWriter(self.result_rings[replica])
        results.reset()
        page = BoardWriter(self.executor_pages[replica], EXECUTOR_PAGE, epoch)
        show_info(executor.load(), "tiny", page, self.clock.now_ns())
        self.executors[replica] = ExecutorSide(
            ExecutorLoop(executor, epoch, STEP_TIMEOUT_NS),
            ExecutorChannels(plans, results, page, self._stamp),
        )

    def kill_tokenizer(self) -> None:
        """The process is gone, and the page says so."""
        assert self.tokenizer is not None
        self.tokenizer.channels.front.close()  # type: ignore[attr-defined]
        self.tokenizer.channels.scheduler.close()  # type: ignore[attr-defined]
        self.tokenizer = None
        self.peers.peers["tokenizer.0"] = Peer()

    def kill_scheduler(self) -> None:
        """The process is gone, and the page says so."""
        assert self.scheduler is not None
        self.scheduler.channels.inbox.close()  # type: ignore[attr-defined]
        self.scheduler = None
        self.peers.peers["scheduler"] = Peer()

    def kill_executor(self, replica: int = 0, *, given_up: bool = False) -> None:
        """The process is gone, and the page says so."""
        self.executors[replica] = None
        self.peers.peers[f"executor.{replica}.0"] = Peer(is_given_up=given_up)

    def round(self) -> bool:
        """Let every living loop take one step; return whether any had something to do."""
        did = False
        if self.tokenizer is not None:
            self.tokenizer.worker.work()
            did |= self.tokenizer.loop.step(self.tokenizer.channels, self.clock)
        if self.scheduler is not None:
            did |= self.scheduler.loop.step(self.scheduler.channels, self.clock)
        for executor in self.executors:
            if executor is not None:
                did |= executor.loop.step(executor.channels, self.clock)
        self.http.read()
        return did

    def plan_only(self) -> None:
        """Let the scheduler read what is there and plan, and the executors not compute yet."""
        assert self.scheduler is not None
        self.scheduler.loop.step(self.scheduler.channels, self.clock)

    def run(self) -> None:
        """Go round until nobody has anything to do, also after looking at the peers again."""
        num_idle = 0
        for _ in range(MAX_ROUNDS):
            num_idle = 0 if self.round() else num_idle + 1
            if num_idle == 2:
                return
            if num_idle:
                self.clock.advance(ROUND_NS)
        raise AssertionError("the loops do not come to rest")

    def rounds(self, count: int) -> None:
        """Go round `count` times, virtual time passing."""
        for _ in range(count):
            self.round()
            self.clock.advance(ROUND_NS // 10)

    def send(self, operation_id: str, **fields: Any) -> None:
        """Send an operation from http; its token ids come back with the text."""
        self.http.send(generate(operation_id, want_token_ids=True, **fields))

    def call(self, command: str, **args: object) -> ControlReply:
        """Ask the scheduler as an admin worker does."""
        port: LoopbackDealer[ControlReply, ControlCall] = LoopbackDealer(
            self.network, SCHEDULER_URL, b"admin.0.1", Codec[ControlReply](ControlReply),
            Codec[ControlCall](ControlCall),
        )  # fmt: skip
        assert port.send(ControlCall(1, command, dict(args)))
        assert self.scheduler is not None
        self.scheduler.loop.step(self.scheduler.channels, self.clock)
        [received] = port.receive(10)
        return received.message

    def token_ids(self, operation_id: str, choice: int = 0) -> list[int]:
        """Return the token ids that http was told of so far."""
        return [i for chunk in self.http.chunks(operation_id, choice) for i in chunk.token_ids]

    def finish_reason(self, operation_id: str, choice: int = 0) -> str:
        """Return how a choice ended; "" while it has not."""
        return "".join(chunk.finish_reason for chunk in self.http.chunks(operation_id, choice))

    def check_idle(self) -> None:
        """Assert that nothing is left behind in any loop."""
        assert self.scheduler is not None
        core = self.scheduler.loop.core
        core.check_integrity()
        assert core.num_requests == 0
        assert self.scheduler.loop.num_operations == 0
        if self.tokenizer is not None:
            assert len(self.tokenizer.operations) == 0
            self.tokenizer.arena.check_integrity()
            assert self.tokenizer.arena.statistics().num_spans == 0

    def _begin(self, child_id: str) -> int:
        """Give a child its next epoch, living and serving at once."""
        epoch = self._epochs[child_id] = self._epochs.get(child_id, 0) + 1
        self.peers.peers[child_id] = Peer(epoch, epoch)
        return epoch

    def _sleep(self, wait_ns: int) -> None:
        self.clock.advance(wait_ns)

    def _stamp(self, state: HeartbeatState, now_ns: int, busy_until_ns: int = 0) -> None:
        self.stamps.append((state, busy_until_ns - now_ns if busy_until_ns else 0))
