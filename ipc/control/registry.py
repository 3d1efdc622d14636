"""Collects the declarations: every module of this folder that has a `COMMAND` declares one.

Adding a command means adding a file; nothing here, in the CLI or in the admin pool lists the names
again.
"""

import pkgutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType

import ipc.control
from ipc.control.declaration import Command


def collect(package_path: Iterable[str], package: str) -> Mapping[str, Command]:
    """Return the commands declared in the modules of `package`, ordered by name."""
    names = [f"{package}.{module.name}" for module in pkgutil.iter_modules(package_path)]
    modules = [import_module(name) for name in names if name != __name__]
    declared = [module.COMMAND for module in modules if hasattr(module, "COMMAND")]
    commands = {command.name: command for command in sorted(declared, key=lambda c: c.name)}
    assert len(commands) == len(declared), "two files declare the same command"
    return MappingProxyType(commands)


COMMANDS: Mapping[str, Command] = collect(ipc.control.__path__, ipc.control.__name__)
"""Every control command, by name."""
