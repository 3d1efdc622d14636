"""Building and loading the C++ kernels."""

import logging
import os
import shutil
from pathlib import Path

import pytest
import torch

from core.kernels import native
from core.kernels.native import NativeBuildError, build_native, load_native, openmp_runtimes
from tests.support.native_kernels import native_library

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
