"""Where Triton kernels run in tests: on a CUDA device, or by Triton's interpreter on the CPU.

Asking imports no triton: a process in which it is loaded may complain of leaks when it ends.
"""

import os

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
