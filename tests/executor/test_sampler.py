"""The sampler against a naive one that follows the written rules row by row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.executor.philox import uniforms
from core.executor.sampler import Sampled, sample
from core.executor.sampling_batch import SamplingBatch, TokenTriples
from core.kernels.choice import NativeChoice, TorchChoice
from tests.support.kernels.native_kernels import native_library

VOCAB_SIZE = 40


@dataclass(frozen=True, slots=True)
class Row:
    """Parameters of one row, with the tokens before it."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    choice: int = 0
    num_logprobs: int = -1
    bias: dict[int, float] = field(default_factory=dict)
    forbidden: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()

    @property
    def penalized(self) -> bool:
        """Whether any penalty is set."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


def make_batch(rows: Sequence[Row]) -> SamplingBatch:
    """The rows as the sampler sees them."""

    def column(name: str, dtype: type) -> Any:
        return np.array([getattr(row, name) for row in rows], dtype=dtype)

    def triples(items: list[tuple[int, int, float]]) -> TokenTriples:
        index, token_id, value = zip(*items, strict=True) if items else ((), (), ())
        return TokenTriples(
            np.array(index, dtype=np.intp),
            np.array(token_id, dtype=np.int32),
            np.array(value, dtype=np.float32),
        )

    numbered = list(enumerate(rows))
    history = [(i, t, 0.0) for i, row in numbered if row.penalized for t in row.prompt]
    history += [(i, t, 1.0) for i, row in numbered if row.penalized for t in row.output]
    return SamplingBatch(
        output_index=np.array([len(row.output) for row in rows], dtype=np.int32),
        seed=column("seed", np.uint64),
        choice=column("choice", np.int32),
        temperature=column("temperature", np.float32),
        top_k=column("top_k", np.int32),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        repetition_penalty=column("repetition_penalty", np.float32),
        presence_penalty=column("presence_penalty", np.float32),
        frequency_penalty=column("frequency_penalty", np.float32),
        num_logprobs=column("num_logprobs", np.int32),
        bias=triples([(i, t, v) for i, row in numbered for t, v in row.bias.items()]),
        forbidden=triples([(i, t, -math.inf) for i, row in numbered for t in row.forbidden]),
        history=triples(history),
    )


def run(logits: Tensor, rows: Sequence[Row]) -> Sampled:
    """Sample all rows at once; the plain and the C++ choice must agree."""
    batch = make_batch(rows)
    sampled = sample(logits, batch, NativeChoice(native_library()))
    plain = sample(logits, batch, TorchChoice())
    assert sampled.token_id[plain.finite].tolist() == plain.token_id[plain.finite].tolist()
    assert sampled.finite.tolist() == plain.finite.tolist()
    return sampled


def naive_token(logits: Tensor, row: Row) -> int:
    """The rules of the module's docstring for one row, in float64."""
    values = logits.double().numpy().copy()
    for token, bias in row.bias.items():
        values[token] += bias
    values[list(row.forbidden)] = -math.inf
    for token in {*row.prompt, *row.output}:
        factor = row.repetition_penalty
        values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
        count = row.output.count(token)
        values[token] -= row.frequency_penalty * count + row.presence_penalty * (count > 0)
    if row.temperature == 0:
        return int(values.argmax())
    values = (values - values.max()) / row.temperature
    if row.min_p > 0:
        values[values < math.log(row.min_p)] = -math.inf
    if row.top_k > 0:
        values[values < np.sort(values)[::-1][min(row.top_k, len(values)) - 1]] = -math.inf
    if row.top_p < 1:
        best = np.sort(values)[::-1]
        shares = np.exp(best).cumsum() / np.exp(best).sum()
        values[values < best[min(int((shares < row.top_p).sum()), len(best) - 1)]] = -math.inf
    cumulative = np.exp(values).cumsum()
    index = len(row.output)
    seed, choice = np.array([row.seed], dtype=np.uint64), np.array([row.choice], dtype=np.int32)
    uniform = uniforms(seed, choice, np.array([index], dtype=np.int32))[0]
    return int((cumulative <= uniform * cumulative[-1]).sum())


