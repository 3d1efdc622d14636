"""Child specifications: the list of an engine's children, in start order.

Owns: names, dotted modules and order. Never knows: how a module is run. The admin pool comes first
and leaves last, so that it can say what the others are doing; executors come before what needs
them.
"""

from dataclasses import dataclass
from enum import Enum

from core.config.headrace import HeadraceConfig


class ChildKind(Enum):
    """The kinds of children in start order; the value begins the child id."""

    JANITOR = "janitor"
    ADMIN = "admin"
    EXECUTOR = "executor"
    SCHEDULER = "scheduler"
    TOKENIZER = "tokenizer"
    HTTP = "http"


MODULES: dict[ChildKind, str] = {
    ChildKind.JANITOR: "core.runtime.janitor",
    ChildKind.ADMIN: "frontends.admin",
    ChildKind.EXECUTOR: "core.runtime.executor",
    ChildKind.SCHEDULER: "core.runtime.scheduler",
    ChildKind.TOKENIZER: "core.runtime.tokenizer",
    ChildKind.HTTP: "frontends.http",
}


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child: `id` is its name everywhere (board, log, restart command), `module` is run with
    `python -P -m`.
    """

    id: str
    kind: ChildKind
    module: str
    index: int = 0  # of the tokenizer, http process or admin worker; the replica of an executor
    rank: int = 0  # of an executor within its replica

    @property
    def group(self) -> tuple[ChildKind, int]:
        """Children of one group live and die together: the ranks of a replica; others alone."""
        return self.kind, self.index


def child_specs(config: HeadraceConfig) -> tuple[ChildSpec, ...]:
    """Return the children of an engine in start order; they are stopped in reverse."""
    counts = {
        ChildKind.ADMIN: config.admin.workers,
        ChildKind.TOKENIZER: config.tokenizer.processes,
        ChildKind.HTTP: config.http.processes,
    }
    specs: list[ChildSpec] = []
    for kind, module in MODULES.items():
        if kind is ChildKind.EXECUTOR:
            specs += [
                ChildSpec(f"executor.{replica}.{rank}", kind, module, replica, rank)
                for replica in range(config.engine.replicas)
                for rank in range(config.engine.tensor_parallel)
            ]
        elif kind in counts:
            specs += [ChildSpec(f"{kind.value}.{i}", kind, module, i) for i in range(counts[kind])]
        else:
            specs.append(ChildSpec(kind.value, kind, module))
    return tuple(specs)


def stop_order(specs: tuple[ChildSpec, ...]) -> tuple[tuple[ChildSpec, ...], ...]:
    """Return the children in groups of one kind, last started first; the members of a group stop
    together.

    The janitor is left out: it ends by itself when the supervisor does.
    """
    kinds = [kind for kind in reversed(ChildKind) if kind is not ChildKind.JANITOR]
    groups = (tuple(spec for spec in specs if spec.kind is kind) for kind in kinds)
    return tuple(group for group in groups if group)
