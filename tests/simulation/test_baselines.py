"""What each baseline is: the orders, budgets and refusals that its name promises."""

from collections.abc import Mapping

import numpy as np
import pytest

from core.errors import ConfigError, RejectionReason
from core.policy.baselines.dlpm import DlpmPolicy
from core.policy.baselines.tenant_turns import TenantTurnsPolicy
from core.policy.baselines.vtc import VtcPolicy
from core.policy.settings import PolicySettings
from core.request import RequestStatus
from core.simulation.history import History
from core.simulation.metrics import Floats, jain_index, request_times, service
from core.simulation.policies import find_policy, prepare
from core.simulation.run import Simulation, SimulationSettings
from core.simulation.workload import START_NS, Promise, Workload
from core.tenancy.classes import TrafficClass
from tests.support.loads.workloads import NS_PER_MS, make_workload, simulated_settings

FAST, SLOW = TrafficClass.INTERACTIVE, TrafficClass.BATCH
PROMISES: Mapping[TrafficClass, Promise] = {FAST: Promise(1.0, 0.05), SLOW: Promise(60.0, 0.4)}


def simulate(
    policy: str, workload: Workload, settings: SimulationSettings | None = None, margin: float = 0.0
) -> History:
    """Run to the end on the round machine: 10 ms a step, 0.1 ms a prompt token, 1 ms a decode."""
    chosen, decider = prepare(policy, settings or simulated_settings(), margin)
    return Simulation(chosen, workload, decider).run()


def order_of_first_tokens(history: History) -> list[int]:
    """Return the requests in the order in which their prompts were done."""
    return list(dict.fromkeys(history.token_request.tolist()))


def longest_step_ms(history: History) -> float:
    """Return the longest step."""
    return float((history.step_end_ns - history.step_begin_ns).max()) / NS_PER_MS


def steps_beside_a_decode_ms(policy: str, margin: float = 0.0) -> Floats:
    """Return the steps in which a fast request decodes beside ten slow prompts of 3,000 tokens."""
    rows = [(0.0, 10, 40), *[(1.0, 3000, 1)] * 10]
    workload = make_workload(rows, classes=[FAST] + [SLOW] * 10, promises=PROMISES)
    history = simulate(policy, workload, margin=margin)
    steps = np.unique(history.share_step[history.share_request == 0])
    durations_ms: Floats = (history.step_end_ns - history.step_begin_ns)[steps] / NS_PER_MS
    return durations_ms


def crowd(
    count: int, prompt: int, kind: TrafficClass
) -> tuple[list[tuple[float, int, int]], list[TrafficClass]]:
    """Return `count` equal requests at time 0, and their classes."""
    return [(0.0, prompt, 1)] * count, [kind] * count


@pytest.mark.parametrize(
    ("policy", "order"),
    [("sarathi", [0, 1, 2]), ("edf", [1, 2, 0]), ("srpf", [2, 1, 0])],
)
def test_prompts_come_in_the_order_of_the_policy(policy: str, order: list[int]) -> None:
    """A slow long one, a fast one of middle length, and a short fast one a little later."""
    rows = [(0.0, 2000, 2), (1.0, 1000, 2), (2.0, 100, 2)]
    workload = make_workload(rows, classes=[SLOW, FAST, FAST], promises=PROMISES)
    assert order_of_first_tokens(simulate(policy, workload)) == order


def test_an_urgent_prompt_overtakes_one_under_way() -> None:
    """The slow one pauses and keeps what is computed: no token is computed twice."""
    workload = make_workload(
        [(0.0, 2000, 1), (50.0, 300, 1)], classes=[SLOW, FAST], promises=PROMISES
    )
    history = simulate("edf", workload)
    assert order_of_first_tokens(history) == [1, 0]
    assert history.computed_tokens == 2300


def test_sarathi_computes_no_more_than_its_budget_in_a_step() -> None:
    """256 tokens, decodes included."""
    workload = make_workload([(0.0, 1000, 5)] * 4)
    history = simulate("sarathi-256", workload)
    tokens = np.bincount(history.share_step, history.share_tokens)
    assert tokens.max() == 256


def test_the_budget_in_a_name_counts() -> None:
    """`edf-64` computes 64 tokens a step; a name that nobody has is refused with the list."""
    history = simulate("edf-64", make_workload([(0.0, 640, 1)]))
    assert len(history.step_end_ns) == 10
    for name in ("edf-0", "edf-", "fastest", ""):
        with pytest.raises(ConfigError, match="is unknown: use one of headrace, static, fcfs"):
            find_policy(name)


@pytest.mark.parametrize(("margin", "limit_ms"), [(0.0, 50.0), (0.25, 40.0)])
def test_strict_gaps_bound_every_step_with_a_fast_decode(margin: float, limit_ms: float) -> None:
    """A fast request decodes while slow prompts of any length are computed."""
    durations_ms = steps_beside_a_decode_ms("gap-edf", margin)
    assert durations_ms.max() <= limit_ms
    assert durations_ms[1:-1].min() > 0.9 * limit_ms


def test_strict_gaps_let_steps_grow_when_nobody_fast_decodes() -> None:
    """Up to the slow tier's 400 ms, here 3,900 tokens."""
    rows, classes = crowd(4, 3000, SLOW)
    history = simulate("gap-edf", make_workload(rows, classes=classes, promises=PROMISES))
    assert 390.0 < longest_step_ms(history) <= 400.0


