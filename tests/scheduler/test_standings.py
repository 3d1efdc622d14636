"""What classes and tenants have and are due, as page and commands show it."""

import numpy as np
import numpy.typing as npt
import pytest

from core.policy.headrace import HeadracePolicy
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.scheduler import events as ev
from core.scheduler.standings import NO_BUDGET
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.scheduler.checked_engine import NS_PER_S, CheckedEngine, make_settings

LIMITS = Limits(
    ClassesConfig(
        standard=ClassConfig(weight=3.0),
        batch=ClassConfig(weight=1.0, preemptible=True, reserved_kv_fraction=0.0),
    ),
    {
        "a": TenantConfig(name="a", weight=1.0, kv_quota_fraction=0.5),
        "b": TenantConfig(name="b", weight=3.0, tokens_per_minute=6000),
    },
    paused=frozenset({"c"}),
    paused_classes=frozenset({"administrative"}),
)


@pytest.fixture
def engine() -> CheckedEngine:
    """Return an engine with policy headrace under these limits."""
    settings = make_settings(max_num_seqs=4, limits=LIMITS)
    policy = HeadracePolicy(
        PolicySettings(max_num_partial_prefills=4, kv_headroom_fraction=0.0, limits=LIMITS)
    )
    made = CheckedEngine(settings, num_blocks=100, policy=policy)
    made.start()
    return made


def column(engine: CheckedEngine, values: npt.NDArray[np.generic]) -> dict[str, object]:
    """Return a column of the tenants by name."""
    return dict(zip(engine.core.metering.tenant_names, values.tolist(), strict=True))


def submit(engine: CheckedEngine, tenant: str, traffic_class: TrafficClass) -> None:
    """Submit a request of 40 + 8 tokens."""
    number = engine.core.num_requests + 1
    prompt = list(range(100 * number, 100 * number + 40))
    engine.submit(
        engine.make_request(number, prompt, 8, tenant=tenant, traffic_class=traffic_class)
    )


def test_shares_are_due_by_weight_where_there_is_work(engine: CheckedEngine) -> None:
    """Standard has 3 parts of 4, and in it b has 3 of 4; batch is b's alone."""
    for tenant, traffic_class in (
        ("a", TrafficClass.STANDARD),
        ("b", TrafficClass.STANDARD),
        ("b", TrafficClass.BATCH),
    ):
        submit(engine, tenant, traffic_class)
    _, tenants = engine.core.standings(0)
    due = column(engine, tenants.share_due)
    assert due == {"_other": 0.0, "a": pytest.approx(3 / 16), "b": pytest.approx(13 / 16)}
    assert tenants.weight.tolist() == [1.0, 1.0, 3.0]


def test_used_shares_are_those_of_what_was_charged(engine: CheckedEngine) -> None:
    """A tenant that had everything has used all, and its service is on its class too."""
    submit(engine, "a", TrafficClass.STANDARD)
    engine.core.standings(0)
    engine.run()
    classes, tenants = engine.core.standings(5 * NS_PER_S)
    assert column(engine, tenants.share_used)["a"] == 1.0
    service = column(engine, tenants.service)["a"]
    assert service == classes[TrafficClass.STANDARD].service > 0
    assert column(engine, tenants.share_due)["a"] == 0.0


def test_limits_are_shown_as_blocks_sequences_and_tokens(engine: CheckedEngine) -> None:
    """Fractions are of the pool and of a step; a tenant without a budget says so."""
    submit(engine, "a", TrafficClass.STANDARD)
    submit(engine, "b", TrafficClass.INTERACTIVE)
    classes, tenants = engine.core.standings(engine.clock.now_ns())
    assert column(engine, tenants.kv_quota_blocks) == {"_other": 100, "a": 50, "b": 100}
    budgets = column(engine, tenants.budget_tokens)
    assert budgets["a"] == NO_BUDGET
    assert budgets["b"] == 6000 - 48
    interactive = classes[TrafficClass.INTERACTIVE]
    assert (interactive.reserved_blocks, interactive.reserved_seqs) == (10, 4)
    assert interactive.reserved_step_tokens == 16
    assert classes[TrafficClass.ADMINISTRATIVE].paused
    assert (interactive.num_waiting, interactive.num_running) == (1, 0)


