"""Runs these tests where kernels can run: on a CUDA device, or by Triton's interpreter.

The interpreter must be chosen before triton is imported, so the suite leaves these tests out and
`tests/kernels/test_own_process.py` runs them in a process that has `TRITON_INTERPRET=1`.
"""

import torch

from tests.support.kernels.triton_device import IS_INTERPRETED

collect_ignore_glob = [] if IS_INTERPRETED or torch.cuda.is_available() else ["test_*.py"]
