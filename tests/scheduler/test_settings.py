"""What the engine core is told of the configuration."""

from core.config.engine import EngineConfig
from core.config.scheduling import PolicyConfig, SchedulerConfig
from core.policy.limits import Limits
from core.scheduler.settings import EngineSettings


def test_settings_follow_the_configuration() -> None:
    """Settings take the configured limits, in ns where the configuration has ms."""
    settings = EngineSettings.from_config(
        EngineConfig(max_num_seqs=32, pipeline_depth=2),
        SchedulerConfig(queue_deadline_ms=1500),
        PolicyConfig(),
        Limits(),
        max_model_len=100,
        eos_token_ids=(2,),
        digest_secret=b"x",
    )
    assert settings.num_rows == 64
    assert settings.max_blocks_per_seq == 4
    assert settings.queue_deadline_ns == 1_500_000_000
