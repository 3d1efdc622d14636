"""What of a step belongs to each class."""

import numpy as np

from core.policy.base import DecodeBatch
from core.policy.limits import Limits
from core.policy.turns.step_shares import SAVED_STEPS, StepShares
from core.tenancy.classes import NUM_CLASSES, ClassConfig, ClassesConfig, TrafficClass

INTERACTIVE, STANDARD, BATCH, ADMINISTRATIVE = TrafficClass
CAPPED = ClassConfig(reserved_step_fraction=0.2, max_step_fraction=0.5)
CAPACITY = 100


def shares(config: ClassConfig = CAPPED, tile: int = 1) -> StepShares:
    """Return the shares of classes of which only interactive is limited, by `config`."""
    return StepShares(Limits(classes=ClassesConfig(interactive=config)), tile)


def decodes(num_interactive: int = 0) -> DecodeBatch:
    """Return decodes of one class."""
    ints = np.zeros(num_interactive, np.int32)
    longs = np.zeros(num_interactive, np.int64)
    return DecodeBatch(ints, ints + INTERACTIVE, ints, ints, longs, longs, longs)


def test_reserves_and_caps_count_the_decodes_of_the_class() -> None:
    """What a class has in the step already is part of both."""
    tokens = shares().open(decodes(15), CAPACITY, 0)
    assert (tokens.reserved[INTERACTIVE], tokens.most[INTERACTIVE]) == (5, 35)
    assert tokens.reserved[STANDARD] == 0
    assert len(tokens.most) == NUM_CLASSES


def test_what_a_class_leaves_of_its_cap_is_saved_for_a_few_steps() -> None:
    """After steps without it a class may take several shares in one step, but no more."""
    steps = shares(ClassConfig(max_step_fraction=0.1))
    most = [steps.open(decodes(), CAPACITY, 0).most[INTERACTIVE] for _ in range(SAVED_STEPS + 2)]
    assert most == [10 * min(step + 1, SAVED_STEPS) for step in range(SAVED_STEPS + 2)]


def test_in_the_long_run_a_class_takes_its_share_and_no_more() -> None:
    """One that takes all it may in each step gets its share of each."""
    steps = shares(ClassConfig(max_step_fraction=0.1))
    for _ in range(SAVED_STEPS):
        steps.open(decodes(), CAPACITY, 0)
    taken = []
    for _ in range(3):
        tokens = steps.open(decodes(), CAPACITY, 0)
        taken.append(tokens.most[INTERACTIVE])
        tokens.take(INTERACTIVE, taken[-1])
    assert taken == [10 * SAVED_STEPS, 10, 10]


def test_what_decodes_took_too_much_is_no_debt() -> None:
    """Decodes are never held back: a class whose decodes exceed its cap has its share again."""
    steps = shares(ClassConfig(max_step_fraction=0.1))
    most = [steps.open(decodes(n), CAPACITY, 0).most[INTERACTIVE] for n in (25, 0, 0)]
    assert most == [-15, 10, 20]


def test_each_replica_has_steps_of_its_own() -> None:
    """What is saved on one replica is not spent on another."""
    steps = shares(ClassConfig(max_step_fraction=0.1))
    steps.open(decodes(), CAPACITY, replica=0)
    assert steps.open(decodes(), CAPACITY, replica=1).most[INTERACTIVE] == 10
    assert steps.open(decodes(), CAPACITY, replica=0).most[INTERACTIVE] == 20
