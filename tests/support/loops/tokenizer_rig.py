"""A tokenizer loop over loopback channels, with http and scheduler played by the test.

Owns: the wiring, the peer table, and a `ScriptedScheduler` that says only what it is told to. Time
is virtual; nothing waits. `PieceWorker` does a piece only when the test lets it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.errors import RejectionReason
from core.messages.http import Chunk, Chunks, Failed, ToHttp
from core.messages.scheduler import Abort, Stop, Submit, ToScheduler
from core.messages.tokenizer import Generate, TextPrompt, ToTokenizer
from core.peers import Peer
from core.request import RequestStatus
from core.runtime.tokenizer.channels import TokenizerChannels
from core.runtime.tokenizer.loop import LOOK_NS, TokenizerLoop
from core.sampling_params import SamplingParams
from core.scheduler.frames import output_parts
from core.scheduler.plan import LOGPROB, OUTPUT, OutputBatch, OutputKind
from core.simulation.virtual_clock import VirtualClock
from core.tenancy.classes import TrafficClass
from core.tokenizer.chat_template import ChatTemplate
from core.tokenizer.intake import Encoding
from core.tokenizer.operation import TokenizerFacts
from core.tokenizer.operations import Operations
from core.tokenizer.prompts import PromptEncoder
from core.tokenizer.vocabulary import Vocabulary
from ipc.board import BoardReader, BoardWriter, board_layout
from ipc.codec import Codec
from ipc.layout import anonymous_segment
from ipc.loopback import (
    LoopbackDealer,
    LoopbackNetwork,
    LoopbackRing,
    LoopbackRingWriter,
    LoopbackRouter,
)
from ipc.messages import ControlReply
from ipc.pages import SCHEDULER_PAGE, TOKENIZER_PAGE
from ipc.spans import Ids, SpanArena
from tests.support.models.tiny_model import CHAT_TEMPLATE

FRONT_URL, SCHEDULER_URL = "front", "scheduler"
MAX_MODEL_LEN = 512
BLOCK_SIZE = 16
RING_SLOTS = 64


@dataclass
class FakePeers:
    """A peer table that the test writes."""

    peers: dict[str, Peer] = field(default_factory=dict)

    def look(self) -> None:
        """What was written is there at once."""

    def peer(self, child_id: str) -> Peer:
        """Return what was written."""
        return self.peers.get(child_id, Peer())


class PieceWorker:
    """A worker whose pieces are done when `work` is called; keeps the order of the tenants."""

    def __init__(self) -> None:
        self.tenants: list[str] = []
        self._encoding: Encoding | None = None
        self._done: tuple[Encoding, bool] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is a piece."""
        return self._encoding is not None

    def start(self, encoding: Encoding) -> None:
        """Take a piece."""
        assert self._encoding is None
        self._encoding = encoding
        self.tenants.append(encoding.tenant)

    def work(self) -> None:
        """Do the piece."""
        if self._encoding is not None and self._done is None:
            self._done = (self._encoding, self._encoding.job.advance())

    def take_done(self) -> tuple[Encoding, bool] | None:
        """Return the piece if it is done."""
        done, self._done = self._done, None
        if done is not None:
            self._encoding = None
        return done


class HttpPeer:
    """One http process instance: sends messages, keeps what it is told."""

    def __init__(self, network: LoopbackNetwork, index: int, epoch: int) -> None:
        self.identity = f"http.{index}.{epoch}".encode()
        self.port: LoopbackDealer[ToHttp, ToTokenizer] = LoopbackDealer(
            network, FRONT_URL, self.identity, Codec[ToHttp](ToHttp),
            Codec[ToTokenizer](ToTokenizer),
        )  # fmt: skip
        self.messages: list[ToHttp] = []

    def send(self, message: ToTokenizer) -> None:
        """Send, which must succeed."""
        assert self.port.send(message)

    def read(self) -> list[ToHttp]:
        """Return what is new, and keep it."""
        new = [item.message for item in self.port.receive(10_000)]
        self.messages += new
        return new

    def chunks(self, operation_id: str, choice: int = 0) -> list[Chunk]:
        """Return all chunks of a choice so far."""
        self.read()
        return [
            chunk
            for message in self.messages
            if isinstance(message, Chunks)
            for chunk in message.chunks
            if (chunk.operation_id, chunk.choice) == (operation_id, choice)
        ]

    def text(self, operation_id: str, choice: int = 0) -> str:
        """Return the text of a choice so far."""
        return "".join(chunk.text for chunk in self.chunks(operation_id, choice))

    def failed(self) -> list[Failed]:
        """Return all failures so far."""
        self.read()
        return [message for message in self.messages if isinstance(message, Failed)]


