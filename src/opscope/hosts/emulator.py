"""This machine as 64-bit Arm, by QEMU's user mode: whether a program computes the right thing, never how fast.

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
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.manifest import Conditions, Target
from opscope.core.errors import MissingDependencyError
from opscope.hosts.target_kinds import QEMU
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.bundle.manifest import Environment
    from opscope.hosts.host import GuardedCommand

VARIABLE = "OPSCOPE_QEMU"
# Everything that QEMU can emulate: SME2 included, where the version has it.
_CPU = ("-cpu", "max")
WRONG_BEFORE, RIGHT_FROM = (10, 0), (11, 1)
_VERSION = re.compile(r"version (\d+)\.(\d+)(?:\.\d+)?")
_INSTALL = f"install QEMU 11.1 or newer (Debian: qemu-user of trixie-backports), or set one in {VARIABLE}"


class Emulator(NamedTuple):
    """QEMU's user mode."""

    command: tuple[str, ...]  # that starts it
    version: tuple[int, int]  # major and minor
    text: str  # version as it says it

    @property
    def doubt(self) -> str | None:
        """Return the doubts about this version; None for one that has been seen to be right."""
        if self.version >= RIGHT_FROM:
            return None
        return f"QEMU {self.text} does not support SME2, and its SME was not checked; use 11.1"


def find_emulator() -> Emulator:
    """Return the emulator that ``OPSCOPE_QEMU`` names, else ``qemu-aarch64``."""
    variable = os.environ.get(VARIABLE)
    command = tuple(shlex.split(variable)) if variable else (QEMU.name,)
    if not command or shutil.which(command[0]) is None:
        raise MissingDependencyError(f"{shlex.join(command)} is not installed", hint=_INSTALL)
    completed = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", check=False)
    match = _VERSION.search(completed.stdout)
    if match is None:
        raise MissingDependencyError("it does not report a QEMU version", where=command[0], hint=_INSTALL)
    emulator = Emulator(command, (int(match[1]), int(match[2])), match[0].removeprefix("version "))
    if emulator.version < WRONG_BEFORE:
        problem = f"QEMU {emulator.text} computes int8 convolutions with SME incorrectly"
        raise MissingDependencyError(problem, where=command[0], hint=_INSTALL)
    return emulator


class EmulatedMachine(ThisMachine):
    """This machine with an emulator in front of every program."""

    arch = "aarch64"

    def __init__(self, emulator: Emulator) -> None:
        super().__init__(Target(QEMU.name, "", emulated=True))
        self._emulator = emulator

    @property
    def versions(self) -> dict[str, str]:
        """Return the version of the emulator."""
        return {"qemu": self._emulator.text}

    def environment(self, features: list[str] | None, versions: Mapping[str, str]) -> Environment:
        """Return this machine with the emulated CPU; facts about the real one alone are left out."""
        return msgspec.structs.replace(
            environment.capture(features),
            machine=self.arch,
            cpu=f"QEMU {self._emulator.text} (emulated, -cpu max)",
            hypervisor=None,
            governor=None,
            versions=dict(versions),
        )

    def conditions(self) -> Conditions:
        """Return the load of this machine; the emulated CPU has no clock and no temperature."""
        real = environment.conditions()
        return Conditions(real.load_average, None, None, real.usable_cpus)

    def _command_words(self, command: GuardedCommand) -> list[str]:
        """Return the words that start a command with the emulator."""
        return [*self._emulator.command, *_CPU, *command.process.emulation, *command.words]
