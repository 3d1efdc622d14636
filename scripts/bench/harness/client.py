"""A small streaming client for OpenAI-compatible servers.

Owns: one HTTP session, the timeline of each request, the reading of server-sent events. Never
knows: which load is applied, or what a good figure is. It shares the cores with the server it
measures, so an event costs one JSON parse and one clock reading.
"""

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from types import TracebackType
from typing import Any

import aiohttp
import orjson

REQUEST_TIMEOUT_S = 900
ERROR_CHARS = 300


@dataclass(slots=True)
class Timeline:
    """What one request saw. Times are `time.perf_counter` seconds; 0.0 = has not happened.

    `chunk_s` has an entry for each event with output; inter-token latencies are its differences.
    """

    intended_s: float = 0.0  # when the load plan wanted it sent: all latencies count from here
    sent_s: float = 0.0
    ended_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list, repr=False)
    prompt_tokens: int = 0
    output_tokens: int = 0
    prompt_token_ids: list[int] = field(default_factory=list, repr=False)
    token_ids: list[int] = field(default_factory=list, repr=False)
    logprobs: list[float] = field(default_factory=list, repr=False)
    text: str = ""
    finish_reason: str = ""
    status: int = 0
    error: str = ""
    error_code: str = ""
    cut: bool = False  # ended by us: `until` passed, or `leave_after` was reached
    done: bool = False  # the server's closing `[DONE]` arrived

    @property
    def ttft_s(self) -> float:
        """Seconds from the intended send to the first output."""
        return self.chunk_s[0] - self.intended_s

    @property
    def e2e_s(self) -> float:
        """Seconds from the intended send to the end of the stream."""
        return self.ended_s - self.intended_s

    @property
    def lag_s(self) -> float:
        """Seconds by which the client itself was late."""
        return self.sent_s - self.intended_s

    def itl_s(self) -> list[float]:
        """Seconds between one output event and the next."""
        return [late - early for early, late in pairwise(self.chunk_s)]