def test_what_runs_is_counted_by_class_with_its_blocks(engine: CheckedEngine) -> None:
    """A started request moves from waiting to running and holds blocks of its class."""
    submit(engine, "a", TrafficClass.STANDARD)
    engine.plan()
    classes, tenants = engine.core.standings(0)
    standard = classes[TrafficClass.STANDARD]
    assert (standard.num_waiting, standard.num_running) == (0, 1)
    assert standard.held_blocks == column(engine, tenants.held_blocks)["a"] == 10


def test_nobody_holds_blocks_of_an_executor_that_is_gone(engine: CheckedEngine) -> None:
    """A killed executor takes its pool along; who ran on it runs no more and holds nothing."""
    submit(engine, "a", TrafficClass.STANDARD)
    engine.plan()
    engine.kill()
    classes, tenants = engine.core.standings(0)
    standard = classes[TrafficClass.STANDARD]
    assert (standard.num_running, standard.held_blocks) == (0, 0)
    assert column(engine, tenants.held_blocks)["a"] == 0


def test_the_wait_of_a_class_is_counted_when_a_request_starts(engine: CheckedEngine) -> None:
    """Each class has its own histogram, and all together the whole."""
    submit(engine, "a", TrafficClass.BATCH)
    engine.run()
    metering = engine.core.metering
    assert metering.queue_time_by_class.counts.sum(axis=1).tolist() == [0, 0, 1, 0]
    by_tenant = metering.queue_time_by_tenant.counts.sum(axis=1)
    assert by_tenant[metering.tenant_index("a")] == by_tenant.sum() == 1


def test_changed_limits_show_at_once(engine: CheckedEngine) -> None:
    """As soon as the event is taken in; a tenant that is new in them need not have asked."""
    submit(engine, "a", TrafficClass.STANDARD)
    changed = {name: TenantConfig(name=name, weight=7.0) for name in ("a", "new")}
    engine.core.on_events([ev.Configure(Limits(tenants=changed, paused=frozenset({"a"})))], 0)
    tenants = engine.core.standings(0)[1]
    assert column(engine, tenants.weight)["a"] == 7.0
    paused = {"_other": False, "a": True, "b": False, "new": False}
    assert column(engine, tenants.paused) == paused
    assert column(engine, tenants.kv_quota_blocks)["a"] == 100


def test_a_removed_tenant_is_marked(engine: CheckedEngine) -> None:
    """It is listed for what it used, until it is added again; `_other` is nobody's name."""
    submit(engine, "a", TrafficClass.STANDARD)
    for names, removed in ((("b",), True), (("a", "b"), False)):
        limits = Limits(tenants={name: TenantConfig(name=name) for name in names})
        engine.core.on_events([ev.Configure(limits)], 0)
        tenants = engine.core.standings(0)[1]
        assert column(engine, tenants.removed) == {"_other": False, "a": removed, "b": False}


def test_the_oldest_wait_is_known_by_tenant_and_by_class(engine: CheckedEngine) -> None:
    """It is that of the request that has waited longest there, and of nobody else's."""
    arrivals_ns = []
    for tenant, traffic_class in (
        ("a", TrafficClass.BATCH),
        ("b", TrafficClass.STANDARD),
        ("a", TrafficClass.STANDARD),
    ):
        engine.clock.advance(NS_PER_S)
        arrivals_ns.append(engine.clock.now_ns())
        submit(engine, tenant, traffic_class)
    classes, tenants = engine.core.standings(engine.clock.now_ns())
    first, second, _ = arrivals_ns
    oldest = column(engine, tenants.oldest_arrival_ns)
    assert oldest == {"_other": 0, "a": first, "b": second}
    assert [standing.oldest_arrival_ns for standing in classes] == [0, second, first, 0]
