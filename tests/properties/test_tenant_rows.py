"""Rows of tenants that come and go: nothing counted is lost or another's, and nobody inherits.

How: an engine core that tells two tenants apart publishes its page, somebody sums its counters
now and then, it is killed and goes on from its page; five tenants are added, used and removed in
any order. What was summed is compared with the totals on the page, and with what each tenant's
requests were given.
"""

from collections import Counter

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from core.clock import NS_PER_MS
from core.policy.limits import Limits
from core.request import Request
from core.runtime.scheduler.page import fill_page, resumed_metering
from core.scheduler import events as ev
from core.simulation.engine import SimulatedEngine
from core.tenancy.classes import NUM_CLASSES
from core.tenancy.rows import OTHER, OTHER_NAME
from core.tenancy.tenants import TenantConfig
from frontends.admin.state.usage import (
    TOKENS,
    Counters,
    by_tenant,
    counted_to_ns,
    counters_of,
    growth,
)
from frontends.boards import Boards, Page
from ipc.pages import SCHEDULER_PAGE
from tests.support.control_plane.boards import beat
from tests.support.scheduler.checked_engine import make_settings

NUM_ROWS = 3
NAMES = tuple("abcde")
PUBLISH_NS = 50 * NS_PER_MS


class World:
    """An engine, its page, and whoever sums what is on it."""

    def __init__(self) -> None:
        self.listed: set[str] = set()
        self.page = np.zeros((), SCHEDULER_PAGE)
        self.stamp_ns = 0
        self.counted: Counters = {}
        self.used: Counter[tuple[str, str]] = Counter()
        self.kept_ns = 0
        self.given: Counter[str] = Counter()  # tokens to each tenant's requests, in dead engines
        self.num_requests = 0
        self.begin(0)

    def begin(self, now_ns: int) -> None:
        """Start a scheduler that goes on from what was published last."""
        self.before = self.page.copy()
        metering = resumed_metering(self.before, NUM_ROWS)
        self.requests: list[Request] = []
        self.engine = SimulatedEngine(
            make_settings(policy="headrace", limits=self.limits()),
            num_blocks=40,
            metering=metering,
            arena_tokens=1 << 14,
        )
        metering.tenant_rows.on_reuse.append(self.check_forgotten)
        self.engine.clock.advance_to(now_ns + 1)
        self.engine.start()

    def limits(self) -> Limits:
        """Return what the directory says."""
        return Limits(tenants={name: TenantConfig(name=name) for name in sorted(self.listed)})

    def configure(self) -> None:
        """Let the directory rule."""
        self.engine.tell(ev.Configure(self.limits()))

    def submit(self, name: str, prompt_len: int, max_tokens: int) -> Request:
        """Let a tenant ask for something."""
        self.num_requests += 1
        prompt = list(range(8, 8 + prompt_len))
        request = self.engine.make_request(self.num_requests, prompt, max_tokens, tenant=name)
        self.requests.append(request)
        return self.engine.submit(request)

    def publish(self) -> None:
        """Show the page of this moment."""
        self.engine.clock.advance_to(self.engine.clock.now_ns() + PUBLISH_NS)
        self.stamp_ns = self.engine.clock.now_ns()
        self.engine.core.offer_tenant_rows(self.kept_ns, self.stamp_ns)
        page = np.zeros((), SCHEDULER_PAGE)
        fill_page(page, self.engine.core, self.stamp_ns, self.before)
        self.page = page

    def boards(self) -> Boards:
        """Return what the one who sums sees."""
        shown = Page(1, self.stamp_ns, self.page.reshape(1)[0])
        return Boards(self.stamp_ns, {"scheduler": shown}, {"scheduler": beat()})

    def keep(self) -> None:
        """Sum what has grown."""
        marks = counters_of(self.boards())
        self.used.update(by_tenant(growth(marks, self.counted)))
        self.counted |= marks
        self.kept_ns = counted_to_ns(self.boards())

    def kill(self) -> None:
        """Lose the scheduler with all its requests and what it had not published."""
        self.given.update(self.given_now())
        self.begin(self.engine.clock.now_ns())

    def given_now(self) -> Counter[str]:
        """Return how many tokens the requests of each tenant were given by this engine."""
        given: Counter[str] = Counter()
        for request in self.requests:
            given[request.tenant] += len(self.engine.transcript(request).token_ids)
        return given

    def check(self) -> None:
        """Compare what was used with the totals, and with what was given."""
        used = self.used.copy()
        used.update(by_tenant(growth(counters_of(self.boards()), self.counted)))
        for counter in TOKENS:
            amounts = [amount for (_, name), amount in used.items() if name == counter]
            assert sum(amounts) == int(self.page[counter]), counter
        given = self.given + self.given_now()
        for name in NAMES:
            assert used[name, "generated_tokens"] <= given[name], name
        rows = self.page["tenants"][: int(self.page["num_tenants"])]
        assert len(set(rows["name"].tolist())) == len(rows)
        assert int(rows["service"].sum()) <= int(self.page["classes"]["service"].sum())

    def check_forgotten(self, index: int) -> None:
        """Assert that nothing is known of a tenant whose row passes on."""
        core, flows = self.engine.core, slice(index * NUM_CLASSES, (index + 1) * NUM_CLASSES)
        standing = core._scheduler.policy.standing(self.engine.clock.now_ns())
        assert standing is not None
        assert not standing.charged[flows].any()
        assert not standing.leads[flows].any()
        tenant = core.metering.tenant_names[index]
        assert all(each.num_cached_blocks == 0 for each in core.cache_statistics(tenant))
        assert all(each.tenant_index != index for each in core._scheduler.requests.values())
        assert not core.metering.tenants.are_used()[index]


