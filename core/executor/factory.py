"""Makes the executor that the configuration names.

Owns: the names. Never knows: how any of them computes. The one that needs torch is loaded by dotted
name when it is wanted, because that import takes longer than the rest of a start.
"""

from collections.abc import Sequence
from importlib import import_module

import numpy as np
import numpy.typing as npt

from core.clock import Clock
from core.errors import ConfigError
from core.executor.protocol import Executor, ExecutorSettings
from core.executor.simulated import SimulatedExecutor, Sleeper
from core.models.model_config import read_model_config
from core.scheduler.plan import RecordArray

LOCAL = "core.executor.local"


def make_executor(
    kind: str,
    settings: ExecutorSettings,
    rows: RecordArray,
    spans: Sequence[npt.NDArray[np.int32]],
    clock: Clock,
    sleep_ns: Sleeper,
) -> Executor:
    """Return the executor `kind` (`local` or `simulated`), not loaded yet.

    `rows` is row_dtype[max_num_seqs] and `spans` the int32 arena of each tokenizer, both as views
    of shared memory. `sleep_ns` is how a simulated step waits. Raises ConfigError or ModelError.
    """
    if kind == "local":
        local: Executor = import_module(LOCAL).LocalExecutor(settings, rows, spans, clock)
        return local
    if kind == "simulated":
        config = read_model_config(settings.model_directory)
        return SimulatedExecutor(
            settings,
            rows,
            spans,
            clock,
            sleep_ns,
            vocab_size=config.vocab_size,
            eos_token_ids=config.eos_token_ids,
        )
    raise ConfigError(f"engine.executor = {kind!r} is unknown: use local or simulated")
