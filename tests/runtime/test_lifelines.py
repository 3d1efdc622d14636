"""Deaths and arrivals of peers as the scheduler is told of them."""

from dataclasses import replace

from core.executor.protocol import ExecutorInfo
from core.peers import BoardPeers, Peer
from core.policy.cost_model import CostBasis
from core.runtime.executor.loop import show_info
from core.runtime.scheduler.lifelines import CameUp, Lifelines, arrivals
from core.scheduler.events import Offer, ReplicaDown, ReplicaGone, ReplicaUp, TokenizerDown
from core.supervision.states import ProcessState
from ipc.board import BoardReader, BoardWriter, board_layout
from ipc.layout import anonymous_segment
from ipc.pages import EXECUTOR_PAGE, SUPERVISOR_PAGE

EXECUTOR, TOKENIZER = "executor.0.0", "tokenizer.0"


class Roll:
    """Peers that a test sets by hand."""

    def __init__(self) -> None:
        self.peers: dict[str, Peer] = {}

    def look(self) -> None:
        """Nothing to read."""

    def peer(self, child_id: str) -> Peer:
        """Return what was set."""
        return self.peers.get(child_id, Peer())


def always(size: int) -> CameUp:
    """Return a pool size that is known at once, 0 = it is not."""
    return lambda replica, epoch: ReplicaUp(replica, epoch, size) if size else None


def test_an_executor_comes_up_once_it_serves() -> None:
    """A process that only starts is not yet a replica, and a replica is announced once."""
    roll, lines = Roll(), Lifelines(1, 0)
    roll.peers[EXECUTOR] = Peer(living_epoch=1)
    assert list(lines.events(roll, always(9))) == []
    roll.peers[EXECUTOR] = Peer(1, 1)
    assert list(lines.events(roll, always(9))) == [ReplicaUp(0, 1, 9)]
    assert list(lines.events(roll, always(9))) == []


def test_an_executor_without_a_known_pool_waits() -> None:
    """Until its page shows the size under the same epoch, the replica stays down."""
    roll, lines = Roll(), Lifelines(1, 0)
    roll.peers[EXECUTOR] = Peer(1, 1)
    assert list(lines.events(roll, always(0))) == []
    assert list(lines.events(roll, always(5))) == [ReplicaUp(0, 1, 5)]


def test_a_dead_executor_goes_down_at_once() -> None:
    """Its end on the page is enough; nobody waits for a successor."""
    roll, lines = Roll(), Lifelines(1, 0)
    roll.peers[EXECUTOR] = Peer(1, 1)
    list(lines.events(roll, always(9)))
    roll.peers[EXECUTOR] = Peer(2, 0)
    assert list(lines.events(roll, always(9))) == [ReplicaDown(0)]
    assert lines.executor_epochs == [0]


def test_an_executor_replaced_between_two_looks_goes_down_and_up() -> None:
    """Both events, in this order."""
    roll, lines = Roll(), Lifelines(1, 0)
    roll.peers[EXECUTOR] = Peer(1, 1)
    list(lines.events(roll, always(9)))
    roll.peers[EXECUTOR] = Peer(2, 2)
    assert list(lines.events(roll, always(7))) == [ReplicaDown(0), ReplicaUp(0, 2, 7)]


def test_an_executor_that_was_given_up_is_gone_once() -> None:
    """However often one looks."""
    roll, lines = Roll(), Lifelines(1, 0)
    roll.peers[EXECUTOR] = Peer(is_given_up=True)
    assert list(lines.events(roll, always(9))) == [ReplicaGone(0)]
    assert list(lines.events(roll, always(9))) == []


