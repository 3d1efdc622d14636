"""What counts as an answer to a command, and of which kind."""

import pytest

from ipc.control.declaration import ReplyCode
from ipc.control.registry import COMMANDS
from ipc.messages import ControlReply
from scripts.bench.benchmarks.admin import commands, first_request, kind_of


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (ControlReply(1, {"stale": False}), "ok"),
        (ControlReply(1, {"stale": True}), "stale"),
        (ControlReply(1, {"version": 3, "in_force": True}), "ok"),
        (ControlReply(1, {"version": 3, "in_force": False}), "late"),
        (ControlReply(1, error="no", code=ReplyCode.NOT_CONFIRMED), "not_confirmed"),
    ],
)
def test_an_answer_has_a_kind(reply: ControlReply, kind: str) -> None:
    """Whoever reads the figures sees whether commands were carried out."""
    assert kind_of(reply) == kind


def test_ten_commands_that_exist_are_given() -> None:
    """With arguments that fit, and a change that is one in every round."""
    first, second = commands(0, "7"), commands(1, "7")
    assert len(first) == 10
    for command, args in first:
        COMMANDS[command].check(args)
    changed = [a[0] for a, b in zip(first, second, strict=True) if a != b]
    assert changed == ["set"]


def test_a_live_request_is_shown() -> None:
    """The first that is listed, or none."""
    assert first_request(ControlReply(1, {"requests": [{"request_id": 9}]})) == "9"
    assert first_request(ControlReply(1, {"requests": []})) == "0"
