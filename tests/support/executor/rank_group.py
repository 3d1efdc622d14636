"""The ranks of one replica in one process: a thread each, over the real exchange.

Owns: starting them together and comparing what they answer. Never knows: how they divide a model.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from core.executor.protocol import DoneStep, Executor, ExecutorInfo, ExecutorStatistics
from core.scheduler.plan import StepPlan, StepResult

T = TypeVar("T")


def on_all(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make all calls at once, a thread each; return their results, or raise the first fault."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
        return [future.result() for future in futures]


class RankGroup:
    """All ranks as one executor; every rank must answer each plan with the same tokens."""

    def __init__(self, ranks: Sequence[Executor]) -> None:
        self._ranks = ranks
        self.infos: list[ExecutorInfo] = []

    def load(self) -> ExecutorInfo:
        """Load all; rank 0 speaks for them."""
        self.infos = on_all([rank.load for rank in self._ranks])
        return self.infos[0]

    def execute(self, plan: StepPlan) -> StepResult:
        """Have all compute the plan."""
        first, *others = on_all([partial(rank.execute, plan) for rank in self._ranks])
        for other in others:
            assert other.rows.tobytes() == first.rows.tobytes()
            assert other.logprobs.tobytes() == first.logprobs.tobytes()
        return first

    def launch(self, plan: StepPlan) -> DoneStep:
        """Have all compute the plan at once."""
        return DoneStep(self.execute(plan))

    def forget_rows(self) -> None:
        """Have all forget."""
        for rank in self._ranks:
            rank.forget_rows()

    def statistics(self) -> ExecutorStatistics:
        """Rank 0's."""
        return self._ranks[0].statistics()
