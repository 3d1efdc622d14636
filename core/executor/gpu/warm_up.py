"""The first steps of a device: every kernel that a request may need is compiled before one comes.

Owns: which steps and scores use all variants of the kernels. Never knows: requests. Triton compiles
a kernel when it is first launched, for seconds, and anew for each of its constants and for integers
and addresses that divide otherwise. Of those, steps choose two only: tiles are narrow (a decode) or
wide (a chunk of a prompt), and contexts beyond `SPLIT_KEYS` are cut into parts, which are merged.
How tokens are drawn, and how many log-probabilities are wanted, chooses none.
"""

import numpy as np
import torch

from core.executor.gpu.backend import TritonBackend
from core.executor.step_timing import StepShape, run_step
from core.kernels.triton.work_units import NARROW_ROWS, SPLIT_KEYS


def warm_up(backend: TritonBackend) -> None:
    """Run each kind of step, and a score, on the first row and blocks, which nobody holds yet."""
    model = backend.model
    for shape in kinds_of_steps(model.attention_shape.group, model.num_positions):
        run_step(backend, shape, np.zeros(shape.num_tokens, np.int32))
    token = torch.zeros(1, dtype=torch.int32, device=model.weights.norm.device)
    states = model.weights.embedding.embed(token)
    backend.score(states, np.zeros(1, np.int32), np.ones(1, np.int32)).get()


def kinds_of_steps(group: int, num_positions: int) -> list[StepShape]:
    """Return a step of each kind, for `group` query heads a KV head and contexts this long."""
    chunk = min(NARROW_ROWS // group + 1, num_positions)
    return [
        StepShape(1, num_tokens, min(context, num_positions - num_tokens))
        for context in (0, SPLIT_KEYS)
        for num_tokens in (1, chunk)
    ]
