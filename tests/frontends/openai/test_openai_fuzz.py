"""No body makes the server fail: random bytes, and good requests with a few wrong fields."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontends.openai.schema import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tests.support.http.fake_engine import WAIT_S
from tests.support.http.http_rig import MODEL, running

SETTINGS = settings(max_examples=60, suppress_health_check=list(HealthCheck))
GOOD: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "/v1/chat/completions": (
        ChatCompletionRequest,
        {"model": MODEL, "messages": [{"role": "user", "content": "say hi"}]},
    ),
    "/v1/completions": (CompletionRequest, {"model": MODEL, "prompt": "say hi"}),
    "/tokenize": (TokenizeRequest, {"prompt": "hi"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [104, 105]}),
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.sampled_from([MODEL, "user", "text", "say x", "auto", "1", "flex"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
ALLOWED = {200, 400, 403, 404}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """Return a client of one server for all examples."""
    socket_path: Path = tmp_path_factory.mktemp("fuzz") / "engine.sock"
    with (
        running(socket_path) as rig,
        httpx2.Client(base_url=rig.url, timeout=WAIT_S, verify=False) as client,
    ):
        yield client


def mutated(path: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return good bodies of an endpoint with some fields replaced by anything."""
    kind, good = GOOD[path]
    names = st.sampled_from(sorted(kind.__struct_fields__))
    wrong = st.dictionaries(names, JSON, max_size=3)
    return wrong.map(lambda fields: good | fields)


def check(answer: httpx2.Response) -> None:
    """An answer is either good or an error in the one shape that clients know."""
    assert answer.status_code in ALLOWED, answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]


@pytest.mark.parametrize("path", GOOD)
@SETTINGS
@given(data=st.data())
def test_a_good_request_with_wrong_fields_is_answered(
    http: httpx2.Client, path: str, data: st.DataObject
) -> None:
    """Whatever stands in a field, the answer is 200 or a 4xx in the known shape."""
    check(http.post(path, json=data.draw(mutated(path))))


@pytest.mark.parametrize("path", GOOD)
@SETTINGS
@given(body=st.binary(max_size=64) | TEXTS.map(str.encode))
def test_bytes_of_any_kind_are_answered(http: httpx2.Client, path: str, body: bytes) -> None:
    """Bytes that are no JSON get a 400."""
    check(http.post(path, content=body))
