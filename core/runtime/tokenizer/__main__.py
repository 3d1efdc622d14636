"""`python -P -m core.runtime.tokenizer FD`: one tokenizer, started by its supervisor.

Owns: the way from what was inherited to a vocabulary, a template and a running loop. Never knows:
operations.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from core.clock import NS_PER_MS, Clock
from core.config.file import config_from_json
from core.config.headrace import HeadraceConfig
from core.errors import HeadraceError
from core.model_card import ModelCard, card_from_json
from core.monotonic_clock import MonotonicClock
from core.runtime.loop import Wakeups, run_loop
from core.runtime.tokenizer.channels import attach_own_arena, attach_tokenizer, tokenizer_index
from core.runtime.tokenizer.loop import TokenizerLoop
from core.supervision.actions import EXIT_OK, EXIT_UNUSABLE
from core.tokenizer.chat_template import ChatTemplate
from core.tokenizer.operation import TokenizerFacts
from core.tokenizer.operations import Operations
from core.tokenizer.prompts import PromptEncoder
from core.tokenizer.vocabulary import Vocabulary
from ipc.child import Child
from ipc.heartbeat import HeartbeatState
from ipc.spans import SpanArena

SWITCH_INTERVAL_S = 0.001  # how long the worker's Python code may hold up the loop


def make_operations(
    card: ModelCard, config: HeadraceConfig, index: int, epoch: int, arena: SpanArena, clock: Clock
) -> Operations:
    """Load vocabulary and template and return the state machine; raises ModelError."""
    directory = Path(card.path)
    vocabulary = Vocabulary.load(directory, card.vocab_size)
    settings = config.tokenizer
    template = ChatTemplate.load(
        directory, vocabulary, clock, settings.template_timeout_ms, settings.template_output_bytes
    )
    facts = TokenizerFacts(
        index=index,
        epoch=epoch,
        max_model_len=card.max_model_len,
        max_operations=settings.max_operations,
        max_pending_bytes=settings.pending_bytes,
        arena_tokens=settings.arena_tokens,
        block_size=config.engine.block_size,
        digest_secret=card.digest_secret,
    )
    encoder = PromptEncoder(vocabulary, template, card.max_model_len, settings.piece_bytes)
    vocabulary.warm_up()
    return Operations(facts, encoder, arena)


def main(argv: Sequence[str]) -> int:
    """Run one tokenizer until SIGTERM; a model whose files cannot be used is one line and a code
    that tells the supervisor not to try again.
    """
    child, clock = Child.attach(argv), MonotonicClock()
    child.stamp(HeartbeatState.LOADING, clock.now_ns())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    config = config_from_json(bytes(child.setup.config))
    card = card_from_json(child.setup.model)
    arena = attach_own_arena(child, config)
    try:
        operations = make_operations(
            card, config, tokenizer_index(child.child_id), child.epoch, arena, clock
        )
    except HeadraceError as error:
        child.tell_fault(error)
        return EXIT_UNUSABLE
    channels, wakers = attach_tokenizer(child)
    child.serving()
    run_loop(
        TokenizerLoop(operations, arena),
        channels,
        clock=clock,
        stamp=child.stamp,
        wakeups=Wakeups([*wakers, child.stop_doorbell]),
        heartbeat_ns=config.supervision.heartbeat_ms * NS_PER_MS,
        is_stopping=lambda: child.stop_requested,
    )
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv))