class ScriptedScheduler:
    """One scheduler instance: keeps what it is told, says what the test wants said."""

    def __init__(self, network: LoopbackNetwork, ring: LoopbackRing, arena: Ids) -> None:
        self.port: LoopbackRouter[ToScheduler, ControlReply] = LoopbackRouter(
            network, SCHEDULER_URL, Codec[ToScheduler](ToScheduler),
            Codec[ControlReply](ControlReply),
        )  # fmt: skip
        self.writer = LoopbackRingWriter(ring)
        self.writer.reset()
        self.submits: list[Submit] = []
        self.aborts: list[Abort] = []
        self.stops: list[Stop] = []
        self._arena = arena

    def read(self) -> None:
        """Take in everything that was sent."""
        for item in self.port.receive(10_000):
            match item.message:
                case Submit() as submit:
                    self.submits.append(submit)
                case Abort() as abort:
                    self.aborts.append(abort)
                case Stop() as stop:
                    self.stops.append(stop)

    def span(self, submit: Submit) -> list[int]:
        """Return the ids of a request's span."""
        end = submit.span_start + submit.prompt_len + submit.max_tokens
        return [int(i) for i in self._arena[submit.span_start : end]]

    def prompt(self, submit: Submit) -> list[int]:
        """Return the prompt in a request's span."""
        return self.span(submit)[: submit.prompt_len]

    def say(self, *records: dict[str, Any], logprobs: Iterable[tuple[int, float]] = ()) -> None:
        """Send records of OUTPUT in one frame; fields not named are 0."""
        rows = np.zeros(len(records), OUTPUT)
        for row, record in zip(rows, records, strict=True):
            for name, value in record.items():
                row[name] = value
        batch = OutputBatch(rows, np.array(list(logprobs), LOGPROB))
        assert self.writer.send(output_parts(batch))

    def start(self, *submits: Submit) -> None:
        """Queue and start requests."""
        for submit in submits:
            self.say(
                record(submit, OutputKind.QUEUED),
                record(submit, OutputKind.STARTED, queue_ns=5, num_cached_tokens=3),
            )

    def tokens(self, submit: Submit, token_ids: Iterable[int], first_index: int = 0) -> None:
        """Say tokens, one frame each."""
        for index, token_id in enumerate(token_ids, first_index):
            self.say(record(submit, OutputKind.TOKEN, token_id=token_id, index=index))

    def finish(
        self,
        submit: Submit,
        num_output_tokens: int,
        status: RequestStatus = RequestStatus.FINISHED_LENGTH,
        reason: RejectionReason = RejectionReason.NONE,
    ) -> None:
        """Say the end and the release."""
        end = {"num_output_tokens": num_output_tokens, "status": status, "reason": reason}
        self.say(record(submit, OutputKind.FINISHED, **end), record(submit, OutputKind.RELEASED))


def record(submit: Submit, kind: OutputKind, **fields: Any) -> dict[str, Any]:
    """Return one record of a request."""
    served = {"traffic_class": submit.traffic_class}
    return {"request_id": submit.request_id, "kind": kind, **served, **fields}


