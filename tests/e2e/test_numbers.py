"""All places that show numbers agree with what clients counted, on a real engine.

How: the benchmark `agree` with few requests; see `scripts/bench/benchmarks/agree/`. What it says of
times is left to the benchmark: a client that waits for a processor measures more than the engine.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.benchmarks.agree.__main__ import SETTINGS, TENANTS, bars, compare
from scripts.bench.harness import report
from scripts.bench.harness.engine import running_engine

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

REQUESTS = 60
SEED = 5


@pytest.mark.parametrize("victim", ["executor", "scheduler"])
def test_every_place_shows_what_clients_counted(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """Both ports, `ctl status`, `ctl usage` and `top`, over the death of a process; and nothing
    that was counted ever falls.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = tmp_path / "tenants.toml"
    config.write_text("\n".join(tenant.toml() for tenant in TENANTS), encoding="utf-8")
    settings = [*SETTINGS, f"engine.model={tiny_model}", "tokenizer.arena_tokens=65536"]

    async def run() -> dict[str, Any]:
        async with running_engine("numbers", settings, config) as engine:
            return await compare(engine, REQUESTS, SEED, victim)

    figures = asyncio.run(run())
    counted = [bar for bar in bars(victim) if bar.name != "differences.quantiles"]
    failed = [verdict for verdict in report.judge(figures, counted) if not verdict.ok]
    assert not failed, (failed, figures["details"], f"seed {SEED}")
