"""The supervision tree: restarts, giving up, stopping; all on plain tables and given times."""

import pytest

from core.config.engine import EngineConfig
from core.config.headrace import HeadraceConfig
from core.config.processes import AdminConfig, TokenizerConfig
from core.supervision.actions import (
    EXIT_CANNOT_START,
    EXIT_GIVEN_UP,
    EXIT_OK,
    EXIT_UNUSABLE,
    Action,
    GiveUp,
    Kill,
    Start,
    Terminate,
)
from core.supervision.spec import ChildKind, child_specs, stop_order
from core.supervision.states import TRANSITIONS, ProcessState
from core.supervision.tree import Phase, SupervisionTree, TreeLimits
from core.supervision.watch import Activity, Beat

MS = 1_000_000
LIMITS = TreeLimits(
    intensity=2, period_ns=1000 * MS, hang_ns=100 * MS, load_ns=5000 * MS, stop_ns=50 * MS
)


def make_tree() -> SupervisionTree:
    """Return a tree of all kinds of children, nothing started."""
    return SupervisionTree(child_specs(HeadraceConfig()), LIMITS)


def beat(
    tree: SupervisionTree, child_id: str, now_ns: int, activity: Activity = Activity.IDLE
) -> list[Action]:
    """Report a fresh heartbeat of the child's current instance."""
    return tree.on_beat(child_id, Beat(tree.children[child_id].epoch, activity, now_ns, 0), now_ns)


def running_tree(now_ns: int = 0) -> SupervisionTree:
    """Return a tree in which every child serves."""
    tree = make_tree()
    tree.start(now_ns)
    for child_id in tree.children:
        assert beat(tree, child_id, now_ns) == []
    return tree


def test_the_specifications_follow_the_configuration() -> None:
    """As many children of each kind as configured, janitor first, http last."""
    config = HeadraceConfig(
        engine=EngineConfig(replicas=2),
        tokenizer=TokenizerConfig(processes=2),
        admin=AdminConfig(workers=3),
    )
    assert [spec.id for spec in child_specs(config)] == [
        "janitor", "admin.0", "admin.1", "admin.2", "executor.0.0", "executor.1.0", "scheduler",
        "tokenizer.0", "tokenizer.1", "http.0",
    ]  # fmt: skip


def test_children_stop_in_reverse_order_of_their_start() -> None:
    """Groups of one kind, http first, the admin pool last, the janitor not at all."""
    kinds = [{spec.kind for spec in group} for group in stop_order(child_specs(HeadraceConfig()))]
    assert kinds == [
        {ChildKind.HTTP},
        {ChildKind.TOKENIZER},
        {ChildKind.SCHEDULER},
        {ChildKind.EXECUTOR},
        {ChildKind.ADMIN},
    ]


def test_start_gives_every_child_its_first_epoch_in_order() -> None:
    """All children start at once, each as epoch 1."""
    tree = make_tree()
    assert tree.start(0) == [Start(child_id, 1) for child_id in tree.children]
    assert {child.state for child in tree.children.values()} == {ProcessState.STARTING}


def test_the_engine_is_ready_when_every_child_serves() -> None:
    """Loading does not count, and one child that is not there yet is enough to wait for."""
    tree = make_tree()
    tree.start(0)
    for child_id in tree.children:
        beat(tree, child_id, 1, Activity.LOADING)
    assert not tree.is_ready
    *most, last = tree.children
    for child_id in most:
        beat(tree, child_id, 2)
    assert not tree.is_ready
    beat(tree, last, 3)
    assert tree.is_ready
    assert tree.was_ready


def test_a_heartbeat_of_the_previous_instance_does_not_make_a_child_ready() -> None:
    """After a restart the old line in the heartbeat segment counts for nothing."""
    tree = running_tree()
    tree.on_exit("scheduler", -9, 1 * MS)
    assert tree.on_beat("scheduler", Beat(1, Activity.IDLE, 2 * MS, 0), 2 * MS) == []
    assert tree.children["scheduler"].state is ProcessState.STARTING


