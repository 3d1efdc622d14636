"""Building and loading the C++ kernels."""

import logging
import os
import shutil
from pathlib import Path

import pytest
import torch

from core.kernels import native
from core.kernels.native import (
    LIBRARIES_KEPT,
    NativeBuildError,
    build_native,
    load_native,
    missing_instructions,
    openmp_runtimes,
)
from tests.support.kernels.native_kernels import native_library

SMALL = ("vocabulary.cpp",)


def test_the_process_has_one_openmp_runtime() -> None:
    """The kernels share torch's thread pool: loading them brings no second OpenMP runtime."""
    torch.zeros(1)
    native_library()
    assert len(openmp_runtimes()) == 1


def test_a_build_is_kept_and_leaves_nothing_else(tmp_path: Path) -> None:
    """A second build of the same sources finds the first one's file, the only one in the cache."""
    first = build_native(tmp_path, SMALL)
    written_ns = first.stat().st_mtime_ns
    assert build_native(tmp_path, SMALL) == first
    assert first.stat().st_mtime_ns == written_ns
    assert list(tmp_path.iterdir()) == [first]


def test_a_build_sweeps_what_killed_ones_left(tmp_path: Path) -> None:
    """A build folder older than any build can be is deleted; a young one may be at work."""
    old, young = tmp_path / "build-old", tmp_path / "build-young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (0, 0))
    library = build_native(tmp_path, SMALL)
    assert set(tmp_path.iterdir()) == {young, library}


def test_the_libraries_used_last_are_kept(tmp_path: Path) -> None:
    """Of many old libraries those used last stay, and the one in use does, however old it is."""
    used = build_native(tmp_path, SMALL)
    os.utime(used, ns=(0, 0))
    old = [tmp_path / f"headrace-kernels-{index}.so" for index in range(LIBRARIES_KEPT + 3)]
    for index, path in enumerate(old):
        path.write_bytes(b"")
        os.utime(path, ns=(1 + index, 0))
    assert build_native(tmp_path, SMALL) == used
    assert set(tmp_path.iterdir()) == {used, *old[1 - LIBRARIES_KEPT :]}


def test_a_cache_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels that somebody else built in a read-only cache are used, and nothing is swept."""
    used = build_native(tmp_path, SMALL)
    others = [tmp_path / f"headrace-kernels-{index}.so" for index in range(LIBRARIES_KEPT + 3)]
    for path in others:
        path.write_bytes(b"")

    def refuse(path: Path, **how: object) -> None:
        raise PermissionError(f"{path} is read-only")

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with caplog.at_level(logging.INFO):
        assert build_native(tmp_path, SMALL) == used
    assert "cannot be written" in caplog.text
    assert "stay in the cache" in caplog.text
    assert set(tmp_path.iterdir()) == {used, *others}


def test_instructions_that_a_cpu_lacks_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An x86 CPU without AVX-512 or its bfloat16 computes all the same, and a warning says so."""
    assert missing_instructions("flags\t: avx2 avx512f avx512_vnni avx512_bf16") == []
    assert missing_instructions("Features\t: fp asimd bf16") == []
    monkeypatch.setattr(native, "_cpu_description", lambda: "flags\t: sse2 avx2 avx512f")
    monkeypatch.setattr(native, "build_native", lambda cache: cache)
    monkeypatch.setattr(native, "load_library", lambda path: path)
    with caplog.at_level(logging.WARNING):
        assert load_native(Path("library")) is not None
    assert "no avx512_bf16, avx512_vnni" in caplog.text


def test_without_a_compiler_the_plain_path_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a compiler nothing is loaded and a warning says so."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert load_native(tmp_path) is None
    assert "plain-torch" in caplog.text
    assert "compiler" in caplog.text


def test_an_unwritable_cache_is_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cache directory that cannot be made means the plain path and a warning, not a crash."""
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert load_native(tmp_path / "file" / "cache") is None
    assert "plain-torch" in caplog.text


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error carries the compiler's own words, and no half-built file stays."""
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-fno-such-flag"))
    with pytest.raises(NativeBuildError, match="fno-such-flag"):
        build_native(tmp_path, SMALL)
    assert list(tmp_path.iterdir()) == []
