"""The section `tracing` of the configuration: where traces of requests are sent.

Owns: its keys and what they may be. Never knows: what is in a trace, or who sends it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from core.settings.checks import in_range


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    """Traces of requests, for which the extra `otel` must be installed."""

    endpoint: str = ""
    """Where traces go by OTLP over HTTP, e.g. http://127.0.0.1:4318/v1/traces; empty = nowhere."""
    sample_ratio: float = 1.0
    """Share of requests that are traced, of those whose client does not say; 0 to 1."""

    def faults(self) -> Iterator[str]:
        """Yield one line for each key that cannot be accepted."""
        yield from in_range("tracing.sample_ratio", self.sample_ratio, 0.0, 1.0)
        if self.endpoint and not _is_http_url(self.endpoint):
            yield f"tracing.endpoint = {self.endpoint!r} is no URL that begins with http(s)://HOST"


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
