"""What is refused before any work is done: cheap checks from the tenant directory and the board.

Owns: the order of these checks, and what headers tell a tenant of its limits. Never knows: tokens.
A prompt has at least as many as its bytes divided by those of the longest one, and that is what is
counted here. The scheduler judges later, with exact numbers, by the same limits
(`core.arrival_limits`); the page it is known by is at most half a second old, so a request at the
edge of a limit may be refused that would just have fitted.

    paused → longer than any context or than its class takes → queue full → token rate used up
"""

from collections.abc import Callable
from dataclasses import dataclass

from core.arrival_limits import (
    is_paused,
    is_postpaid,
    prompt_cap,
    queue_full_requests,
    rate_never_fits,
    rate_used_up,
)
from core.clock import NS_PER_MS, NS_PER_S, Clock
from core.errors import Rejection, RejectionReason
from core.messages.tokenizer import ChatPrompt, Generate, IdsPrompt, Prompt
from core.tenancy.directory import tenancy_of
from core.tenancy.tenancy import Tenancy
from core.tenancy.tenants import TenantConfig
from core.token_rate import ReturnLine, TokenRate
from frontends.boards import Boards
from frontends.http.errors import Header, from_rejection
from frontends.http.gate.standing import Standing, StandingReader
from ipc.directory import DirectorySnapshot

