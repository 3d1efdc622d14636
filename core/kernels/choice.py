"""Choosing tokens from logits: the best one, or one draw from the filtered softmax.

A draw, per row: logits / temperature; min_p, top_k and top_p in this order, each a threshold on the
logit relative to what the one before it kept (a token equal to the last kept one is kept too);
then, with u uniform in [0, 1), the first id in vocabulary order whose cumulative weight, summed in
float64, exceeds u times the total. One number a row is all the randomness.
"""

import ctypes
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DrawRules:
    """How n rows are drawn, arrays [n]: `temperature` > 0, `top_k` 0 = all, `uniform` in [0, 1)."""

    temperature: Float32Array
    top_k: Int32Array
    top_p: Float32Array
    min_p: Float32Array
    uniform: Float64Array

    @property
    def floor(self) -> Float32Array:
        """The min_p threshold, nats below the best logit."""
        return min_p_floor(self.min_p)


def min_p_floor(min_p: Float32Array) -> Float32Array:
    """Return how far below the best logit min_p lets one be, nats; minus infinity for 0."""
    with np.errstate(divide="ignore"):
        return np.log(min_p, dtype=np.float32)


class Choice(Protocol):
    """Both ways to choose; logits float32 [rows, vocabulary], left unchanged."""

    def argmax(self, logits: Tensor) -> tuple[Float32Array, Int32Array]:
        """Return (value, index) of the largest logit a row, of equal ones the first.

        The value is NaN if the row holds a NaN.
        """
        ...

    def draw(self, logits: Tensor, rules: DrawRules) -> Int32Array:
        """Return a token a row; any id for a row that is not finite."""
        ...


class TorchChoice:
    """The reference: sorts whole rows."""

    def argmax(self, logits: Tensor) -> tuple[Float32Array, Int32Array]:
        """Return the largest logits."""
        values, indices = logits.max(dim=1)
        return values.numpy(), indices.int().numpy()

    def draw(self, logits: Tensor, rules: DrawRules) -> Int32Array:
        """Return a token a row."""
        scaled = logits / torch.from_numpy(rules.temperature).unsqueeze(1)
        scaled -= scaled.amax(dim=1, keepdim=True)
        best = scaled.sort(dim=1, descending=True).values
        floor = torch.from_numpy(rules.floor).unsqueeze(1)
        floor = torch.maximum(floor, _kth(best, rules.top_k))
        floor = torch.maximum(floor, _nucleus_border(best, floor, rules.top_p))
        weights = torch.where(scaled >= floor, scaled.exp().double(), 0.0)
        cumulative = weights.cumsum(dim=1)
        target = torch.from_numpy(rules.uniform).unsqueeze(1) * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, target, right=True).squeeze(1)
        token_id: Int32Array = drawn.clamp(max=logits.shape[1] - 1).int().numpy()
        return token_id


def _kth(best: Tensor, top_k: Int32Array) -> Tensor:
    """Return the top_k-th largest logit [rows, 1]; minus infinity without top_k."""
    place = torch.from_numpy(np.clip(top_k, 1, best.shape[1]) - 1).long().unsqueeze(1)
    limited = torch.from_numpy(top_k > 0).unsqueeze(1)
    return torch.where(limited, best.gather(1, place), -math.inf)


def _nucleus_border(best: Tensor, floor: Tensor, top_p: Float32Array) -> Tensor:
    """Return the logit [rows, 1] of the last of the best tokens that hold the share `top_p`."""
    shares = torch.from_numpy(top_p).double().unsqueeze(1)
    cumulative = torch.where(best >= floor, best.exp().double(), 0.0).cumsum(dim=1)
    last = (cumulative < shares * cumulative[:, -1:]).sum(dim=1, keepdim=True)
    border = best.gather(1, last.clamp(max=best.shape[1] - 1))
    return torch.where(shares < 1, border, -math.inf)


class _Draw(ctypes.Structure):
    """`headrace::Draw` of `choice.cpp`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "temperature", "floor", "top_k")),
        *((name, ctypes.c_void_p) for name in ("top_p", "uniform", "tokens")),
        *((name, ctypes.c_int32) for name in ("rows", "width")),
    )


class NativeChoice:
    """The same by `choice.cpp`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._argmax = library.headrace_argmax
        self._draw = library.headrace_draw

    def argmax(self, logits: Tensor) -> tuple[Float32Array, Int32Array]:
        """Return the largest logits."""
        assert logits.is_contiguous(), "rows of logits must follow each other"
        rows, width = logits.shape
        values, indices = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.int32)
        self._argmax(logits.data_ptr(), values.ctypes.data, indices.ctypes.data, rows, width)
        return values, indices

    def draw(self, logits: Tensor, rules: DrawRules) -> Int32Array:
        """Return a token a row."""
        assert logits.is_contiguous(), "rows of logits must follow each other"
        rows, width = logits.shape
        tokens = np.empty(rows, dtype=np.int32)
        inputs: dict[str, npt.NDArray[np.generic]] = {
            "temperature": np.ascontiguousarray(rules.temperature),
            "floor": rules.floor,
            "top_k": np.ascontiguousarray(rules.top_k),
            "top_p": np.ascontiguousarray(rules.top_p),
            "uniform": np.ascontiguousarray(rules.uniform),
        }
        draw = _Draw(
            logits=logits.data_ptr(),
            tokens=tokens.ctypes.data,
            rows=rows,
            width=width,
            **{name: array.ctypes.data for name, array in inputs.items()},
        )
        self._draw(ctypes.addressof(draw))
        return tokens
