"""P16: no trick gets a tenant more than its share.

How: an honest tenant always wants more; a trickster plays moves from a grammar: it splits its work,
asks for outputs that it does not want, lies about deadlines and priorities, cancels at every stage,
submits the same again, has one request at a time, sleeps and comes back in a burst. Weights and
windows are random. What both are given is counted from the plans alone. From the beginning to any
step the trickster gets no more for its weight than the honest one but for a window, the last grant
of each and the decodes under way; and over no time more than these and what a flow may make up for
that it missed between its requests. A failure names its seed. (What tricks do to a token budget is
in `tests/policy/test_budgets.py`.)
"""

from collections import Counter
from random import Random

import pytest

from core.config.scheduling import PolicyConfig
from core.policy.fairness.rests import KEPT_WINDOWS
from core.request import Request
from core.scheduler import events as ev
from core.scheduler.plan import StepPlan
from core.tenancy.classes import TrafficClass
from tests.support.loads.watched_fairness import (
    limits_of,
    overshoot,
    plain_classes,
    tenants_of_class,
    watched_engine,
)
from tests.support.scheduler.checked_engine import make_settings

SEEDS = range(10)
NUM_STEPS = 200
STEP_TOKENS = 64
LONGEST_PROMPT, LONGEST_OUTPUT, MAX_RUNNING = 100, 6, 24
HONEST, TRICKSTER = "a", "b"
MOVES = ("split", "pad", "lie", "cancel", "cancel_early", "again", "burst", "trickle", "sleep")


