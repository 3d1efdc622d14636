"""The sections of the processes around the scheduler: `tokenizer`, `http`, `admin`, `supervision`.

Owns: their keys, their docstrings with units, and what they may be. Never knows: files, processes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from core.settings.checks import in_range, one_of, sha256_faults

MAX_TOKENIZERS = 8
MAX_HTTP_PROCESSES = 16
MAX_ADMIN_WORKERS = 8
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer processes."""

    processes: int = 1
    """Tokenizer processes."""
    arena_tokens: int = 8_388_608
    """Token ids of all live requests of one tokenizer (prompt + max_tokens each); full = 429."""
    max_operations: int = 4096
    """Live operations of one tokenizer, at the most; further ones get 429."""
    pending_bytes: int = 67_108_864
    """Prompts that wait to be encoded, at the most; further ones get 429, bytes."""
    piece_bytes: int = 65_536
    """Text is encoded in pieces of about this size, tenants in turn, bytes."""
    template_timeout_ms: int = 1000
    """Time a chat template may take, ms."""
    template_output_bytes: int = 4_194_304
    """Text a chat template may make, bytes."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from in_range("tokenizer.processes", self.processes, 1, MAX_TOKENIZERS)
        yield from in_range("tokenizer.arena_tokens", self.arena_tokens, 4096, 2**31)
        yield from in_range("tokenizer.max_operations", self.max_operations, 1, 1_000_000)
        yield from in_range("tokenizer.pending_bytes", self.pending_bytes, 4096, 2**34)
        yield from in_range("tokenizer.piece_bytes", self.piece_bytes, 256, 2**24)
        yield from in_range("tokenizer.template_timeout_ms", self.template_timeout_ms, 1, 60_000)
        yield from in_range(
            "tokenizer.template_output_bytes", self.template_output_bytes, 1024, 2**28
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The OpenAI-compatible port."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """TCP port; 0 = any free one (printed and written to the run directory)."""
    processes: int = 1
    """HTTP processes sharing the listening socket."""
    max_connections: int = 2048
    """Connections of one process; further ones get 503."""
    max_body_bytes: int = 4_194_304
    """Largest request body, bytes; larger = 413."""
    max_header_bytes: int = 32_768
    """Largest request head, bytes; larger = 431."""
    header_timeout_ms: int = 10_000
    """Time for a whole request head, ms."""
    body_timeout_ms: int = 30_000
    """Time for a whole request body, ms."""
    write_timeout_ms: int = 30_000
    """A client that takes nothing for this long is cut off and its request cancelled, ms."""
    write_buffer_bytes: int = 65_536
    """Bytes buffered for a slow reader, at the most."""
    keep_alive_ms: int = 15_000
    """Idle connections are closed after this time, ms."""
    verdict_hold_ms: int = 2000
    """Stream headers wait this long for the admission verdict, ms."""
    max_choices: int = 16
    """Largest `n` of a request."""
    max_prompts: int = 64
    """Largest number of prompts in one completions request."""
    allowed_hosts: tuple[str, ...] = ()
    """Further values of the Host header besides loopback names and `host`; "*" = any."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from in_range("http.port", self.port, 0, 65535)
        yield from in_range("http.processes", self.processes, 1, MAX_HTTP_PROCESSES)
        yield from in_range("http.max_connections", self.max_connections, 1, 65536)
        yield from in_range("http.max_body_bytes", self.max_body_bytes, 1024, 2**30)
        yield from in_range("http.max_header_bytes", self.max_header_bytes, 1024, 2**20)
        for name in ("header_timeout_ms", "body_timeout_ms", "write_timeout_ms", "keep_alive_ms"):
            yield from in_range(f"http.{name}", getattr(self, name), 10, 3_600_000)
        yield from in_range("http.write_buffer_bytes", self.write_buffer_bytes, 4096, 2**24)
        yield from in_range("http.verdict_hold_ms", self.verdict_hold_ms, 0, 60_000)
        yield from in_range("http.max_choices", self.max_choices, 1, 128)
        yield from in_range("http.max_prompts", self.max_prompts, 1, 2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The isolated admin pool."""

    host: str = "127.0.0.1"
    """Address of the admin HTTP port."""
    port: int = 0
    """Admin TCP port; 0 = any free one (written to the run directory)."""
    workers: int = 2
    """Admin processes."""
    key_sha256: str = ""
    """SHA-256 (hex) of the admin key; empty = a random one is written to the run directory."""
    keep_state: bool = True
    """Keep usage and run-time changes in the state directory, so that they outlive the engine."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from in_range("admin.port", self.port, 0, 65535)
        yield from in_range("admin.workers", self.workers, 2, MAX_ADMIN_WORKERS)
        yield from sha256_faults("admin.key_sha256", self.key_sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionConfig:
    """Restarts and the watch over heartbeats."""

    intensity: int = 5
    """Restarts of one child within `period_ms`; one more ends the engine."""
    period_ms: int = 60_000
    """Window of `intensity`, ms."""
    heartbeat_ms: int = 200
    """Each loop stamps its heartbeat at least so often, ms."""
    hang_timeout_ms: int = 10_000
    """A loop that is silent for so long (busy and loading excepted) is killed and restarted, ms."""
    step_timeout_ms: int = 30_000
    """Longest execution of a step before the executor counts as hung, ms."""
    load_timeout_ms: int = 600_000
    """Longest start of a child (model load, kernel build), ms."""
    stop_timeout_ms: int = 5000
    """Time a child gets after SIGTERM before SIGKILL, ms."""
    progress_limit_ms: int = 5000
    """`/health/progress` fails when work runs and the last step is older than this, ms."""
    log_level: str = "INFO"
    """What all processes write to stderr: `DEBUG`, `INFO`, `WARNING` or `ERROR` and worse."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from in_range("supervision.intensity", self.intensity, 0, 1000)
        yield from one_of("supervision.log_level", self.log_level, LOG_LEVELS)
        for name in (
            "period_ms", "heartbeat_ms", "hang_timeout_ms", "step_timeout_ms",
            "load_timeout_ms", "stop_timeout_ms", "progress_limit_ms",
        ):  # fmt: skip
            yield from in_range(f"supervision.{name}", getattr(self, name), 10, 86_400_000)