def test_the_first_death_is_answered_by_a_start_at_once() -> None:
    """One for one: only the dead child restarts, with the next epoch."""
    tree = running_tree()
    assert tree.on_exit("tokenizer.0", -9, 10 * MS) == [Start("tokenizer.0", 2)]
    assert tree.children["tokenizer.0"].restarts == 1
    assert all(
        child.epoch == 1 for child in tree.children.values() if child.spec.id != "tokenizer.0"
    )


def test_a_second_death_in_the_period_waits_for_a_backoff() -> None:
    """The restart comes from `on_tick`, not before its time, and the tree names that time."""
    tree = running_tree()
    tree.on_exit("http.0", 1, 0)
    assert tree.on_exit("http.0", 1, 10 * MS) == []
    assert tree.children["http.0"].state is ProcessState.BACKOFF
    due_ns = tree.next_timer_ns()
    assert due_ns is not None
    assert due_ns > 10 * MS
    assert tree.on_tick(due_ns - 1) == []
    assert tree.on_tick(due_ns) == [Start("http.0", 3)]


def test_deaths_beyond_the_intensity_end_the_engine_after_a_grace() -> None:
    """The child is given up, streams get the grace to hear of it, then everything stops and the
    exit code says so.
    """
    tree = running_tree()
    tree.on_exit("executor.0.0", -11, 0)
    tree.on_exit("executor.0.0", -11, 1 * MS)
    tree.on_tick(200 * MS)
    assert tree.on_exit("executor.0.0", -11, 201 * MS) == [
        GiveUp("executor.0.0", "3 deaths within 1000 ms")
    ]
    assert tree.phase is Phase.GIVING_UP
    leave_ns = tree.next_timer_ns()
    assert leave_ns is not None
    assert leave_ns == 201 * MS + LIMITS.grace_ns
    assert tree.on_tick(leave_ns - 1) == []
    assert tree.on_tick(leave_ns) == [Terminate("http.0")]
    assert tree.exit_code == EXIT_GIVEN_UP


def test_deaths_spread_wider_than_the_period_are_forgiven() -> None:
    """Only restarts within the window count."""
    tree = running_tree()
    for k in range(10):
        now_ns = k * 1000 * MS
        assert tree.on_exit("http.0", -9, now_ns) == [Start("http.0", k + 2)]


def test_a_child_that_says_it_is_unusable_at_its_first_start_ends_the_engine_at_once() -> None:
    """No restart loop for a missing model: no grace, and the supervisor adds nothing to what the
    child has said.
    """
    tree = make_tree()
    tree.start(0)
    actions = tree.on_exit("executor.0.0", EXIT_UNUSABLE, 5)
    assert actions == [GiveUp("executor.0.0", ""), Terminate("http.0")]
    assert tree.exit_code == EXIT_CANNOT_START


def test_a_child_that_says_so_at_a_later_start_is_tried_again() -> None:
    """It has worked here before: what it lacks, memory say, may come back."""
    tree = running_tree()
    assert tree.on_exit("executor.0.0", -9, 0) == [Start("executor.0.0", 2)]
    tree.on_exit("executor.0.0", EXIT_UNUSABLE, 100 * MS)
    assert tree.children["executor.0.0"].state is ProcessState.BACKOFF
    assert tree.phase is Phase.RUNNING


@pytest.mark.parametrize("activity", [Activity.IDLE, Activity.DRAINING])
def test_a_serving_child_that_stops_stamping_is_killed(activity: Activity) -> None:
    """One kill, with a reason; the death that follows is a death like others."""
    tree = running_tree()
    silent = Beat(1, activity, 0, 0)
    assert tree.on_beat("scheduler", silent, LIMITS.hang_ns) == []
    [kill] = tree.on_beat("scheduler", silent, LIMITS.hang_ns + 1)
    assert isinstance(kill, Kill)
    assert "hangs" in kill.reason
    assert tree.on_beat("scheduler", silent, LIMITS.hang_ns + 2) == []
    assert tree.on_exit("scheduler", -9, 200 * MS) == [Start("scheduler", 2)]


def test_a_busy_child_is_believed_until_the_time_it_named() -> None:
    """A step may last longer than the hang timeout, up to `until_ns`."""
    tree = running_tree()
    busy = Beat(1, Activity.BUSY, 0, 900 * MS)
    assert tree.on_beat("executor.0.0", busy, 900 * MS) == []
    assert tree.on_beat("executor.0.0", busy, 900 * MS + 1) != []


