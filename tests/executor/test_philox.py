"""Counter-based random numbers."""

import numpy as np
import pytest

from core.executor.philox import philox4x32, uniforms

KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def parse(words: str) -> list[int]:
    """Hexadecimal words as numbers."""
    return [int(word, 16) for word in words.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    """The generator gives the published answers of Philox4x32-10."""
    counters = np.array([parse(counter)], dtype=np.uint32)
    keys = np.array([parse(key)], dtype=np.uint32)
    assert philox4x32(counters, keys).tolist() == [parse(expected)]


def draw(seed: int, choice: int, index: int) -> float:
    """One uniform number."""
    return float(
        uniforms(
            np.array([seed], dtype=np.uint64),
            np.array([choice], dtype=np.int32),
            np.array([index], dtype=np.int32),
        )[0]
    )


def test_every_part_of_the_key_matters() -> None:
    """Seed (all 64 bits), choice and output index each give another number."""
    numbers = {
        draw(7, 0, 0),
        draw(7 + 2**40, 0, 0),
        draw(7, 1, 0),
        draw(7, 0, 1),
        draw(8, 0, 0),
    }
    assert len(numbers) == 5


def test_a_row_is_the_same_alone_and_among_others() -> None:
    """A draw does not depend on the other rows of the call."""
    seeds = np.arange(100, dtype=np.uint64)
    choices = np.arange(100, dtype=np.int32) % 3
    indices = np.arange(100, dtype=np.int32) * 7
    together = uniforms(seeds, choices, indices)
    assert [draw(i, i % 3, i * 7) for i in range(100)] == together.tolist()


def test_uniforms_fill_the_unit_interval() -> None:
    """Numbers lie in [0, 1) and have the mean and variance of a uniform distribution."""
    count = 20_000
    numbers = uniforms(
        np.full(count, 3, dtype=np.uint64),
        np.zeros(count, dtype=np.int32),
        np.arange(count, dtype=np.int32),
    )
    assert 0 <= numbers.min() < 0.001
    assert 0.999 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.var() - 1 / 12) < 0.002
