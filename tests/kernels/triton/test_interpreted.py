"""The Triton kernels by Triton's interpreter, in a process of its own.

`TRITON_INTERPRET=1` must be set before triton is imported and changes every kernel of the process;
here the rest of the suite does not notice. The tests are those of the folder `interpreted`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("test_*.py")), ids=lambda path: path.stem)
def test_interpreted_kernels_equal_their_references(path: Path) -> None:
    """Every test of the file passes in a process that interprets its kernels."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 10
