"""The scheduler's view of its executors and tokenizers: deaths and arrivals as events.

Owns: which instance of each the engine core has been told of. Never knows: what the core makes of
it. An executor counts from its first heartbeat as ready until the supervisor's page shows its end;
a tokenizer from before its process exists, because its arena starts empty at once.
"""

from collections.abc import Callable, Iterator, Sequence

from core.peers import PeerTable
from core.policy.cost_model import CostBasis
from core.scheduler.events import Event, Offer, ReplicaDown, ReplicaGone, ReplicaUp, TokenizerDown
from ipc.board import BoardReader
from ipc.pages import EXECUTOR_PAGE

CameUp = Callable[[int, int], ReplicaUp | None]


class Lifelines:
    """`executor_epochs[r]` and `tokenizer_epochs[t]` are the instances that are known; 0 = none."""

    def __init__(self, num_replicas: int, num_tokenizers: int) -> None:
        self.executor_epochs = [0] * num_replicas
        self.tokenizer_epochs = [0] * num_tokenizers
        self._gone = [False] * num_replicas

    def events(self, peers: PeerTable, came_up: CameUp) -> Iterator[Event]:
        """Yield what changed since the last call.

        `came_up(replica, epoch)` is the arrival of that instance, None = it has not said yet what
        it is.
        """
        for tokenizer, known in enumerate(self.tokenizer_epochs):
            epoch = peers.peer(f"tokenizer.{tokenizer}").living_epoch
            if epoch == known:
                continue
            self.tokenizer_epochs[tokenizer] = epoch
            if known:
                yield TokenizerDown(tokenizer)
        for replica in range(len(self.executor_epochs)):
            yield from self._executor_events(replica, peers, came_up)

    def _executor_events(self, replica: int, peers: PeerTable, came_up: CameUp) -> Iterator[Event]:
        peer, known = peers.peer(f"executor.{replica}.0"), self.executor_epochs[replica]
        if peer.is_given_up:
            if not self._gone[replica]:
                self._gone[replica], self.executor_epochs[replica] = True, 0
                yield ReplicaGone(replica)
            return
        self._gone[replica] = False
        if peer.serving_epoch == known:
            return
        if known:
            self.executor_epochs[replica] = 0
            yield ReplicaDown(replica)
        event = came_up(replica, peer.serving_epoch) if peer.serving_epoch else None
        if event is not None:
            self.executor_epochs[replica] = peer.serving_epoch
            yield event


def shown_model(name: str) -> str:
    """Return a model's name as far as an executor's page shows it."""
    return name.encode()[: EXECUTOR_PAGE["model"].itemsize].decode(errors="ignore")


def arrivals(pages: Sequence[BoardReader]) -> CameUp:
    """Return the function that reads from the executors' pages what has come up."""

    def came_up(replica: int, epoch: int) -> ReplicaUp | None:
        snapshot = pages[replica].read()
        page, num_blocks = snapshot.page, int(snapshot.page["num_kv_blocks"])
        if snapshot.epoch != epoch or not num_blocks:
            return None
        basis = CostBasis(*page["cost_basis"].tolist())
        return ReplicaUp(
            replica,
            epoch,
            num_blocks,
            basis if basis.is_usable else None,
            num_host_blocks=int(page["num_host_blocks"]),
            block_bytes=int(page["block_bytes"]),
            swap_gb_per_s=float(page["swap_gb_per_s"]),
            offer=Offer(
                model=page["model"].item().decode(errors="ignore"),
                numerics=page["kernel_path"].item().decode(),
            ),
        )

    return came_up
