"""The tests of Triton kernels, each file in a process of its own.

`TRITON_INTERPRET=1` must be set before triton is imported and changes every kernel of the process,
and a process that has compiled kernels complains of leaks when it ends. Here the rest of the suite
notices neither. The tests are those of the folders `interpreted` and `compiled`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENTS = {"interpreted": {"TRITON_INTERPRET": "1"}, "compiled": {"HEADRACE_TEST_TRITON": "1"}}
FILES = [
    (folder, path) for folder in ENVIRONMENTS for path in sorted((FOLDER / folder).glob("test_*"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "path"), FILES, ids=[path.stem for _, path in FILES])
def test_a_file_passes_in_a_process_of_its_own(folder: str, path: Path) -> None:
    """Every test of the file passes, and there are ten or more."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        cwd=ROOT, env=os.environ | ENVIRONMENTS[folder],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 10
