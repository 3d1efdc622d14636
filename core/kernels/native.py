"""Builds the C++ kernels once for this machine and loads them.

Owns: the compiler call, the cache of built libraries (keyed by sources, flags, CPU and OpenMP
library), and the typed entry points. Never knows: tensors; the op files (`linear`, `norm`,
`paged_attention`, `vocabulary`) turn tensors into addresses.

The library links against the OpenMP runtime that this process has loaded already (torch's), so
that there is one pool of threads: two pools on the same cores wait for each other at every step.
A missing compiler or an unwritable cache is no error: `load_native` says why in a log line and
returns None, and the plain-torch references are used instead. The cache keeps the libraries that
were used last, a few versions of the sources; a library that is deleted while a process has it
loaded stays until that process ends.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SOURCE_DIRECTORY = Path(__file__).parent
SOURCES = ("paged_attention.cpp", "linear.cpp", "norm.cpp", "choice.cpp", "vocabulary.cpp")
HEADERS = ("simd.h", "prefetch.h", "panels.h", "quantized.h")
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
BUILD_PREFIX = "build-"
LIBRARY_PREFIX = "headrace-kernels-"
LIBRARIES_KEPT = 8
# The default model in bfloat16 on an AMD EPYC, by `scripts/bench/executor --plain`: for operators.
PLAIN_DECODE_FACTOR, PLAIN_PROMPT_FACTOR = 10, 2
# Without one of these a product costs several times as much: simd.h and quantized.h do without.
FAST_INSTRUCTIONS = ("avx512f", "avx512_bf16", "avx512_vnni")
DTYPES = ("float32", "bfloat16")
WEIGHT_FORMATS = (*DTYPES, *(f"{name}_{dtype}" for name in ("int8", "int4") for dtype in DTYPES))
EMBED_FORMATS = tuple(name for name in WEIGHT_FORMATS if not name.startswith("int4"))
PRODUCTS = ("normed", "add", "silu", "gelu", "logits")
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
        library = load_library(build_native(cache_directory))
    except (NativeBuildError, OSError) as error:
        logger.warning(
            "native kernels unavailable, using the slow plain-torch path, which takes about %d"
            " times as long for a decode and %d times for a prompt: %s",
            PLAIN_DECODE_FACTOR,
            PLAIN_PROMPT_FACTOR,
            error,
        )
        return None
    runtimes = openmp_runtimes()
    if len(runtimes) > 1:
        logger.warning("several OpenMP runtimes share the cores: %s", ", ".join(runtimes))
    if missing := missing_instructions(_cpu_description()):
        logger.warning(
            "this CPU has no %s: matrix products do without and take several times as long",
            ", ".join(missing),
        )
    return library


def missing_instructions(cpu_description: str) -> list[str]:
    """Return which fast instructions an x86 CPU lacks, by its lines of /proc/cpuinfo.

    Of another CPU nothing is known.
    """
    flags = {
        flag
        for line in cpu_description.splitlines()
        if line.startswith("flags")
        for flag in line.partition(":")[2].split()
    }
    return [name for name in FAST_INSTRUCTIONS if name not in flags] if flags else []


def build_native(cache_directory: Path, sources: Sequence[str] = SOURCES) -> Path:
    """Return the path of the built library; raises NativeBuildError or OSError."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeBuildError(f"no C++ compiler found (tried {', '.join(COMPILERS)})")
    runtimes = openmp_runtimes()
    if not runtimes:
        raise NativeBuildError("no OpenMP runtime is loaded in this process")
    flags = FLAGS if platform.machine() == "x86_64" else GENERIC_FLAGS
    key = _key(compiler, flags, runtimes[0], sources)
    target = cache_directory / f"{LIBRARY_PREFIX}{key}.so"
    if not _mark_used(target):
        logger.info("building the native kernels (once; they are kept in %s)", cache_directory)
        cache_directory.mkdir(parents=True, exist_ok=True)
        _sweep_abandoned(cache_directory)
        _compile(compiler, flags, runtimes[0], sources, target)
        _mark_used(target)
    _sweep_unused(cache_directory)
    return target


def _key(compiler: str, flags: Sequence[str], runtime: str, sources: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in (*HEADERS, *sources):
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


def _sweep_abandoned(cache_directory: Path) -> None:
    """Delete what builds left that were killed: no build takes longer than its limit, twice."""
    for build in cache_directory.glob(f"{BUILD_PREFIX}*"):
        with suppress(FileNotFoundError):  # that build has just ended
            if time.time() - build.stat().st_mtime > 2 * BUILD_TIMEOUT_S:
                shutil.rmtree(build, ignore_errors=True)


def _mark_used(library: Path) -> bool:
    """Note that `library` is in use; return whether it is there.

    The time of access is set by hand, since file systems need not keep it.
    """
    try:
        os.utime(library, ns=(time.time_ns(), library.stat().st_mtime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        logger.info("kernels come from a cache that cannot be written: %s", error)
    return True


def _sweep_unused(cache_directory: Path) -> None:
    """Delete all but the libraries that were used last, as far as the cache can be written."""
    times = {}
    for library in cache_directory.glob(f"{LIBRARY_PREFIX}*.so"):
        with suppress(FileNotFoundError):  # another process has just swept it
            times[library] = library.stat().st_atime_ns
    for library in sorted(times, key=times.__getitem__)[:-LIBRARIES_KEPT]:
        try:
            library.unlink(missing_ok=True)
        except OSError as error:
            logger.info("old kernels stay in the cache: %s", error)


def _compile(
    compiler: str, flags: Sequence[str], runtime: str, sources: Sequence[str], target: Path
) -> None:
    """Compile all sources side by side, link, and move the library to `target` in one step."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=BUILD_PREFIX) as build:
        objects = [Path(build) / f"{Path(name).stem}.o" for name in sources]
        commands = [
            [compiler, *flags, "-c", str(SOURCE_DIRECTORY / name), "-o", str(path)]
            for name, path in zip(sources, objects, strict=True)
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


def load_library(path: Path) -> ctypes.CDLL:
    """Return the library at `path` with its functions typed."""
    library = ctypes.CDLL(str(path))
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    signatures: dict[str, list[type]] = {
        "headrace_argmax": [pointer, pointer, pointer, integer, integer],
        "headrace_draw": [pointer],
    }
    signatures |= {
        f"headrace_{name}_{dtype}": [pointer]
        for name in ("paged_attention", "norm_add", "norm_heads")
        for dtype in DTYPES
    }
    signatures |= {
        f"headrace_{name}_{weights}": [pointer] for name in PRODUCTS for weights in WEIGHT_FORMATS
    }
    signatures |= {
        f"headrace_embed_{weights}": [pointer, pointer, pointer, integer, integer]
        for weights in EMBED_FORMATS
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = None
    return library
