"""Who of a flow goes first because the cache holds more of its prompt.

Owns: the choice among the first few that wait in a flow, and since when others have gone before
each of them. Never knows: whose turn it is; a flow has its turn by its first request.

Longest cached prefix first, as in RadixAttention (Zheng et al., NeurIPS'24, section 3), among up to
LOOKAHEAD requests of a flow that has its turn, of the adapter that has. It ends at the first who
would be hurt:

    age        others have gone before it for `policy.locality_bypass_ms`; one that was promised
               nothing may be passed over for as long again as it has waited, if that is longer
    urgent     it is due within that time, or has run before
    protected  it is due after a protected request, and would go before one that is promised more

Who was chosen and is blocked stays chosen: had others their turn meanwhile, what it would find is
soon evicted for them. A flow in which nobody has hits rests for a while; after MISSES flows without
hits all of them rest for longer. So this costs little where there is nothing to find, and never
more than LOOKS requests a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from core.clock import NS_PER_MS
from core.policy.base import Step
from core.policy.lateness.protection import UNKNOWN_NS, Protection
from core.policy.queues.flows import Flows, due_ns
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus

LOOKAHEAD = 16  # requests of a flow
LOOKS = 64  # requests in a step
REST_NS = 100 * NS_PER_MS
MISSES = 8  # flows without hits, one after the other
LONG_REST_NS = 1000 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class Choice:
    """Who goes before `head` until then."""

    head: Request
    first: Request
    until_ns: int


class Locality:
    """All flows on all replicas."""

    def __init__(self, settings: PolicySettings, flows: Flows, protection: Protection) -> None:
        """Look at the queues of `flows`."""
        self._bypass_ns = settings.tuning.locality_bypass_ms * NS_PER_MS
        self._is_on = settings.prefix_cache and self._bypass_ns > 0
        self._flows = flows
        self._protection = protection
        self._choices: dict[tuple[int, int], Choice] = {}  # by replica and flow
        self._rests_ns: dict[tuple[int, int], int] = {}  # until when nobody looks
        self._num_misses = 0
        self._rest_ns = 0  # until when nobody looks at any flow
        self._bypassed_ns: dict[Request, int] = {}  # since when, of those that wait
        self._looks_left = 0
        self._tried: set[int] = set()  # flows whose choice did not start in this step

    def open(self) -> None:
        """Begin a step."""
        self._looks_left = LOOKS
        self._tried.clear()

    def removed(self, request: Request) -> None:
        """Take in that `request` waits no more."""
        self._bypassed_ns.pop(request, None)

    def first(self, step: Step, head: Request) -> Request:
        """Return who is tried of a flow whose first request, `head`, has the turn."""
        if not self._is_on or head.flow in self._tried:
            return head
        key = (step.replica, head.flow)
        if step.now_ns < max(self._rest_ns, self._rests_ns.get(key, 0)):
            return head
        choice = self._choices.get(key)
        if choice is None or not _holds(choice, head, step.now_ns):
            choice = self._choices[key] = self._choose(step, head)
        return choice.first

    def blocked(self, step: Step, request: Request) -> bool:
        """Take in that `request` was tried and did not start; True = its flow has others to try,
        before which it would have gone: once in a step.
        """
        if not self._is_on or request.flow in self._tried:
            return False
        self._tried.add(request.flow)
        choice = self._choices.get((step.replica, request.flow))
        return choice is not None and choice.first is request and choice.head is not request

    def _choose(self, step: Step, head: Request) -> Choice:
        best, most, passed = head, -1, []
        candidates = list(self._candidates(head, step.now_ns)) if self._looks_left > 0 else []
        self._looks_left -= len(candidates)
        for index, request in enumerate(candidates):
            num_tokens = step.hit_tokens(request)
            if num_tokens > most:
                best, most, passed = request, num_tokens, candidates[:index]
        if most > 0:
            self._num_misses = 0
        elif most == 0:
            self._miss((step.replica, head.flow), step.now_ns)
        for request in passed:
            self._bypassed_ns.setdefault(request, step.now_ns)
        return Choice(head, best, min(step.now_ns + REST_NS, self._end_ns(head, step.now_ns)))

    def _miss(self, key: tuple[int, int], now_ns: int) -> None:
        """Take in that nobody of a flow has hits."""
        self._rests_ns[key] = now_ns + REST_NS
        self._num_misses += 1
        if self._num_misses == MISSES:
            self._num_misses = 0
            self._rest_ns = now_ns + LONG_REST_NS

    def _candidates(self, head: Request, now_ns: int) -> Iterator[Request]:
        """Yield `head`, and who may go before it."""
        latest_ns = self._protection.earliest_ns() if head.ttft_deadline_ns else UNKNOWN_NS
        waiting = self._flows.first(head.flow, LOOKAHEAD)
        same = [head, *(r for r in waiting if r is not head and r.adapter == head.adapter)]
        for request in same:
            if request is not head and request.ttft_deadline_ns > latest_ns:
                return
            yield request
            if now_ns >= self._end_ns(request, now_ns) or self._is_urgent(request, now_ns):
                return

    def _end_ns(self, request: Request, now_ns: int) -> int:
        """Return until when others may go before `request`."""
        since_ns = self._bypassed_ns.get(request, now_ns)
        has_waited_ns = 0 if request.ttft_deadline_ns else since_ns - request.arrival_ns
        return since_ns + max(self._bypass_ns, has_waited_ns)

    def _is_urgent(self, request: Request, now_ns: int) -> bool:
        last_ns = min(due_ns(request), request.queue_deadline_ns or UNKNOWN_NS)
        return last_ns - now_ns <= self._bypass_ns or request.status is not RequestStatus.WAITING


def _holds(choice: Choice, head: Request, now_ns: int) -> bool:
    """Tell whether `choice` is still one: who goes first has neither started nor ended."""
    status = choice.first.status
    is_gone = status is RequestStatus.RUNNING or status.is_finished
    return choice.head is head and now_ns < choice.until_ns and not is_gone
