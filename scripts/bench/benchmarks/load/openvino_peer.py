"""OpenVINO GenAI's continuous batching behind `/v1/completions`, to be measured as a peer.

Owns: the least that `load` needs of a server: prompts as token ids, streamed greedy answers of an
exact length, one event a token. Never knows: this engine; it runs in the peer's own environment
(README.md says how to make it), whose OpenVINO, Starlette and uvicorn are imported here.
"""

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

Tokens = asyncio.Queue[list[int] | None]  # None: the answer is complete
IDLE_WAIT_S = 0.1


@dataclass(slots=True)
class Generation:
    """A request on its way through the pipeline's thread."""

    prompt: list[int]
    max_tokens: int
    tokens: Tokens
    loop: asyncio.AbstractEventLoop
    handle: Any = None

    def push(self, tokens: list[int] | None) -> None:
        """Hand new ids to the event loop; called in the pipeline's thread."""
        self.loop.call_soon_threadsafe(self.tokens.put_nowait, tokens)


class Batcher:
    """The pipeline and the thread that alone touches it."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._arrived: queue.Queue[Generation] = queue.Queue()
        self._running: list[Generation] = []
        self._ids = count()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, prompt: list[int], max_tokens: int) -> Tokens:
        """Queue a request; its ids arrive in the returned queue."""
        tokens: Tokens = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._arrived.put(Generation(prompt, max_tokens, tokens, loop))
        return tokens

    def _run(self) -> None:
        while True:
            self._take_arrived()
            if self._running:
                self._pipeline.step()
                self._running = [one for one in self._running if not self._deliver(one)]

    def _take_arrived(self) -> None:
        while not self._running or not self._arrived.empty():
            try:
                generation = self._arrived.get(timeout=IDLE_WAIT_S)
            except queue.Empty:
                continue
            config = genai.GenerationConfig()
            config.max_new_tokens = generation.max_tokens
            config.ignore_eos = True
            config.do_sample = False
            prompt = ov.Tensor(np.array([generation.prompt], dtype=np.int64))
            generation.handle = self._pipeline.add_request(next(self._ids), prompt, config)
            self._running.append(generation)

    def _deliver(self, generation: Generation) -> bool:
        """Push what the last step made; return whether the request is complete."""
        handle = generation.handle
        while handle.can_read():
            for output in handle.read().values():
                generation.push(list(output.generated_ids))
        if handle.get_status() == genai.GenerationStatus.RUNNING:
            return False
        generation.push(None)
        return True


def make_application(batcher: Batcher) -> Starlette:
    """Return the two routes that `load` uses."""

    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": "peer", "object": "model"}]})

    async def completions(request: Request) -> StreamingResponse:
        body = await request.json()
        tokens = batcher.submit(body["prompt"], body["max_tokens"])
        events = _events(tokens, len(body["prompt"]))
        return StreamingResponse(events, media_type="text/event-stream")

    routes = [Route("/v1/models", models), Route("/v1/completions", completions, methods=["POST"])]
    return Starlette(routes=routes)


async def _events(tokens: Tokens, prompt_tokens: int) -> AsyncIterator[str]:
    made = 0
    while (ids := await tokens.get()) is not None:
        made += len(ids)
        choice = {"index": 0, "text": " " * len(ids), "token_ids": ids, "finish_reason": None}
        yield f"data: {json.dumps({'object': 'text_completion', 'choices': [choice]})}\n\n"
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": made}
    end = {"index": 0, "text": "", "finish_reason": "length"}
    last = {"object": "text_completion", "choices": [end], "usage": usage}
    yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"


def main() -> None:
    """Serve the converted model of `--model` on loopback."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="directory made by optimum-cli")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--precision", default="bf16", help="INFERENCE_PRECISION_HINT")
    parser.add_argument("--max-num-batched-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=0, help="0 = OpenVINO decides")
    parser.add_argument("--cache-gb", type=int, default=3)
    arguments = parser.parse_args()
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = arguments.cache_gb
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = arguments.max_num_batched_tokens
    scheduler.dynamic_split_fuse = True
    hints = {"INFERENCE_PRECISION_HINT": arguments.precision}
    if arguments.threads:
        hints["INFERENCE_NUM_THREADS"] = arguments.threads
    pipeline = genai.ContinuousBatchingPipeline(arguments.model, scheduler, "CPU", hints)
    application = make_application(Batcher(pipeline))
    uvicorn.run(application, host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
