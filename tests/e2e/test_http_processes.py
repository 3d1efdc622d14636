"""Several http processes behind one listening socket.

How: stop all but one by SIGSTOP; whoever connects then is served by the one that is left.
"""

from pathlib import Path

import pytest

from tests.e2e.conftest import SIMULATED
from tests.support.processes.engine import running_engine

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TWO_PROCESSES = (*SIMULATED, "http.processes=2", "supervision.hang_timeout_ms=60000")
TOKENS = 5


def test_each_http_process_serves_alone(tmp_path: Path, tiny_model: Path) -> None:
    """Both take connections from the socket that the supervisor has bound, and stream whole
    answers while the other one is stopped.
    """
    with running_engine(tmp_path, tiny_model, TWO_PROCESSES) as engine:
        for other in ("http.1", "http.0"):
            with engine.stopped(other):
                body = {"prompt": [5, 6, 7], "max_tokens": TOKENS, "return_token_ids": True}
                events = list(engine.client().stream("/v1/completions", body))
                token_ids = [
                    token_id
                    for event in events
                    for choice in event["choices"]
                    for token_id in choice["token_ids"]
                ]
                assert len(token_ids) == TOKENS, (other, events)
