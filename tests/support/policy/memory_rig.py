"""The memory policy with one replica, where blocks are only counted."""

from dataclasses import replace

from core.policy.kv_memory.memory import Demand, Memory
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from tests.support.policy.kv_rig import BLOCK_SIZE, FakeLeads, FakeReplica
from tests.support.scheduler.checked_engine import make_request

NOTHING_RESERVED = ClassesConfig(
    interactive=ClassConfig(),
    standard=ClassConfig(),
    batch=ClassConfig(preemptible=True),
    administrative=ClassConfig(strict_first=True),
)
RESERVED = replace(
    NOTHING_RESERVED,
    interactive=ClassConfig(reserved_kv_fraction=0.2),
    administrative=ClassConfig(strict_first=True, reserved_kv_fraction=0.05),
)
POOL = 100


class MemoryRig:
    """Memory with one replica of 100 blocks of 4 tokens."""

    def __init__(self, classes: ClassesConfig = NOTHING_RESERVED, headroom: float = 0.0) -> None:
        settings = PolicySettings(
            max_num_partial_prefills=4,
            kv_headroom_fraction=headroom,
            block_size=BLOCK_SIZE,
            limits=Limits(classes),
        )
        self.leads = FakeLeads()
        self.memory = Memory(settings, self.leads)
        self.replica = FakeReplica(POOL)
        self.replica.headroom = self.memory.headroom_blocks
        self._num_requests = 0

    def request(
        self, blocks: int, grows: int = 0, traffic_class: TrafficClass = TrafficClass.STANDARD
    ) -> Request:
        """Return a request of so many blocks that may grow by so many."""
        self._num_requests += 1
        return make_request(
            self._num_requests,
            blocks * BLOCK_SIZE,
            max(1, grows * BLOCK_SIZE),
            order=self._num_requests,
            traffic_class=traffic_class,
        )

    def run(
        self, blocks: int, grows: int = 0, traffic_class: TrafficClass = TrafficClass.STANDARD
    ) -> Request:
        """Let such a request run."""
        request = self.request(blocks, grows, traffic_class)
        self.replica.start(request)
        self.memory.started(request)
        return request

    def demand(self, request: Request) -> Demand:
        """Return what must stay available for `request`."""
        return self.memory.demand(request, self.replica.load())

    def fits(self, request: Request) -> bool:
        """Tell whether `request` could start."""
        return self.replica.missing_blocks(request) <= 0

    def end(self, request: Request) -> None:
        """Let a running `request` be gone."""
        request.row = -1
        del self.replica.held[request]
        self.memory.stopped(request)

    def wait(self, duration_ns: int) -> None:
        """Open a step after so long."""
        self.replica.now_ns += duration_ns
        self.open()

    def close(self, num_tokens: int) -> None:
        """Let the step compute so many tokens."""
        self.memory.close(self.replica, num_tokens)  # type: ignore[arg-type]

    def open(self) -> None:
        """Open a step."""
        self.memory.open(self.replica)  # type: ignore[arg-type]

    def make_room(self, request: Request) -> bool:
        """Let others give memory back for a waiting `request`."""
        return self.memory.make_room(self.replica, request)  # type: ignore[arg-type]
