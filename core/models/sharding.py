"""How a decoder is divided among ranks: whole KV heads, MLP columns, tokens of the vocabulary.

Owns: who has what, as plain data. Never knows: tensors, or that ranks are processes. A KV head
comes with the query heads that read it, so a rank's attention and KV cache are its own. Where the
heads do not go round, the first ranks have one more, and fewer columns of the MLP: those are dealt
out so that everybody has about as many weights. The scheme is that of Megatron-LM (Shoeybi et al.,
2019, section 3).
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from core.errors import ModelError
from core.models.decoder_config import DecoderConfig

COLUMNS = 64  # of the MLP dealt out at a time: whole groups of quantized inputs
FEW_COLUMNS = 16  # for small models: whole vectors


@dataclass(frozen=True, slots=True)
class DecoderShard:
    """The part of one rank: `config` as if its heads and columns were all there are.

    `kv_heads`, `columns` (of the MLP) and `tokens` are what it has of the whole; `tokens` are
    `vocabulary_width` on every rank but the last, where they may be fewer.
    """

    config: DecoderConfig
    kv_heads: slice
    columns: slice
    tokens: slice
    vocabulary_width: int

    @property
    def kv_rows(self) -> slice:
        """Rows of keys (or values)."""
        return _scaled(self.kv_heads, self.config.head_dim)

    @property
    def query_rows(self) -> slice:
        """Rows of queries; the inputs of the output product too."""
        return _scaled(self.kv_heads, self.config.q_size // self.config.num_kv_heads)


def divide_decoder(config: DecoderConfig, size: int) -> tuple[DecoderShard, ...]:
    """Return the parts of `size` ranks; ModelError if there are not enough heads or columns."""
    if size > config.num_kv_heads:
        raise ModelError(
            f"the model has {config.num_kv_heads} KV heads, each of them on one rank:"
            f" engine.tensor_parallel = {size} is too many"
        )
    if size > 1 and config.features.norms_whole_query:
        raise ModelError(
            f"models of family {config.family} normalize all heads as one vector, which cannot be"
            " divided: set engine.tensor_parallel = 1"
        )
    heads = [config.num_kv_heads // size + (r < config.num_kv_heads % size) for r in range(size)]
    columns = _deal_columns(config, heads)
    width = -(-config.vocab_size // size)
    group = config.num_heads // config.num_kv_heads
    return tuple(
        DecoderShard(
            config=replace(
                config,
                num_heads=own.stop * group - own.start * group,
                num_kv_heads=own.stop - own.start,
                intermediate_size=inner.stop - inner.start,
            ),
            kv_heads=own,
            columns=inner,
            tokens=slice(rank * width, min((rank + 1) * width, config.vocab_size)),
            vocabulary_width=width,
        )
        for rank, (own, inner) in enumerate(
            zip(_neighbours(heads), _neighbours(columns), strict=True)
        )
    )


def _deal_columns(config: DecoderConfig, heads: list[int]) -> list[int]:
    """Return the MLP columns of each rank: always to whoever has the fewest weights so far."""
    inner, size = config.intermediate_size, len(heads)
    unit = COLUMNS if inner >= 4 * COLUMNS * size else FEW_COLUMNS
    if inner < unit * size:
        raise ModelError(f"an MLP of {inner} columns cannot be divided among {size} ranks")
    head_width = 2 * (config.q_size + config.kv_size) // config.num_kv_heads  # q, k, v and out
    weights = [count * head_width for count in heads]  # in rows of the hidden size
    columns = [0] * size
    for start in range(0, inner, unit):
        dealt = min(unit, inner - start)
        poorest = min(range(size), key=lambda rank: (columns[rank] > 0, weights[rank]))
        columns[poorest] += dealt
        weights[poorest] += 3 * dealt  # gate, up and down
    return columns


def _neighbours(counts: list[int]) -> list[slice]:
    return [slice(*ends) for ends in pairwise(accumulate(counts, initial=0))]


def _scaled(part: slice, factor: int) -> slice:
    return slice(part.start * factor, part.stop * factor)
