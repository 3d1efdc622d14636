"""`headrace serve`: turns shortcuts into configuration keys and becomes the supervisor.

Owns: the flags. Never knows: how an engine starts; this process is replaced by
`core.runtime.serve`, so signals and exit codes are the engine's own.
"""

import argparse
import os
import sys

from core.terminal import Terminal
from frontends.cli.config_flags import (
    SERVE_SHORTCUTS,
    add_config_flags,
    config_arguments,
    overrides_of,
)
from frontends.cli.verbs import ENGINE_MODULE

DESCRIPTION = """Start the engine in the foreground and print its address once it is ready.

Every key of the configuration can be set in a file or with --set; the shortcuts below are the
keys used most. Without a configuration there is one tenant and no key, on loopback only. Ctrl-C or
SIGTERM lets running requests finish first; a second one ends at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_config_flags(parser, SERVE_SHORTCUTS)
    parser.add_argument(
        "--no-state", action="store_true", help="keep nothing in the state directory but the audit"
    )


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Become the supervisor."""
    os.execv(
        sys.executable, [sys.executable, "-P", "-m", ENGINE_MODULE, *supervisor_arguments(args)]
    )


def supervisor_arguments(args: argparse.Namespace) -> list[str]:
    """Return the same choice of configuration as arguments of the supervisor."""
    overrides = overrides_of(args, SERVE_SHORTCUTS)
    if args.no_state:
        overrides.append("admin.keep_state=false")
    return config_arguments(args.config, overrides)