@pytest.mark.parametrize(
    "activity", [Activity.OFF, Activity.STARTING, Activity.LOADING, Activity.COMPILING]
)
def test_a_starting_child_has_the_load_timeout(activity: Activity) -> None:
    """Loading and compiling are silent for long, and are not hung."""
    tree = make_tree()
    tree.start(0)
    early = Beat(1, activity, 1, 0)
    assert tree.on_beat("executor.0.0", early, LIMITS.load_ns) == []
    assert tree.on_beat("executor.0.0", early, LIMITS.load_ns + 1) != []


def test_a_child_that_never_stamps_is_killed_after_the_load_timeout() -> None:
    """No line of this instance in the heartbeat segment is silence since its start."""
    tree = make_tree()
    tree.start(0)
    nothing = Beat(0, Activity.STARTING, 0, 0)
    assert tree.on_beat("http.0", nothing, LIMITS.load_ns) == []
    assert tree.on_beat("http.0", nothing, LIMITS.load_ns + 1) != []


def test_a_pause_of_the_supervisor_kills_nobody() -> None:
    """After its own gap the supervisor waits as long again before it believes a silence."""
    tree = running_tree()
    silent = Beat(1, Activity.IDLE, 0, 0)
    tree.on_pause(500 * MS, 500 * MS)
    assert tree.on_beat("scheduler", silent, 500 * MS) == []
    assert tree.on_beat("scheduler", silent, 1000 * MS) != []


def test_shutdown_stops_group_after_group_and_ends_with_zero() -> None:
    """Each group ends before the next is told to."""
    tree = running_tree()
    actions = tree.shutdown(0)
    seen = []
    while actions:
        assert all(isinstance(action, Terminate) for action in actions)
        group = [action.child_id for action in actions]
        seen.append(group)
        for child_id in group:
            actions = tree.on_exit(child_id, 0, 1 * MS)
    assert seen == [
        ["http.0"],
        ["tokenizer.0"],
        ["scheduler"],
        ["executor.0.0"],
        ["admin.0", "admin.1"],
    ]
    assert tree.phase is Phase.OVER
    assert tree.exit_code == EXIT_OK


def test_a_child_that_ignores_sigterm_is_killed_after_the_stop_timeout() -> None:
    """The kill comes once, at the time the tree named."""
    tree = running_tree()
    tree.shutdown(0)
    assert tree.next_timer_ns() == LIMITS.stop_ns
    assert tree.on_tick(LIMITS.stop_ns - 1) == []
    [kill] = tree.on_tick(LIMITS.stop_ns)
    assert isinstance(kill, Kill)
    assert tree.on_tick(LIMITS.stop_ns + 1) == []
    assert tree.on_exit("http.0", -9, LIMITS.stop_ns + 2) == [Terminate("tokenizer.0")]


def test_no_child_is_restarted_while_the_engine_leaves() -> None:
    """A child that dies before its turn stays down and its group is passed over."""
    tree = running_tree()
    tree.shutdown(0)
    assert tree.on_exit("scheduler", -9, 1) == []
    assert tree.on_exit("http.0", 0, 2) == [Terminate("tokenizer.0")]
    assert tree.on_exit("tokenizer.0", 0, 3) == [Terminate("executor.0.0")]


def test_a_child_in_backoff_is_not_started_by_a_shutdown() -> None:
    """Its pending start is forgotten."""
    tree = running_tree()
    tree.on_exit("scheduler", 1, 0)
    tree.on_exit("scheduler", 1, 1)
    tree.shutdown(2)
    assert tree.children["scheduler"].state is ProcessState.STOPPED
    assert all(not isinstance(action, Start) for action in tree.on_tick(10_000 * MS))


def test_a_requested_restart_does_not_count_against_the_intensity() -> None:
    """An operator may restart a child as often as they like."""
    tree = running_tree()
    for k in range(10):
        assert tree.restart("http.0", k) == [Terminate("http.0")]
        assert tree.restart("http.0", k) == []
        assert tree.on_exit("http.0", 0, k) == [Start("http.0", k + 2)]


