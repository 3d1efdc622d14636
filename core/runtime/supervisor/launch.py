"""Start a child process and hold it by its pidfd.

Owns: the environment of a child, its command line, and the only handle by which it may be
signalled: a pidfd never names another process, as a reused pid could. Never knows: when to start,
or what a death means.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from core.config.file import config_to_json
from core.config.headrace import HeadraceConfig
from core.executor.threads import openmp_environment
from core.model_card import ModelCard, card_to_json
from core.runtime.supervisor.stage import Stage
from core.runtime.wiring import inherited_names
from core.supervision.spec import ChildKind, ChildSpec
from ipc.child import ChildSetup, child_command, inherited_fds, write_setup

PASSED_ON = (
    "CUDA_VISIBLE_DEVICES", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH",
    "TMPDIR", "TRITON_CACHE_DIR", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
)  # fmt: skip
FUSED_MULTIPLY_ADDS = {"TRITON_DEFAULT_FP_FUSION": "1"}  # as the kernels are compiled and proved
LOOPBACK_ONLY = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # ranks are of one machine
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(slots=True, eq=False)
class ChildProcess:
    """A process that we started. It stays a zombie until `returncode` has seen its end."""

    pid: int
    pidfd: int
    popen: subprocess.Popen[bytes]

    def fileno(self) -> int:
        """Return the pidfd, which becomes readable when the process ends."""
        return self.pidfd

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process; one that has ended already is left alone."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return

    def returncode(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self.popen.poll()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the process; it is killed when it takes longer."""
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            self.popen.wait()

    def close(self) -> None:
        """Drop the handle of a process that has ended."""
        os.close(self.pidfd)


def child_setup(
    spec: ChildSpec,
    epoch: int,
    slots: Mapping[str, int],
    stage: Stage,
    config: HeadraceConfig,
    card: ModelCard,
    extra_fds: Mapping[str, int],
) -> ChildSetup:
    """Return what instance `epoch` of a child is told: only its own fds, and the secret of the
    block digests only if it makes some.
    """
    names = ["death", *inherited_names(spec, config)]
    makes_digests = spec.kind in (ChildKind.SCHEDULER, ChildKind.TOKENIZER)
    told = card if makes_digests else msgspec.structs.replace(card, digest_secret=b"")
    return ChildSetup(
        child_id=spec.id,
        epoch=epoch,
        slot=slots[spec.id],
        run_dir=str(stage.directory.path),
        parent_pid=os.getpid(),
        peers=dict(slots),
        fds={**{name: stage.fds[name] for name in names}, **extra_fds},
        config=msgspec.Raw(config_to_json(config)),
        model=msgspec.Raw(card_to_json(told)),
        log_level=config.supervision.log_level,
    )


def start_child(spec: ChildSpec, setup: ChildSetup, environment: Mapping[str, str]) -> ChildProcess:
    """Run `spec.module` in a session of its own, so that the terminal's Ctrl-C is ours alone."""
    setup_fd = write_setup(setup)
    try:
        popen = subprocess.Popen(
            child_command(spec.module, setup_fd),
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=inherited_fds(setup, setup_fd),
            start_new_session=True,
        )
    finally:
        os.close(setup_fd)
    return ChildProcess(popen.pid, os.pidfd_open(popen.pid), popen)


def child_environment(
    spec: ChildSpec, config: HeadraceConfig, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the whole environment of a child: what `PASSED_ON` names, and its thread pools.

    Only executors compute; the other processes get one thread from every numeric library.
    """
    base = {name: environ[name] for name in PASSED_ON if name in environ}
    if spec.kind is ChildKind.EXECUTOR:
        engine = config.engine
        number = spec.index * engine.tensor_parallel + spec.rank
        computing = FUSED_MULTIPLY_ADDS | openmp_environment(engine.threads, number)
        return base | LOOPBACK_ONLY | computing
    return base | SINGLE_THREADED
