"""Products whose weight is divided among the ranks of a replica; the layer does not notice.

Owns: what goes between the ranks, and where sums are rounded: partial sums travel in float32 and
are rounded once, as one rank's are. Never knows: how a weight is divided (`core.models.sharding`).

    SummedResidual      each rank multiplies with the inputs it has; all results are added up
    DividedVocabulary   each rank has some tokens: others' rows are zeros, logits are put together
"""

import torch
from torch import Tensor

from core.kernels.linear import Partial
from core.kernels.norm import NormAdd
from core.kernels.vocabulary import Vocabulary
from core.parallel.ranks import Ranks, sum_of


class SummedResidual:
    """x·Wᵀ + bias + other over the inputs of all ranks, or the norm of the product + other.

    `x` [tokens, inputs of this rank], `other` and the result [tokens, out] on every rank.
    """

    def __init__(
        self, partial: Partial, ranks: Ranks, bias: Tensor | None, norm_add: NormAdd | None
    ) -> None:
        """`bias` is float32 [out]; it is added once, behind the sum."""
        self._partial = partial
        self._ranks = ranks
        self._bias = bias
        self._norm_add = norm_add
        self.num_bytes = partial.num_bytes + (0 if bias is None else bias.nbytes)
        self.num_bytes += 0 if norm_add is None else norm_add.num_bytes

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the sum in the dtype of `other`."""
        total = sum_of(self._partial(x), self._ranks)
        if self._bias is not None:
            total += self._bias
        if self._norm_add is not None:
            return self._norm_add(total.to(other.dtype), other)
        return total.add_(other).to(other.dtype)


class DividedVocabulary:
    """The tokens from `first` on are this rank's, as many as `own` has rows."""

    def __init__(self, own: Vocabulary, first: int, width: int, size: int, ranks: Ranks) -> None:
        """`own` has `width` rows on every rank, those beyond the vocabulary's `size` unused."""
        self._own = own
        self._first = first
        self._width = width
        self._size = size
        self._ranks = ranks
        self.num_bytes = own.num_bytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rows of `token_ids`: of each, one rank has it and the others add zeros."""
        places = token_ids - self._first
        foreign = (places < 0) | (places >= self._width)
        rows = self._own.embed(places.masked_fill(foreign, 0))
        return sum_of(rows.masked_fill_(foreign.unsqueeze(1), 0), self._ranks)

    def logits(self, x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
        """Return float32 [rows, vocabulary], the same on every rank."""
        parts = self._ranks.gather(self._own.logits(x, norm, epsilon))
        return torch.cat(parts.unbind(), dim=1)[:, : self._size].contiguous()
