"""Runs these tests in a process that was made for them; see `tests/kernels/test_own_process.py`."""

import os

collect_ignore_glob = [] if os.environ.get("HEADRACE_TEST_TRITON") else ["test_*.py"]
