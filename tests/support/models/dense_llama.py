"""A Llama forward without cache, blocks, batches or packing: the reference for whole models.

Written directly from the architecture: full attention over the whole sequence, everything in
float32, one sequence at a time.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


class DenseLlama:
    """The model in `directory`, as written by `tests.support.models.tiny_model`."""

    def __init__(self, directory: Path) -> None:
        self._config = json.loads((directory / "config.json").read_text())
        tensors = load_file(directory / "model.safetensors")
        self._tensors = {name: tensor.float() for name, tensor in tensors.items()}

    def logits(self, token_ids: list[int]) -> Tensor:
        """Return float32 [tokens, vocabulary]."""
        x = self._weight("model.embed_tokens")[torch.tensor(token_ids)]
        for index in range(self._config["num_hidden_layers"]):
            prefix = f"model.layers.{index}"
            x = x + self._attention(self._norm(x, f"{prefix}.input_layernorm"), prefix)
            x = x + self._mlp(self._norm(x, f"{prefix}.post_attention_layernorm"), prefix)
        tied = self._config["tie_word_embeddings"]
        head = self._weight("model.embed_tokens" if tied else "lm_head")
        return self._norm(x, "model.norm") @ head.T

    def logprobs(self, token_ids: list[int]) -> Tensor:
        """Return float32 [tokens, vocabulary]: of the token after each position."""
        return torch.log_softmax(self.logits(token_ids), dim=-1)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """Return `count` tokens after `prompt`."""
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(prompt) :]

    def _weight(self, name: str) -> Tensor:
        return self._tensors[f"{name}.weight"]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean_square = x.square().mean(-1, keepdim=True)
        return x / torch.sqrt(mean_square + self._config["rms_norm_eps"]) * self._weight(name)

    def _mlp(self, x: Tensor, prefix: str) -> Tensor:
        gate = x @ self._weight(f"{prefix}.mlp.gate_proj").T
        up = x @ self._weight(f"{prefix}.mlp.up_proj").T
        return (gate * torch.sigmoid(gate) * up) @ self._weight(f"{prefix}.mlp.down_proj").T

    def _attention(self, x: Tensor, prefix: str) -> Tensor:
        size = self._config["head_dim"]
        heads, kv_heads = self._config["num_attention_heads"], self._config["num_key_value_heads"]

        def project(name: str) -> Tensor:
            projected = x @ self._weight(f"{prefix}.self_attn.{name}_proj").T
            return projected.view(len(x), -1, size).transpose(0, 1)

        queries, keys, values = self._rotate(project("q")), self._rotate(project("k")), project("v")
        keys = keys.repeat_interleave(heads // kv_heads, 0)
        values = values.repeat_interleave(heads // kv_heads, 0)
        scores = queries @ keys.transpose(1, 2) / size**0.5
        future = torch.ones(len(x), len(x)).triu(1).bool()
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = (weights @ values).transpose(0, 1).reshape(len(x), -1)
        out: Tensor = mixed @ self._weight(f"{prefix}.self_attn.o_proj").T
        return out

    def _rotate(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        exponents = torch.arange(half).float() / half
        frequencies = 1.0 / self._config["rope_theta"] ** exponents
        angles = torch.arange(x.shape[1]).float().unsqueeze(1) * frequencies
        turn = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous())
        turned = pairs * turn
        return torch.cat((turned.real, turned.imag), dim=-1)