class TokenizerRig:
    """The loop and its world. `run` steps it until it has nothing to do."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        arena_tokens: int = 64 * 256,
        max_operations: int = 100,
        max_pending_bytes: int = 1 << 20,
        piece_bytes: int = 256,
    ) -> None:
        self.vocabulary = vocabulary
        self.clock = VirtualClock()
        self.network = LoopbackNetwork()
        self.ring = LoopbackRing(RING_SLOTS, 1 << 20)
        self.ids = np.zeros(arena_tokens, np.int32)
        self.arena = SpanArena(self.ids)
        self.peers = FakePeers()
        self.worker = PieceWorker()
        template = ChatTemplate(CHAT_TEMPLATE, {}, vocabulary, self.clock, 1000, 1 << 22)
        facts = TokenizerFacts(
            index=2, epoch=3, max_model_len=MAX_MODEL_LEN, max_operations=max_operations,
            max_pending_bytes=max_pending_bytes, arena_tokens=arena_tokens, block_size=BLOCK_SIZE,
            digest_secret=b"secret",
        )  # fmt: skip
        encoder = PromptEncoder(vocabulary, template, MAX_MODEL_LEN, piece_bytes)
        scheduler_page = anonymous_segment(board_layout(SCHEDULER_PAGE))
        self.scheduler_page = BoardWriter(scheduler_page, SCHEDULER_PAGE, 1)
        self.operations = Operations(facts, encoder, self.arena)
        self.loop = TokenizerLoop(self.operations, self.arena)
        self.channels = TokenizerChannels(
            front=LoopbackRouter[ToTokenizer, ToHttp](
                self.network, FRONT_URL, Codec[ToTokenizer](ToTokenizer), Codec[ToHttp](ToHttp)
            ),
            scheduler=LoopbackDealer[ControlReply, ToScheduler](
                self.network, SCHEDULER_URL, b"tokenizer.2.3", Codec[ControlReply](ControlReply),
                Codec[ToScheduler](ToScheduler),
            ),
            outputs=self.ring.readers[0],
            worker=self.worker,
            peers=self.peers,
            page=BoardWriter(anonymous_segment(board_layout(TOKENIZER_PAGE)), TOKENIZER_PAGE, 3),
            scheduler_page=BoardReader(scheduler_page, SCHEDULER_PAGE),
        )  # fmt: skip
        self.announce(3)
        self.http = self.start_http(0, 1)
        self.scheduler = self.start_scheduler(1)

    def announce(self, epoch: int) -> None:
        """Let the scheduler's page say that instance `epoch` of the tokenizer may write."""
        self.scheduler_page.page["tokenizer_epochs"][2] = epoch
        self.scheduler_page.publish(self.clock.now_ns())

    def start_http(self, index: int, epoch: int) -> HttpPeer:
        """Start an http process instance."""
        self.peers.peers[f"http.{index}"] = Peer(epoch, epoch)
        return HttpPeer(self.network, index, epoch)

    def start_scheduler(self, epoch: int) -> ScriptedScheduler:
        """Start a scheduler instance; what its predecessor said and nobody read is void."""
        self.scheduler = ScriptedScheduler(self.network, self.ring, self.ids)
        self.peers.peers["scheduler"] = Peer(epoch, epoch)
        return self.scheduler

    def kill_scheduler(self) -> None:
        """Let the scheduler die."""
        self.scheduler.port.close()
        self.peers.peers["scheduler"] = Peer()

    def run(self) -> None:
        """Step until idle, the worker doing its pieces, and let everybody read."""
        for _ in range(1000):
            self.worker.work()
            self.clock.advance(LOOK_NS)
            if not self.loop.step(self.channels, self.clock):
                break
        else:
            raise AssertionError("the loop does not come to rest")
        self.scheduler.read()
        self.http.read()

    def generate(self, operation_id: str = "op", **fields: Any) -> list[Submit]:
        """Send a `Generate` from http 0 and return the requests that it makes."""
        num_before = len(self.scheduler.submits)
        self.http.send(generate(operation_id, **fields))
        self.run()
        return self.scheduler.submits[num_before:]

    def begun(self, operation_id: str = "op", **fields: Any) -> Submit:
        """Send a `Generate` of one choice and let the scheduler start it."""
        (submit,) = self.generate(operation_id, **fields)
        self.scheduler.start(submit)
        self.run()
        return submit

    def check_idle(self) -> None:
        """Assert that nothing is left behind: no operation, request or span."""
        assert len(self.operations) == 0
        assert len(self.operations.requests) == 0
        self.arena.check_integrity()
        assert self.arena.statistics().num_spans == 0


def generate(operation_id: str = "op", text: str = "tell me a story", **fields: Any) -> Generate:
    """Return an operation of one text prompt with defaults."""
    defaults: dict[str, Any] = {
        "tenant": "tenant",
        "traffic_class": TrafficClass.STANDARD,
        "prompts": [TextPrompt(text)],
        "n": 1,
        "max_tokens": 16,
        "sampling": SamplingParams(seed=7),
    }
    return Generate(operation_id=operation_id, **{**defaults, **fields})
