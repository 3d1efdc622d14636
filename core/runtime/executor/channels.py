"""The channels of an executor's loop, and how the process attaches to them.

Owns: who holds which end of what. Never knows: what is sent. Every rank of a replica reads its
plans; rank 0 alone answers, for all of them.
"""

from dataclasses import dataclass

from core.runtime.loop import Stamp
from ipc.board import BoardWriter
from ipc.channel import FrameReceiver, FrameSender
from ipc.child import Child
from ipc.doorbell import Doorbell
from ipc.pages import EXECUTOR_PAGE
from ipc.ring import RingReader, RingWriter
from ipc.segment import Segment


@dataclass(frozen=True, slots=True)
class ExecutorChannels:
    """What an executor's loop holds: plans come in, results go out; None: another rank answers."""

    plans: FrameReceiver
    results: FrameSender | None
    page: BoardWriter
    stamp: Stamp


def attach_executor(child: Child) -> tuple[ExecutorChannels, list[Doorbell]]:
    """Return an executor's channels and what wakes its loop.

    Plans made for a predecessor are skipped, and results that it left are voided.
    """
    replica, rank = map(int, child.child_id.split(".")[1:])
    directory = child.run_directory
    bell = child.doorbell(f"plan.{replica}.{rank}")
    plans = RingReader(Segment.open(directory.plans(replica)), rank, bell)
    plans.attach_at_head()
    results = None if rank else _attach_results(child, replica)
    page = child.page(EXECUTOR_PAGE)
    return ExecutorChannels(plans, results, page, child.stamp), [bell]


def _attach_results(child: Child, replica: int) -> RingWriter:
    bell = child.doorbell(f"result.{replica}")
    results = RingWriter(Segment.open(child.run_directory.results(replica)), [bell])
    results.reset()
    return results
