"""From bytes to a checked request: one reading of JSON faults for all endpoints.

Owns: the wording and the JSON path of what is wrong with a body, the refusal of fields that are not
built, and one log line for each unknown field name. Never knows: what the fields mean.
"""

import logging
import re
from typing import TypeVar

import msgspec

from frontends.http.errors import ApiError, bad_request, unsupported_parameter
from frontends.openai.schema import UNSUPPORTED, Unread

logger = logging.getLogger("headrace.http")

RequestT = TypeVar("RequestT", bound=msgspec.Struct)

MAX_SCANNED_BYTES = 65_536
MAX_WARNED_FIELDS = 256
MAX_SHOWN_CHARACTERS = 64
MAX_PLAIN_VALUE_BYTES = 64
MAX_SMALL_FIELD_BYTES = 65_536

_AT_PATH = re.compile(r"^(?P<fault>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


class SmallFields(msgspec.Struct):
    """Fields that hold a list or a map but are never large, unread."""

    stop: Unread = msgspec.UNSET
    stop_token_ids: Unread = msgspec.UNSET
    logit_bias: Unread = msgspec.UNSET
    stream_options: Unread = msgspec.UNSET


SMALL_FIELDS = msgspec.json.Decoder(SmallFields)


def decode_json(decoder: msgspec.json.Decoder[RequestT], body: bytes) -> RequestT:
    """Return the request in `body`; raises the 400 that says what is wrong with it and where."""
    if not body:
        raise bad_request("The request body is empty: send a JSON object.")
    try:
        if len(body) > MAX_SCANNED_BYTES:
            _check_small_fields(SMALL_FIELDS.decode(body))
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise field_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _not_json(error) from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.") from None


def _check_small_fields(fields: SmallFields) -> None:
    """Refuse a field by its size in bytes.

    A list is built before its length is looked at: megabytes of `["a","a",…` would become fifteen
    times as much memory first.
    """
    for name in fields.__struct_fields__:
        raw = getattr(fields, name)
        if raw is not msgspec.UNSET and len(bytes(raw)) > MAX_SMALL_FIELD_BYTES:
            raise bad_request(f"The parameter '{name}' is too large.", name)


def _not_json(error: Exception) -> ApiError:
    return bad_request(f"The request body is not valid JSON: {error}.")


def field_error(fault: str, parent: str = "") -> ApiError:
    """Return the 400 for a field of a wrong type or value, from msgspec's description."""
    match = _AT_PATH.match(fault)
    assert match is not None, fault
    text, path = match["fault"], (match["path"] or "").removesuffix("[...]")  # of any key
    missing = _MISSING.search(text)
    if missing is not None:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return bad_request(f"The parameter '{path}' is missing.", path)
    if parent:
        path = parent + (path if path.startswith("[") or not path else f".{path}")
    if not path:
        return bad_request(f"The request body is not acceptable: {text}.")
    return bad_request(f"The parameter '{path}' is not acceptable: {text}.", path)


def refuse_unsupported(request: msgspec.Struct, parent: str = "") -> None:
    """Raise the 400 for a field that is not built, unless its value asks for nothing."""
    for name in UNSUPPORTED:
        raw = getattr(request, name, msgspec.UNSET)
        if raw is not msgspec.UNSET and not _asks_for_nothing(bytes(raw), UNSUPPORTED[name]):
            raise unsupported_parameter(f"{parent}{name}")


def _asks_for_nothing(raw: bytes, accepted: tuple[object, ...]) -> bool:
    if len(raw) > MAX_PLAIN_VALUE_BYTES:
        return False
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return value is None or value in accepted


class FieldWarner:
    """Logs a warning for each unknown field name once, and for so many names at the most."""

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def look(self, request: msgspec.Struct, body: bytes) -> None:
        """Look for unknown fields in an accepted body; large ones are not scanned again.

        Raises the 400 for a name that is no UTF-8.
        """
        if len(body) > MAX_SCANNED_BYTES:
            return
        try:
            names = self._decoder.decode(body).keys()
        except (msgspec.DecodeError, UnicodeError) as error:  # in what the request's type skips
            raise _not_json(error) from None
        for name in names - set(request.__struct_fields__) - self._warned:
            if len(self._warned) >= MAX_WARNED_FIELDS:
                return
            self._warned.add(name)
            logger.warning("unknown request field %.*r is ignored", MAX_SHOWN_CHARACTERS, name)
