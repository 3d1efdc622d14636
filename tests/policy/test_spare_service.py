"""Which decodes count against nobody."""

from collections.abc import Sequence

import numpy as np

from core.policy.base import DecodeBatch
from core.policy.fairness.spare_service import SPARED_TOKENS, SpareService
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from tests.support.scheduler.checked_engine import make_request

STANDARD, BATCH = TrafficClass.STANDARD, TrafficClass.BATCH


def batch(rows: Sequence[int], context: int = 10, traffic_class: int = STANDARD) -> DecodeBatch:
    count = len(rows)
    zeros = np.zeros(count, np.int64)
    return DecodeBatch(
        tenant_index=np.zeros(count, np.int32),
        traffic_class=np.full(count, traffic_class, np.int32),
        context_tokens=np.full(count, context, np.int32),
        num_output_tokens=np.zeros(count, np.int32),
        ttft_deadline_ns=zeros,
        itl_cap_ns=zeros,
        last_token_ns=zeros,
        rows=np.array(rows, np.int64),
    )


def wanting(*classes: int) -> list[bool]:
    return [each in classes for each in range(NUM_CLASSES)]


def after_spare_time(rows: Sequence[int]) -> SpareService:
    """Return what is known when a class of which nobody waited has somebody waiting again."""
    service = SpareService()
    service.filled(0, batch(rows), wanting())
    service.filled(0, batch(rows), wanting(STANDARD))
    return service


def test_what_ran_when_somebody_began_to_wait_does_not_count() -> None:
    """Rows that decode later do."""
    spared = after_spare_time([2, 4]).of(0, batch([1, 2, 4, 500], 11))
    assert spared is not None
    assert spared.tolist() == [False, True, True, False]


def test_it_does_for_so_many_tokens() -> None:
    """A longer output counts again, and so does what other replicas and classes run."""
    service = after_spare_time([2])
    assert service.has(0, 2, 9 + SPARED_TOKENS)
    assert not service.has(0, 2, 10 + SPARED_TOKENS)
    assert service.of(0, batch([2], 10 + SPARED_TOKENS)) is None
    assert service.of(1, batch([2])) is None
    service.filled(0, batch([3], traffic_class=BATCH), wanting(STANDARD))
    assert not service.has(0, 3, 10)


def test_a_row_counts_when_another_request_has_it() -> None:
    """What is begun while somebody waits counts."""
    service = after_spare_time([2])
    request = make_request(1, 5)
    request.replica, request.row = 0, 2
    service.started(request)
    assert service.of(0, batch([2])) is None


def test_while_somebody_waits_all_the_time_everything_counts() -> None:
    """The first step that is seen is not the end of anything."""
    service = SpareService()
    service.filled(0, batch([2]), wanting(STANDARD))
    service.filled(0, batch([2]), wanting(STANDARD))
    assert service.of(0, batch([2])) is None
