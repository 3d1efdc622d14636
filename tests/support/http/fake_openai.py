"""A small OpenAI-compatible server with a deterministic model, for tests of clients.

The model is arithmetic on the ids so far; text is one letter a token. Faults are switched on by
the fields of `FakeServer`. It answers completions and chat, `/v1/models` and `/metrics`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

FIRST_ID = 10
NUM_IDS = 26


def next_id(ids: list[int]) -> int:
    """Return the greedy choice of the model after `ids`."""
    return FIRST_ID + (sum(ids) * 31 + len(ids)) % NUM_IDS


def logprob_of(token_id: int) -> float:
    """Return the model's log-probability of its greedy choice."""
    return -token_id / 100


def encode(text: str) -> list[int]:
    """Return the ids of `text`: its bytes."""
    return list(text.encode())


def encode_chat(messages: list[dict[str, Any]]) -> list[int]:
    """Return the ids of a conversation."""
    return [1, *(i for message in messages for i in encode(message["content"])), 2]


def decode(token_id: int) -> str:
    """Return the letter of a generated id."""
    return chr(ord("a") + token_id - FIRST_ID)


@dataclass(slots=True)
class FakeServer:
    """What it has seen, and what it does wrong."""

    wrong_at: int = -1  # output index at which another id is generated
    fail_after: int = -1  # output index at which a stream ends with an error event
    pause_s: float = 0.0  # before each output token
    preemptions: int = 0  # counted for each request
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    num_preemptions: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeServer"]:
        """Serve on a free loopback port, `url`, while the context is open."""
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def _metrics(self, _: web.Request) -> web.Response:
        line = f'vllm:num_preemptions_total{{model_name="fake"}} {self.num_preemptions}.0\n'
        return web.Response(text=line)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.num_preemptions += self.preemptions
        if "messages" in body:
            prompt = encode_chat(body["messages"])
        else:
            prompt = body["prompt"] if isinstance(body["prompt"], list) else encode(body["prompt"])
        if not body.get("stream"):
            return web.json_response(self._scored(prompt))
        return await self._stream(request, body, prompt)

    def _scored(self, prompt: list[int]) -> dict[str, Any]:
        best = [next_id(prompt[:index]) for index in range(1, len(prompt))]
        chosen = [
            logprob_of(token) - (0.0 if token == given else 5.0)
            for token, given in zip(best, prompt[1:], strict=True)
        ]
        top = [{decode(token): logprob_of(token)} for token in best]
        logprobs = {"token_logprobs": [None, *chosen], "top_logprobs": [None, *top]}
        return {"choices": [{"index": 0, "text": "", "logprobs": logprobs}]}

    async def _stream(
        self, request: web.Request, body: dict[str, Any], prompt: list[int]
    ) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        ids = list(prompt)
        for index in range(body["max_tokens"]):
            await asyncio.sleep(self.pause_s)
            if index == self.fail_after:
                await _send(answer, {"error": {"message": "the executor died", "code": "fault"}})
                return answer
            token = next_id(ids) + (1 if index == self.wrong_at else 0)
            ids.append(token)
            chunk = _chunk(body, token)
            if index == 0:
                chunk["prompt_token_ids"] = prompt
            await _send(answer, chunk)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": body["max_tokens"]}
        await _send(answer, {"choices": [], "usage": usage})
        await answer.write(b"data: [DONE]\n\n")
        return answer


def _chunk(body: dict[str, Any], token: int) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "token_ids": [token], "finish_reason": None}
    if "messages" in body:
        choice["delta"] = {"content": decode(token)}
        choice["logprobs"] = {"content": [{"logprob": logprob_of(token)}]}
    else:
        choice["text"] = decode(token)
        choice["logprobs"] = {"token_logprobs": [logprob_of(token)]}
    return {"id": "x", "choices": [choice], "usage": None}


async def _send(answer: web.StreamResponse, event: dict[str, Any]) -> None:
    await answer.write(f"data: {json.dumps(event)}\n\n".encode())
