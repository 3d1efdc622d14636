"""Choosing from logits: the C++ kernel against the plain-torch reference."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from core.kernels.choice import Choice, DrawRules, NativeChoice, TorchChoice
from tests.support.kernels.native_kernels import native_library


@pytest.fixture(params=["native", "torch"])
def choice(request: pytest.FixtureRequest) -> Choice:
    """Both implementations."""
    return NativeChoice(native_library()) if request.param == "native" else TorchChoice()


def random_logits(rows: int, width: int, spread: float = 3.0) -> Tensor:
    """Logits that spread over some nats."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(width)) * spread


def make_rules(
    rows: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> DrawRules:
    """The same rules for all rows, with uniforms spread over [0, 1)."""
    return DrawRules(
        temperature=np.full(rows, temperature, dtype=np.float32),
        top_k=np.full(rows, top_k, dtype=np.int32),
        top_p=np.full(rows, top_p, dtype=np.float32),
        min_p=np.full(rows, min_p, dtype=np.float32),
        uniform=(np.arange(rows) + 0.5) / rows,
    )


@pytest.mark.parametrize("width", [1, 15, 16, 17, 301])
def test_argmax_finds_the_best_anywhere(choice: Choice, width: int) -> None:
    """The largest logit is found wherever it stands, also in the odd tail."""
    logits = random_logits(40, width)
    values, indices = choice.argmax(logits)
    assert values.tolist() == logits.max(dim=1).values.tolist()
    assert indices.tolist() == logits.max(dim=1).indices.tolist()


def test_argmax_takes_the_first_of_equals(choice: Choice) -> None:
    """Ties go to the smallest id."""
    logits = torch.zeros(2, 50)
    logits[1, 20] = logits[1, 49] = 3.0
    assert choice.argmax(logits)[1].tolist() == [0, 20]


@pytest.mark.parametrize("place", [0, 17, 49])
def test_argmax_reports_nan(choice: Choice, place: int) -> None:
    """A NaN anywhere in a row becomes the row's value."""
    logits = torch.full((2, 50), 5.0)
    logits[0, place] = math.nan
    assert np.isnan(choice.argmax(logits)[0]).tolist() == [True, False]


@pytest.mark.parametrize("width", [1, 17, 256, 1000, 5003])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 7},
        {"top_k": 10_000},
        {"top_p": 0.9},
        {"top_p": 1e-6},
        {"min_p": 0.02},
        {"top_k": 30, "top_p": 0.7, "min_p": 0.01, "temperature": 1.7},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.01, 3.0], ids=["flat", "peaked"])
def test_native_draws_as_the_reference(width: int, limits: dict[str, float], spread: float) -> None:
    """For every filter, flat and peaked rows of odd widths give the reference's tokens.

    Both sum rounded weights, in another order, so a uniform that falls on a border may move by one
    token: at most one of two hundred may.
    """
    logits = random_logits(200, width, spread)
    rules = make_rules(200, **limits)  # type: ignore[arg-type]
    got = NativeChoice(native_library()).draw(logits, rules)
    expected = TorchChoice().draw(logits, rules)
    assert (got != expected).sum() <= 1


def test_every_kept_token_is_drawn_by_its_share(choice: Choice) -> None:
    """Uniforms spread evenly give each token its share, and filtered tokens nothing."""
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(1000, 4).contiguous()
    tokens = choice.draw(logits, make_rules(1000, top_p=0.9))
    shares = np.bincount(tokens, minlength=4) / 1000
    np.testing.assert_allclose(shares, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], atol=2e-3)


def test_the_ends_of_the_unit_interval_draw_kept_tokens(choice: Choice) -> None:
    """The smallest and the largest uniform draw the first and the last token that is kept."""
    logits = torch.tensor([[-50.0, 1.0, 2.0, 1.5, -50.0]]).expand(2, 5).contiguous()
    rules = make_rules(2, min_p=0.1)
    rules.uniform[:] = [0.0, 1 - 2**-53]
    assert choice.draw(logits, rules).tolist() == [1, 3]


def test_masked_tokens_are_never_drawn(choice: Choice) -> None:
    """Minus infinity is probability zero, whatever the uniform and the temperature."""
    logits = torch.zeros(100, 40)
    logits[:, ::2] = -math.inf
    tokens = choice.draw(logits, make_rules(100, temperature=2.0, top_p=0.99))
    assert (tokens % 2 == 1).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_harms_no_other(choice: Choice, value: float) -> None:
    """A bad row gets some id inside the vocabulary, the others their own."""
    logits = random_logits(3, 100)
    rules = make_rules(3, top_p=0.9, top_k=20)
    expected = choice.draw(logits, rules)
    logits[1, 5] = value
    tokens = choice.draw(logits, rules)
    assert tokens[[0, 2]].tolist() == expected[[0, 2]].tolist()
    assert 0 <= tokens[1] < 100


def test_a_row_is_the_same_alone_and_among_others(choice: Choice) -> None:
    """A draw does not depend on the other rows."""
    logits = random_logits(50, 3000)
    rules = make_rules(50, top_p=0.8)
    together = choice.draw(logits, rules)
    for row in (0, 17, 49):
        alone = make_rules(1, top_p=0.8)
        alone.uniform[0] = rules.uniform[row]
        assert choice.draw(logits[row : row + 1], alone)[0] == together[row]
