"""A step for tests of policies: real requests, a budget of tokens, and reasons where wanted."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from core.errors import Rejection
from core.policy.base import Blocked, DecodeBatch, Grant, Policy, Relief, ReplicaLoad
from core.request import Request, RequestStatus


@dataclass
class PolicyStep:
    """Grants whatever fits its budget; a waiting request starts unless `blocked` says otherwise."""

    policy: Policy
    tokens_left: int = 100
    decoding: list[Request] = field(default_factory=list)
    blocked: dict[Request, Blocked] = field(default_factory=dict)
    under_way: list[Request] = field(default_factory=list)
    left: dict[Request, int] = field(default_factory=dict)
    now_ns: int = 1
    replica: int = 0
    number: int = 1
    grants: list[tuple[Request, int]] = field(default_factory=list)
    hits: dict[Request, int] = field(default_factory=dict)
    looks: list[Request] = field(default_factory=list)  # whose hits were asked for

    @property
    def num_running(self) -> int:
        return len(self.under_way) + len(self.decoding)

    @property
    def may_start_requests(self) -> bool:
        return True

    def prefills(self) -> list[Request]:
        return [request for request in self.under_way if self.remaining(request)]

    def decodes(self) -> DecodeBatch:
        count = len(self.decoding)
        zeros = np.zeros(count, np.int64)
        return DecodeBatch(
            tenant_index=np.array([r.tenant_index for r in self.decoding], np.int32),
            traffic_class=np.array([r.traffic_class for r in self.decoding], np.int32),
            context_tokens=np.array([r.num_tokens for r in self.decoding], np.int32),
            num_output_tokens=np.zeros(count, np.int32),
            ttft_deadline_ns=zeros,
            itl_cap_ns=zeros,
            last_token_ns=zeros,
            rows=np.array([r.row for r in self.decoding], np.int64),
        )

    def running(self) -> list[Request]:
        return self.under_way + self.decoding

    def remaining(self, request: Request) -> int:
        return self.left.get(request, request.prompt_len)

    def hit_tokens(self, request: Request) -> int:
        self.looks.append(request)
        return self.hits.get(request, 0)

    def start(self, request: Request) -> Blocked:
        blocked = self.blocked.get(request, Blocked.NOTHING)
        if blocked is Blocked.NOTHING:
            self.policy.remove(request)
            request.move_to(RequestStatus.RUNNING)
            request.replica, request.row = self.replica, request.request_id
            self.policy.started(request)
            self.under_way.append(request)
            self.left[request] = request.prompt_len - self.hits.get(request, 0)
        return blocked

    def grant(self, request: Request, max_tokens: int) -> Grant:
        if request.status is not RequestStatus.RUNNING:
            blocked = self.start(request)
            if blocked is not Blocked.NOTHING:
                return Grant(0, blocked)
        num_tokens = min(max_tokens, self.tokens_left, self.remaining(request))
        self.left[request] = self.remaining(request) - num_tokens
        self.tokens_left -= num_tokens
        self.grants.append((request, num_tokens))
        return Grant(num_tokens)

    def defer(self, decodes: npt.NDArray[np.bool_]) -> None:
        raise NotImplementedError("nobody defers here")

    def load(self) -> ReplicaLoad:
        return ReplicaLoad(100, 100, self.num_running)

    def preempt(
        self, request: Request, relief: Relief = Relief.RECOMPUTE, num_blocks: int = 0
    ) -> None:
        raise NotImplementedError("nobody preempts here")

    def shed(self, request: Request, rejection: Rejection) -> None:
        raise NotImplementedError("nobody sheds here")

    def missing_blocks(self, request: Request) -> int:
        return 0

    def granted(self) -> dict[int, int]:
        """Return the tokens of each request by its id, in the order of their first grants."""
        totals: dict[int, int] = {}
        for request, num_tokens in self.grants:
            totals[request.request_id] = totals.get(request.request_id, 0) + num_tokens
        return totals
