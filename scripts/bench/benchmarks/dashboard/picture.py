"""A picture of the dashboard: a real engine under the demonstration's load, as SVG."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

from dashboard.app import DashboardApp, Options
from dashboard.format import UNICODE
from dashboard.source.live import LiveSource
from scripts.bench.benchmarks.dashboard.loads import (
    DEMO_CONFIG,
    DEMO_KEYS,
    demonstration,
    under_load,
)
from scripts.bench.harness import report
from scripts.bench.harness.engine import running_engine

SMALL_POOL = ("engine.num_kv_blocks=140",)  # so few that batch work has to give some back
SIZE = (120, 32)
MAX_BYTES = 200_000
BARS = (report.Bar("bytes", "<=", MAX_BYTES, "bytes"),)


async def picture(path: Path, seconds: float) -> dict[str, Any]:
    """Watch for so long, then write what is on the screen; return how large that is."""
    async with (
        running_engine("dashboard", SMALL_POOL, DEMO_CONFIG) as engine,
        under_load(engine, DEMO_KEYS, demonstration),
    ):
        app = DashboardApp(LiveSource(engine.name, time.monotonic_ns, time.time), Options(UNICODE))
        async with app.run_test(size=SIZE):
            await asyncio.sleep(seconds)
            text = without_fonts(app.export_screenshot(title="headrace top"))
    await asyncio.to_thread(path.write_text, text)
    return {"bytes": len(text.encode())}


def without_fonts(svg: str) -> str:
    """Return a picture that fetches nothing: it is drawn in whichever monospace font there is."""
    return re.sub(r"@font-face\s*{[^}]*}", "", svg).replace("Fira Code, monospace", "monospace")