def test_a_requested_restart_kills_a_child_that_does_not_end() -> None:
    """After the stop timeout SIGKILL follows, and the restart still happens at once."""
    tree = running_tree()
    tree.restart("executor.0.0", 0)
    [kill] = tree.on_tick(LIMITS.stop_ns)
    assert isinstance(kill, Kill)
    assert tree.on_exit("executor.0.0", -9, LIMITS.stop_ns + 1) == [Start("executor.0.0", 2)]


def test_a_fast_exit_kills_every_process() -> None:
    """The second signal ends all children, the janitor too."""
    tree = running_tree()
    tree.shutdown(0)
    assert [type(action) for action in tree.kill_all()] == [Kill] * len(tree.children)


def test_moves_outside_the_table_are_bugs() -> None:
    """The table is the only way to change a state."""
    child = make_tree().children["http.0"]
    with pytest.raises(AssertionError):
        child.move_to(ProcessState.RUNNING)


def test_every_state_is_reachable_and_none_is_final() -> None:
    """The transition table has no island and no dead end."""
    reached, todo = set(), [ProcessState.STOPPED]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += TRANSITIONS[state]
    assert reached == set(ProcessState)
    assert all(TRANSITIONS.values())


def running_group() -> SupervisionTree:
    """Return a running tree with a replica of two ranks."""
    tree = SupervisionTree(
        child_specs(HeadraceConfig(engine=EngineConfig(replicas=2, tensor_parallel=2))), LIMITS
    )
    tree.start(0)
    for child_id in tree.children:
        beat(tree, child_id, 0)
    return tree


def test_a_dead_rank_is_a_dead_replica() -> None:
    """The other rank is killed, both start again under one epoch, and other replicas live on."""
    tree = running_group()
    assert tree.on_exit("executor.0.1", -9, 10 * MS) == [
        Kill("executor.0.0", "its group has lost executor.0.1")
    ]
    assert tree.next_timer_ns() is None
    assert tree.on_exit("executor.0.0", -9, 12 * MS) == [
        Start("executor.0.0", 2),
        Start("executor.0.1", 2),
    ]
    assert {tree.children[f"executor.1.{rank}"].epoch for rank in (0, 1)} == {1}


def test_the_ranks_that_follow_one_into_death_are_not_counted() -> None:
    """As many deaths of a rank are forgiven as of an executor that is alone; one more is not."""
    tree = running_group()
    now_ns = 0
    for _ in range(LIMITS.intensity):
        tree.on_exit("executor.0.0", 75, now_ns)
        tree.on_exit("executor.0.1", -9, now_ns)
        due_ns = tree.next_timer_ns()
        now_ns = now_ns if due_ns is None else due_ns
        tree.on_tick(now_ns)
        assert {tree.children[f"executor.0.{rank}"].state for rank in (0, 1)} == {
            ProcessState.STARTING
        }
    actions = tree.on_exit("executor.0.0", 75, now_ns)
    assert actions[0] == GiveUp("executor.0.0", "3 deaths within 1000 ms", ends_engine=False)


def test_a_group_waits_for_the_longest_backoff_of_its_members() -> None:
    """The second death of a rank delays the start of all, and the tree names no earlier time."""
    tree = running_group()
    tree.on_exit("executor.0.1", -9, 0)
    tree.on_exit("executor.0.0", -9, 0)
    tree.on_exit("executor.0.1", -9, 1 * MS)
    assert tree.on_exit("executor.0.0", -9, 2 * MS) == []
    due_ns = tree.next_timer_ns()
    assert due_ns is not None
    assert due_ns > 2 * MS
    assert tree.on_tick(due_ns - 1) == []
    assert tree.on_tick(due_ns) == [Start("executor.0.0", 3), Start("executor.0.1", 3)]


def test_a_restart_on_request_takes_the_whole_group_along() -> None:
    """The rank that was asked ends by itself, the others are killed; nothing is counted."""
    tree = running_group()
    assert tree.restart("executor.1.0", 0) == [Terminate("executor.1.0")]
    assert tree.on_exit("executor.1.0", 0, 1 * MS) == [
        Kill("executor.1.1", "its group has lost executor.1.0")
    ]
    assert tree.on_exit("executor.1.1", -9, 2 * MS) == [
        Start("executor.1.0", 2),
        Start("executor.1.1", 2),
    ]
