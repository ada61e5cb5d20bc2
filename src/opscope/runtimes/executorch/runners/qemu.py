"""The runtime for 64-bit Arm under QEMU's user mode: whether it computes the right thing, never how fast.

QEMU's user mode runs a program for another processor and passes its system calls on. Which version is right was seen
by comparing outputs of the same program: 7.2 computes int8 convolutions with SME wrong, 10.0 knows SME without its
second version, 11.1 has both and agrees with x86-64.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.manifest import Conditions, Target
from opscope.core.errors import MissingDependencyError
from opscope.experiment.target import feature_groups
from opscope.hosts.target_kinds import QEMU
from opscope.machine import environment
from opscope.runtimes.executorch.runners.native import LocalRunner
from opscope.runtimes.executorch.runners.native_jobs import NativeJobs
from opscope.runtimes.executorch.runners.remote_runtime import build_runtime

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.bundle.manifest import Environment
    from opscope.experiment.protocol import ProbeAnswer
    from opscope.experiment.target import Job, JobOutcome

VARIABLE = "OPSCOPE_QEMU"
_ARCH = "aarch64"
# Everything that QEMU can emulate: SME2 included, where the version has it.
_CPU = ("-cpu", "max")
WRONG_BEFORE, RIGHT_FROM = (10, 0), (11, 1)
_VERSION = re.compile(r"version (\d+)\.(\d+)(?:\.\d+)?")
_INSTALL = f"install QEMU 11.1 or newer (Debian: qemu-user of trixie-backports), or name one in {VARIABLE}"


class Emulator(NamedTuple):
    """QEMU's user mode.

    Attributes:
        command: that starts it.
        version: major and minor.
        text: version as it says it.
    """

    command: tuple[str, ...]
    version: tuple[int, int]
    text: str

    @property
    def doubt(self) -> str | None:
        """What is known against this version; None for one that has been seen to be right."""
        if self.version >= RIGHT_FROM:
            return None
        return f"QEMU {self.text} knows no SME2, and its SME was not checked; 11.1 is right"


def find_emulator() -> Emulator:
    """The emulator that ``OPSCOPE_QEMU`` names, else ``qemu-aarch64``.

    Raises:
        MissingDependencyError: there is none, or its version computes wrong.
    """
    named = os.environ.get(VARIABLE)
    command = tuple(shlex.split(named)) if named else (QEMU.name,)
    if not command or shutil.which(command[0]) is None:
        raise MissingDependencyError(f"{shlex.join(command)} is not installed", hint=_INSTALL)
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", check=False)
    match = _VERSION.search(done.stdout)
    if match is None:
        raise MissingDependencyError("it does not tell a version of QEMU", where=command[0], hint=_INSTALL)
    found = Emulator(command, (int(match[1]), int(match[2])), match[0].removeprefix("version "))
    if found.version < WRONG_BEFORE:
        problem = f"QEMU {found.text} computes int8 convolutions with SME wrong"
        raise MissingDependencyError(problem, where=command[0], hint=_INSTALL)
    return found


class QemuTarget:
    """Runs jobs with the native runner for 64-bit Arm under QEMU on this machine. Its times mean nothing.

    Args:
        cache: where the runtime is kept; the user's cache directory when it is not given.

    Raises:
        FeatureError: there is no runtime for it.
        MissingDependencyError: QEMU, a compiler or the wheel is missing.
        StorageError: the runtime cannot be kept.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._emulator = find_emulator()
        self.runtime = build_runtime(_ARCH, cache)
        self._versions = {**self.runtime.versions, "qemu": self._emulator.text}
        command: Sequence[str] = [*self._emulator.command, *_CPU, *self.runtime.command()]
        self._jobs = NativeJobs(LocalRunner(command), self._versions, _ARCH)

    def describe(self) -> Target:
        """Kind, and that the CPU is emulated."""
        return Target(QEMU.name, "", emulated=True)

    def probe(self) -> ProbeAnswer:
        """The emulated CPU's features as the runtime sees them."""
        return self._jobs.probed

    def environment(self) -> Environment:
        """This machine with the emulated CPU; what is known of the real one only is left out."""
        return msgspec.structs.replace(
            environment.capture(feature_groups(self.probe)),
            machine=_ARCH,
            cpu=self._cpu,
            hypervisor=None,
            governor=None,
            versions={"opscope": environment.versions()["opscope"], **self._versions},
        )

    @cached_property
    def _cpu(self) -> str:
        return f"QEMU {self._emulator.text} (emulated, -cpu max)"

    def conditions(self) -> Conditions:
        """The load of this machine; the emulated CPU has no clock and no temperature."""
        here = environment.conditions()
        return Conditions(here.load_average, None, None, here.usable_cpus)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own, which is ended when the time is up or the caller is interrupted."""
        return self._jobs.execute(job, directory)

    def roofs(self, clear: list[str] | None, threads: int) -> None:
        """No ceilings: an emulated CPU has none."""
