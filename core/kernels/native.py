"""Builds the C++ kernels once for this machine and loads them.

Owns: the compiler call, the cache of built libraries (keyed by sources, flags, CPU and OpenMP
library), and the typed entry points. Never knows: tensors; the op files (`rms_norm`,
`paged_attention`, `vocabulary`) turn tensors into addresses.

The library links against the OpenMP runtime that this process has loaded already (torch's), so
that there is one pool of threads: two pools on the same cores wait for each other at every step.
A missing compiler or an unwritable cache is no error: `load_native` says why in a log line and
returns None, and the plain-torch references are used instead.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE_DIRECTORY = Path(__file__).parent
SOURCES = ("paged_attention.cpp", "rms_norm.cpp", "lm_head.cpp")
HEADERS = ("simd.h",)
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-fno-math-errno",
    "-fPIC",
    "-fopenmp",
)
GENERIC_FLAGS = tuple(flag for flag in FLAGS if flag != "-mprefer-vector-width=512")
COMPILERS = ("g++", "c++", "clang++")
BUILD_TIMEOUT_S = 300
OPENMP_LIBRARIES = ("libgomp", "libiomp5", "libomp")

logger = logging.getLogger(__name__)


class NativeBuildError(Exception):
    """The kernels cannot be built here; the message says why."""


def openmp_runtimes() -> list[str]:
    """Return the paths of the OpenMP runtimes mapped into this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line}
    return sorted(path for path in paths if Path(path).name.startswith(OPENMP_LIBRARIES))


def load_native(cache_directory: Path) -> ctypes.CDLL | None:
    """Return the kernels' library, building it if needed; None (and a warning) if that fails."""
    try:
        library = _load(build_native(cache_directory))
    except (NativeBuildError, OSError) as error:
        logger.warning("native kernels unavailable, using the slow plain-torch path: %s", error)
        return None
    runtimes = openmp_runtimes()
    if len(runtimes) > 1:
        logger.warning("several OpenMP runtimes share the cores: %s", ", ".join(runtimes))
    return library


def build_native(cache_directory: Path) -> Path:
    """Return the path of the built library; raises NativeBuildError or OSError."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeBuildError(f"no C++ compiler found (tried {', '.join(COMPILERS)})")
    runtimes = openmp_runtimes()
    if not runtimes:
        raise NativeBuildError("no OpenMP runtime is loaded in this process")
    flags = FLAGS if platform.machine() == "x86_64" else GENERIC_FLAGS
    target = cache_directory / f"headrace-kernels-{_key(compiler, flags, runtimes[0])}.so"
    if not target.exists():
        cache_directory.mkdir(parents=True, exist_ok=True)
        _compile(compiler, flags, runtimes[0], target)
    return target


def _key(compiler: str, flags: Sequence[str], runtime: str) -> str:
    digest = hashlib.sha256()
    for name in (*HEADERS, *SOURCES):
        digest.update((SOURCE_DIRECTORY / name).read_bytes())
    digest.update("\0".join((compiler, *flags, runtime, _cpu_description())).encode())
    return digest.hexdigest()[:24]


def _cpu_description() -> str:
    """Return the lines of /proc/cpuinfo that decide what -march=native means."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _compile(compiler: str, flags: Sequence[str], runtime: str, target: Path) -> None:
    """Compile all sources side by side, link, and move the library to `target` in one step."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as build:
        objects = [Path(build) / f"{Path(name).stem}.o" for name in SOURCES]
        commands = [
            [compiler, *flags, "-c", str(SOURCE_DIRECTORY / name), "-o", str(path)]
            for name, path in zip(SOURCES, objects, strict=True)
        ]
        _run_all(commands)
        library = Path(build) / "kernels.so"
        _run_all([[compiler, "-shared", "-o", str(library), *map(str, objects), runtime]])
        os.replace(library, target)


def _run_all(commands: list[list[str]]) -> None:
    """Run the commands at the same time; raises NativeBuildError with the first one's complaint."""
    processes = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    complaints = []
    for process in processes:
        try:
            _, complaint = process.communicate(timeout=BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, complaint = process.communicate()
        if process.returncode:
            complaints.append(complaint.strip() or f"exit code {process.returncode}")
    if complaints:
        raise NativeBuildError(f"the compiler failed: {complaints[0][-2000:]}")


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, integer, real = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float
    signatures: dict[str, list[type]] = {
        "headrace_embed": [pointer, pointer, pointer, integer, integer],
        "headrace_argmax": [pointer, pointer, pointer, integer, integer],
    }
    for dtype in ("float32", "bfloat16"):
        signatures[f"headrace_paged_attention_{dtype}"] = [pointer]
        signatures[f"headrace_rms_norm_{dtype}"] = [pointer] * 3 + [integer, integer, real]
        signatures[f"headrace_lm_head_{dtype}"] = [pointer] * 3 + [integer] * 3
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = None
    return library
