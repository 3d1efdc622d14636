"""A tokenizer and all behind it, as an http process sees it: a real zmq ROUTER that plays scripts.

A prompt says what shall happen to it, so that no test depends on timing:

    say TEXT            TEXT comes out, a token a character, then "stop" (or "length" at max_tokens)
    reject REASON [MS]  refused before it started, to be retried after MS
    bad STATUS CODE     refused as a bad request
    shed REASON         ended while queued, by a chunk
    late REASON         two tokens, then ended for REASON
    fault               two tokens, then finish_reason "error"
    cancelled           two tokens, then finish_reason "abort" without a reason
    queue               queued, and nothing more
    start               queued and started, and nothing more
    hold                one token, and nothing more
    flood               a kilobyte a token until it is cancelled
    anything else       "ok"

Characters are the tokens: the id is the code point. Everything received is kept; `wait_for` blocks
a test's thread until a message has come.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from core.errors import Rejection, RejectionReason
from core.messages.http import (
    Chunk,
    Chunks,
    Detokenized,
    Failed,
    Queued,
    Started,
    ToHttp,
    Tokenized,
    TokenLogprob,
)
from core.messages.tokenizer import (
    Cancel,
    ChatPrompt,
    Detokenize,
    Generate,
    IdsPrompt,
    Prompt,
    Tokenize,
    ToTokenizer,
)
from core.tenancy.classes import TrafficClass
from ipc.async_port import AsyncPort
from ipc.codec import Codec
from ipc.ports import Context, RouterPort

WAIT_S = 60.0
QUEUE_NS = 7_000_000
NUM_CACHED_TOKENS = 1
LOGPROB = -0.5
FLOOD_TEXT = "x" * 1000

MessageT = TypeVar("MessageT")


def prompt_text(prompt: Prompt) -> str:
    """Return the text of a prompt; of a conversation, its last turn."""
    if isinstance(prompt, ChatPrompt):
        return str(prompt.messages[-1]["content"])
    if isinstance(prompt, IdsPrompt):
        return "".join(map(chr, prompt.token_ids))
    return prompt.text


def token_logprob(text: str, num_top: int) -> TokenLogprob:
    """Return a made-up log-probability of a character, and of the `num_top` after it."""
    others = [chr(ord(text) + i) for i in range(num_top)]
    top = [(ord(other), LOGPROB - i, other, other.encode()) for i, other in enumerate(others)]
    return TokenLogprob(ord(text), LOGPROB, text, text.encode(), top)


@dataclass(slots=True)
class Script:
    """One choice of an operation and the words its prompt consists of."""

    message: Generate
    choice: int
    text: str

    @property
    def words(self) -> list[str]:
        """The directive."""
        return self.text.split()

    def chunk(self, text: str, index: int, finish_reason: str = "") -> Chunk:
        """Return a chunk with one token a character of `text`; `index` tokens came before it."""
        message = self.message
        num_top = message.sampling.num_logprobs
        wants_logprobs = message.want_logprobs and num_top >= 0
        return Chunk(
            operation_id=message.operation_id,
            choice=self.choice,
            text=text,
            token_ids=list(map(ord, text)) if message.want_token_ids else [],
            logprobs=[token_logprob(c, num_top) for c in text] if wants_logprobs else [],
            finish_reason=finish_reason,
            num_prompt_tokens=len(self.text),
            num_cached_tokens=NUM_CACHED_TOKENS,
            num_output_tokens=index + len(text),
        )

    def prompt_chunk(self) -> Chunk:
        """Return the log-probabilities of the prompt; its first position has none."""
        num_top = self.message.sampling.num_prompt_logprobs
        entries = [token_logprob(c, num_top) for c in self.text]
        entries[0] = TokenLogprob(ord(self.text[0]), float("nan"), self.text[0], b"")
        return replace(self.chunk("", 0), prompt_logprobs=entries)

    def spoken(self, text: str) -> list[Chunk]:
        """Return `text` as chunks of a token each, cut by max_tokens and stop strings."""
        found = [(text.index(stop), stop) for stop in self.message.stop if stop in text]
        end, stop = min(found, default=(len(text), None))
        limit = self.message.max_tokens
        is_cut = limit is not None and limit < end
        kept = text[:limit] if is_cut else text[:end]
        chunks = [self.chunk(character, i) for i, character in enumerate(kept)]
        last = self.chunk("", len(kept), "length" if is_cut else "stop")
        return [*chunks, replace(last, stop_reason=None if is_cut else stop)]


class FakeEngine:
    """Runs inside the event loop of the http process; `wait_for` and `send` are for other
    threads."""

    def __init__(self, context: Context, url: str) -> None:
        self._port: AsyncPort[ToTokenizer, ToHttp] = AsyncPort(
            RouterPort(context, url, Codec[ToTokenizer](ToTokenizer), Codec[ToHttp](ToHttp))
        )
        self._loop = asyncio.get_running_loop()
        self._news = threading.Condition()
        self._received: list[ToTokenizer] = []
        self._cancelled: set[str] = set()
        self._peer = b""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Play scripts until cancelled."""
        try:
            while True:
                for received in await self._port.receive():
                    self._peer = received.peer
                    self._note(received.message)
                    self._act(received.message)
        finally:
            for task in self._tasks:
                task.cancel()
            self._port.close()

    def received(self, kind: type[MessageT]) -> list[MessageT]:
        """Return all messages of a kind so far."""
        with self._news:
            return [message for message in self._received if isinstance(message, kind)]

    def wait_for(
        self, kind: type[MessageT], accept: Callable[[MessageT], bool] = lambda _: True
    ) -> MessageT:
        """Return the first message of a kind that `accept` likes, waiting for it."""
        found: list[MessageT] = []

        def has_come() -> bool:
            found.extend(m for m in self._received if isinstance(m, kind) and accept(m))
            return bool(found)

        with self._news:
            assert self._news.wait_for(has_come, WAIT_S), f"no {kind.__name__} came"
        return found[0]

    def send(self, *messages: ToHttp) -> None:
        """Send as the tokenizer would."""
        for message in messages:
            self._loop.call_soon_threadsafe(self._send, message)

    def finish(self, message: Generate, text: str = "") -> None:
        """End the first choice of an operation well, with `text` as its last token."""
        script = Script(message, 0, prompt_text(message.prompts[0]))
        self.send(Chunks([script.chunk(text, 1, "stop")]))

    def _note(self, message: ToTokenizer) -> None:
        with self._news:
            self._received.append(message)
            if isinstance(message, Cancel):
                self._cancelled.add(message.operation_id)
            self._news.notify_all()

    def _send(self, message: ToHttp) -> None:
        self._port.send_nowait(message, self._peer)

    def _act(self, message: ToTokenizer) -> None:
        if isinstance(message, Tokenize):
            ids = list(map(ord, prompt_text(message.prompt)))
            self._send(Tokenized(message.operation_id, ids, list(map(chr, ids))))
        elif isinstance(message, Detokenize):
            text = "".join(map(chr, message.token_ids))
            self._send(Detokenized(message.operation_id, text))
        elif isinstance(message, Generate):
            self._generate(message)

    def _generate(self, message: Generate) -> None:
        texts = [prompt_text(prompt) for prompt in message.prompts]
        refusal = self._refusal(message, texts[0].split())
        if refusal is not None:
            self._send(refusal)
            return
        ids = [list(map(ord, text)) for text in texts] if message.want_token_ids else []
        echoed = texts if message.echo else []
        served = TrafficClass.STANDARD if "demote" in texts[0] else message.traffic_class
        self._send(Queued(message.operation_id, ids, list(map(len, texts)), echoed, served))
        scripts = [
            Script(message, index, texts[index // message.n])
            for index in range(len(texts) * message.n)
        ]
        self._play(message, scripts)

    def _refusal(self, message: Generate, words: list[str]) -> Failed | None:
        match words:
            case ["reject", reason, *rest]:
                rejection = Rejection(
                    RejectionReason[reason],
                    retry_after_ms=int(rest[0]) if rest else 0,
                    measured=9000.0,
                    threshold=8192.0,
                )
                status = 408 if message.queue_deadline_ns or message.end_deadline_ns else 504
                return Failed(
                    message.operation_id,
                    "refused",
                    status=status,
                    rejection=rejection,
                    num_prompt_tokens=8000,
                )
            case ["bad", status_text, code]:
                return Failed(message.operation_id, "it is bad", code, "prompt", int(status_text))
        return None

    def _play(self, message: Generate, scripts: list[Script]) -> None:
        words = scripts[0].words
        match words:
            case ["queue"]:
                return
            case ["shed", reason]:
                self._end(scripts, "abort", Rejection(RejectionReason[reason]), 0)
                return
        self._send(Started(message.operation_id, QUEUE_NS))
        match words:
            case ["start"]:
                return
            case ["hold"]:
                self._send(Chunks([script.chunk("a", 0) for script in scripts]))
            case ["flood"]:
                self._spawn(self._flood(scripts[0]))
            case ["late", reason]:
                self._begin_badly(scripts)
                self._end(scripts, "abort", Rejection(RejectionReason[reason]), 2)
            case ["fault"]:
                self._begin_badly(scripts)
                self._end(scripts, "error", None, 2)
            case ["cancelled"]:
                self._begin_badly(scripts)
                self._end(scripts, "abort", None, 2)
            case _:
                self._speak(scripts)

    def _speak(self, scripts: list[Script]) -> None:
        """Send the choices' tokens step by step, all choices in one message, as an engine does."""
        streams = []
        for script in scripts:
            said = script.text.removeprefix("say ") if script.text.startswith("say ") else "ok"
            chunks = script.spoken(said)
            if script.message.sampling.num_prompt_logprobs >= 0:
                chunks = [script.prompt_chunk(), *chunks]
            streams.append(chunks)
        for step in range(max(map(len, streams))):
            self._send(Chunks([chunks[step] for chunks in streams if step < len(chunks)]))

    def _begin_badly(self, scripts: list[Script]) -> None:
        self._send(Chunks([script.chunk("ab", 0) for script in scripts]))

    def _end(
        self, scripts: list[Script], finish_reason: str, rejection: Rejection | None, index: int
    ) -> None:
        ends = [script.chunk("", index, finish_reason) for script in scripts]
        self._send(Chunks([replace(end, rejection=rejection) for end in ends]))

    def _spawn(self, flood: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(flood)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flood(self, script: Script) -> None:
        index = 0
        while script.message.operation_id not in self._cancelled:
            self._send(Chunks([script.chunk(FLOOD_TEXT, index)]))
            index += len(FLOOD_TEXT)
            await asyncio.sleep(0)
