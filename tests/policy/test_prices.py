"""The arithmetic of charges, and when prices change."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.clock import NS_PER_S
from core.config.scheduling import PolicyConfig
from core.policy.cost_model import CostBasis, StepWork
from core.policy.fairness.prices import TOKEN_PRICES, PriceBook, Prices, modelled_prices

BASIS = CostBasis(2e6, 5000.0, 0.25, 0.5, 1000.0)
TUNING = PolicyConfig(price_epoch_s=60)


@given(
    pieces=st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    context=st.integers(0, 100_000),
    token=st.floats(1, 1e7),
    pair=st.floats(0, 1e3),
)
def test_a_prompt_costs_the_same_in_whatever_pieces(
    pieces: list[int], context: int, token: float, pair: float
) -> None:
    """The charges of chunks add up to that of the whole, to the unit."""
    prices, total, at = Prices(token, pair, 1.0, 0.0), 0, context
    for piece in pieces:
        total += prices.prefill(piece, at)
        at += piece
    assert total == prices.prefill(sum(pieces), context)


def test_tokens_cost_one_and_two_thousand() -> None:
    """By tokens an input counts 1 and an output 2, in thousandths, at any context."""
    assert TOKEN_PRICES.prefill(7, 1000) == 7000
    assert TOKEN_PRICES.decodes(np.array([0, 500], np.int32)).tolist() == [2000, 2000]


def test_a_typical_step_is_charged_what_it_takes() -> None:
    """By time, the charges of a typical step add up to its duration: fixed time is shared out."""
    prices = modelled_prices(BASIS)
    decodes = prices.decodes(np.full(32, 1024, np.int32))
    charged = prices.prefill(256, 0) + int(decodes.sum())
    work = StepWork().with_prefill(256, 0)._replace(
        num_decodes=32, decode_context=32 * 1024, num_outputs=32
    )  # fmt: skip
    assert abs(charged - BASIS.duration_ns(work)) < 0.01 * charged


def test_later_tokens_of_a_prompt_cost_more_time() -> None:
    """Attention to a long context is part of the price."""
    prices = modelled_prices(BASIS)
    assert prices.prefill(64, 4096) > prices.prefill(64, 0)


def test_prices_hold_for_an_epoch() -> None:
    """A model that moves changes prices when the epoch is over, not before, and counts it."""
    book = PriceBook(TUNING, BASIS)
    faster = BASIS._replace(token_ns=1000.0)
    before = book.prices
    assert not book.follow(BASIS, 1)
    assert not book.follow(faster, 60 * NS_PER_S)
    assert book.prices == before
    assert book.follow(faster, 60 * NS_PER_S + 1)
    assert book.prices == modelled_prices(faster)
    assert book.epoch == 2


def test_an_epoch_without_a_change_is_none() -> None:
    """The number of the epoch tells that prices have changed."""
    book = PriceBook(TUNING, BASIS)
    for second in (1, 100, 200):
        assert not book.follow(BASIS, second * NS_PER_S)
    assert book.epoch == 1


def test_the_first_model_rules_at_once() -> None:
    """Until a replica is calibrated tokens are charged, then time."""
    book = PriceBook(TUNING, None)
    assert book.prices is TOKEN_PRICES
    assert not book.is_time
    assert book.follow(BASIS, 5)
    assert book.is_time


def test_tokens_are_charged_if_so_configured() -> None:
    """With charge = "tokens" a model changes nothing."""
    book = PriceBook(PolicyConfig(charge="tokens"), BASIS)
    assert not book.follow(BASIS._replace(token_ns=1.0), 10**12)
    assert book.prices is TOKEN_PRICES
