"""No request makes a kernel be compiled: all variants have been launched before the first one.

How: Triton's interpreter compiles nothing, so each launch is written down by what would choose a
variant: the kernel, its constants, and of other arguments their types and by what they divide
(`triton.runtime.jit`: integers that are 1 or multiples of 16, addresses that are multiples of 16).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from core.executor.gpu.backend import TritonBackend
from core.executor.gpu.gpu_device import GpuDevice
from core.executor.gpu.warm_up import kinds_of_steps
from core.executor.local import LocalExecutor
from core.executor.protocol import ExecutorSettings
from core.executor.step_timing import StepShape
from core.kernels.triton import (
    attention_merge,
    block_copy,
    choice,
    gated_activation,
    logprobs,
    paged_attention,
    rms_norm,
    rope_kv_write,
)
from core.kernels.triton.work_units import NARROW_ROWS, SPLIT_KEYS
from core.models.decoder import Decoder
from core.scheduler.plan import CopyDirection, RecordArray
from tests.executor.test_executors import settings_for
from tests.support.executor.plan_driver import PlanDriver
from tests.support.kernels.triton_device import DEVICE
from tests.support.models.tiny_model import write_tiny_model

KERNELS = {
    "attention": paged_attention.attention_kernel,
    "merge": attention_merge.merge_kernel,
    "copy": block_copy.copy_blocks_kernel,
    "choose": choice.choose_kernel,
    "gated": gated_activation.gated_activation_kernel,
    "logprobs": logprobs.token_logprobs_kernel,
    "norm": rms_norm.rms_norm_kernel,
    "rope": rope_kv_write.rope_kv_write_kernel,
}
LAUNCH_OPTIONS = ("num_warps", "num_stages")
Variant = tuple[object, ...]


def kind_of(value: object, *, is_specialized: bool) -> object:
    """Return what of an argument chooses a variant."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int) and is_specialized:
        return "one" if value == 1 else value % 16 == 0
    return type(value)


def variant(name: str, kernel: Any, args: Sequence[object], kwargs: dict[str, object]) -> Variant:
    """Return what a launch needs compiled; constants are given by name, all else by place."""
    general = kernel.kwargs["do_not_specialize"] or ()
    kinds = [
        kind_of(value, is_specialized=parameter not in general)
        for parameter, value in zip(kernel.arg_names, args, strict=False)
    ]
    return name, *kinds, *sorted((key, value) for key, value in kwargs.items())


@pytest.fixture(scope="module")
def launched() -> Iterator[set[Variant]]:
    """All variants that were launched so far."""
    seen: set[Variant] = set()

    def watch(name: str, kernel: Any) -> None:
        kernel.add_pre_run_hook(
            lambda *args, **kwargs: seen.add(variant(name, kernel, args, kwargs))
        )

    for name, kernel in KERNELS.items():
        watch(name, kernel)
    yield seen
    for kernel in KERNELS.values():
        kernel.pre_run_hooks.clear()


class WatchedDevice(GpuDevice):
    """Notes what had been launched when its backend was ready."""

    def __init__(self, settings: ExecutorSettings, launched: set[Variant]) -> None:
        super().__init__(settings, torch.device(DEVICE), "interpreter")
        self._launched = launched
        self.warm: frozenset[Variant] = frozenset()

    def make_backend(
        self, model: Decoder, pool: Sequence[Tensor], rows: RecordArray
    ) -> TritonBackend:
        """Return the backend, warm."""
        backend = super().make_backend(model, pool, rows)
        self.warm = frozenset(self._launched)
        return backend


def serve_all_kinds(driver: PlanDriver) -> None:
    """Serve requests with every option, short and long, alone and together, swapped too."""
    options: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 7, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.1},
        {"num_logit_bias": 1, "logit_bias_ids": 9, "logit_bias_values": 2.5},
        *({"num_logprobs": count} for count in (0, 3, 15, 20)),
        *({"num_prompt_logprobs": count} for count in (0, 2, 15)),
    ]
    for start in range(0, len(options), 4):
        some = [driver.add(range(10, 33), 2, **each) for each in options[start : start + 4]]
        driver.finish(some, chunk_max=20)
        for each in some:
            driver.release(each)
    long = driver.add([5] * (SPLIT_KEYS + 5), 3)
    driver.step({long: SPLIT_KEYS})
    driver.step({long: 5})
    short = driver.add(range(10, 30), 3)
    driver.finish([long, short])
    driver.copy((CopyDirection.OUT, 3, 0), (CopyDirection.OUT, 5, 1), (CopyDirection.IN, 3, 0))


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_serving_launches_no_variant_that_the_warm_up_has_not(
    tmp_path: Path, launched: set[Variant]
) -> None:
    """Of copies the first are made while the model loads, by who times them."""
    torch.set_num_threads(1)
    model = write_tiny_model(
        tmp_path / "model", layers=1, heads=2, kv_heads=1, max_position=SPLIT_KEYS + 32
    )
    settings = settings_for(
        model,
        cache_directory=tmp_path,
        max_model_len=SPLIT_KEYS + 32,
        num_kv_blocks=128,
        swap_memory_bytes=2**16,
    )
    device = WatchedDevice(settings, launched)
    driver = PlanDriver(
        lambda rows, spans, clock: LocalExecutor(settings, rows, spans, clock, lambda _: device),
        block_size=8, num_rows=4, max_blocks=68,
    )  # fmt: skip
    warm = device.warm | {each for each in launched if each[0] == "copy"}
    assert {str(each[0]) for each in warm} == set(KERNELS)
    serve_all_kinds(driver)
    assert launched - warm == set()
    assert len([each for each in warm if each[0] == "attention"]) == 2
    assert len([each for each in warm if each[0] == "merge"]) == 2


@pytest.mark.parametrize("num_positions", [1, 3, 64, SPLIT_KEYS, SPLIT_KEYS + 1, 4096])
@pytest.mark.parametrize("group", [1, 3, 16, 32])
def test_the_steps_are_of_every_kind_and_within_the_context(group: int, num_positions: int) -> None:
    """A decode and more rows than a narrow tile has, in one part and in several if there may be."""
    kinds = kinds_of_steps(group, num_positions)
    ends = [shape.context + shape.num_tokens for shape in kinds]
    assert max(ends) <= num_positions
    assert min(shape.context for shape in kinds) >= 0
    assert kinds[0] == StepShape(1, 1, 0)
    if num_positions > NARROW_ROWS:
        assert kinds[1].num_tokens * group > NARROW_ROWS
    assert (max(ends) > SPLIT_KEYS) == (num_positions > SPLIT_KEYS)
    assert np.all(np.array([shape.num_sequences for shape in kinds]) == 1)
