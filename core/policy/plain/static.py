"""Static batching, the contrast to measure against: nobody joins a batch until it has ended."""

from core.policy.base import Blocked, Step
from core.policy.plain.fcfs import FcfsPolicy

MAX_BATCH = 4096


class StaticPolicy(FcfsPolicy):
    """Batches in the order of arrival; within a batch prompts are computed one after the other."""

    def fill(self, step: Step) -> None:
        """Form a batch if none runs, then compute its prompts."""
        if step.num_running == 0:
            self._form_batch(step)
        for request in sorted(step.prefills(), key=self.place):
            if step.tokens_left == 0:
                break
            step.grant(request, step.tokens_left)

    def _form_batch(self, step: Step) -> None:
        for request in self._queue.first(MAX_BATCH):
            blocked = step.start(request)
            if blocked not in (Blocked.NOTHING, Blocked.ELSEWHERE):
                break
