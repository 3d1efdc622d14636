"""The packed vocabulary matrix against the plain one."""

import pytest
import torch

from core.kernels.matrix import INT8, RoundedMatrix, pack_matrix
from core.kernels.vocabulary import PackedVocabulary, PlainVocabulary, RoundedVocabulary
from tests.support.kernels.native_kernels import native_library

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)

HIDDEN = 48
NORM = torch.linspace(0.5, 2.0, HIDDEN)


def both(
    vocab_size: int, hidden: int, dtype: torch.dtype
) -> tuple[PlainVocabulary, PackedVocabulary]:
    """The same random matrix in both forms."""
    generator = torch.Generator().manual_seed(vocab_size)
    weight = torch.randn(vocab_size, hidden, generator=generator).to(dtype)
    packed = PackedVocabulary(native_library(), pack_matrix(weight, None))
    return PlainVocabulary(weight), packed


@DTYPES
@pytest.mark.parametrize("rows", [1, 3, 12, 13, 29])
@pytest.mark.parametrize("vocab_size", [7, 32, 301])
def test_logits_equal_the_reference(rows: int, vocab_size: int, dtype: torch.dtype) -> None:
    """Logits of odd shapes agree to float32 rounding, in both dtypes."""
    plain, packed = both(vocab_size, HIDDEN, dtype)
    x = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch.testing.assert_close(
        packed.logits(x, NORM, 1e-5), plain.logits(x, NORM, 1e-5), rtol=1e-5, atol=2e-5
    )


@DTYPES
def test_embedding_returns_the_exact_rows(dtype: torch.dtype) -> None:
    """Looking a token up in the packed copy gives its row bit by bit."""
    plain, packed = both(70, HIDDEN, dtype)
    token_ids = torch.tensor([0, 31, 32, 69, 0], dtype=torch.int32)
    assert torch.equal(packed.embed(token_ids), plain.embed(token_ids))


@DTYPES
def test_a_row_of_logits_is_the_same_alone_and_among_others(dtype: torch.dtype) -> None:
    """Logits of a row are bit-identical whatever other rows are computed with it."""
    _, packed = both(100, HIDDEN, dtype)
    x = torch.randn(29, HIDDEN, generator=torch.Generator().manual_seed(2)).to(dtype)
    together = packed.logits(x, NORM, 1e-5)
    for rows in (1, 2, 12, 17):
        assert torch.equal(packed.logits(x[:rows].contiguous(), NORM, 1e-5), together[:rows])


@DTYPES
@pytest.mark.parametrize("vocab_size", [7, 301])
def test_a_quantized_vocabulary_equals_its_reference(vocab_size: int, dtype: torch.dtype) -> None:
    """In 8 bits, embeddings are the rounded rows exactly, and logits agree to input rounding."""
    weight = torch.randn(vocab_size, HIDDEN, generator=torch.Generator().manual_seed(3)).to(dtype)
    packed = PackedVocabulary(native_library(), pack_matrix(weight, INT8))
    plain = RoundedVocabulary(RoundedMatrix(weight, INT8), dtype)
    token_ids = torch.tensor([0, 6, vocab_size - 1], dtype=torch.int32)
    assert torch.equal(packed.embed(token_ids), plain.embed(token_ids))
    x = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(4)).to(dtype)
    torch.testing.assert_close(
        packed.logits(x, NORM, 1e-5), plain.logits(x, NORM, 1e-5), rtol=0.02, atol=0.15
    )