class Client:
    """One session with a server; use it as an async context manager."""

    def __init__(self, url: str, key: str = "") -> None:
        """Talk to the server at `url` (scheme, host, port), with the API key if there is one."""
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def __aenter__(self) -> "Client":
        """Open the session: no limit on connections, each kept for less than a server keeps it."""
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
            read_bufsize=2**20,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session and its connections."""
        await self._session.close()

    def anew(self) -> "Client":
        """Return a client of the same server with a session of its own."""
        client = Client(self.url)
        client._headers = self._headers
        return client

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET; (0, message) if the server cannot be reached."""
        try:
            async with self._session.get(self.url + path) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, _reason(error).encode()

    async def post(
        self, path: str, body: Mapping[str, object], headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return status and parsed JSON of a POST; (0, message) if the server cannot be reached."""
        arguments = _json(body)
        arguments["headers"].update(headers or {})
        try:
            async with self._session.post(self.url + path, **arguments) as answer:
                raw = await answer.read()
                return answer.status, orjson.loads(raw) if raw else None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, _reason(error)

    async def model(self) -> str:
        """Return the id of the first model listed; raise RuntimeError if there is no answer."""
        status, raw = await self.get("/v1/models")
        if status != 200:
            raise RuntimeError(f"GET {self.url}/v1/models: {status} {raw[:ERROR_CHARS].decode()}")
        return str(orjson.loads(raw)["data"][0]["id"])

    async def stream(
        self,
        path: str,
        body: Mapping[str, object],
        timeline: Timeline,
        until: float = float("inf"),
        leave_after: float = float("inf"),
        headers: Mapping[str, str] | None = None,
    ) -> Timeline:
        """Send `body` as a streaming request and fill `timeline` as events arrive; raises nothing.

        At `until` (perf_counter seconds), or after `leave_after` events with output, the connection
        is closed by us and `cut` is set.
        """
        timeline.sent_s = time.perf_counter()
        timeline.intended_s = timeline.intended_s or timeline.sent_s
        limit_s = None if until == float("inf") else max(0.0, until - timeline.sent_s)
        try:
            async with asyncio.timeout(limit_s):
                await self._read_stream(path, body, timeline, leave_after, headers)
        except TimeoutError:
            timeline.cut = limit_s is not None
            timeline.error = "" if timeline.cut else "timeout"
        except (aiohttp.ClientError, OSError) as error:
            timeline.error = _reason(error)[:ERROR_CHARS]
        timeline.ended_s = time.perf_counter()
        return timeline

    async def _read_stream(
        self,
        path: str,
        body: Mapping[str, object],
        timeline: Timeline,
        leave_after: float,
        headers: Mapping[str, str] | None,
    ) -> None:
        arguments = _json({**body, "stream": True, "stream_options": {"include_usage": True}})
        arguments["headers"].update(headers or {})
        async with self._session.post(self.url + path, **arguments) as answer:
            timeline.status = answer.status
            if answer.status != 200:
                text = await answer.text()
                timeline.error = f"{answer.status} {text[:ERROR_CHARS]}"
                timeline.error_code = error_code(text)
                return
            rest = b""
            async for piece in answer.content.iter_any():
                now = time.perf_counter()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        read_event(line[5:].strip(), now, timeline)
                if len(timeline.chunk_s) >= leave_after and not timeline.done:
                    timeline.cut = True
                    return
            if not timeline.done and not timeline.error:
                timeline.error = "the stream ended without [DONE]"


def _json(body: Mapping[str, object]) -> dict[str, Any]:
    return {"data": orjson.dumps(body), "headers": {"Content-Type": "application/json"}}


def read_event(data: bytes, now: float, timeline: Timeline) -> None:
    """Add one server-sent event (completion or chat) to the timeline."""
    if data == b"[DONE]":
        timeline.done = True
        return
    event = orjson.loads(data)
    if event.get("error"):
        timeline.error = str(event["error"])[:ERROR_CHARS]
        timeline.error_code = error_code(data)
        return
    if usage := event.get("usage"):
        timeline.prompt_tokens = usage["prompt_tokens"]
        timeline.output_tokens = usage["completion_tokens"]
    if event.get("prompt_token_ids"):
        timeline.prompt_token_ids = event["prompt_token_ids"]
    for choice in event.get("choices", ()):
        _read_choice(choice, now, timeline)


def error_code(body: bytes | str) -> str:
    """Return the code in an error as OpenAI's clients get it; "" of anything else."""
    try:
        return str(orjson.loads(body)["error"]["code"] or "")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def _read_choice(choice: Mapping[str, Any], now: float, timeline: Timeline) -> None:
    delta = choice.get("delta")
    text = choice.get("text") if delta is None else delta.get("content")
    token_ids = choice.get("token_ids")
    if text or token_ids:
        timeline.chunk_s.append(now)
        timeline.text += text or ""
    if token_ids:
        timeline.token_ids += token_ids
    if choice.get("prompt_token_ids"):
        timeline.prompt_token_ids = choice["prompt_token_ids"]
    if logprobs := choice.get("logprobs"):
        timeline.logprobs += chosen_logprobs(logprobs)
    timeline.finish_reason = choice.get("finish_reason") or timeline.finish_reason


def chosen_logprobs(logprobs: Mapping[str, Any]) -> list[float]:
    """Return the log-probabilities of the chosen tokens, of a chat answer or of a completion."""
    if logprobs.get("content") is not None:
        return [entry["logprob"] for entry in logprobs["content"]]
    return list(logprobs.get("token_logprobs") or ())


class Prompts:
    """Random prompts as token ids of [low, high), each with another first id: no prefix repeats."""

    def __init__(self, low: int, high: int, seed: int) -> None:
        """Shuffle the first ids; every prompt takes the next one, from the start after the last."""
        self._ids = range(low, high)
        self._random = random.Random(seed)
        self._firsts = cycle(self._random.sample(self._ids, len(self._ids)))

    def make(self, num_tokens: int) -> list[int]:
        """Return a prompt of exactly `num_tokens` ids."""
        return [next(self._firsts), *self._random.choices(self._ids, k=num_tokens - 1)]


def _reason(error: Exception) -> str:
    """Return what an error says; some say nothing but their name."""
    return str(error) or type(error).__name__
