"""This machine with its model, as a running engine has come to know it.

Owns: the file in which `headrace ctl record-trace` keeps that, and the machine in it. Never knows:
how a step was measured. The file is replaced by every recording: it tells of the last engine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import HeadraceError
from core.policy.cost_model import CostBasis, StepWork
from core.simulation.hardware import copy_ns

FILE_NAME = "this-machine.json"
COPY_BANDWIDTH = 5e9  # bytes/s; not measured


class UnknownMachineError(HeadraceError):
    """No engine has run here long enough to know what its steps cost."""


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """A machine whose prices are fitted to the steps of an engine that ran on it."""

    basis: CostBasis
    sigma: float  # relative scatter of steps
    overhead_us: float  # of a step, besides its execution
    kv_tokens: int  # that fit into the KV cache

    def duration_ns(self, work: StepWork) -> int:
        """Return the time of a step, ns."""
        return self.basis.duration_ns(work)

    def copy_ns(self, num_tokens: int) -> int:
        """Return the time of copying the KV of so many tokens within this memory, ns."""
        return copy_ns(num_tokens, COPY_BANDWIDTH)


def read_this_machine(directory: Path) -> ThisMachine:
    """Return the machine kept in `directory`; raises UnknownMachineError."""
    path = directory / FILE_NAME
    try:
        return machine_of(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UnknownMachineError(
            "this machine is not known yet: let `headrace serve` work for some minutes, then run"
            " `headrace ctl record-trace FILE`"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnknownMachineError(
            f"{path} cannot be used ({error}): run `headrace ctl record-trace FILE` again"
        ) from error


def machine_of(record: Mapping[str, object]) -> ThisMachine:
    """Return what `record` says; raises KeyError, TypeError or ValueError."""
    basis = CostBasis(*_numbers(record["basis"], 5))
    if not basis.is_usable:
        raise ValueError("its prices are not usable")
    names = ("sigma", "overhead_us", "num_kv_blocks", "block_size")
    sigma, overhead_us, num_blocks, block_size = _numbers([record[name] for name in names], 4)
    return ThisMachine(basis, sigma, overhead_us, int(num_blocks * block_size))


def _numbers(value: object, count: int) -> list[float]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"{value!r} is not a list of {count} numbers")
    numbers = [float(each) for each in value]
    if not all(0 <= each < float("inf") for each in numbers):
        raise ValueError(f"{value!r} has numbers below 0, or none")
    return numbers
