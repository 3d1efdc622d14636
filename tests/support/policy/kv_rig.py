"""A replica as policies see it: requests that run with so many blocks, and a step over them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from core.policy.base import Relief, ReplicaLoad, RunningRows
from core.request import Request

BLOCK_SIZE = 4


@dataclass
class FakeLeads:
    """Who was served more than its share, as it is set."""

    of_flow: dict[int, int] = field(default_factory=dict)
    ahead: set[int] = field(default_factory=set)  # classes outside their windows

    def over_share(self, flow: int) -> int:
        return self.of_flow.get(flow, 0)

    def is_class_within(self, traffic_class: int) -> bool:
        return traffic_class not in self.ahead


@dataclass(frozen=True)
class Preempted:
    """A preemption that was asked for."""

    request: Request
    relief: Relief
    num_blocks: int


class FakeReplica:
    """A pool of blocks and the rows in it; it is its own `Step`, as far as memory goes."""

    replica = 0
    number = 0

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.now_ns = 0
        self.requests: list[Request] = []
        self.num_computed: dict[Request, int] = {}
        self.held: dict[Request, int] = {}
        self.preempted: list[Preempted] = []
        self.num_free_host_blocks = 0
        self.block_bytes = 0
        self.swap_gb_per_s = 0.0
        self.headroom: Callable[[Request, ReplicaLoad], int] = lambda request, load: 0

    def start(self, request: Request, num_blocks: int = 0) -> None:
        """Let `request` run with blocks for its tokens, or with so many."""
        request.row, request.replica = len(self.requests), 0
        self.requests.append(request)
        self.held[request] = num_blocks or -(-request.num_tokens // BLOCK_SIZE)
        request.block_ids = [0] * self.held[request]
        self.num_computed[request] = request.num_tokens

    def load(self) -> ReplicaLoad:
        return ReplicaLoad(
            num_blocks=self.num_blocks,
            num_available_blocks=self.num_blocks - sum(self.held.values()),
            num_running=len(self.running()),
            num_free_host_blocks=self.num_free_host_blocks,
            block_bytes=self.block_bytes,
            swap_gb_per_s=self.swap_gb_per_s,
            rows=self._rows(),
        )

    def running(self) -> list[Request]:
        return [request for request in self.requests if request.row >= 0]

    def missing_blocks(self, request: Request) -> int:
        load = self.load()
        needed = -(-request.num_tokens // BLOCK_SIZE) + self.headroom(request, load)
        return needed - load.num_available_blocks

    def preempt(
        self, request: Request, relief: Relief = Relief.RECOMPUTE, num_blocks: int = 0
    ) -> None:
        self.preempted.append(Preempted(request, relief, num_blocks))
        if num_blocks:
            self.held[request] -= num_blocks
            return
        request.row = -1
        request.num_computed_tokens = self.num_computed[request]
        del self.held[request]

    def _rows(self) -> RunningRows:
        def column(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
            return np.array(values, np.int32)

        rows = self.requests
        return RunningRows(
            requests=rows,
            active=np.array([r.row >= 0 for r in rows], np.bool_),
            tenant_index=column([r.tenant_index for r in rows]),
            traffic_class=column([r.traffic_class for r in rows]),
            prompt_len=column([r.prompt_len for r in rows]),
            num_tokens=column([r.num_tokens for r in rows]),
            num_computed=column([self.num_computed[r] for r in rows]),
            max_length=column([r.prompt_len + r.max_tokens for r in rows]),
            num_blocks=column([self.held.get(r, 0) for r in rows]),
        )
