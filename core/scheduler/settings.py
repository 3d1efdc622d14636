"""What the engine core must know of the configuration, as one frozen record.

Never knows: files, processes, the model beyond its end-of-text ids.
"""

from dataclasses import dataclass, field

from core.clock import NS_PER_MS
from core.config.engine import EngineConfig
from core.config.scheduling import PolicyConfig, SchedulerConfig
from core.policy.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Limits and choices of one engine core; the field names are those of the configuration."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_partial_prefills: int
    block_size: int
    prefix_cache: bool
    pipeline_depth: int
    policy: str
    max_queued_requests: int
    max_queued_tokens: int
    queue_deadline_ns: int
    request_timeout_ns: int
    kv_headroom_fraction: float
    max_preemptions: int
    poison_crashes: int
    model: str = ""  # the one that requests are for; empty = whatever replicas have
    swap_memory_bytes: int = 0
    tuning: PolicyConfig = field(default_factory=PolicyConfig)
    limits: Limits = field(default_factory=Limits)
    eos_token_ids: tuple[int, ...] = ()
    digest_secret: bytes = b""
    """Key of the block digests, the same for all processes of this boot."""

    def __post_init__(self) -> None:
        """Check what every step relies on."""
        assert 0 < self.max_num_seqs <= self.max_num_batched_tokens, self.max_num_batched_tokens
        assert self.block_size > 0, self.block_size
        assert self.block_size & (self.block_size - 1) == 0, self.block_size
        assert self.pipeline_depth in (1, 2), self.pipeline_depth
        assert self.max_num_partial_prefills > 0, self.max_num_partial_prefills

    @property
    def max_blocks_per_seq(self) -> int:
        """Length of a row's block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def max_copies(self) -> int:
        """Blocks that one plan may copy: a longest sequence can go out and another come in."""
        return 2 * self.max_blocks_per_seq

    @property
    def num_rows(self) -> int:
        """Rows a replica needs: with two plans in flight a row outlives its request by a step."""
        return self.max_num_seqs * self.pipeline_depth

    @classmethod
    def from_config(
        cls,
        engine: EngineConfig,
        scheduler: SchedulerConfig,
        tuning: PolicyConfig,
        limits: Limits,
        *,
        max_model_len: int,
        eos_token_ids: tuple[int, ...],
        digest_secret: bytes,
        model: str = "",
    ) -> "EngineSettings":
        """Take the checked configuration and what only the model and this boot can tell."""
        return cls(
            model=model,
            max_model_len=max_model_len,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_partial_prefills=engine.max_num_partial_prefills,
            block_size=engine.block_size,
            prefix_cache=engine.prefix_cache,
            pipeline_depth=engine.pipeline_depth,
            policy=scheduler.policy,
            max_queued_requests=scheduler.max_queued_requests,
            max_queued_tokens=scheduler.max_queued_tokens,
            queue_deadline_ns=scheduler.queue_deadline_ms * NS_PER_MS,
            request_timeout_ns=scheduler.request_timeout_ms * NS_PER_MS,
            kv_headroom_fraction=scheduler.kv_headroom_fraction,
            max_preemptions=scheduler.max_preemptions,
            poison_crashes=scheduler.poison_crashes,
            swap_memory_bytes=engine.swap_memory_bytes,
            tuning=tuning,
            limits=limits,
            eos_token_ids=eos_token_ids,
            digest_secret=digest_secret,
        )
