"""Token budgets of a running engine, as clients that keep to Retry-After meet them."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.support.processes.commands import in_force
from tests.support.processes.engine import Engine, running_engine

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FAST_STEPS = ("engine.executor=simulated", "engine.simulated_step_us=1000")
NUM_CLIENTS = 20
MAX_RETRIES = 1000  # one gets through each time, unless the page that the door goes by is old
MAX_TOKENS = 90
BURST_TOKENS = 300
TOKENS_PER_S = 1000


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Engine]:
    """Return an engine whose only tenant has a token budget."""
    with running_engine(tmp_path_factory.mktemp("home"), tiny_model, FAST_STEPS) as running:
        set_limit(running, "tokens_per_minute", 60 * TOKENS_PER_S)
        set_limit(running, "burst_tokens", BURST_TOKENS)
        yield running


def set_limit(engine: Engine, key: str, value: int) -> None:
    """Change a limit of the tenant."""
    in_force(engine, "set", path=f"tenants.default.{key}", value=str(value))


def test_clients_that_keep_to_retry_after_all_succeed(engine: Engine) -> None:
    """OpenAI's own client, twenty times at once: all are served, at the rate and not above it."""

    def ask(number: int) -> int:
        client = openai.OpenAI(
            base_url=f"{engine.url}/v1",
            api_key="unused",
            max_retries=MAX_RETRIES,
            http_client=openai.DefaultHttpxClient(verify=False),
        )
        with client:
            answer = client.completions.create(
                model=engine.model,
                prompt=[number + 1, 2, 3],
                max_tokens=MAX_TOKENS,
                extra_body={"ignore_eos": True},
            )
        assert answer.usage is not None
        return answer.usage.total_tokens

    began_s = time.monotonic()
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        tokens = list(pool.map(ask, range(NUM_CLIENTS)))
    took_s = time.monotonic() - began_s
    assert tokens == [3 + MAX_TOKENS] * NUM_CLIENTS
    assert sum(tokens) <= BURST_TOKENS + TOKENS_PER_S * took_s


def test_a_refusal_tells_when_and_what_is_left(engine: Engine) -> None:
    """More than the burst is a bad request; what does not fit now comes with a time."""
    client = engine.client()
    never = client.post("/v1/completions", {"prompt": [1], "max_tokens": BURST_TOKENS})
    assert (never.status, never.json["error"]["code"]) == (400, "rate_never_fits")
    assert never.headers["x-ratelimit-limit-tokens"] == str(BURST_TOKENS)
    set_limit(engine, "tokens_per_minute", 600)
    body = {"prompt": [1, 2], "max_tokens": 250, "ignore_eos": True}
    answers = [client.post("/v1/completions", body) for _ in range(2)]
    refused = answers[-1]
    assert (refused.status, refused.json["error"]["code"]) == (429, "tenant_rate")
    assert "tenants[default].tokens_per_minute" in refused.json["error"]["message"]
    retry_ms = int(refused.headers["retry-after-ms"])
    assert 0 < retry_ms <= 50_400
    assert refused.headers["retry-after"] == str(-(-retry_ms // 1000))
