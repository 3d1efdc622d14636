"""The tests that need a process of their own, each file in one.

`TRITON_INTERPRET=1` must be set before triton is imported and changes every kernel of the process,
and a process that has compiled kernels complains of leaks when it ends. Here the rest of the suite
notices neither.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INTERPRETED = {"TRITON_INTERPRET": "1"}
ENVIRONMENTS = {
    "tests/executor/interpreted": INTERPRETED,
    "tests/kernels/triton/interpreted": INTERPRETED,
    "tests/kernels/triton/compiled": {"HEADRACE_TEST_TRITON": "1"},
}
FILES = [
    (path, environment)
    for folder, environment in ENVIRONMENTS.items()
    for path in sorted((ROOT / folder).glob("test_*.py"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "environment"), FILES, ids=[path.stem for path, _ in FILES])
def test_a_file_passes_in_a_process_of_its_own(path: Path, environment: dict[str, str]) -> None:
    """Every test of the file passes, and none that it defines is left out."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        cwd=ROOT, env=os.environ | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= len(re.findall(r"^def test_", path.read_text(), re.MULTILINE)) > 0
