"""LiteRT as a target without Python in the process: on this machine, on devices, and behind an emulator."""

from __future__ import annotations

import functools
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from opscope.bundle.manifest import Target
from opscope.experiment.target import Capabilities
from opscope.hosts.emulator import EmulatedMachine, find_emulator
from opscope.hosts.target_kinds import NATIVE
from opscope.hosts.this_machine import ThisMachine
from opscope.runtimes.litert.native.building import library_of, runner_for, runner_here
from opscope.runtimes.litert.native.jobs import LitertJobs
from opscope.runtimes.litert.target import litert_here
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.native.start import NativeProgram, program_for
from opscope.runtimes.native.target import RunnerTarget
from opscope.runtimes.switching import nothing_to_clear

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from opscope.hosts.device import Device


class NativeLitertTarget(RunnerTarget):
    """Runs .tflite models with the native runner."""

    @cached_property
    def jobs(self) -> LitertJobs:
        """What runs its jobs."""
        return LitertJobs(self._host, self.program)

    def capabilities(self) -> Capabilities:
        """The name of its traces."""
        return Capabilities(host=self._host, trace=TRACE)

    def probe(self) -> NoReturn:
        """Features cannot be cleared in the library: it has no symbols, so that its variable cannot be found."""
        raise nothing_to_clear(library_of(self.program))


def native_litert_here(cache: Path | None = None) -> NativeLitertTarget:
    """The native runner on this machine, with the installed LiteRT."""
    program = runner_here(cache)
    return NativeLitertTarget(ThisMachine(Target(NATIVE.name, "")), lambda: program, {}, litert_here())


def native_litert_on(
    device: Device, cache: Path | None = None, versions: Mapping[str, str] | None = None
) -> NativeLitertTarget:
    """The native runner on a device, sent with all it needs."""
    otherwise = "LiteRT models run on devices of Linux and Android"
    made = functools.partial(program_for, device, lambda arch: runner_for(arch, cache), otherwise)
    return NativeLitertTarget(device, made, versions or {}, None)


def native_litert_emulated(cache: Path | None = None) -> NativeLitertTarget:
    """The native runner for 64-bit Arm under QEMU on this machine. Its times mean nothing."""
    host = EmulatedMachine(find_emulator())
    found = NativeProgram.of(runner_for(host.arch, cache))
    program = found._replace(versions={**found.versions, **host.versions})
    return NativeLitertTarget(host, lambda: program, {}, None)
