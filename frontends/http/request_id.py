"""The id that a client and an operator can name a request by."""

import re
import secrets

MAX_REQUEST_ID_CHARACTERS = 128
_SAFE = re.compile(rb"[A-Za-z0-9._:/@+=-]{1,%d}" % MAX_REQUEST_ID_CHARACTERS)


def new_request_id() -> str:
    """Return a fresh id."""
    return f"req-{secrets.token_hex(16)}"


def request_id_for(given: bytes | None) -> str:
    """Return the client's own id if it is short and made of safe characters, else a fresh one."""
    if given is not None and _SAFE.fullmatch(given):
        return given.decode("ascii")
    return new_request_id()
