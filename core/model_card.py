"""What every process is told of the model: the `model` part of `ipc.child.ChildSetup`.

Owns: that record and its JSON. Never knows: how a model is found or read
(`core.models.registry` makes the facts, the supervisor makes the card).
"""

import msgspec


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The model that this engine serves, as plain values.

    `max_model_len` is the smaller of the configured length and the model's own, tokens; the
    configuration that children receive says the same. `digest_secret` keys the block digests, new
    at every start of the engine; only tokenizers and the scheduler get it, others have b"".
    """

    name: str  # what clients call it
    path: str  # Hugging Face directory
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weights_bytes: int
    created_s: int  # Unix time of the engine's start, for the model listing
    digest_secret: bytes = b""


def card_to_json(card: ModelCard) -> bytes:
    """Return the card as JSON."""
    return msgspec.json.encode(card)


def card_from_json(data: bytes | msgspec.Raw) -> ModelCard:
    """Return the card that `card_to_json` wrote; raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=ModelCard)
