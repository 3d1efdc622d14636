"""`headrace generate`: one prompt in, text out, streamed to stdout.

Owns: the flags, which engine is asked, and what is printed. Never knows: HTTP (`api_client`) or
processes (`private_engine`).
"""

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.config.headrace import HeadraceConfig
from core.terminal import CommandError, ExitCode, Terminal
from frontends.cli.api_client import ApiClient
from frontends.cli.config_flags import (
    ENGINE_SHORTCUTS,
    add_config_flags,
    config_arguments,
    overrides_of,
)
from frontends.cli.private_engine import client_of, private_engine

DESCRIPTION = """Generate text for one prompt and stream it to stdout.

A running engine of that name is asked if there is one. Otherwise, or if a configuration is
given, an engine is started for this prompt and ended afterwards. HEADRACE_API_KEY is sent as the
API key."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt; - reads standard input")
    parser.add_argument(
        "--name", default=HeadraceConfig().name, help="engine to ask (default: %(default)s)"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--raw", action="store_true", help="continue the text, without the model's chat template"
    )
    parser.add_argument(
        "--max-tokens",
        type=between(int, 1, 2**31 - 1),
        metavar="N",
        help="tokens to generate at most",
    )
    parser.add_argument(
        "--temperature", type=between(float, 0, 2), metavar="T", help="0 to 2; 0 = greedy"
    )
    parser.add_argument(
        "--seed",
        type=between(int, -(2**63), 2**63 - 1),
        metavar="N",
        help="makes sampling repeatable",
    )
    parser.add_argument("--json", action="store_true", help="write one JSON document at the end")
    add_config_flags(parser, ENGINE_SHORTCUTS)


def between(number: type[int] | type[float], low: int, high: int) -> Callable[[str], float]:
    """Return a conversion of what was typed, so that no engine is started to refuse it."""
    kind = "whole number" if number is int else "number"

    def convert(text: str) -> float:
        try:
            value = number(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no {kind} from {low} to {high}")
        return value

    return convert


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Generate."""
    if args.raw and args.system:
        raise CommandError("--raw has no system message: leave one of them out", ExitCode.USAGE)
    prompt = terminal.read_all() if args.prompt == "-" else args.prompt
    if args.raw and not prompt:
        raise CommandError("the prompt is empty: --raw needs a text to continue", ExitCode.USAGE)
    with chosen_engine(args, terminal) as client:
        body = request_body(args, prompt, client.model())
        return print_stream(client, COMPLETIONS if args.raw else CHAT, body, args.json, terminal)


@contextmanager
def chosen_engine(args: argparse.Namespace, terminal: Terminal) -> Iterator[ApiClient]:
    """Give a client to the running engine, or to one of our own."""
    arguments = config_arguments(args.config, overrides_of(args, ENGINE_SHORTCUTS))
    client = client_of(args.name) if not arguments else None
    if client is not None:
        yield client
    else:
        with private_engine(arguments, terminal.status) as own:
            yield own


def request_body(args: argparse.Namespace, prompt: str, model: str) -> dict[str, object]:
    """Return the body of the request."""
    body: dict[str, object] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for name in ("max_tokens", "temperature", "seed"):
        if getattr(args, name) is not None:
            body[name] = getattr(args, name)
    if args.raw:
        return body | {"prompt": prompt}
    system = [{"role": "system", "content": args.system}] if args.system else []
    return body | {"messages": [*system, {"role": "user", "content": prompt}]}


def print_stream(
    client: ApiClient, path: str, body: dict[str, object], as_json: bool, terminal: Terminal
) -> int:
    """Write the text as it comes, or everything at the end as JSON."""
    pieces: list[str] = []
    last: dict[str, object] = {"finish_reason": None, "usage": None}
    for event in client.stream(path, body):
        text, finish_reason = text_of(event)
        pieces.append(text)
        last["finish_reason"] = finish_reason or last["finish_reason"]
        last["usage"] = event.get("usage") or last["usage"]
        if text and not as_json:
            terminal.write(text)
    if as_json:
        terminal.print_json({"model": body["model"], "text": "".join(pieces), **last})
    else:
        terminal.print()
    return ExitCode.OK


def text_of(event: dict[str, object]) -> tuple[str, str | None]:
    """Return the new text and the finish reason in an event of either kind of stream."""
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices:
        return "", None
    choice = choices[0]
    delta = choice.get("delta", choice)
    return delta.get("content") or delta.get("text") or "", choice.get("finish_reason")
