"""The endpoints that speak of the server itself: health, metrics, version, description.

Owns: nothing but their shape. Never knows: sockets to other processes; everything here is read from
shared memory, so it is answered as fast while the engine is full or stopped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from core.config.processes import SupervisionConfig
from frontends.boards import Boards
from frontends.health import Health, Verdict, assess
from frontends.http.application.exchange import JSON, Exchange
from frontends.http.lifecycle import Lifecycle
from frontends.metrics.render import render
from frontends.metrics.vllm import EngineFacts

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


def installed_version() -> str:
    """Return the version of this installation."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Meta:
    """All of them."""

    read_boards: Callable[[], Boards]
    lifecycle: Lifecycle
    limits: SupervisionConfig
    facts: EngineFacts
    version: str
    openapi: bytes

    async def health(self, exchange: Exchange) -> None:
        """Answer GET /health: all three questions at once."""
        health = self._assess()
        verdict = Verdict((*health.overall.reasons, *self._draining()))
        await self._tell(exchange, verdict, health.as_dict())

    async def live(self, exchange: Exchange) -> None:
        """Answer GET /health/live."""
        await self._tell(exchange, self._assess().live)

    async def ready(self, exchange: Exchange) -> None:
        """Answer GET /health/ready."""
        reasons = (*self._assess().ready.reasons, *self._draining())
        await self._tell(exchange, Verdict(reasons))

    async def progress(self, exchange: Exchange) -> None:
        """Answer GET /health/progress."""
        await self._tell(exchange, self._assess().progress)

    async def metrics(self, exchange: Exchange) -> None:
        """Answer GET /metrics."""
        await exchange.respond(200, PROMETHEUS, render(self.read_boards(), self.facts))

    async def tell_version(self, exchange: Exchange) -> None:
        """Answer GET /version."""
        await exchange.respond_json({"version": self.version})

    async def describe(self, exchange: Exchange) -> None:
        """Answer GET /openapi.json."""
        await exchange.respond(200, JSON, self.openapi)

    async def welcome(self, exchange: Exchange) -> None:
        """Answer GET /."""
        await exchange.respond_json(
            {"name": "headrace", "version": self.version, "model": self.facts.model_name,
             "interface": "/openapi.json", "health": "/health"}
        )  # fmt: skip

    def _assess(self) -> Health:
        return assess(self.read_boards(), self.limits)

    def _draining(self) -> tuple[str, ...]:
        return ("this process is stopping",) if self.lifecycle.is_draining else ()

    async def _tell(
        self, exchange: Exchange, verdict: Verdict, details: dict[str, object] | None = None
    ) -> None:
        status = 200 if verdict.ok else 503
        await exchange.respond_json({**verdict.as_dict(), **(details or {})}, status=status)