def one_of_many(world: World, name: str) -> Request:
    """Add a tenant, have it served, and remove it."""
    world.listed.add(name)
    world.configure()
    request = world.submit(name, prompt_len=8, max_tokens=3)
    world.engine.run()
    world.listed.discard(name)
    world.configure()
    return request


class TenantsComeAndGo(RuleBasedStateMachine):
    """Few rules, so that each is used often."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        self.world.listed.discard(name)
        self.world.configure()

    @rule(name=st.sampled_from(NAMES), prompt_len=st.integers(1, 24), max_tokens=st.integers(1, 12))
    def add_and_ask(self, name: str, prompt_len: int, max_tokens: int) -> None:
        self.world.listed.add(name)
        self.world.configure()
        self.world.submit(name, prompt_len, max_tokens)

    @rule(name=st.sampled_from(NAMES))
    def be_served_and_leave(self, name: str) -> None:
        one_of_many(self.world, name)

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.world.engine.step()

    @rule()
    def finish(self) -> None:
        self.world.engine.run()

    @rule(is_kept=st.booleans())
    def publish(self, is_kept: bool) -> None:
        self.world.publish()
        if is_kept:
            self.world.keep()

    @rule()
    def kill(self) -> None:
        self.world.kill()

    @invariant()
    def holds(self) -> None:
        self.world.engine.core.check_integrity()
        self.world.check()

    def teardown(self) -> None:
        self.world.engine.run()
        self.world.publish()
        self.holds()


def test_no_history_of_tenants_loses_or_mixes_up_what_they_used() -> None:
    """What is summed over all tenants there ever were is what the engine counted; no tenant has
    more than its requests were given.
    """
    run_state_machine_as_test(
        TenantsComeAndGo,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_tenants_without_end_are_told_apart_one_after_the_other() -> None:
    """Each has a row and a row of the usage of its own; nothing is left to `_other`."""
    world = World()
    for number in range(50):
        request = one_of_many(world, f"t{number}")
        assert request.tenant_index != OTHER, number
        for _ in range(2):
            world.publish()
            world.keep()
        world.check()
    assert {name for name, _ in world.used} == {f"t{number}" for number in range(50)}
    assert all(world.used[f"t{n}", "prompt_tokens"] == 8 for n in range(50))


def test_a_tenant_that_comes_back_is_counted_on() -> None:
    """Its row was another's meanwhile: its counters on the page begin at 0, its usage does not."""
    world = World()
    for name in "abcda":
        one_of_many(world, name)
        for _ in range(2):
            world.publish()
            world.keep()
    assert world.used["a", "prompt_tokens"] == 16
    rows = world.page["tenants"][: int(world.page["num_tenants"])]
    assert rows["prompt_tokens"][rows["name"] == b"a"].tolist() == [8]


def test_no_row_passes_on_while_nobody_keeps_what_was_counted() -> None:
    """The next tenants are served as `_other` until the counters are summed again."""
    world = World()
    for name in "ab":
        one_of_many(world, name)
        world.publish()
    assert one_of_many(world, "d").tenant_index == OTHER
    world.publish()
    assert int(world.page["tenant_names_left"]) == 0
    world.keep()
    world.publish()
    assert int(world.page["tenant_names_left"]) == NUM_ROWS - 1
    assert one_of_many(world, "e").tenant_index != OTHER


def test_a_tenant_that_is_served_keeps_its_row() -> None:
    """Though it was removed, and another one asks for something."""
    world = World()
    world.listed.update("ab")
    world.configure()
    served = [world.submit(name, prompt_len=4, max_tokens=12) for name in "ab"]
    world.engine.step()
    world.listed.clear()  # of both something runs
    for _ in range(2):
        world.configure()
        world.publish()
        world.keep()
    assert one_of_many(world, "d").tenant_index == OTHER
    names = world.engine.metering.tenant_names
    assert [names[each.tenant_index] for each in served] == ["a", "b"]
    assert names[OTHER] == OTHER_NAME
