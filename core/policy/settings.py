"""What every policy is told at its start.

Never knows: files, processes, other parts of the configuration.
"""

from dataclasses import dataclass, field

from core.config.scheduling import PolicyConfig
from core.policy.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Limits of a step, and the constants and promises that `headrace` goes by."""

    max_num_partial_prefills: int
    kv_headroom_fraction: float
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 192
    max_model_len: int = 8192
    max_preemptions: int = 3
    block_size: int = 32
    prefix_cache: bool = False
    tuning: PolicyConfig = field(default_factory=PolicyConfig)
    limits: Limits = field(default_factory=Limits)
