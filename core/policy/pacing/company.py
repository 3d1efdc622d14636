"""Which prompts wait for company, so that fewer steps are short.

Owns: the classes that are passed over in a step, and how long they can be. Never knows: whose turn
it is, how a step's limit comes about.

A decode with a tight cap makes its steps short, and prompts are computed faster in long ones. What
counts is how often such a decode is there, not how many are: two side by side cost no more than
one. So while none is, prompts of a class with a tight cap are passed over as long as others can use
the step, until the first of them has used `policy.company_fraction` of its promise. Then all that
wait start, and whoever comes while they decode joins them at once. This is the T-policy for a
server that is costly to set up (Heyman 1977), with the short steps as the cost.
"""

from collections.abc import Iterable, Sequence

from core.clock import NS_PER_MS
from core.policy.limits import Limits
from core.policy.queues.flows import NO_PROMISE_NS
from core.tenancy.classes import ClassConfig, TrafficClass

WORTH_WAITING = 2  # a step must become shorter by this factor


class Company:
    """The classes that may wait for company."""

    def __init__(self, limits: Limits, fraction: float) -> None:
        """Let a prompt wait for `fraction` of its promised time to the first token at the most."""
        configs = {int(each): limits.of(each) for each in TrafficClass}
        waiting = configs.items() if fraction else ()
        tight = {c: config for c, config in waiting if _is_tight(config, configs.values())}
        self._caps_ns = {c: config.itl_ms * NS_PER_MS for c, config in tight.items()}
        self._longest_ns = {
            c: int(fraction * config.ttft_ms * NS_PER_MS) for c, config in tight.items()
        }
        self._patience_ns = {
            c: config.ttft_ms * NS_PER_MS - self._longest_ns[c] for c, config in tight.items()
        }

    def passed_over(
        self, step_ns: int, first_due_ns: Sequence[int], now_ns: int
    ) -> tuple[int, ...]:
        """Return the classes that wait in a step that can last `step_ns`, given when the first of
        each class is due.
        """
        return tuple(
            c
            for c, cap_ns in self._caps_ns.items()
            if WORTH_WAITING * cap_ns <= step_ns
            and self._patience_ns[c] < first_due_ns[c] - now_ns < NO_PROMISE_NS // 2
        )

    def longest_ns(self, traffic_class: int) -> int:
        """Return how long a prompt of a class may wait for company."""
        return self._longest_ns.get(traffic_class, 0)


def _is_tight(config: ClassConfig, others: Iterable[ClassConfig]) -> bool:
    """Tell whether steps without `config` may be longer by the factor that is worth waiting."""
    is_promised = config.itl_ms > 0 and config.ttft_ms > 0 and not config.strict_first
    return is_promised and any(
        not other.itl_ms or other.itl_ms >= WORTH_WAITING * config.itl_ms for other in others
    )
