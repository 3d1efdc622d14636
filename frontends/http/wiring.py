"""Puts the parts of one http process together.

Owns: which part gets which. Never knows: what the parts do. `Outside` is everything that comes from
the supervisor or the machine; `build` makes a server from it, in production and in tests alike.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.clock import NS_PER_MS, Clock
from core.config.headrace import HeadraceConfig
from core.model_card import ModelCard
from frontends.boards import Boards
from frontends.engine_client import EngineClient
from frontends.http.application.app import Application
from frontends.http.application.meta import Meta, installed_version
from frontends.http.application.openapi import openapi_document
from frontends.http.application.routes import make_router
from frontends.http.connection.limits import MS_PER_S, ConnectionLimits
from frontends.http.gate.auth import Authenticator
from frontends.http.gate.doorstep import Doorstep, EngineLimits
from frontends.http.gate.origin import LOOPBACK_NAMES, HostList
from frontends.http.lifecycle import Lifecycle
from frontends.http.row_offers import RowOffers
from frontends.http.server import HttpServer, Stamp, Timing
from frontends.http.telemetry import Telemetry
from frontends.metrics.vllm import facts_of
from frontends.openai.chat import ChatCompletions
from frontends.openai.completions import Completions
from frontends.openai.decode import FieldWarner
from frontends.openai.generation import Generator
from frontends.openai.models import Models
from frontends.openai.parameters import ServedModel
from frontends.openai.tokenize import TokenizeEndpoints
from frontends.tokenizer_link import EnginePort
from frontends.tracing.tracer import Tracer, open_tracer
from ipc.board import BoardWriter
from ipc.directory import DirectorySnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What an http process is given."""

    config: HeadraceConfig
    card: ModelCard
    listener: socket.socket
    ports: Sequence[EnginePort]
    serving_epoch: Callable[[int], int]
    read_boards: Callable[[], Boards]
    read_directory: Callable[[], DirectorySnapshot]
    board: BoardWriter
    stamp: Stamp
    clock: Clock
    wall_clock_s: Callable[[], float]


def build(outside: Outside, lifecycle: Lifecycle) -> HttpServer:
    """Return the server, inside a running event loop; raises ConfigError."""
    config = outside.config
    telemetry = Telemetry()
    telemetry.resume(outside.board.predecessor)
    client = EngineClient(
        outside.ports,
        outside.serving_epoch,
        outside.clock,
        max_operations=config.http.max_connections,
        request_timeout_ns=config.scheduler.request_timeout_ms * NS_PER_MS,
    )
    limits, tracer = ConnectionLimits.of(config.http), _tracer(outside, telemetry)
    return HttpServer(
        _application(outside, client, telemetry, tracer, lifecycle, limits),
        outside.listener,
        client,
        limits=limits,
        timing=Timing(
            heartbeat_s=config.supervision.heartbeat_ms / MS_PER_S,
            drain_timeout_s=config.supervision.stop_timeout_ms / 2 / MS_PER_S,
        ),
        telemetry=telemetry,
        offers=RowOffers(telemetry, outside.read_directory, outside.read_boards),
        board=outside.board,
        stamp=outside.stamp,
        lifecycle=lifecycle,
        on_end=tracer.close,
        clock=outside.clock,
        wall_clock_s=outside.wall_clock_s,
    )


def _application(
    outside: Outside,
    client: EngineClient,
    telemetry: Telemetry,
    tracer: Tracer,
    lifecycle: Lifecycle,
    limits: ConnectionLimits,
) -> Application:
    http = outside.config.http
    model = ServedModel.of(outside.card, outside.config)
    generator = Generator(
        client,
        _doorstep(outside),
        outside.clock,
        outside.wall_clock_s,
        tracer,
        verdict_hold_s=http.verdict_hold_ms / MS_PER_S,
    )
    warner = FieldWarner()
    router = make_router(
        ChatCompletions(generator, model, warner),
        Completions(generator, model, warner),
        Models(model),
        TokenizeEndpoints(client, model),
        _meta(outside, lifecycle),
    )
    return Application(
        router,
        Authenticator(outside.read_directory, allow_anybody=http.host in LOOPBACK_NAMES),
        HostList(http.host, http.allowed_hosts),
        telemetry,
        lifecycle,
        slice_bytes=limits.slice_bytes,
    )


def _doorstep(outside: Outside) -> Doorstep:
    scheduler = outside.config.scheduler
    limits = EngineLimits(
        max_model_len=outside.card.max_model_len,
        max_queued_requests=scheduler.max_queued_requests,
        has_tenant_limits=scheduler.policy == "headrace",
    )
    return Doorstep(limits, outside.read_directory, outside.read_boards, outside.clock)


def _tracer(outside: Outside, telemetry: Telemetry) -> Tracer:
    facts = {
        "service.name": "headrace",
        "service.version": installed_version(),
        "service.instance.id": outside.config.name,
    }
    model = outside.card.name
    return open_tracer(outside.config.tracing, facts, model, telemetry.lose_spans)


def _meta(outside: Outside, lifecycle: Lifecycle) -> Meta:
    version = installed_version()
    return Meta(
        outside.read_boards,
        lifecycle,
        outside.config.supervision,
        facts_of(outside.config, outside.card.name),
        version,
        openapi_document(version),
    )