def test_an_executor_that_was_given_up_may_return_and_be_given_up_again() -> None:
    """An operator has had it tried again; each end is told."""
    roll, lines = Roll(), Lifelines(1, 0)
    roll.peers[EXECUTOR] = Peer(is_given_up=True)
    list(lines.events(roll, always(9)))
    roll.peers[EXECUTOR] = Peer(2, 2)
    assert list(lines.events(roll, always(7))) == [ReplicaUp(0, 2, 7)]
    roll.peers[EXECUTOR] = Peer(is_given_up=True)
    assert list(lines.events(roll, always(9))) == [ReplicaGone(0)]


def test_a_tokenizer_is_down_as_soon_as_its_instance_changes() -> None:
    """Not only when the next one serves: its arena starts empty from the start of the process."""
    roll, lines = Roll(), Lifelines(0, 1)
    roll.peers[TOKENIZER] = Peer(1, 0)
    assert list(lines.events(roll, always(0))) == []
    roll.peers[TOKENIZER] = Peer(2, 0)
    assert list(lines.events(roll, always(0))) == [TokenizerDown(0)]


def show(page: BoardWriter, epoch: int, state: ProcessState) -> None:
    """Publish one child."""
    page.page["num_children"] = 1
    page.page["children"][0] = (EXECUTOR.encode(), 1, epoch, state, 0, 0, b"")
    page.publish(1)


def test_the_board_tells_living_and_serving_instances_apart() -> None:
    """A process counts from its start, its service only when the heartbeat has the same epoch."""
    segment = anonymous_segment(board_layout(SUPERVISOR_PAGE))
    page = BoardWriter(segment, SUPERVISOR_PAGE, 1)
    served = {EXECUTOR: 0}
    peers = BoardPeers(BoardReader(segment, SUPERVISOR_PAGE), served.__getitem__)
    seen = []
    for epoch, state, serving in (
        (1, ProcessState.STARTING, 0),
        (1, ProcessState.RUNNING, 1),
        (1, ProcessState.BACKOFF, 1),
        (2, ProcessState.STARTING, 1),
        (2, ProcessState.GIVEN_UP, 2),
    ):
        show(page, epoch, state)
        served[EXECUTOR] = serving
        peers.look()
        seen.append(peers.peer(EXECUTOR))
    assert seen == [Peer(1, 0), Peer(1, 1), Peer(0, 0), Peer(2, 0), Peer(0, 0, is_given_up=True)]
    assert peers.peer("nobody") == Peer()


def test_what_a_predecessor_published_does_not_count() -> None:
    """Pool and costs are believed only under the epoch that published them."""
    segment = anonymous_segment(board_layout(EXECUTOR_PAGE))
    writer = BoardWriter(segment, EXECUTOR_PAGE, epoch=3)
    info = make_info(num_kv_blocks=77, basis=CostBasis(5.0, 4.0, 3.0, 2.0, 1.0))
    info = replace(info, num_host_blocks=6, block_bytes=512, swap_gb_per_s=2.5)
    show_info(info, "m", writer, 1)
    came_up = arrivals([BoardReader(segment, EXECUTOR_PAGE)])
    basis = CostBasis(5.0, 4.0, 3.0, 2.0, 1.0)
    assert came_up(0, 3) == ReplicaUp(
        0, 3, 77, basis, 6, 512, Offer(model="m", numerics="cpp"), 2.5
    )
    assert came_up(0, 4) is None


def test_an_executor_that_measured_nothing_comes_up_without_costs() -> None:
    """Zeros on the page are no prices."""
    segment = anonymous_segment(board_layout(EXECUTOR_PAGE))
    show_info(make_info(77, None), "m", BoardWriter(segment, EXECUTOR_PAGE, epoch=3), 1)
    up = arrivals([BoardReader(segment, EXECUTOR_PAGE)])(0, 3)
    assert up == ReplicaUp(0, 3, 77, None, offer=Offer(model="m", numerics="cpp"))


def make_info(num_kv_blocks: int, basis: CostBasis | None) -> ExecutorInfo:
    """Return what a loaded executor says of itself."""
    return ExecutorInfo(num_kv_blocks, 32, 512, 100, 0, 0, "cpp", "cpu", 1, basis=basis)
