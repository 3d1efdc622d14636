"""The one table of verbs: what `headrace VERB` runs, by dotted name.

Owns: names and where they lead. A verb marked `own_process` lives in a room that frontends may not
import; it is run by `python -P -m` in a fresh process with the same arguments. Every module here
has `DESCRIPTION`, `add_arguments(parser)` and `run(args, terminal) -> int`, so that help,
documentation tests and both ways of running are the same for all.
"""

from dataclasses import dataclass

ENGINE_MODULE = "core.runtime.serve"
"""The supervisor: what `serve` becomes, and what `generate` starts for itself."""

MODELS_MODULE = "core.models.cli"

SIMULATE_MODULE = "core.simulation.cli"

DASHBOARD_MODULE = "dashboard.cli"


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of the command line."""

    name: str
    summary: str
    module: str
    own_process: bool = False


VERBS = (
    Verb("serve", "Start the engine", "frontends.cli.serve"),
    Verb("generate", "Generate text for one prompt", "frontends.cli.generate"),
    Verb("models", "List, pull and find models", MODELS_MODULE, own_process=True),
    Verb("config", "Check or show a configuration", "frontends.cli.config"),
    Verb("simulate", "Replay a trace under several policies", SIMULATE_MODULE, own_process=True),
    Verb("ctl", "Look into and control a running engine", "frontends.cli.ctl"),
    Verb("top", "Show a running engine in the terminal", DASHBOARD_MODULE, own_process=True),
    Verb("version", "Show versions", "frontends.cli.version"),
)
