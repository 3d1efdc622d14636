"""P1: no unit of charge is lost or counted twice.

What every account should hold is worked out anew from the plans alone, over preemptions, crashes,
lost work, cancellations and failed requests. A failure names its seed.
"""

from collections import Counter

import numpy as np
import pytest

from core.request import Request, RequestStatus
from core.scheduler.plan import StepPlan
from tests.support.loads.fair_load import NUM_STEPS, Load, Plan

SEEDS = range(12)


class Books:
    """What every account should hold, worked out from the plans alone."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.flows: Counter[int] = Counter()
        self.system = 0
        self.total = 0
        self.paid_up_to: dict[Request, int] = {}
        self.paid: Counter[Request] = Counter()

    def enter(self, plan: StepPlan) -> None:
        """Book a plan."""
        prices = self.load.policy.shares.book.prices
        for entry in plan.rows:
            row = int(entry["row"])
            table = self.load.engine.core._replicas[plan.replica].table
            request, prefill_end = table.request_at(row), int(table.prefill_end[row])
            context, count = int(entry["first_position"]), int(entry["num_new_tokens"])
            paid_up_to = self.paid_up_to.get(request, 0)
            if context >= prefill_end:
                units = int(prices.decodes(np.array([context], np.int32))[0])
                redone = units if paid_up_to > context else 0
            else:
                again = min(max(paid_up_to - context, 0), count)
                units = prices.prefill(count, context)
                redone = prices.prefill(again, context) if again else 0
            self.paid_up_to[request] = max(paid_up_to, context + count)
            self.paid[request] += units - redone
            self.flows[request.flow] += units - redone
            self.system += redone
            self.total += units

    def refund(self) -> None:
        """Let the system bear what requests were charged that have failed."""
        for request in self.load.requests:
            if request.status in (RequestStatus.FINISHED_ERROR, RequestStatus.FINISHED_SHED):
                units = self.paid.pop(request, 0)
                self.flows[request.flow] -= units
                self.system += units


def booked(seed: int, kv_price: float) -> tuple[Load, Books]:
    """Run a load with little memory and some crashes, and book every plan."""
    load = Load(seed, Plan(kv_price=kv_price, num_blocks=50))
    books = Books(load)
    for _ in range(NUM_STEPS):
        load.arrive()
        plan = load.engine.plan()
        if plan is not None:
            books.enter(plan)
            if load.random.random() < 0.05:
                load.engine.kill()
                load.engine.start()
            else:
                load.engine.answer()
        books.refund()
    return load, books


def run_seed(seed: int) -> None:
    """P1 for one load, with and without a price on memory."""
    check_accounts(*booked(seed, kv_price=0.0))
    check_held_memory(*booked(seed, kv_price=0.2))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_unit_of_every_step_is_charged_to_exactly_one_account(seed: int) -> None:
    """P1: accounts of flows and system are what the plans say, to the unit, over preemptions,
    crashes, lost work, cancellations and failed requests.
    """
    load, books = booked(seed, kv_price=0.0)
    check_accounts(load, books)
    assert books.system > 0


def check_accounts(load: Load, books: Books) -> None:
    """Compare all accounts with the books."""
    shares = load.policy.shares
    assert shares.total_charged == books.total
    assert shares.system_charged == books.system
    charged = {flow: units for flow, units in enumerate(shares.charged.tolist()) if units}
    assert charged == {flow: units for flow, units in books.flows.items() if units}


def test_the_booked_loads_preempt() -> None:
    """What is said of preemptions is not said of nothing."""
    assert any(booked(seed, 0.0)[0].engine.metering.preemptions for seed in SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_held_memory_is_charged_on_top(seed: int) -> None:
    """P1 with a price on memory: at most that share of all work more, and every unit of it is in
    the account of a flow.
    """
    check_held_memory(*booked(seed, kv_price=0.2))


def check_held_memory(load: Load, books: Books) -> None:
    """Compare all accounts with the books and what memory costs at the most."""
    shares = load.policy.shares
    held = shares.total_charged - books.total
    assert 0 < held <= 0.2 * books.total
    assert shares.system_charged == books.system
    assert int(shares.charged.sum()) == sum(books.flows.values()) + held
