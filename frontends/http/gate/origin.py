"""Which Host and Origin headers are ours: the defence of a loopback port against web pages.

A page on the web can make a browser send requests to 127.0.0.1, under its own name (DNS rebinding)
or its own origin. Neither gets past here. Never knows routes or tenants.

The port in a Host header is not looked at: a browser sends that of the page's own address, which a
rebinding page has made ours anyway, and behind a forwarded port (ssh -L, a container's) it is one
that we cannot know. In an Origin it counts: a page of another port of this machine is not ours.
"""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

AUTHORITY = re.compile(r"(?:\[(?P<address>[^]]*)\]|(?P<name>[^:@]*))(?::\d*)?")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_HOST = "*"


class HostList:
    """The host names this server answers to."""

    def __init__(self, listen_host: str, allowed_hosts: Iterable[str]) -> None:
        self._configured = frozenset(name.lower() for name in allowed_hosts)
        self._names = LOOPBACK_NAMES | self._configured | {listen_host.lower()}
        self._is_wildcard = listen_host in ("0.0.0.0", "::")

    def allows_host(self, host: bytes | None) -> bool:
        """Tell whether a Host header names this server.

        A server that listens on every address answers to every literal address: rebinding needs a
        name.
        """
        name = host_name((host or b"").decode("latin-1"))
        if ANY_HOST in self._configured or name in self._names:
            return True
        return self._is_wildcard and is_address(name)

    def allows_origin(self, origin: bytes, host: bytes | None) -> bool:
        """Tell whether pages of `origin` may send requests: our own, and configured hosts."""
        if ANY_HOST in self._configured:
            return True
        try:
            authority = urlsplit(origin.decode("latin-1")).netloc.lower()
        except ValueError:
            return False
        if not authority:
            return False
        own = (host or b"").decode("latin-1").lower()
        return authority == own or host_name(authority) in self._configured


def host_name(authority: str) -> str:
    """Return `authority` in lower case without port and brackets; "" for anything else."""
    match = AUTHORITY.fullmatch(authority.strip().lower())
    return (match["address"] or match["name"] or "") if match is not None else ""


def is_address(name: str) -> bool:
    """Tell whether `name` is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
