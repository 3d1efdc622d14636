"""What an engine knew of this machine is a machine; anything else is one line."""

import json
from pathlib import Path

import pytest

from core.simulation.this_machine import FILE_NAME, UnknownMachineError, read_this_machine

RECORD = {
    "basis": [1e6, 0.0, 0.0, 0.0, 0.0], "sigma": 0.1,
    "overhead_us": 1.0, "num_kv_blocks": 2, "block_size": 16,
}  # fmt: skip


def test_an_unknown_machine_says_how_it_becomes_known(tmp_path: Path) -> None:
    """Both commands are named."""
    with pytest.raises(UnknownMachineError, match=r"headrace serve.*record-trace FILE"):
        read_this_machine(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"basis": [0.0] * 5}, {"basis": [1.0] * 4}, {"sigma": -1.0}, {"sigma": None},
        {"overhead_us": float("nan")}, {"block_size": "x"},
    ],
)  # fmt: skip
def test_a_record_that_makes_no_sense_is_one_error(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """The file is named."""
    (tmp_path / FILE_NAME).write_text(json.dumps(RECORD | change))
    with pytest.raises(UnknownMachineError, match=FILE_NAME):
        read_this_machine(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "\x00"])
def test_a_file_that_is_no_record_is_one_error(tmp_path: Path, text: str) -> None:
    """Cut off, empty, or of something else."""
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(UnknownMachineError, match=FILE_NAME):
        read_this_machine(tmp_path)
