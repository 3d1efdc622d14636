"""The counters on the pages of scheduler and executors, over the deaths of both, in virtual time.

How: five operations run through the real loops while one process is killed between any two rounds.
Whatever is published is compared with what was published before.
"""

from typing import Any

import numpy as np
import pytest

from core.runtime.scheduler.loop import PUBLISH_NS
from core.runtime.scheduler.page import (
    CLASS_COUNTERS,
    COUNTERS,
    HISTOGRAMS,
    PREDICTION_COUNTERS,
    TENANT_COUNTERS,
    fill_page,
    resumed_metering,
)
from ipc.board import BoardReader
from ipc.pages import EXECUTOR_PAGE, SCHEDULER_PAGE
from tests.support.loops.five_operations import NUM_TOKENS, OPERATIONS, assert_intact, send_all
from tests.support.loops.loop_rig import LoopRig

KILL_POINTS = (1, 3, 6, 9, 12, 15, 20, 30)
NOT_COUNTED = ("last_reclaim_ns", "cancel_reclaim_steps_max")


def flat(record: Any, prefix: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """Return every number of a page by its path."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name in record.dtype.names:
        value = record[name]
        if value.dtype.names:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = np.asarray(value)
    return found


def counter_paths() -> set[str]:
    """Return the paths of all counters of the scheduler's page."""
    paths = {*COUNTERS, "finished", "rejections", "ring_errors", "dropped_frames"}
    paths |= {"system_service", "classes.service", "tenants.service"}
    paths |= {f"classes.{name}" for name in CLASS_COUNTERS}
    paths |= {f"tenants.{name}" for name in (*TENANT_COUNTERS, "rejections")}
    paths |= {f"replicas.{name}" for name in PREDICTION_COUNTERS}
    histograms = (*HISTOGRAMS, "queue_time", "classes.queue_time", "tenants.queue_time")
    paths |= {f"{name}.{part}" for name in histograms for part in ("counts", "sum")}
    return paths - set(NOT_COUNTED)


class Watch:
    """Looks at the pages after each round and notes counters that have fallen."""

    def __init__(self, rig: LoopRig) -> None:
        self._rig = rig
        self._scheduler = BoardReader(rig.scheduler_page, SCHEDULER_PAGE)
        self._executor = BoardReader(rig.executor_pages[0], EXECUTOR_PAGE)
        self._seen: dict[str, np.ndarray[Any, Any]] = {}
        self._paths = counter_paths()

    def rounds(self, count: int) -> None:
        """Go round `count` times."""
        for _ in range(count):
            self._rig.rounds(1)
            self.look()

    def look(self) -> None:
        """Compare the pages with what they were."""
        page = flat(self._scheduler.read().page)
        now = {name: page[name] for name in self._paths}
        executor = flat(self._executor.read().page)
        now |= {f"executor.{n}": executor[n] for n in ("steps", "tokens", "step_time.counts")}
        for name, values in now.items():
            assert (values >= self._seen.get(name, values)).all(), name
        self._seen = now

    def settle(self) -> None:
        """Let all pages be published."""
        for _ in range(3):
            self._rig.clock.advance(PUBLISH_NS)
            self._rig.round()
            self.look()

    def value(self, name: str) -> int:
        """Return the sum of a counter."""
        return int(self._seen[name].sum())


@pytest.mark.parametrize("victim", ["scheduler", "stopped", "executor"])
@pytest.mark.parametrize("kill_point", KILL_POINTS)
def test_no_counter_falls_when_a_process_is_replaced(victim: str, kill_point: int) -> None:
    """Nor is anything counted twice: not the arrival of a request, nor its prompt, nor its time in
    the queue, however often it is submitted and computed.
    """
    rig = LoopRig()
    watch = Watch(rig)
    send_all(rig)
    watch.rounds(kill_point)
    if victim == "stopped":  # by SIGTERM, so that it shows what it has counted before it ends
        assert rig.scheduler is not None
        rig.scheduler.loop.close(rig.scheduler.channels, rig.clock)
    else:
        watch.settle()
    if victim in ("scheduler", "stopped"):
        rig.kill_scheduler()
        rig.rounds(5)
        rig.start_scheduler()
    else:
        rig.kill_executor()
        watch.rounds(5)
        rig.start_executor()
    watch.rounds(50)
    rig.run()
    watch.settle()
    assert_intact(rig)
    num_prompt_tokens = watch.value("request_prompt_tokens.sum")
    assert watch.value("tenants.requests") == len(OPERATIONS)
    assert watch.value("prompt_tokens") == num_prompt_tokens
    assert watch.value("generated_tokens") == len(OPERATIONS) * NUM_TOKENS
    for rows in ("tenants", "classes"):
        assert watch.value(f"{rows}.generated_tokens") == len(OPERATIONS) * NUM_TOKENS
        assert watch.value(f"{rows}.prompt_tokens") == num_prompt_tokens
    assert watch.value("finished") == len(OPERATIONS)
    for name in ("queue_time", "classes.queue_time", "tenants.queue_time"):
        assert watch.value(f"{name}.counts") == len(OPERATIONS)


def test_every_counter_of_a_page_is_brought_back() -> None:
    """A page that is filled from resumed counters is the page that they were resumed from."""
    rig = LoopRig()
    send_all(rig)
    rig.run()
    assert rig.scheduler is not None
    old, new = np.zeros((), SCHEDULER_PAGE), np.zeros((), SCHEDULER_PAGE)
    fill_page(old, rig.scheduler.loop.core, rig.clock.now_ns())
    rig.scheduler.loop.core.metering = resumed_metering(old)
    fill_page(new, rig.scheduler.loop.core, rig.clock.now_ns())
    before, after = flat(old), flat(new)
    paths = counter_paths()
    assert all((before[name] == after[name]).all() for name in paths)
    assert {"steps", "generated_tokens"} <= {name for name in paths if before[name].any()}


def test_pages_show_rings_and_the_last_step() -> None:
    """An idle executor shows all its steps, and every ring how many of its slots are in use."""
    rig = LoopRig()
    watch = Watch(rig)
    send_all(rig)
    rig.run()
    watch.settle()
    assert watch.value("executor.steps") == watch.value("executor.step_time.counts")
    assert watch.value("executor.steps") == watch.value("steps") > 0
    page = BoardReader(rig.scheduler_page, SCHEDULER_PAGE).read().page
    rings = page["rings"][: int(page["num_rings"])]
    assert rings["name"].tolist() == [b"plans.0", b"results.0", b"outputs.0"]
    assert rings["num_slots"].tolist() == [2, 2, 32]
    assert rings["num_used"].tolist() == [0, 0, 0]
    assert page["held_output_bytes"] == 0