def test_what_would_be_late_is_shed_at_once() -> None:
    """Ten prompts of 250 ms each are due in a second: some go, and all that stay are in time."""
    rows, classes = crowd(10, 2000, FAST)
    history = simulate("gap-edf", make_workload(rows, classes=classes, promises=PROMISES))
    shed = history.status == RequestStatus.FINISHED_SHED
    assert 5 <= np.count_nonzero(shed) <= 7
    assert set(history.reason[shed].tolist()) == {RejectionReason.SHED_PREDICTED}
    assert request_times(history).kept[~shed].all()
    assert history.finished_ns[shed].max() <= START_NS + 1000 * NS_PER_MS


def test_qoserve_lends_the_slack_of_an_early_first_token() -> None:
    """The first token is nearly a second early, so steps beside the decode may last that long."""
    assert steps_beside_a_decode_ms("qoserve").max() > 200.0
    assert steps_beside_a_decode_ms("gap-edf").max() <= 50.0


def test_qoserve_lets_who_is_too_late_wait() -> None:
    """Of six prompts of a quarter of a second, the last are relegated but served in the end."""
    rows, classes = crowd(6, 2400, FAST)
    workload = make_workload([*rows, (900.0, 1000, 1)], classes=[*classes, FAST], promises=PROMISES)
    history = simulate("qoserve", workload)
    assert np.all(history.status == RequestStatus.FINISHED_STOPPED)
    assert order_of_first_tokens(history)[-1] != 6
    assert request_times(history).on_time[6]


def two_tenants() -> Workload:
    """Return a flood of the first tenant, 60 prompts at once, beside 20 of the second."""
    rows = [(0.0, 500, 4)] * 80
    return make_workload(rows, tenants=[0] * 60 + [1] * 20)


@pytest.mark.parametrize("policy_type", [VtcPolicy, DlpmPolicy])
def test_who_gets_the_index_of_another_pays_for_nothing_of_it(
    policy_type: type[TenantTurnsPolicy],
) -> None:
    """It begins where the least served tenant is, neither ahead of all nor behind."""
    policy = policy_type(PolicySettings(max_num_partial_prefills=1, kv_headroom_fraction=0.0))
    policy._charges |= {1: 900, 2: 30, 3: 70}
    policy.forget_tenant(1)
    assert policy._charges == {1: 30, 2: 30, 3: 70}


@pytest.mark.parametrize(("policy", "window_s"), [("vtc", 2.0), ("dlpm", 4.0)])
def test_tenants_share_alike_however_many_requests_they_send(policy: str, window_s: float) -> None:
    """While both wait, they get the same in a window, which for deficits holds a quantum of each;
    first come, first served gives one all.
    """
    fair, unfair = (simulate(name, two_tenants()) for name in (policy, "sarathi"))
    assert jain_index(service(fair, window_s)[0]) > 0.9
    assert jain_index(service(unfair, window_s)[0]) < 0.6


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    """Who comes after four seconds of the other's service shares from then on."""
    rows = [(0.0, 500, 1)] * 100 + [(2000.0, 500, 1)] * 30
    history = simulate("vtc", make_workload(rows, tenants=[0] * 100 + [1] * 30))
    windows = service(history, 1.0)
    assert windows[0, 1] == 0
    assert jain_index(windows[3]) > 0.95


def test_dlpm_prefers_what_the_cache_holds() -> None:
    """Among waiting requests of one tenant the one with a cached prefix is first."""
    rows = [(0.0, 1024, 1), (1.0, 1024, 1), (2.0, 1040, 1)]
    workload = make_workload(rows, hash_ids=((1, 2), (3, 4), (1, 2)))
    settings = simulated_settings(prefix_cache=True)
    assert order_of_first_tokens(simulate("dlpm-1024", workload, settings)) == [0, 2, 1]


@pytest.mark.parametrize("policy", ["edf", "gap-edf", "dlpm"])
def test_prompts_that_are_mostly_cached_share_a_step(policy: str) -> None:
    """Of two prompts of 600 tokens 88 each are left to compute: both fit into 256."""
    rows = [(0.0, 600, 1), (500.0, 600, 1), (500.0, 600, 1)]
    workload = make_workload(rows, hash_ids=((1, 2), (1, 3), (1, 4)))
    history = simulate(policy, workload, simulated_settings(prefix_cache=True))
    assert history.token_ns[1] == history.token_ns[2]


def test_urgency_density_takes_the_shortest_once_time_is_short() -> None:
    """All are due in a second: three short prompts before the long one that came first."""
    rows = [(0.0, 4000, 1), (0.0, 300, 1), (0.0, 200, 1), (0.0, 100, 1)]
    workload = make_workload(rows, classes=[FAST] * 4, promises=PROMISES)
    assert order_of_first_tokens(simulate("urgency-density", workload)) == [3, 2, 1, 0]


def test_urgency_density_goes_by_deadline_while_there_is_time() -> None:
    """Due in a minute: the first come is first, though it is the longest."""
    rows = [(0.0, 4000, 1), (1.0, 300, 1), (2.0, 100, 1)]
    workload = make_workload(rows, classes=[SLOW] * 3, promises=PROMISES)
    assert order_of_first_tokens(simulate("urgency-density", workload)) == [0, 1, 2]
