"""Tensors from safetensors files, checked one by one before anything uses them.

Owns: that each tensor is there, of the stated shape and finite. Never knows: what the tensors mean.
The safetensors library checks the header against the file's length; every complaint of it, and
every fault found here, is a ModelError naming file and tensor.
"""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from core.errors import ModelError
from core.models.directory import weight_files

QUANTIZED_SUFFIXES = (
    *(".qweight", ".qzeros", ".scales", ".g_idx"),
    *(".weight_scale", ".weight_scale_inv", ".input_scale"),
)
FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class TensorSource(Protocol):
    """Where a model's tensors come from."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the tensor `name` of `shape` in `dtype`, nobody else's; raises ModelError."""
        ...


class WeightFiles:
    """The open safetensors files of a directory; a context manager.

    `take` reads a tensor; `finish` complains about tensors nobody took.
    """

    def __init__(self, directory: Path) -> None:
        """Open all files; raises ModelError."""
        self._files: dict[Path, Any] = {}
        self._locations: dict[str, Path] = {}
        self._taken: set[str] = set()
        for path, stated in weight_files(directory).items():
            self._open(path, stated)

    def __enter__(self) -> "WeightFiles":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.__exit__(kind, error, trace)

    def _open(self, path: Path, stated: set[str] | None) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except FileNotFoundError:
            raise ModelError(f"{path} is missing") from None
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is not a valid safetensors file: {error}") from error
        self._files[path] = file
        names = {str(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if stated is not None and (missing := stated - names):
            raise ModelError(f"{path}: tensor {min(missing)} of the index is missing")
        if quantized := sorted(name for name in names if name.endswith(QUANTIZED_SUFFIXES)):
            raise ModelError(
                f"{path}: tensor {quantized[0]} belongs to quantized weights (FP8, GPTQ or AWQ),"
                " which are not supported: take a checkpoint in bfloat16, float16 or float32"
            )
        self._locations.update(dict.fromkeys(names, path))

    def __contains__(self, name: str) -> bool:
        return name in self._locations

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the tensor as a private copy in `dtype`; raises ModelError."""
        path = self._locations.get(name)
        if path is None:
            where = ", ".join(str(path) for path in self._files)
            raise ModelError(f"{where}: tensor {name} is missing")
        file = self._files[path]
        found = tuple(file.get_slice(name).get_shape())
        if found != shape:
            raise ModelError(f"{path}: tensor {name} has shape {found}, config.json says {shape}")
        tensor: Tensor = file.get_tensor(name)
        if tensor.dtype not in FLOAT_DTYPES:
            raise ModelError(
                f"{path}: tensor {name} has unsupported type {tensor.dtype}"
                " (supported: bfloat16, float16, float32)"
            )
        low, high = torch.aminmax(tensor)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise ModelError(f"{path}: tensor {name} holds NaN or infinity")
        self._taken.add(name)
        return tensor.to(dtype, copy=True)

    def finish(self, family: str, ignored: Iterable[str] = ()) -> None:
        """Raise ModelError if the files hold tensors that were not taken and are not `ignored`.

        `family` is the model's, for the message.
        """
        extra = sorted(self._locations.keys() - self._taken - set(ignored))
        extra = [name for name in extra if not name.endswith(".rotary_emb.inv_freq")]
        if extra:
            path = self._locations[extra[0]]
            raise ModelError(f"{path}: tensor {extra[0]} is not part of a {family} model")
