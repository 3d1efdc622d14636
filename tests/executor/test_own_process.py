"""The tests that need Triton's interpreter, each file in a process of its own.

`TRITON_INTERPRET=1` must be set before triton is imported and changes every kernel of the process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(FOLDER.glob("test_*"))


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_file_passes_in_a_process_of_its_own(path: Path) -> None:
    """Every test of the file passes, and there are some."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
