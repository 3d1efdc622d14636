"""Mistral 7B and its successors of the same form: Llama with a window in every layer."""

from core.models.family import Family, window_everywhere

MISTRAL = Family(
    title="Mistral",
    model_type="mistral",
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    adapt=window_everywhere,
)
