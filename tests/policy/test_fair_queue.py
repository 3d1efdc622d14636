"""Virtual service: one parent in plain integers, many groups in int64, and that both agree."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.queues.fair_queue import (
    FAR,
    MAX_DEBT,
    PRECISION,
    REBASE_ABOVE,
    FairQueue,
    FairTable,
)

WEIGHTS = st.lists(
    st.one_of(st.sampled_from([0.001, 0.5, 1.0, 3.0, 1000.0]), st.floats(0.001, 1000.0)),
    min_size=1,
    max_size=6,
)
YEAR_NS = 365 * 24 * 3600 * 10**9


def queue(*weights: float) -> FairQueue:
    made = FairQueue()
    made.resize(weights)
    return made


def table(*weights: float, num_groups: int = 1) -> FairTable:
    made = FairTable(num_groups)
    made.resize(weights)
    return made


def everyone(made: FairTable) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.ones_like(made.virtual, np.bool_)


def test_a_charge_counts_for_more_where_the_weight_is_less() -> None:
    """With weights 1 and 4 the same charge moves the lighter child four times as far."""
    made = queue(1.0, 4.0)
    made.charge(0, 100)
    made.charge(1, 100)
    assert made.virtual == [400 * PRECISION, 100 * PRECISION]


def test_the_parent_follows_the_least_served_of_those_that_could_use_more() -> None:
    """A child that needs nothing holds nobody back."""
    made = queue(1.0, 1.0, 1.0)
    for child, amount in ((0, 30), (1, 20), (2, 10)):
        made.charge(child, amount)
    made.advance([0, 1])
    assert made.floor == 20 * PRECISION


def test_the_parent_never_goes_back() -> None:
    """A refund, and a child served less that comes back, leave V where it is."""
    made = queue(1.0, 1.0)
    made.charge(0, 50)
    made.advance([0])
    made.advance([0, 1])
    made.charge(0, -40)
    made.advance([0, 1])
    assert made.floor == 50 * PRECISION


def test_idling_saves_nothing_up() -> None:
    """A child that wakes is lifted to V."""
    made = queue(1.0, 1.0)
    made.charge(0, 50)
    made.advance([0])
    made.wake(1)
    assert made.lag(1) == 0


def test_debt_survives_sleep() -> None:
    """A child ahead of V is as far ahead when it wakes."""
    made = queue(1.0, 1.0)
    made.charge(0, 50)
    made.advance([1])
    made.wake(0)
    assert made.lag(0) == 50 * PRECISION


def test_the_window_is_service_of_the_heaviest_child() -> None:
    """A lighter child may be ahead by less, in the proportion of the weights."""
    made = queue(1.0, 4.0)
    made.charge(0, 10)
    made.charge(1, 40)
    assert made.is_within(0, 40)
    assert made.is_within(1, 40)
    made.charge(0, 1)
    made.charge(1, 1)
    assert not made.is_within(0, 40)
    assert not made.is_within(1, 40)


def test_a_debt_keeps_its_time_to_pay_when_weights_change() -> None:
    """At double the weight the same charge is worth half the virtual service."""
    made = queue(1.0, 4.0)
    made.charge(0, 100)
    made.resize([2.0, 4.0])
    assert made.lag(0) == 200 * PRECISION


@given(weights=WEIGHTS, exponent=st.integers(-8, 8), seed=st.integers(0, 999))
def test_scaling_all_weights_by_a_power_of_two_changes_nothing(
    weights: list[float], exponent: int, seed: int
) -> None:
    """Only the ratios of weights count, to the last bit (P13)."""
    plain = play(FairTable(1), weights, seed)
    scaled = play(FairTable(1), [weight * 2.0**exponent for weight in weights], seed)
    assert plain == scaled


@given(weights=WEIGHTS, seed=st.integers(0, 999))
def test_the_table_does_what_the_queue_does(weights: list[float], seed: int) -> None:
    """The vectorized form and the plain one agree after any history within the range."""
    assert play(FairTable(1), weights, seed) == play(FairQueue(), weights, seed)


@given(seed=st.integers(0, 999))
def test_the_parent_is_monotone(seed: int) -> None:
    """V never falls, whatever is charged, refunded, asleep or awake."""
    random, made = Random(seed), queue(1.0, 2.0, 5.0)
    floors = []
    for _ in range(60):
        step(made, random, 3)
        floors.append(made.floor)
    assert floors == sorted(floors)


def test_huge_charges_do_not_overflow() -> None:
    """Years of service at the extremes of weight stay ordered and within the range."""
    made = table(0.001, 1000.0, 1.0)
    for _ in range(50):
        made.charge_all(np.array([[YEAR_NS], [YEAR_NS], [1]]), 2 * YEAR_NS + 1)
        made.charge(0, 0, YEAR_NS)
        assert made.virtual.max() < FAR // 2
        assert int(made.virtual.min()) >= 0
        assert made.lag(0, 0) >= made.lag(2, 0)
    made.advance(everyone(made))
    assert 0.99 * MAX_DEBT < made.lag(0, 0) <= MAX_DEBT


def test_the_parent_is_taken_back_before_the_range_ends() -> None:
    """V is reset again and again, differences and V as a whole are kept."""
    made = table(1.0, 1.0)
    amounts, rounds = np.array([[1 << 42], [1 << 42]]), 1 << 6
    made.charge(1, 0, 7)
    for _ in range(rounds):
        made.charge_all(amounts, 1 << 42)
        made.advance(everyone(made))
        assert int(made.floor[0]) <= REBASE_ABOVE
        assert made.lag(1, 0) == 7 * PRECISION
    assert made.virtual_time(0) == rounds * (1 << 42) * PRECISION > FAR


def test_a_sleeper_is_lifted_also_after_the_parent_was_taken_back() -> None:
    """A child that slept through any number of resets has no credit and no garbage."""
    made = table(1.0, 1.0)
    for _ in range(100):
        made.charge_all(np.array([[1 << 42], [0]]), 1 << 42)
        made.advance(np.array([[True], [False]]))
    assert made.lag(1, 0) < 0
    made.wake(1, 0)
    assert made.lag(1, 0) == 0


def test_groups_do_not_touch_each_other() -> None:
    """A charge in one group moves nothing in the next."""
    made = table(1.0, 3.0, num_groups=2)
    made.charge(0, 1, 9)
    made.advance(np.array([[False, True], [False, False]]))
    assert made.virtual[:, 0].tolist() == [0, 0]
    assert made.floor.tolist() == [0, 27 * PRECISION]


def test_whoever_had_what_it_wanted_is_level() -> None:
    """Where nobody could use more, those that run are where the most served of them is, and who
    comes later with them; other groups stay.
    """
    made = table(1.0, 1.0, 1.0, num_groups=2)
    for child, amount in ((0, 30), (1, 20), (2, 90)):
        made.charge(child, 0, amount)
        made.charge(child, 1, amount)
    made.level(np.array([[True, False], [True, False], [False, False]]))
    made.wake(2, 0)
    assert [made.lag(child, 0) for child in range(3)] == [0, 0, 60 * PRECISION]
    assert [made.lag(child, 1) // PRECISION for child in range(3)] == [30, 20, 90]


@pytest.mark.parametrize("seed", range(20))
def test_two_that_could_always_use_more_stay_within_the_bound(seed: int) -> None:
    """Whoever within the window is chosen, |Δv_f − Δv_g| ≤ 2·window + the largest charges."""
    random = Random(seed)
    weights = [random.choice([0.5, 1.0, 2.0, 7.0]) for _ in range(4)]
    window, largest = random.choice([0, 100, 5000]), 300
    made = queue(*weights)
    history = [list(made.virtual)]
    for _ in range(400):
        made.advance(range(4))
        chosen = [child for child in range(4) if made.is_within(child, window)]
        made.charge(random.choice(chosen[: random.randint(1, 4)]), random.randint(1, largest))
        history.append(list(made.virtual))
    heaviest = max(weights)
    for f in range(4):
        for g in range(f):
            leads = [v[f] - v[g] for v in history]
            charges = largest * heaviest / weights[f] + largest * heaviest / weights[g]
            bound = (2 * window + charges) * PRECISION * 1.001
            assert max(leads) - min(leads) <= bound, seed


def play(made: FairQueue | FairTable, weights: list[float], seed: int) -> list[int]:
    """Return V and all leads after a random history; one that the range of int64 holds."""
    random = Random(seed)
    made.resize(weights)
    for _ in range(30):
        step(made, random, len(weights))
    made.resize([*weights, weights[0]])
    if isinstance(made, FairQueue):
        return [made.floor, *(made.lag(child) for child in range(len(weights) + 1))]
    return [made.virtual_time(0), *(made.lag(child, 0) for child in range(len(weights) + 1))]


def step(made: FairQueue | FairTable, random: Random, count: int) -> None:
    child, amount = random.randrange(count), random.randint(1, 10**6)
    serviceable = [c for c in range(count) if random.random() < 0.7]
    what = random.choice(["charge", "charge", "advance", "wake", "refund"])
    amount = -amount // 3 if what == "refund" else amount
    if isinstance(made, FairQueue):
        if what == "advance":
            made.advance(serviceable)
        elif what == "wake":
            made.wake(child)
        else:
            made.charge(child, amount)
    elif what == "advance":
        made.advance(np.array([[c in serviceable] for c in range(count)]))
    elif what == "wake":
        made.wake(child, 0)
    elif amount > 0:
        amounts = np.zeros((count, 1), np.int64)
        amounts[child] = amount
        made.charge_all(amounts, amount)
    else:
        made.charge(child, 0, amount)
