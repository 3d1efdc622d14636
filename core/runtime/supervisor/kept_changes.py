"""What was changed at run time and is in force again at the next start.

Owns: laying what was kept over what the configuration file says. Never knows: commands, or who
keeps it (admin worker 0). A damaged database costs what was kept and nothing else: the engine
starts as its file says, loudly. What can be read and does not go with the file any more is an
error, because nobody can tell which of the two is meant.
"""

import logging
from dataclasses import replace
from pathlib import Path

from core.config import HeadraceConfig
from core.errors import ConfigError, StateError
from core.state_database import FILE_NAME, TENANCY, read_kept
from core.tenancy import Tenancy
from core.tenancy_difference import from_json, laid_over
from core.tenant_directory import configured_tenancy

log = logging.getLogger(__name__)


def starting_tenancy(config: HeadraceConfig, directory: Path) -> Tenancy:
    """Return what the engine starts with: the configuration, and over it what `directory` has of
    earlier run-time changes.

    Raises ConfigError naming the database if the two do not go together.
    """
    configured = configured_tenancy(config)
    if not config.admin.keep_state:
        return configured
    try:
        kept = read_kept(directory, TENANCY)
    except StateError as error:
        log.error("%s: changes made at run time are lost; starting as configured", error)
        return configured
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
