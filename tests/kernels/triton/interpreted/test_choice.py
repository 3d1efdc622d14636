"""Choosing tokens against the rules of the CPU: the same draws from the same random numbers."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from core.executor.philox import uniforms
from core.kernels.choice import DrawRules, TorchChoice
from core.kernels.triton.choice import DrawTensors, choose
from tests.support.kernels.triton_device import DEVICE

WIDTHS = pytest.mark.parametrize("width", [1, 100, 1024, 2500])


@dataclass(frozen=True)
class Settings:
    """How a row is drawn."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


SETTINGS = (
    Settings(),
    Settings(temperature=0.3),
    Settings(top_k=1),
    Settings(top_k=7),
    Settings(top_p=0.5),
    Settings(top_p=1e-6),
    Settings(min_p=0.2),
    Settings(1.7, 40, 0.9, 0.01),
    Settings(0.7, 10**6, 0.999, 0.0),
)


def random_logits(rows: int, width: int, seed: int) -> Tensor:
    """Logits as a model makes them, a few forbidden and some equal ones among them."""
    logits = 3 * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    logits = torch.where(logits.abs() < 1, (8 * logits).round() / 8, logits)
    logits[:, 1::9] = -math.inf
    return logits


def draws(
    logits: Tensor, settings: list[Settings], seed: int
) -> tuple[list[int], list[int], list[int]]:
    """Return (what the kernel chose, what the reference chose, the kernel's finite flags)."""
    n = len(settings)
    generator = np.random.default_rng(seed)
    seeds = generator.integers(0, 2**64, n, dtype=np.uint64)
    choices = generator.integers(0, 4, n, dtype=np.int32)
    indices = generator.integers(0, 1000, n, dtype=np.int32)
    rules = DrawRules(
        temperature=np.array([each.temperature for each in settings], dtype=np.float32),
        top_k=np.array([each.top_k for each in settings], dtype=np.int32),
        top_p=np.array([each.top_p for each in settings], dtype=np.float32),
        min_p=np.array([each.min_p for each in settings], dtype=np.float32),
        uniform=uniforms(seeds, choices, indices),
    )
    arrays = (
        rules.temperature, rules.top_k, rules.top_p, rules.floor,
        seeds.view(np.int64), choices, indices,
    )  # fmt: skip
    tensors = DrawTensors(*(torch.from_numpy(array).to(DEVICE) for array in arrays))
    wide = torch.nn.functional.pad(logits, (0, 3), value=math.nan).to(DEVICE)
    token_ids, finite = choose(wide[:, : logits.shape[1]], tensors)
    expected = TorchChoice().draw(logits, rules)
    return token_ids.tolist(), expected.tolist(), finite.tolist()


@WIDTHS
@pytest.mark.parametrize("seed", range(2))
def test_a_draw_equals_the_reference(width: int, seed: int) -> None:
    """Every rule and all together, with equal and forbidden logits, in rows of odd widths."""
    logits = random_logits(len(SETTINGS), width, seed)
    got, expected, finite = draws(logits, list(SETTINGS), seed)
    assert got == expected, f"seed {seed}"
    assert finite == [1] * len(SETTINGS)


@WIDTHS
def test_a_greedy_row_takes_the_first_of_the_best(width: int) -> None:
    """Temperature 0 is the best logit, of equal ones the smallest id, whatever the filters say."""
    logits = random_logits(3, width, seed=5)
    logits[1, width // 2 :] = logits[1].max() + 1
    logits[2] = 0.0
    got, _, _ = draws(logits[:1].expand(2, -1), [Settings(0.0), Settings(0.0, 3, 0.1)], seed=0)
    assert got == [int(logits[0].argmax())] * 2
    got, _, _ = draws(logits[1:], [Settings(0.0)] * 2, seed=0)
    assert got == [width // 2, 0]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_told(poison: float) -> None:
    """One bad logit is enough, wherever it stands; the row beside it is drawn."""
    logits = random_logits(2, 1500, seed=6)
    logits[0, 1400] = poison
    got, expected, finite = draws(logits, [Settings(), Settings(0.5, 5)], seed=1)
    assert finite == [0, 1]
    assert got[1] == expected[1]
    assert 0 <= got[0] < 1500


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    """Over many output indices of one seed each kept token comes as often as it should."""
    n = 240
    logits = torch.tensor([[0.0, math.log(2.0), -math.inf, math.log(3.0), -9.0]])
    got, _, _ = draws(logits.expand(n, -1).contiguous(), [Settings(min_p=0.01)] * n, seed=2)
    counts = np.bincount(got, minlength=5)
    expected = np.array([1, 2, 0, 3, 0]) * n / 6
    assert counts[2] == counts[4] == 0
    assert (np.abs(counts - expected) <= 4 * np.sqrt(expected + 1e-9)).all()
