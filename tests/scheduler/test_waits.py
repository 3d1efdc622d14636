"""Why a request waits, with the numbers of the replica that would take it first."""

from core.policy.base import Blocked, Wait
from core.policy.limits import Limits
from core.request import Request
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings

FOREVER = SamplingParams(ignore_eos=True)


def engine_of(num_blocks: int, **overrides: object) -> CheckedEngine:
    """Return an engine with blocks of four tokens that decides by policy headrace."""
    plain = ClassesConfig(**{each.label: ClassConfig() for each in TrafficClass})
    settings = make_settings(policy="headrace", limits=Limits(plain), **overrides)
    engine = CheckedEngine(settings, num_blocks=num_blocks)
    engine.start()
    return engine


def submit(engine: CheckedEngine, number: int, prompt_len: int) -> Request:
    """Let a request arrive whose prompt is its own."""
    prompt = [100 * number] * prompt_len
    return engine.submit(engine.make_request(number, prompt, 8, sampling=FOREVER))


def why(engine: CheckedEngine, request: Request) -> Wait:
    """Return why `request` waits."""
    wait = engine.core.why(request.request_id)
    assert wait is not None
    return wait


def test_who_lacks_memory_is_told_what_it_needs_and_what_there_is() -> None:
    """In blocks, with what must stay free for those that run."""
    engine = engine_of(10, kv_headroom_fraction=0.0)
    submit(engine, 1, 24)
    waiting = submit(engine, 2, 20)
    engine.step()
    wait = why(engine, waiting)
    assert wait.blocked is Blocked.MEMORY
    available = engine.core._replicas[0].kv.pool.num_available
    assert wait.measured > wait.threshold == available
    assert wait.measured >= 5


def test_who_lacks_a_row_is_told_how_many_there_are() -> None:
    """Of rows that are all taken."""
    engine = engine_of(100, max_num_seqs=2)
    requests = [submit(engine, number, 4) for number in (1, 2, 3)]
    engine.step()
    wait = why(engine, requests[2])
    assert (wait.blocked, wait.measured, wait.threshold) == (Blocked.SEQUENCES, 2, 2)


def test_who_would_start_by_now_is_told_no_numbers() -> None:
    """A reason that has passed since the last step is not backed by numbers of now."""
    engine = engine_of(100, max_num_seqs=2)
    requests = [submit(engine, number, 4) for number in (1, 2, 3)]
    engine.step()
    engine.tell(ev.Abort(requests[0].request_id))
    wait = why(engine, requests[2])
    assert (wait.measured, wait.threshold) == (0, 0)


def test_who_has_come_since_the_last_step_can_be_asked_about() -> None:
    """Its tenant was not there when the step was filled, in which others were at their limits."""
    limits = Limits(tenants={"acme": TenantConfig(name="acme", max_concurrency=1)})
    engine = CheckedEngine(make_settings(policy="headrace", limits=limits), num_blocks=100)
    engine.start()
    for number in (1, 2):
        engine.submit(engine.make_request(number, [number] * 4, 8, sampling=FOREVER, tenant="acme"))
    engine.step()
    assert why(engine, engine.core._scheduler.requests[2]).blocked is Blocked.CONCURRENCY
    engine.submit(engine.make_request(3, [3] * 4, 8, sampling=FOREVER, tenant="later"))
    why(engine, engine.core._scheduler.requests[3])
