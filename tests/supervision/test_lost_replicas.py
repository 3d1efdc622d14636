"""Replicas that cannot load: the engine goes on without them while another one is there."""

import pytest

from core.config.engine import EngineConfig
from core.config.headrace import HeadraceConfig
from core.supervision.actions import (
    EXIT_CANNOT_START,
    EXIT_GIVEN_UP,
    EXIT_UNUSABLE,
    GiveUp,
    Kill,
    Start,
    Terminate,
)
from core.supervision.spec import child_specs
from core.supervision.states import ProcessState
from core.supervision.tree import Phase, SupervisionTree
from tests.supervision.test_tree import LIMITS, MS, beat

FAILING = "executor.1.0"
KILLED = -9


def starting_tree(ranks: int = 1) -> SupervisionTree:
    """Return a tree with two replicas, all children started."""
    engine = EngineConfig(replicas=2, tensor_parallel=ranks)
    tree = SupervisionTree(child_specs(HeadraceConfig(engine=engine)), LIMITS)
    tree.start(0)
    return tree


def serve(tree: SupervisionTree, *but: str) -> None:
    """Let every child serve except some."""
    for child_id in tree.children:
        if child_id not in but:
            assert beat(tree, child_id, 0) == []


def state_of(tree: SupervisionTree, child_id: str) -> ProcessState:
    """Return where a child stands."""
    return tree.children[child_id].state


def die_while_loading(tree: SupervisionTree, child_id: str, times: int, now_ns: int = 0) -> int:
    """Let a child be killed at each of its starts; return the time after the last one."""
    for _ in range(times):
        tree.on_exit(child_id, KILLED, now_ns)
        now_ns = tree.next_timer_ns() or now_ns
        tree.on_tick(now_ns)
    return now_ns


@pytest.mark.parametrize("fails_first", [True, False])
def test_a_replica_that_says_it_is_unusable_is_given_up_alone(fails_first: bool) -> None:
    """The engine is ready with the other one, whoever comes to its verdict first."""
    tree = starting_tree()
    if not fails_first:
        serve(tree, FAILING)
        assert not tree.was_ready
    assert tree.on_exit(FAILING, EXIT_UNUSABLE, 1 * MS) == [GiveUp(FAILING, "", ends_engine=False)]
    if fails_first:
        serve(tree, FAILING)
    assert tree.was_ready
    assert tree.is_ready
    assert tree.phase is Phase.RUNNING
    assert state_of(tree, FAILING) is ProcessState.GIVEN_UP
    assert tree.on_tick(10**12) == []


def test_a_replica_that_is_killed_while_it_loads_is_tried_again_and_then_given_up() -> None:
    """No more often than the intensity allows, with its backoff; then it stays down for good."""
    tree = starting_tree()
    serve(tree, FAILING)
    now_ns = die_while_loading(tree, FAILING, LIMITS.intensity)
    assert tree.children[FAILING].epoch == 1 + LIMITS.intensity
    assert tree.on_exit(FAILING, KILLED, now_ns) == [
        GiveUp(FAILING, "3 deaths within 1000 ms", ends_engine=False)
    ]
    assert tree.phase is Phase.RUNNING
    assert tree.next_timer_ns() is None


def test_the_engine_is_ready_before_a_failing_replica_is_given_up() -> None:
    """A start that has failed once is not waited for; the first one is."""
    tree = starting_tree()
    serve(tree, FAILING)
    assert not tree.was_ready
    tree.on_exit(FAILING, KILLED, 1 * MS)
    assert tree.was_ready


def test_the_engine_is_not_ready_while_no_replica_serves() -> None:
    """Of two that have failed to load, one must come."""
    tree = starting_tree()
    serve(tree, FAILING, "executor.0.0")
    tree.on_exit(FAILING, EXIT_UNUSABLE, 1 * MS)
    tree.on_exit("executor.0.0", KILLED, 2 * MS)
    assert not tree.was_ready
    beat(tree, "executor.0.0", 3 * MS)
    assert tree.was_ready


