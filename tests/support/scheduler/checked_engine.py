"""Engines for tests of the scheduler: small, every plan checked, with a reference to compare to."""

from dataclasses import replace

import numpy as np

from core.config.scheduling import PolicyConfig
from core.policy.base import Policy
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler.plan import CopyDirection, PlanFlag, StepPlan
from core.scheduler.settings import EngineSettings
from core.simulation.engine import SimulatedEngine
from core.simulation.modelled_executor import NextToken, StepModel, hashed_token
from core.tenancy.classes import ClassesConfig, TrafficClass

NS_PER_S = 1_000_000_000
EOS = 7

_CLASSES = ClassesConfig()
SMALL_POOL_LIMITS = Limits(  # a twentieth of a small pool is nothing that a request could live in
    classes=replace(_CLASSES, administrative=replace(_CLASSES.administrative, max_kv_fraction=1.0))
)


def make_settings(**overrides: object) -> EngineSettings:
    """Return settings for tiny prompts and pools."""
    fields: dict[str, object] = {
        "max_model_len": 256,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "max_num_partial_prefills": 3,
        "block_size": 4,
        "prefix_cache": True,
        "pipeline_depth": 1,
        "policy": "fcfs",
        "max_queued_requests": 1000,
        "max_queued_tokens": 1_000_000,
        "queue_deadline_ns": 1000 * NS_PER_S,
        "request_timeout_ns": 10_000 * NS_PER_S,
        "kv_headroom_fraction": 0.0,
        "max_preemptions": 3,
        "poison_crashes": 3,
        "eos_token_ids": (EOS,),
        "digest_secret": b"secret of the tests",
        "tuning": PolicyConfig(delivery_ms=0),  # a test sees a token as its step ends
    }
    return EngineSettings(**(fields | overrides))  # type: ignore[arg-type]


class CheckedEngine(SimulatedEngine):
    """A simulated engine that checks every plan against the limits, and its own state after it."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        num_blocks: int = 1000,
        num_replicas: int = 1,
        num_tokenizers: int = 1,
        num_host_blocks: int = 0,
        model: StepModel | None = None,
        next_token: NextToken = hashed_token,
        vocab_size: int = 50_000,
        policy: Policy | None = None,
    ) -> None:
        self.owners: dict[tuple[int, int, int], int] = {}  # (replica, row, generation) → request id
        super().__init__(
            settings,
            num_blocks=num_blocks,
            num_replicas=num_replicas,
            num_tokenizers=num_tokenizers,
            num_host_blocks=num_host_blocks,
            model=model,
            next_token=next_token,
            vocab_size=vocab_size,
            arena_tokens=1 << 16,
            policy=policy,
        )

    def plan(self, replica: int = 0) -> StepPlan | None:
        """Plan, and check the plan."""
        plan = super().plan(replica)
        if plan is not None:
            self._check(plan)
        return plan

    def _check(self, plan: StepPlan) -> None:
        rows, settings = plan.rows, self.settings
        self._check_copies(plan)
        assert len(rows) <= settings.max_num_seqs
        assert rows["num_new_tokens"].min(initial=1) > 0
        assert rows["num_new_tokens"].sum() <= settings.max_num_batched_tokens
        assert len(set(rows["row"].tolist())) == len(rows), "a row is in the plan twice"
        for entry in rows:
            record = self.rows[plan.replica][int(entry["row"])]
            assert record["generation"] == entry["generation"]
            key = (plan.replica, int(entry["row"]), int(entry["generation"]))
            owner = self.owners.setdefault(key, int(record["request_id"]))
            assert owner == record["request_id"], "a generation was used twice"
            end = int(entry["first_position"]) + int(entry["num_new_tokens"])
            assert end <= record["prompt_len"] + max(int(record["max_tokens"]) - 1, 0)
        decodes = rows["num_new_tokens"] == 1
        fed_back = (rows["flags"] & np.uint32(PlanFlag.FEEDBACK)) != 0
        assert not np.any(fed_back & ~decodes)
        assert not fed_back.any() or settings.pipeline_depth == 2

    def _check_copies(self, plan: StepPlan) -> None:
        copies = plan.copies
        assert len(plan.rows) or len(copies)
        assert len(copies) <= self.settings.max_copies
        out = copies["direction"] == CopyDirection.OUT
        for targets in (copies["host_block"][out], copies["block"][~out]):
            assert len(set(targets.tolist())) == len(targets), "two copies into one block"
        assert np.all((copies["block"] >= 0) & (copies["block"] < self.num_blocks))
        assert np.all(copies["host_block"] < self.num_host_blocks)


def reference_tokens(
    prompt: list[int],
    max_tokens: int,
    sampling: SamplingParams,
    vocab_size: int,
) -> tuple[list[int], RequestStatus]:
    """Return what a request alone on an endless engine gets, and how it ends."""
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {EOS})
    sequence, output = list(prompt), list[int]()
    while len(output) < max_tokens:
        token = hashed_token(np.array(sequence, np.int32), sampling.seed, vocab_size)
        sequence.append(token)
        output.append(token)
        if token in stops and len(output) >= sampling.min_tokens:
            return output, RequestStatus.FINISHED_STOPPED
    return output, RequestStatus.FINISHED_LENGTH


def make_request(
    request_id: int = 1,
    prompt_len: int = 4,
    max_tokens: int = 4,
    *,
    tenant: str = "a",
    arrival_ns: int = 1,
    order: int = 0,
    priority: int = 0,
    traffic_class: TrafficClass = TrafficClass.STANDARD,
    first_token: int = 10,
    sampling: SamplingParams | None = None,
) -> Request:
    """Return a request with the prompt first_token, first_token + 1, …"""
    token_ids = np.full(prompt_len + max_tokens, -1, np.int32)
    token_ids[:prompt_len] = np.arange(first_token, first_token + prompt_len)
    return Request(
        request_id=request_id,
        tokenizer=0,
        tenant=tenant,
        token_ids=token_ids,
        span_start=0,
        prompt_len=prompt_len,
        max_tokens=max_tokens,
        arrival_ns=arrival_ns,
        sampling=sampling or SamplingParams(),
        traffic_class=traffic_class,
        priority=priority,
        order=order,
    )