class Game:
    """Two tenants, one of them not honest."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.window, self.quantum = random.choice([50, 100, 200]), random.choice([8, 16, 32])
        weights = {HONEST: random.choice([1.0, 2.0]), TRICKSTER: random.choice([0.5, 1.0, 2.0])}
        self.cost = {name: max(weights.values()) / weight for name, weight in weights.items()}
        settings = make_settings(
            max_num_batched_tokens=STEP_TOKENS,
            max_num_seqs=MAX_RUNNING,
            max_num_partial_prefills=MAX_RUNNING,
            policy="headrace",
            prefix_cache=False,
            tuning=PolicyConfig(
                charge="tokens", tenant_window_tokens=self.window, quantum_tokens=self.quantum
            ),
            limits=limits_of(plain_classes(1, 1, 1, 1), weights),
        )
        self.engine, self.policy = watched_engine(settings, 4000)
        self.mine: list[Request] = []
        self.honest: list[Request] = []
        self.num_requests = self.asleep = 0
        self.given: Counter[str] = Counter()  # tokens that plans gave, an output counting as two

    def submit(self, tenant: str, prompt_len: int, max_tokens: int, due_ns: int = 0) -> Request:
        self.num_requests += 1
        prompt = [self.random.randrange(10, 50) for _ in range(prompt_len)]
        priority = self.random.randrange(3) if due_ns else 0
        request = self.engine.make_request(
            self.num_requests, prompt, max_tokens, tenant=tenant, priority=priority
        )
        request.ttft_deadline_ns = due_ns
        return self.engine.submit(request)

    def move(self) -> None:
        """Play one move."""
        if self.asleep:
            self.asleep -= 1
            return
        getattr(self, self.random.choice(MOVES))()
        self.mine = [request for request in self.mine if not request.status.is_finished]

    def split(self) -> None:
        for _ in range(self.random.randint(2, 12)):
            self.mine.append(self.submit(TRICKSTER, self.random.randint(1, 6), 1))

    def pad(self) -> None:
        self.mine.append(self.submit(TRICKSTER, LONGEST_PROMPT, LONGEST_OUTPUT))

    def lie(self) -> None:
        """Everything is due at once, and more urgent than all else."""
        for _ in range(3):
            length = self.random.randint(1, LONGEST_PROMPT)
            self.mine.append(self.submit(TRICKSTER, length, self.random.randint(1, 6), due_ns=1))

    def cancel(self) -> None:
        """Cancel what has been computed, before it is delivered whole."""
        for request in [each for each in self.mine if each.num_output_tokens]:
            self.engine.tell(ev.Abort(request.request_id))

    def cancel_early(self) -> None:
        for request in [each for each in self.mine if self.random.random() < 0.5]:
            self.engine.tell(ev.Abort(request.request_id))

    def again(self) -> None:
        """Cancel one, and ask for the same anew."""
        if self.mine:
            old = self.mine.pop(self.random.randrange(len(self.mine)))
            self.engine.tell(ev.Abort(old.request_id))
            self.mine.append(self.submit(TRICKSTER, old.prompt_len, old.max_tokens, due_ns=1))

    def burst(self) -> None:
        for _ in range(10):
            self.lie()

    def trickle(self) -> None:
        """Ask for the next when the one before has ended, like an honest client."""
        if not self.mine:
            self.mine.append(self.submit(TRICKSTER, LONGEST_PROMPT, LONGEST_OUTPUT))

    def sleep(self) -> None:
        """Leave, to come back with what was saved up, if that were possible."""
        self.asleep = self.random.randint(5, 40)

    def play(self) -> tuple[float, float]:
        """Return by how much the trickster came ahead at the most, from the beginning and over any
        time, in tokens of the heavier of the two.
        """
        lead = low = most = most_since_low = 0.0
        for _ in range(NUM_STEPS):
            while sum(each.first_start_ns == 0 for each in self.honest) < 3:
                length = self.random.randint(20, LONGEST_PROMPT)
                self.honest.append(self.submit(HONEST, length, LONGEST_OUTPUT))
            self.move()
            plan = self.engine.plan()
            if plan is not None:
                self.note(plan)
                self.engine.answer()
            lead = sum(
                sign * self.given[name] * self.cost[name]
                for sign, name in ((1, TRICKSTER), (-1, HONEST))
            )
            low = min(low, lead)
            most, most_since_low = max(most, lead), max(most_since_low, lead - low)
        return most, most_since_low

    def bounds(self) -> tuple[float, float]:
        """Return those of `play`: a window, or that and what may be made up for, and what each is
        charged beyond it: its last grant or round of decodes, or its decodes while it is ahead.
        """
        level = tenants_of_class(self.policy.notes, TrafficClass.STANDARD)
        names, prices = self.policy.flows.tenant_names, self.policy.shares.book.prices
        grant = prices.prefill(self.quantum, LONGEST_PROMPT)
        beyond = sum(
            cost * overshoot(level, slice(0, None), names.index(name), grant)
            for name, cost in self.cost.items()
        )
        tokens = beyond / prices.prefill_token
        made_up = KEPT_WINDOWS * self.window * self.cost[TRICKSTER]  # windows of its own service
        return self.window + tokens, self.window + made_up + tokens

    def note(self, plan: StepPlan) -> None:
        """Count what a plan gives to each."""
        table = self.engine.core._replicas[plan.replica].table
        for entry in plan.rows:
            row, count = int(entry["row"]), int(entry["num_new_tokens"])
            is_decode = int(entry["first_position"]) >= int(table.prefill_end[row])
            self.given[table.request_at(row).tenant] += 2 if is_decode else count


def run_seed(seed: int) -> Game:
    """P16 for one game."""
    game = Game(seed)
    most, most_since_low = game.play()
    bound, bound_since_low = game.bounds()
    assert most <= bound, (seed, most, bound)
    assert most_since_low <= bound_since_low, (seed, most_since_low, bound_since_low)
    return game


@pytest.mark.parametrize("seed", SEEDS)
def test_no_trick_gets_more_than_the_share(seed: int) -> None:
    """P16: whatever a tenant plays, an honest one gets as much for its weight."""
    game = run_seed(seed)
    assert game.given[TRICKSTER] > 300, "it hardly played"
