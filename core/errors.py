"""Every error of the engine, by meaning; imports no other room.

    HeadraceError                 something the operator can act on: one line, no traceback
    ├── ConfigError               a key, value or combination in the configuration
    │   └── UnknownTenantError    a tenant that is not there
    ├── ModelError                a model that is missing, corrupt or not supported
    ├── StartError                the engine cannot start here (port taken, memory, second owner)
    ├── RanksError                a rank of a replica is gone or late; a restart of all helps
    └── StateError                what was kept cannot be read or written (full disk, no rights)
        ├── StateLockedError      another process has it; it is whole, and free again later
        ├── StateNewerError       a newer version wrote it
        └── StateDamagedError     it is no database, or not all of one

`Rejection` is no exception: it is a decision of the scheduler or of a cheap check before it, and
travels unchanged to the HTTP answer, the metric label, the log line and the dashboard. Broken
invariants are `assert`s: the process dies and the supervisor restarts it.
"""

from dataclasses import dataclass
from enum import IntEnum

RETRY_AFTER_MS = 1000
"""When to come back if nothing tells when there will be room."""


class HeadraceError(Exception):
    """A fault of the world, said in one line that tells what to do."""


class ConfigError(HeadraceError):
    """The configuration cannot be accepted; the message names the key path and the value."""


class UnknownTenantError(ConfigError):
    """There is no tenant of that name."""


class StateError(HeadraceError):
    """The state directory is damaged, full or not ours; the message names the file."""


class StateLockedError(StateError):
    """Another process has the database locked."""


class StateNewerError(StateError):
    """A newer version of the engine wrote the database."""


class StateDamagedError(StateError):
    """What should be a database is none, or is not whole."""


class ModelError(HeadraceError):
    """A model is missing, corrupt or unsupported; the message names the file or tensor."""


class StartError(HeadraceError):
    """The engine cannot start on this machine as asked; the message says what is needed."""


class RanksError(HeadraceError):
    """Another rank of the replica is gone or late: what they compute together cannot go on."""


class RejectionReason(IntEnum):
    """Why a request is not served. The lower-case name is the public code; the value travels in
    rings.

    400: CONTEXT_LENGTH_EXCEEDED, KV_NEVER_FITS, RATE_NEVER_FITS. 403: TENANT_FORBIDDEN. 429: queue,
    rate, paused, shed. 408/504: DEADLINE_EXCEEDED. 503: DRAINING, NO_REPLICA,
    ENGINE_RESTARTED. 500: EXECUTOR_FAULT.
    """

    NONE = 0
    CONTEXT_LENGTH_EXCEEDED = 1
    KV_NEVER_FITS = 2
    RATE_NEVER_FITS = 3
    TENANT_FORBIDDEN = 4
    QUEUE_FULL_REQUESTS = 5
    QUEUE_FULL_TOKENS = 6
    TENANT_QUEUE_FULL_REQUESTS = 7
    TENANT_QUEUE_FULL_TOKENS = 8
    TENANT_RATE = 9
    TENANT_PAUSED = 10
    SHED_INFEASIBLE = 11
    SHED_PREDICTED = 12
    DEADLINE_EXCEEDED = 13
    DRAINING = 14
    NO_REPLICA = 15
    ENGINE_RESTARTED = 16
    EXECUTOR_FAULT = 17
    TOKENIZER_BUSY = 18
    CLASS_PROMPT_CAP = 19

    @property
    def code(self) -> str:
        """The public code, as in HTTP answers and metric labels."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Rejection:
    """A refusal with its reason.

    `knob` is the config path that would change the verdict, `measured` and `threshold` the two
    numbers that were compared (in the knob's unit). `retry_after_ms` 0 means: retrying will not
    help.
    """

    reason: RejectionReason
    retry_after_ms: int = 0
    knob: str = ""
    measured: float = 0.0
    threshold: float = 0.0