def test_the_last_replica_that_fails_ends_the_engine() -> None:
    """As an engine of one replica that cannot load: at once, and as one that never was ready."""
    tree = starting_tree()
    tree.on_exit(FAILING, EXIT_UNUSABLE, 1 * MS)
    assert tree.on_exit("executor.0.0", EXIT_UNUSABLE, 2 * MS) == [
        GiveUp("executor.0.0", ""),
        Terminate("http.0"),
    ]
    assert tree.exit_code == EXIT_CANNOT_START


def test_a_replica_that_has_served_and_does_not_come_back_is_given_up_alone() -> None:
    """It is tried again, for what it lacks may come back; in the end the others go on."""
    tree = starting_tree()
    serve(tree)
    tree.on_exit(FAILING, KILLED, 0)
    tree.on_exit(FAILING, EXIT_UNUSABLE, 1 * MS)
    tree.on_tick(200 * MS)
    assert tree.on_exit(FAILING, EXIT_UNUSABLE, 201 * MS) == [
        GiveUp(FAILING, "3 deaths within 1000 ms", ends_engine=False)
    ]


def test_a_replica_that_dies_at_work_too_often_ends_the_engine() -> None:
    """That is no failure to load: what kills it may kill the others."""
    tree = starting_tree()
    serve(tree)
    now_ns = 0
    for _ in range(LIMITS.intensity):
        tree.on_exit(FAILING, KILLED, now_ns)
        now_ns = tree.next_timer_ns() or now_ns
        tree.on_tick(now_ns)
        beat(tree, FAILING, now_ns)
    assert GiveUp(FAILING, "3 deaths within 1000 ms") in tree.on_exit(FAILING, KILLED, now_ns)
    assert tree.exit_code == EXIT_GIVEN_UP


def test_the_ranks_of_a_replica_are_given_up_together() -> None:
    """Those that still run are killed, and none starts again."""
    tree = starting_tree(ranks=2)
    serve(tree, "executor.1.0", "executor.1.1")
    assert tree.on_exit("executor.1.0", EXIT_UNUSABLE, 1 * MS) == [
        GiveUp("executor.1.0", "", ends_engine=False),
        Kill("executor.1.1", "its group has lost executor.1.0"),
    ]
    assert tree.on_exit("executor.1.1", KILLED, 2 * MS) == []
    assert {state_of(tree, f"executor.1.{k}") for k in (0, 1)} == {ProcessState.GIVEN_UP}
    assert tree.was_ready


def test_a_rank_that_waits_for_its_backoff_is_given_up_with_the_other() -> None:
    """Whoever died first: the verdict is one for the group."""
    tree = starting_tree(ranks=2)
    tree.on_exit("executor.1.1", KILLED, 1 * MS)
    tree.on_exit("executor.1.0", EXIT_UNUSABLE, 2 * MS)
    assert {state_of(tree, f"executor.1.{k}") for k in (0, 1)} == {ProcessState.GIVEN_UP}
    assert tree.on_tick(10**12) == []


def test_an_operator_may_have_it_tried_again() -> None:
    """Its deaths are forgiven; if it fails again it is given up again."""
    tree = starting_tree()
    serve(tree, FAILING)
    tree.on_exit(FAILING, EXIT_UNUSABLE, 1 * MS)
    assert tree.restart(FAILING, 2 * MS) == [Start(FAILING, 2)]
    assert tree.on_exit(FAILING, EXIT_UNUSABLE, 3 * MS) == [GiveUp(FAILING, "", ends_engine=False)]
    assert tree.restart(FAILING, 4 * MS) == [Start(FAILING, 3)]
    beat(tree, FAILING, 5 * MS)
    assert state_of(tree, FAILING) is ProcessState.RUNNING


def test_a_shutdown_leaves_a_given_up_replica_as_it_is() -> None:
    """It has no process to wait for, and is not tried again any more."""
    tree = starting_tree()
    serve(tree, FAILING)
    tree.on_exit(FAILING, EXIT_UNUSABLE, 1 * MS)
    actions = tree.shutdown(2 * MS)
    while actions:
        for action in actions:
            actions = tree.on_exit(action.child_id, 0, 3 * MS)
    assert tree.phase is Phase.OVER
    assert tree.restart(FAILING, 4 * MS) == []
