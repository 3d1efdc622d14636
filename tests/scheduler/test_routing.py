"""Which replica a request starts on: who may serve it, and who will do so first."""

import pytest

from core.policy.cost_model import CostModel, StepWork
from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.scheduler import events as ev
from core.scheduler.decisions import DecisionKind
from core.tenancy.classes import TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings
from tests.support.scheduler.preempting_policies import ScriptedPolicy
from tests.support.scheduler.preemption_rig import FOREVER


class PricedPolicy(ScriptedPolicy):
    """Predicts steps by a model for each replica."""

    models: dict[int, CostModel]

    def cost_model(self, replica: int) -> CostModel | None:
        """Return the model that the test gave."""
        return self.models.get(replica)


class Linear:
    """A machine that takes `token_ns` a token and `context_ns` a token of context."""

    def __init__(self, token_ns: int, context_ns: int = 0) -> None:
        self.token_ns = token_ns
        self.context_ns = context_ns

    def duration_ns(self, work: StepWork) -> int:
        """Return the time of a step."""
        return self.token_ns * work.num_tokens + self.context_ns * work.decode_context


def make_engine(*models: CostModel, **overrides: object) -> CheckedEngine:
    """Return an engine with two replicas that are up."""
    settings = make_settings(**overrides)
    policy = PricedPolicy(settings)
    policy.models = dict(enumerate(models))
    engine = CheckedEngine(settings, num_blocks=100, num_replicas=2, policy=policy)
    engine.start(0)
    engine.start(1)
    return engine


def submit(
    engine: CheckedEngine, request_id: int, prompt: list[int], max_tokens: int = 8
) -> Request:
    request = engine.make_request(request_id, prompt, max_tokens, sampling=FOREVER)
    return engine.submit(request)


def place_of(engine: CheckedEngine, request: Request, first: int = 0) -> int:
    """Let the replicas plan, `first` first; return who took the request, -1 = nobody."""
    for replica in (first, 1 - first):
        engine.plan(replica)
        if request.status is RequestStatus.RUNNING:
            return request.replica
    return -1


def up_again(engine: CheckedEngine, replica: int, offer: ev.Offer) -> None:
    """Bring a replica up anew with an offer."""
    engine.kill(replica)
    engine.start(replica)
    engine.tell(ev.ReplicaDown(replica))
    engine.tell(ev.ReplicaUp(replica, 9, engine.num_blocks, offer=offer))


@pytest.mark.parametrize("first", [0, 1])
def test_a_tenant_is_served_by_its_replicas_alone(first: int) -> None:
    """However idle another one is; and a change of the tenant's replicas holds from then on."""
    engine = make_engine()
    for wanted in (1, 0):
        tenant = TenantConfig(name="a", replicas=(wanted,))
        engine.tell(ev.Configure(Limits(tenants={"a": tenant})))
        request = submit(engine, 1 + wanted, [10 + wanted] * 6)
        assert place_of(engine, request, first) == wanted
        engine.run()


def test_offers_say_who_is_served() -> None:
    """Classes and adapters that a replica does not offer start elsewhere."""
    engine = make_engine()
    up_again(engine, 0, ev.Offer(classes=frozenset({TrafficClass.BATCH})))
    assert place_of(engine, submit(engine, 1, [10] * 6)) == 1
    engine.run()
    up_again(engine, 0, ev.Offer(adapters=frozenset({"other"})))
    assert place_of(engine, submit(engine, 2, [20] * 6)) == 1
    waits = [d for d in engine.core.decisions(0, 99) if d.kind is DecisionKind.QUEUE]
    assert [(d.request_id, d.reason, d.replica) for d in waits] == [
        (1, "incompatible", 0), (2, "incompatible", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("first", [0, 1])
def test_a_replica_with_another_model_serves_nobody(first: int) -> None:
    """Neither when it is idle nor when it is the last one; who waits for it hears: incompatible."""
    engine = make_engine(model="ours")
    up_again(engine, 0, ev.Offer(model="theirs"))
    up_again(engine, 1, ev.Offer(model="ours"))
    assert place_of(engine, submit(engine, 1, [10] * 6), first) == 1
    engine.run()
    engine.kill(1, gone=True)
    orphan = submit(engine, 2, [20] * 6)
    assert place_of(engine, orphan, first) == -1
    waits = {d.reason for d in engine.core.decisions(0, 99) if d.request_id == 2}
    assert "incompatible" in waits


def test_an_engine_that_knows_no_model_takes_any() -> None:
    """Where nothing is said of models, none is another one."""
    engine = make_engine()
    up_again(engine, 0, ev.Offer(model="theirs"))
    engine.kill(1, gone=True)
    assert place_of(engine, submit(engine, 1, [10] * 6)) == 0


def test_numerics_are_kept_as_long_as_somebody_has_them() -> None:
    """A request that has outputs goes on where they would be the same; or anywhere, if nowhere."""
    engine = make_engine()
    up_again(engine, 0, ev.Offer(numerics="cpp"))
    up_again(engine, 1, ev.Offer(numerics="torch"))
    request = submit(engine, 1, [10] * 6)
    assert place_of(engine, request) == 0
    engine.answer(0)
    engine.kill(0)
    assert place_of(engine, request, 1) == -1
    engine.kill(0, gone=True)
    assert place_of(engine, request, 1) == 1


def test_the_faster_replica_is_waited_for() -> None:
    """Predicted times are compared, not tokens: a slow idle replica leaves the request."""
    engine = make_engine(Linear(1000), Linear(10))
    request = submit(engine, 1, [10] * 20)
    assert engine.plan(0) is None
    assert place_of(engine, request, 1) == 1
    routes = [d for d in engine.core.decisions(0, 99) if d.kind is DecisionKind.ROUTE]
    assert [(d.replica, d.reason) for d in routes] == [(0, "elsewhere"), (1, "here")]
    assert routes[0].measured > routes[0].threshold
    assert routes[1].measured < routes[1].threshold


def test_a_cached_prefix_outweighs_some_work() -> None:
    """Tokens that a replica has in its cache need no computing there."""
    engine = make_engine(Linear(100), Linear(100), max_num_batched_tokens=64)
    prefix = list(range(100, 148))
    first = submit(engine, 1, prefix, 1)
    home = place_of(engine, first)
    engine.run()
    second = submit(engine, 2, [*prefix, 7, 8])
    assert engine.plan(1 - home) is None
    assert place_of(engine, second, home) == home


def test_decodes_that_will_have_ended_do_not_count() -> None:
    """A replica whose decodes end before the prompt is computed is as good as an empty one."""
    costs = {}
    for max_tokens in (3, 60):
        engine = make_engine(Linear(100, 1000), Linear(100, 1000), max_num_batched_tokens=16)
        engine.tell(ev.DrainReplica(1))
        for i in range(4):
            submit(engine, i + 1, [10 + i] * 4, max_tokens)
        engine.step()
        engine.step()
        engine.tell(ev.UndrainReplica(1))
        late = submit(engine, 9, [90] * 100, 4)
        route = engine.core._scheduler.routing.route(
            late, engine.core._replicas[1], engine.clock.now_ns()
        )
        assert route.is_choice
        costs[max_tokens] = route.elsewhere
    assert costs[3] < costs[60]