def random_logits(rows: int, seed: int = 0, width: int = VOCAB_SIZE) -> Tensor:
    """Logits that spread over some nats."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


token_ids = st.integers(0, VOCAB_SIZE - 1)
random_rows = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 5, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.3, 0.001]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, -0.2]),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 127),
    bias=st.dictionaries(token_ids, st.sampled_from([-100.0, -1.0, 2.0, 100.0]), max_size=3),
    forbidden=st.sets(token_ids, max_size=3).map(tuple),
    prompt=st.lists(token_ids, max_size=6).map(tuple),
    output=st.lists(token_ids, max_size=6).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(random_rows, min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_every_row_follows_the_rules_whatever_its_neighbours(rows: list[Row], seed: int) -> None:
    """Any mix of parameters gives each row the token that the naive sampler gives it alone."""
    logits = random_logits(len(rows), seed)
    expected = [naive_token(logits[index], row) for index, row in enumerate(rows)]
    assert run(logits, rows).token_id.tolist() == expected


def test_logits_are_left_unchanged() -> None:
    """Sampling does not write into the logits."""
    logits = random_logits(2)
    before = logits.clone()
    run(logits, [Row(temperature=1.0, bias={3: 5.0}), Row(temperature=0.5, top_k=2)])
    assert torch.equal(logits, before)


def test_the_order_of_rows_does_not_matter() -> None:
    """A permuted batch gives the permuted tokens and log-probabilities, bit by bit."""
    rows = [Row(temperature=t, seed=s, num_logprobs=0) for t in (0.0, 0.8) for s in range(20)]
    logits = random_logits(len(rows))
    order = np.random.default_rng(0).permutation(len(rows))
    plain, permuted = run(logits, rows), run(logits[order], [rows[i] for i in order])
    assert permuted.token_id.tolist() == plain.token_id[order].tolist()
    assert permuted.logprob.tolist() == plain.logprob[order].tolist()


def test_draws_follow_the_distribution() -> None:
    """Tokens over many output indices appear as often as their probability says."""
    logits = random_logits(1)
    count = 4000
    rows = [Row(temperature=1.0, output=(0,) * index) for index in range(200)]
    tokens = [
        run(logits.repeat(200, 1), [Row(1.0, seed=s, output=r.output) for r in rows]).token_id
        for s in range(count // 200)
    ]
    observed = np.bincount(np.concatenate(tokens), minlength=VOCAB_SIZE) / count
    expected = logits[0].softmax(0).numpy()
    assert np.abs(observed - expected).max() < 4 * math.sqrt(0.25 / count)


def test_filters_keep_all_equals() -> None:
    """Tokens equal to the last kept one are kept: any of five equal ones may come at top_k 1."""
    logits = torch.zeros(100, 5)
    tokens = run(logits, [Row(temperature=1.0, top_k=1, seed=s) for s in range(100)]).token_id
    assert set(tokens.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("top_p", [1e-9, 1e-3])
def test_a_tiny_top_p_is_greedy(top_p: float) -> None:
    """The best token always stays."""
    logits = random_logits(50)
    rows = [Row(temperature=2.0, top_p=top_p, seed=s) for s in range(50)]
    assert run(logits, rows).token_id.tolist() == logits.argmax(1).tolist()


def test_logprobs_are_those_of_the_raw_logits() -> None:
    """Temperature, penalties and bias change the choice, not the log-probabilities reported."""
    logits = random_logits(2)
    rows = [
        Row(num_logprobs=3, bias={7: 100.0}),
        Row(temperature=0.5, num_logprobs=2, frequency_penalty=2.0, output=(1, 1, 2)),
    ]
    sampled = run(logits, rows)
    expected = logits.log_softmax(1)
    assert sampled.token_id[0] == 7
    for index, row in enumerate(rows):
        chosen = expected[index, sampled.token_id[index]]
        assert math.isclose(sampled.logprob[index], chosen, rel_tol=1e-5)
        start, count = sampled.top_start[index], sampled.num_top[index]
        assert count == row.num_logprobs
        top = sampled.top[start : start + count]
        assert top["token_id"].tolist() == expected[index].topk(count).indices.tolist()
        np.testing.assert_allclose(top["logprob"], expected[index].topk(count).values, rtol=1e-5)


def test_logprobs_that_nobody_wants_are_nan() -> None:
    """Rows without logprobs report NaN and no alternatives, beside rows that want them."""
    sampled = run(random_logits(3), [Row(), Row(num_logprobs=0), Row()])
    assert np.isnan(sampled.logprob).tolist() == [True, False, True]
    assert sampled.num_top.tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_is_told_and_harms_no_other(
    temperature: float, value: float
) -> None:
    """NaN or infinity in one row's logits is reported; the neighbours get their usual tokens."""
    logits = random_logits(3)
    rows = [Row(temperature=temperature, seed=s, top_p=0.9) for s in range(3)]
    expected = run(logits, rows).token_id
    logits[1, 5] = value
    sampled = run(logits, rows)
    assert sampled.finite.tolist() == [True, False, True]
    assert sampled.token_id[[0, 2]].tolist() == expected[[0, 2]].tolist()
