"""Which prompts wait for company, so that fewer steps are short.

Owns: the classes that are passed over in a step, those that gather in it, and how long they can.
Never knows: whose turn it is, how a step's limit comes about.

A decode with a tight cap makes its steps short, and where a step takes a while whatever is in it,
prompts are computed faster in long ones. What counts is how often such a decode is there, not how
many are: two side by side cost no more than one. So while none is, prompts of a class with a tight
cap are passed over as long as others can use the step, until the first of them has used
`policy.company_fraction` of its promise. Then all that wait start, and whoever comes while they
decode joins them at once. This is the T-policy for a server that is costly to set up (Heyman 1977),
with the short steps as the cost.

The first of them would make the steps short in which the others are still computed. So they gather,
as long as other classes could use the step: each is computed but for its last token, until nobody
else of the class has its turn, or the first of them has used as large a part again of what was left
of its promise or is due within STEPS_LEFT steps.
"""

from collections.abc import Iterable, Sequence

from core.clock import NS_PER_MS
from core.policy.limits import Limits
from core.policy.pacing.step_budget import StepRoom
from core.policy.queues.flows import NO_PROMISE_NS
from core.tenancy.classes import ClassConfig, TrafficClass

WORTH_WAITING = 1.1  # prompts must be computed faster by this factor
TIGHTER = 2  # is a cap that is smaller by this factor
STEPS_LEFT = 3  # that under way, this one, and the next, which would compute the last token


class Company:
    """The classes that may wait for company."""

    def __init__(self, limits: Limits, fraction: float) -> None:
        """Let a prompt wait for `fraction` of its promised time to the first token, and gather for
        as large a part of what is left.
        """
        configs = {int(each): limits.of(each) for each in TrafficClass}
        promised = configs.items() if fraction else ()
        tight = {c: config for c, config in promised if _is_tight(config, configs.values())}
        self._caps_ns = {c: config.itl_ms * NS_PER_MS for c, config in tight.items()}
        self._promised_ns = {c: config.ttft_ms * NS_PER_MS for c, config in tight.items()}
        self._waiting_fraction, self._gathering_fraction = fraction, 1 - (1 - fraction) ** 2

    def waiting(self, room: StepRoom, first_due_ns: Sequence[int], now_ns: int) -> tuple[int, ...]:
        """Return the classes that wait in a step with that `room`, given when the first of each
        class is due.
        """
        return tuple(
            c
            for c in self._worth_it(room)
            if self._left_ns(c, self._waiting_fraction)
            < first_due_ns[c] - now_ns
            < NO_PROMISE_NS // 2
        )

    def gathering(self, room: StepRoom, now_ns: int) -> dict[int, int]:
        """Return the classes whose prompts keep their last token for later in such a step, and
        after which time, ns, one must be due for that.
        """
        least_ns = STEPS_LEFT * room.longest_ns
        return {
            c: now_ns + max(self._left_ns(c, self._gathering_fraction), least_ns)
            for c in self._worth_it(room)
        }

    def longest_ns(self, traffic_class: int) -> int:
        """Return for how long a prompt of a class may wait, ns. Gathering ends STEPS_LEFT steps
        before any of them is due, so nobody has to reckon with it.
        """
        return int(self._waiting_fraction * self._promised_ns.get(traffic_class, 0))

    def _worth_it(self, room: StepRoom) -> list[int]:
        """Return the classes whose decodes would make prompts slower than in such a step."""
        return [c for c, cap_ns in self._caps_ns.items() if room.gain(cap_ns) >= WORTH_WAITING]

    def _left_ns(self, traffic_class: int, fraction: float) -> int:
        """Return what is left of its promise when a prompt has used a part of it."""
        return int((1 - fraction) * self._promised_ns[traffic_class])


def _is_tight(config: ClassConfig, others: Iterable[ClassConfig]) -> bool:
    """Tell whether steps without `config` may be longer by a factor that matters."""
    is_promised = config.itl_ms > 0 and config.ttft_ms > 0 and not config.strict_first
    return is_promised and any(
        not other.itl_ms or other.itl_ms >= TIGHTER * config.itl_ms for other in others
    )
