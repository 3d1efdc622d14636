"""The whole configuration as frozen data, with every check; imports no other room but
`core.errors`. Classes and tenants are in `core.tenancy`.

One dataclass a TOML table, one field a key, a docstring under each field with its unit. Reading
files and `--set` lives in `core.config_file`; this file only knows what is acceptable, and says all
that is wrong at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from core.config_checks import in_range, is_name, one_of, sha256_faults
from core.errors import ConfigError
from core.tenancy import ClassesConfig, Room, Tenancy, TenantConfig
from core.tracing_config import TracingConfig

MAX_REPLICAS = 8
MAX_RANKS = 8
MAX_TOKENIZERS = 8
MAX_HTTP_PROCESSES = 16
MAX_ADMIN_WORKERS = 8
MAX_MODEL_LEN_LIMIT = 1_048_576
POLICY_NAMES = ("headrace", "fcfs", "priority", "static")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Model, executors and the size of a step."""

    model: str = "smollm2-135m"
    """Known alias, or a Hugging Face directory (config.json, safetensors, tokenizer.json)."""
    served_model_name: str = ""
    """Name clients use; empty = the last part of `model`."""
    executor: str = "local"
    """`local` runs the model, `simulated` draws token ids from a hash at a modelled speed."""
    device: str = "cpu"
    """`cpu`, `cuda` (a GPU for each executor), or `auto`: a GPU where one can do what is asked."""
    dtype: str = "bfloat16"
    """Weights, activations and KV: `bfloat16` or `float32`."""
    quantization: str = "none"
    """Weights of products: `none` (as `dtype`), `int8`, or `int4` where they were in 4 bits."""
    replicas: int = 1
    """Copies of the model, each with its own KV pool."""
    tensor_parallel: int = 1
    """Executor processes that compute a replica together; no more than the model has KV heads."""
    threads: int = 0
    """Compute threads of an executor; 0 = cores of this machine divided among the executors."""
    max_model_len: int = 8192
    """Largest prompt + max_tokens, tokens; executor `local` lowers it to the model's own limit."""
    max_num_seqs: int = 64
    """Sequences running at once in a replica."""
    max_num_batched_tokens: int = 192
    """Tokens computed in a step of a replica, at the most."""
    max_num_partial_prefills: int = 4
    """Prompts being prefilled in chunks at the same time."""
    block_size: int = 32
    """Tokens in a KV block."""
    num_kv_blocks: int = 0
    """KV blocks of a replica; 0 = from the memory that is free at start."""
    kv_memory_fraction: float = 0.35
    """Share of the memory left after the weights that auto-sizing gives to all KV pools."""
    kv_memory_limit_bytes: int = 2_147_483_648
    """Upper bound of auto-sizing for one replica's KV pool, bytes."""
    prefix_cache: bool = True
    """Reuse KV blocks of equal prefixes within a tenant."""
    swap_memory_bytes: int = 268_435_456
    """Host memory of a replica for the KV blocks of preempted requests, bytes; 0 = never swap."""
    pipeline_depth: int = 1
    """Plans an executor may hold: 1, or 2 to plan step n+1 while step n runs."""
    simulated_step_us: int = 2000
    """Simulated executor: fixed time of a step, µs."""
    simulated_token_us: float = 1.0
    """Simulated executor: time of each token in a step, µs."""

    @property
    def max_copies(self) -> int:
        """KV blocks that one plan may copy: a longest sequence goes out, another comes in."""
        return 2 * -(-self.max_model_len // self.block_size)

    @property
    def num_executors(self) -> int:
        """Executor processes of all replicas."""
        return self.replicas * self.tensor_parallel

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from one_of("engine.executor", self.executor, ("local", "simulated"))
        yield from one_of("engine.device", self.device, ("auto", "cpu", "cuda"))
        yield from one_of("engine.dtype", self.dtype, ("bfloat16", "float32"))
        yield from one_of("engine.quantization", self.quantization, ("none", "int8", "int4"))
        yield from in_range("engine.replicas", self.replicas, 1, MAX_REPLICAS)
        yield from in_range("engine.tensor_parallel", self.tensor_parallel, 1, MAX_RANKS)
        yield from in_range("engine.threads", self.threads, 0, 1024)
        yield from in_range("engine.max_model_len", self.max_model_len, 16, MAX_MODEL_LEN_LIMIT)
        yield from in_range("engine.max_num_seqs", self.max_num_seqs, 1, 4096)
        yield from in_range("engine.max_num_batched_tokens", self.max_num_batched_tokens, 1, 65536)
        yield from in_range("engine.max_num_partial_prefills", self.max_num_partial_prefills, 1, 64)
        yield from in_range("engine.block_size", self.block_size, 8, 256)
        if self.block_size & (self.block_size - 1):
            yield f"engine.block_size = {self.block_size} is not a power of two"
        yield from in_range("engine.num_kv_blocks", self.num_kv_blocks, 0, 2**24)
        yield from in_range("engine.kv_memory_fraction", self.kv_memory_fraction, 0.01, 0.95)
        yield from in_range(
            "engine.kv_memory_limit_bytes", self.kv_memory_limit_bytes, 2**20, 2**42
        )
        yield from in_range("engine.swap_memory_bytes", self.swap_memory_bytes, 0, 2**42)
        yield from in_range("engine.pipeline_depth", self.pipeline_depth, 1, 2)
        yield from in_range("engine.simulated_step_us", self.simulated_step_us, 0, 60_000_000)
        yield from in_range("engine.simulated_token_us", self.simulated_token_us, 0, 1_000_000)
        if self.max_num_seqs > self.max_num_batched_tokens:
            yield (
                f"engine.max_num_seqs = {self.max_num_seqs} exceeds engine.max_num_batched_tokens ="
                f" {self.max_num_batched_tokens}: every running sequence needs a token of the step"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Queue bounds and the policy."""

    policy: str = "headrace"
    """`headrace` keeps the promises of classes and tenants; `fcfs`, `priority`, `static` do not."""
    max_queued_requests: int = 1024
    """Requests waiting in the scheduler, at the most; further ones get 429."""
    max_queued_tokens: int = 4_194_304
    """Prompt + max_tokens of all waiting requests, at the most, tokens."""
    queue_deadline_ms: int = 300_000
    """A request that has not started after this time is refused, ms."""
    request_timeout_ms: int = 3_600_000
    """A request that has not ended after this time is ended, ms."""
    kv_headroom_fraction: float = 0.02
    """Blocks kept free at admission so that running requests can grow, as a share of the pool."""
    max_preemptions: int = 3
    """After so many preemptions a request is no longer chosen as a victim."""
    poison_crashes: int = 2
    """A request that was in flight at so many executor crashes is ended with an error."""
    drain_timeout_ms: int = 30_000
    """Time running requests get to finish at shutdown, ms."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from one_of("scheduler.policy", self.policy, POLICY_NAMES)
        yield from in_range("scheduler.max_queued_requests", self.max_queued_requests, 1, 1_000_000)
        yield from in_range("scheduler.max_queued_tokens", self.max_queued_tokens, 16, 2**40)
        yield from in_range("scheduler.queue_deadline_ms", self.queue_deadline_ms, 1, 86_400_000)
        yield from in_range("scheduler.request_timeout_ms", self.request_timeout_ms, 1, 86_400_000)
        yield from in_range("scheduler.kv_headroom_fraction", self.kv_headroom_fraction, 0.0, 0.5)
        yield from in_range("scheduler.max_preemptions", self.max_preemptions, 0, 1000)
        yield from in_range("scheduler.poison_crashes", self.poison_crashes, 1, 100)
        yield from in_range("scheduler.drain_timeout_ms", self.drain_timeout_ms, 0, 3_600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The constants of policy `headrace`; one set for all loads."""

    charge: str = "time"
    """What a flow is charged: modelled device `time`, or `tokens` (1 an input, 2 an output)."""
    class_window_ms: int = 4000
    """Service by which a class may be ahead of its share when its deadlines are earlier, ms."""
    tenant_window_tokens: int = 3000
    """The same for a tenant within its class, prompt tokens."""
    locality_bypass_ms: int = 2000
    """Time for which longer cached prefixes may go before one with a promise, ms; 0 = never."""
    company_fraction: float = 0.25
    """Share of its promise for which a prompt with a tight gap cap waits to decode with others."""
    price_epoch_s: int = 60
    """Prices follow the cost model no more often than this, s."""
    kv_price: float = 0.2
    """Price of holding the whole KV pool for a step, as a share of that step."""
    itl_margin: float = 0.2
    """Share by which a predicted step stays below the promised gap; more where steps scatter."""
    delivery_ms: int = 5
    """Time of a promised gap kept for tokens on their way, ms; a tenth of the gap at the most."""
    tile_tokens: int = 4
    """A chunk that does not end its prompt is a multiple of this, tokens."""
    quantum_tokens: int = 512
    """Prompt tokens in one grant, at the most."""
    preempt_below_fraction: float = 0.01
    """Available KV blocks below which requests are preempted, as a share of the pool."""
    readmit_above_fraction: float = 0.05
    """Available KV blocks above which preempted requests come back, as a share of the pool."""
    progress_tokens: int = 64
    """Tokens that a request gets at least between two preemptions, or `progress_ms`."""
    progress_ms: int = 2000
    """Time that a request gets at least between two preemptions, or `progress_tokens`, ms."""
    swap_gb_per_s: float = 5.0
    """Speed of copies to host memory where none was measured, one way, GB/s; 0 = never swap."""
    max_preempted_fraction: float = 0.05
    """Share of preempted tokens in all computed ones; above it admission becomes stricter."""
    shed_enter: float = 0.9
    """Predicted wait, as a share of the promise, above which requests are shed."""
    shed_leave: float = 0.7
    """Predicted wait, as a share of the promise, below which shedding ends."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from one_of("policy.charge", self.charge, ("time", "tokens"))
        yield from in_range("policy.class_window_ms", self.class_window_ms, 0, 3_600_000)
        yield from in_range("policy.tenant_window_tokens", self.tenant_window_tokens, 0, 2**30)
        yield from in_range("policy.locality_bypass_ms", self.locality_bypass_ms, 0, 3_600_000)
        yield from in_range("policy.price_epoch_s", self.price_epoch_s, 1, 86_400)
        yield from in_range("policy.kv_price", self.kv_price, 0.0, 10.0)
        yield from in_range("policy.itl_margin", self.itl_margin, 0.0, 2.0)
        yield from in_range("policy.delivery_ms", self.delivery_ms, 0, 1000)
        yield from in_range("policy.tile_tokens", self.tile_tokens, 1, 1024)
        yield from in_range("policy.quantum_tokens", self.quantum_tokens, 1, 65536)
        for name in (
            "preempt_below_fraction", "readmit_above_fraction", "max_preempted_fraction",
            "shed_enter", "shed_leave", "company_fraction",
        ):  # fmt: skip
            yield from in_range(f"policy.{name}", getattr(self, name), 0.0, 1.0)
        yield from in_range("policy.swap_gb_per_s", self.swap_gb_per_s, 0.0, 10_000.0)
        yield from in_range("policy.progress_tokens", self.progress_tokens, 0, 2**20)
        yield from in_range("policy.progress_ms", self.progress_ms, 0, 3_600_000)
        for low, high in (
            ("preempt_below_fraction", "readmit_above_fraction"),
            ("shed_leave", "shed_enter"),
        ):
            if getattr(self, low) > getattr(self, high):
                yield f"policy.{low} = {getattr(self, low)} exceeds policy.{high}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadraceConfig:
    """Everything; `check` raises with all faults listed."""

    name: str = "default"
    """Name of this engine and of its run directory; at most 32 characters."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    classes: ClassesConfig = field(default_factory=ClassesConfig)
    tenants: tuple[TenantConfig, ...] = ()
    """Empty = one tenant `default`, no keys; allowed on loopback addresses only."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key or combination that cannot be accepted."""
        if not is_name(self.name, 32, "-_"):
            yield f"name = {self.name!r} must be 1 to 32 letters, digits, '-' or '_'"
        for part in (
            self.engine,
            self.scheduler,
            self.policy,
            self.tokenizer,
            self.http,
            self.admin,
            self.supervision,
            self.tracing,
        ):
            yield from part.faults()
        tenancy = Tenancy(classes=self.classes, tenants=self.tenants)
        yield from tenancy.faults(Room(self.engine.replicas, self.engine.max_num_seqs))
        if not any(tenant.key_sha256 for tenant in self.tenants) and self.http.host not in (
            "127.0.0.1",
            "::1",
            "localhost",
        ):
            yield (
                f"http.host = {self.http.host!r} is reachable from outside but no tenant has an"
                " API key"
            )
        if self.engine.max_model_len > self.tokenizer.arena_tokens:
            yield (
                f"tokenizer.arena_tokens = {self.tokenizer.arena_tokens} cannot hold one request of"
                f" engine.max_model_len = {self.engine.max_model_len}"
            )

    def check(self) -> "HeadraceConfig":
        """Return self, or raise ConfigError naming every fault."""
        faults = list(self.faults())
        if faults:
            raise ConfigError("; ".join(faults))
        return self
