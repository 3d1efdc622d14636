"""What `scripts/bench/agree` makes of expositions: it finds each number that differs."""

import asyncio
from typing import Any

import pytest

from frontends.metrics.render import render
from scripts.bench.benchmarks.agree.sources import Places, Scrape, Watch, differences, without_zeros
from scripts.bench.harness.client import Client
from tests.admin.test_metrics import FACTS, busy

TEXT = render(busy(), FACTS).decode()


def places(http: str = TEXT, admin: str = TEXT, **top: Any) -> Places:
    """Return what two ports say, and a dashboard that shows nothing but `top`."""
    return Places(Scrape.of(http), Scrape.of(admin), {}, {}, top)


def changed(line: str, to: str) -> str:
    """Return the exposition with the one line that begins so replaced."""
    lines = TEXT.splitlines()
    (index,) = [number for number, each in enumerate(lines) if each.startswith(line)]
    lines[index] = f"{line}{to}"
    return "\n".join(lines)


def test_equal_ports_do_not_differ_and_counters_are_compared() -> None:
    """Gauges, such as ages, may differ between two moments; counters may not."""
    assert list(places().differences_of_ports()) == []
    aged = changed("headrace_uptime_seconds ", "7")
    assert list(places(aged).differences_of_ports()) == []
    more = changed("headrace_steps_total ", "7")
    assert list(places(more).differences_of_ports()) == ["port headrace_steps_total: 7.0 ≠ 0.0"]


def test_a_sum_that_is_not_its_total_is_found() -> None:
    """By tenant, whatever else agrees."""
    more = changed('headrace_tenant_generated_tokens_total{tenant="acme"} ', "101")
    found = list(places(more).differences_of_sums())
    assert "tenant generated_tokens: 601.0 ≠ 600.0" in found


@pytest.mark.parametrize(("q", "bucket"), [(0.1, 0), (0.5, 22), (0.99, 22)])
def test_a_quantile_lies_in_the_bucket_of_its_rank(q: float, bucket: int) -> None:
    """Three of 13 values are in the first bucket, the others beyond the last."""
    name = "vllm:time_to_first_token_seconds"
    found, bounds = Scrape.of(TEXT).bucket_of(name, 'model_name="smol"', q)
    assert found == bucket
    assert bounds[0] == 0.001
    assert len(bounds) == 23


def test_a_counter_that_falls_is_noted() -> None:
    """Also one that disappears; a gauge may fall."""

    class Falling(Client):
        texts = iter(
            [
                "# TYPE a_total counter\na_total 5\n# TYPE b gauge\nb 9\n",
                "# TYPE a_total counter\na_total 4\n# TYPE b gauge\nb 1\n",
                "# TYPE b gauge\nb 1\n",
            ]
        )

        async def get(self, path: str) -> tuple[int, bytes]:
            return 200, next(self.texts).encode()

    watch = Watch(Falling("http://nowhere"))
    for _ in range(3):
        asyncio.run(watch.look())
    assert watch.fallen == ["a_total: 5.0 → 4.0", "a_total: 4.0 → None"]


def test_missing_entries_differ_from_zero_unless_left_out() -> None:
    """Places that leave zeros out are compared without them."""
    assert list(differences("x", {"a": 0}, {})) == ["x a: 0 ≠ None"]
    assert list(differences("x", without_zeros({"a": 0}), {})) == []