MIN_RETRY_MS = 100
MAX_RETRY_MS = 60_000
QUEUE_SHARE_TO_DRAIN = 10  # a refused client is asked to wait until a tenth of the queue has left
REQUESTS, TOKENS = "requests", "tokens"


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of the whole engine, constant."""

    max_model_len: int
    max_queued_requests: int
    has_tenant_limits: bool  # policies other than `headrace` know none


class Doorstep:
    """The checks of one http process."""

    def __init__(
        self,
        limits: EngineLimits,
        read_directory: Callable[[], DirectorySnapshot],
        read_boards: Callable[[], Boards],
        clock: Clock,
    ) -> None:
        self._limits = limits
        self._read_directory = read_directory
        self._standings = StandingReader(read_boards, clock)
        self._clock = clock
        self._snapshot: DirectorySnapshot | None = None
        self._tenancy = Tenancy()
        self._tenants: dict[str, TenantConfig] = {}
        self._returns: dict[str, ReturnLine] = {}

    def check(self, message: Generate) -> None:
        """Raise the answer to an operation that the engine would refuse."""
        self._refresh()
        standing = self._standings.read(message.tenant)
        rejection = self._refusal(message, standing)
        if rejection is not None:
            fewest = max(fewest_tokens(p, standing.longest_token_bytes) for p in message.prompts)
            raise from_rejection(rejection, num_prompt_tokens=fewest)

    def headers(self, tenant_name: str) -> list[Header]:
        """Return what a tenant has left of its queue and of its token rate, in OpenAI's words."""
        self._refresh()
        tenant, standing = self._tenant(tenant_name), self._standings.read(tenant_name)
        own, all_ = tenant.max_queued_requests, self._limits.max_queued_requests
        limit, waiting = (own, standing.tenant_waiting) if own else (all_, standing.num_waiting)
        headers = _limit_headers(
            REQUESTS, limit, max(0, limit - waiting), standing.oldest_wait_ns if waiting else 0
        )
        rate = TokenRate.of(tenant)
        if rate is not None:
            now_ns = self._clock.now_ns()
            left = rate.tokens_left(standing.tat_ns, now_ns)
            reset_ns = max(0, standing.tat_ns - now_ns)
            headers += _limit_headers(TOKENS, rate.burst_tokens, left, reset_ns)
        return headers

    def _refusal(self, message: Generate, standing: Standing) -> Rejection | None:
        rejection = self._prompt_refusal(message, standing)
        if rejection is None:
            rejection = self._queue_refusal(message, standing)
        if rejection is None:
            rejection = self._rate_refusal(message, standing)
        return rejection

    def _prompt_refusal(self, message: Generate, standing: Standing) -> Rejection | None:
        """Refuse the paused, and prompts that are too long however well they encode."""
        tenancy, traffic_class = self._tenancy, message.traffic_class
        config = tenancy.classes.of(traffic_class)
        longest = standing.longest_token_bytes
        fewest = max(fewest_tokens(prompt, longest) for prompt in message.prompts)
        rejection = is_paused(tenancy, message.tenant, traffic_class)
        if rejection is None and fewest > self._limits.max_model_len:
            rejection = Rejection(
                RejectionReason.CONTEXT_LENGTH_EXCEEDED,
                0,
                "engine.max_model_len",
                fewest + (message.max_tokens or 0),
                self._limits.max_model_len,
            )
        if rejection is None and self._limits.has_tenant_limits and config.over_cap == "reject":
            rejection = prompt_cap(config, traffic_class, fewest)
        return rejection

    def _queue_refusal(self, message: Generate, standing: Standing) -> Rejection | None:
        """Refuse what the queue of the engine or of the tenant has no room for."""
        num_new = len(message.prompts) * message.n
        wait_ms = standing.oldest_wait_ns // NS_PER_MS
        retry_ms = min(MAX_RETRY_MS, max(MIN_RETRY_MS, wait_ms // QUEUE_SHARE_TO_DRAIN))
        limit = self._limits.max_queued_requests
        if standing.num_waiting + num_new > limit:
            return Rejection(
                RejectionReason.QUEUE_FULL_REQUESTS,
                retry_ms,
                "scheduler.max_queued_requests",
                standing.num_waiting + num_new,
                limit,
            )
        tenant = self._tenant(message.tenant)
        return queue_full_requests(tenant, standing.tenant_waiting, num_new, retry_ms)

    def _rate_refusal(self, message: Generate, standing: Standing) -> Rejection | None:
        """Refuse what costs more than the budget has left, all choices of all prompts together."""
        tenant = self._tenant(message.tenant)
        rate = TokenRate.of(tenant)
        if rate is None:
            return None
        longest = standing.longest_token_bytes
        prompt_tokens = sum(fewest_tokens(prompt, longest) for prompt in message.prompts)
        wanted = len(message.prompts) * (1 if message.max_tokens is None else message.max_tokens)
        num_tokens = message.n * (prompt_tokens + wanted)
        never = rate_never_fits(tenant, num_tokens)
        if never is not None:
            return never
        now_ns, returns = self._clock.now_ns(), self._returns.setdefault(tenant.name, ReturnLine())
        needed = 0 if is_postpaid(tenant) else num_tokens
        if rate.ready_ns(standing.tat_ns, needed, now_ns) <= now_ns:
            returns.leave(now_ns)
            return None
        left = rate.tokens_left(standing.tat_ns, now_ns)
        retry_ms = returns.join(rate, standing.tat_ns, num_tokens, now_ns)
        return rate_used_up(tenant, num_tokens, left, retry_ms)

    def _tenant(self, name: str) -> TenantConfig:
        return self._tenants.get(name) or TenantConfig(name=name)

    def _refresh(self) -> None:
        """Take over a new snapshot of the directory."""
        snapshot = self._read_directory()
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        self._tenancy = tenancy_of(snapshot)
        if self._limits.has_tenant_limits:
            self._tenants = {tenant.name: tenant for tenant in self._tenancy.tenants}
        self._returns = {n: line for n, line in self._returns.items() if n in self._tenants}


def fewest_tokens(prompt: Prompt, longest_token_bytes: int) -> int:
    """Return how many tokens a prompt has at the least; 0 bytes = that is not known yet.

    A chat template may trim what is said, and leave out what the assistant said.
    """
    if isinstance(prompt, IdsPrompt):
        return len(prompt.token_ids)
    if not longest_token_bytes:
        return 1
    if isinstance(prompt, ChatPrompt):
        spoken = [m.get("content") for m in prompt.messages if m.get("role") == "user"]
        num_bytes = sum(len(text.strip().encode()) for text in spoken if isinstance(text, str))
    else:
        num_bytes = len(prompt.text.encode())
    return max(1, -(-num_bytes // longest_token_bytes))


def _limit_headers(what: str, limit: int, remaining: int, reset_ns: int) -> list[Header]:
    return [
        (f"x-ratelimit-limit-{what}".encode(), str(limit).encode()),
        (f"x-ratelimit-remaining-{what}".encode(), str(remaining).encode()),
        (f"x-ratelimit-reset-{what}".encode(), duration_text(reset_ns).encode()),
    ]


def duration_text(duration_ns: int) -> str:
    """Return a duration as OpenAI's headers have it: 12ms, 1.5s, 6m0s; rounded up."""
    milliseconds = -(-duration_ns // NS_PER_MS)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, seconds = divmod(-(-duration_ns // NS_PER_S), 60)
    return f"{minutes}m{seconds}s"
