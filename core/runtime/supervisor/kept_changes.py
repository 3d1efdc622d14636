"""What was changed at run time and is in force again at the next start.

Owns: laying what was kept over what the configuration file says. Never knows: commands, or who
keeps it (admin worker 0). What was kept has keys that were revoked and tenants that were removed or
paused, so an engine that cannot read it does not start: the file alone would let them in again. The
message says what to do, by what is the matter: a lock passes, a newer version can be started again,
and damage is the operator's to give up. Nor does it start if what was kept does not go with the
file any more, because nobody can tell which of the two is meant.
"""

import logging
from dataclasses import replace
from pathlib import Path

from core.config.headrace import HeadraceConfig
from core.errors import (
    ConfigError,
    StateDamagedError,
    StateError,
    StateLockedError,
    StateNewerError,
)
from core.state_database import DAMAGED_PATTERN, FILE_NAME, TENANCY, read_kept
from core.tenancy.difference import from_json, laid_over
from core.tenancy.tenancy import Tenancy

LOCK_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


def starting_tenancy(
    config: HeadraceConfig, directory: Path, lock_timeout_s: float = LOCK_TIMEOUT_S
) -> Tenancy:
    """Return what the engine starts with: the configuration, and over it what `directory` has of
    earlier run-time changes.

    Raises StateError if that cannot be told, and ConfigError naming the database if the two do not
    go together.
    """
    configured = config.tenancy
    if not config.admin.keep_state:
        return configured
    kept = _read(directory, lock_timeout_s)
    if kept is None:
        return configured
    try:
        tenancy = laid_over(configured, from_json(kept))
        replace(config, classes=tenancy.classes, tenants=tenancy.tenants).check()
    except ConfigError as error:
        raise ConfigError(
            f"{directory / FILE_NAME}, over the configuration: {error}; change the configuration,"
            " or start without what was kept: --set admin.keep_state=false"
        ) from error
    if tenancy != configured:
        log.info("changes made at run time are in force again: %s", directory / FILE_NAME)
    return tenancy


def _read(directory: Path, lock_timeout_s: float) -> str | None:
    """Return what was kept, None if nothing ever was; raises StateError with what to do."""
    path = directory / FILE_NAME
    try:
        kept = read_kept(directory, TENANCY, lock_timeout_s)
    except StateLockedError as error:
        raise StateLockedError(
            f"{error}: end that one (`fuser {path}` names it) and start again"
        ) from error
    except StateNewerError as error:
        raise StateNewerError(f"{error}: start that version, or {_give_up(path)}") from error
    except StateError as error:
        raise type(error)(f"{error}; put a good copy in its place, or {_give_up(path)}") from error
    if kept is None:
        _check_nothing_was_lost(directory)
    return kept


def _check_nothing_was_lost(directory: Path) -> None:
    """Raise StateDamagedError if a damaged database was set aside and no new one has been written:
    the engine ended in between.
    """
    aside = min(directory.glob(DAMAGED_PATTERN), default=None)
    if aside is not None:
        raise StateDamagedError(
            f"{aside} is damaged, and nothing was kept since; "
            f"put a good copy at {directory / FILE_NAME}, or {_give_up(aside)}"
        )


def _give_up(path: Path) -> str:
    return (
        "give up what was changed at run time (keys that were revoked are good again as far as the"
        f" configuration has them): mv {path} {path.with_name('given-up.db')}"
    )
