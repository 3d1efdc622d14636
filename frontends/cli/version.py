"""`headrace version`: what is installed, without importing any of it."""

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

from core.terminal import ExitCode, Terminal

DESCRIPTION = "Show the versions of Headrace, of Python and of the packages that matter most."

PACKAGES = ("headrace", "torch", "numpy", "pyzmq", "uvicorn", "starlette", "tokenizers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--json", action="store_true", help="write a JSON document")


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Print the versions."""
    versions = {name: installed_version(name) for name in PACKAGES}
    versions |= {"python": platform.python_version(), "platform": platform.platform()}
    if args.json:
        terminal.print_json(versions)
        return ExitCode.OK
    width = max(map(len, versions))
    for name, value in versions.items():
        terminal.print(f"{name.ljust(width)}  {value}")
    return ExitCode.OK


def installed_version(package: str) -> str:
    """Return the installed version of a distribution."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
