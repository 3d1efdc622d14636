"""`python -P -m core.runtime.scheduler FD`: the scheduler, started by its supervisor.

Owns: the way from what was inherited to an engine core in a running loop. Never knows: requests.
"""

import sys
from collections.abc import Sequence

from core.clock import NS_PER_MS
from core.config.file import config_from_json
from core.engine_core import EngineCore
from core.model_card import card_from_json
from core.monotonic_clock import MonotonicClock
from core.policy.limits import Limits
from core.runtime.arrays import attach_arenas, attach_rows
from core.runtime.loop import Wakeups, run_loop
from core.runtime.scheduler.channels import attach_scheduler
from core.runtime.scheduler.lifelines import shown_model
from core.runtime.scheduler.loop import SchedulerLoop
from core.runtime.scheduler.outbox import Outbox
from core.runtime.scheduler.page import resumed_metering
from core.runtime.wiring import MAX_RECORDS_PER_OUTPUT_FRAME, max_logprobs
from core.scheduler.settings import EngineSettings
from core.supervision.actions import EXIT_OK
from ipc.child import Child
from ipc.heartbeat import HeartbeatState


def main(argv: Sequence[str]) -> int:
    """Run the scheduler until SIGTERM."""
    child, clock = Child.attach(argv), MonotonicClock()
    child.stamp(HeartbeatState.STARTING, clock.now_ns())
    config = config_from_json(bytes(child.setup.config))
    card = card_from_json(child.setup.model)
    channels, sources = attach_scheduler(child, config)
    settings = EngineSettings.from_config(
        config.engine,
        config.scheduler,
        config.policy,
        Limits.of_tenancy(config.tenancy),
        max_model_len=card.max_model_len,
        eos_token_ids=card.eos_token_ids,
        digest_secret=card.digest_secret,
        model=shown_model(card.name),
    )
    metering = resumed_metering(channels.page.predecessor)
    loop = SchedulerLoop(
        EngineCore(settings, attach_rows(child, config), metering),
        attach_arenas(child, config),
        child.epoch,
        config.engine.replicas,
        Outbox(config.tokenizer.processes, MAX_RECORDS_PER_OUTPUT_FRAME, max_logprobs(config)),
    )
    child.serving()
    run_loop(
        loop,
        channels,
        clock=clock,
        stamp=child.stamp,
        wakeups=Wakeups([*sources, child.stop_doorbell]),
        heartbeat_ns=config.supervision.heartbeat_ms * NS_PER_MS,
        is_stopping=lambda: child.stop_requested,
    )
    loop.show(channels, clock.now_ns())
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv))
