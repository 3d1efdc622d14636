"""Who has taken over what was changed, as the heartbeat lines say."""

import logging

import pytest

from core.clock import NS_PER_S
from frontends.admin.commands.taken_over import at_other_level, behind, progress, silence_s
from tests.support.control_plane.boards import NOW_NS, beat, healthy


def test_who_is_behind_is_who_reads_the_directory_and_serves() -> None:
    """A process that only starts reads the newest version before it serves anybody."""
    beats = {
        "scheduler": beat(directory_version=3),
        "tokenizer.0": beat(directory_version=2),
        "http.0": beat(epoch=0, directory_version=0),
        "executor.0.0": beat(directory_version=0),
    }
    assert behind(healthy(beats=beats), 3) == ["tokenizer.0"]
    assert behind(healthy(beats=beats), 2) == []


def test_every_process_that_logs_has_a_level() -> None:
    """The janitor logs nothing; one that only starts takes the level over before it serves."""
    boards = healthy(
        beats={
            "supervisor": beat(log_level=logging.DEBUG),
            "janitor": beat(),
            "scheduler": beat(log_level=logging.INFO),
            "http.0": beat(epoch=0),
            **{child: beat(log_level=logging.DEBUG) for child in OTHERS},
        }
    )
    assert at_other_level(boards, logging.DEBUG) == ["scheduler"]
    assert progress(boards, {"log_level": "DEBUG"}) == (
        {"in_force": False, "waiting_for": ["scheduler"]},
        False,
    )


OTHERS = [child for child in healthy().heartbeats if child not in ("scheduler", "http.0")]


@pytest.mark.parametrize(
    ("on_disk", "kept", "is_done"), [(0, False, True), (1, False, False), (2, True, True)]
)
def test_a_change_is_waited_for_until_it_is_on_disk(
    on_disk: int, kept: bool, is_done: bool
) -> None:
    """Unless nothing was ever kept: then nothing will be."""
    readers = {child: beat(directory_version=2) for child in ("scheduler", "tokenizer.0", "http.0")}
    boards = healthy(beats={**readers, "admin.0": beat(directory_version=on_disk)})
    answer, done = progress(boards, {"version": 2})
    assert (answer["in_force"], answer["kept"], done) == (True, kept, is_done)


def test_silence_counts_from_the_last_stamp() -> None:
    """Of a process that has never stamped nobody knows it."""
    boards = healthy(beats={"scheduler": beat(stamp_ns=NOW_NS - 3 * NS_PER_S)})
    assert silence_s(boards, "scheduler") == 3.0
    assert silence_s(boards, "executor.7.0") == 0.0
