"""LiteRT as a target without Python in the process: on this machine, on devices, and behind an emulator."""

from __future__ import annotations

import functools
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from opscope.bundle.manifest import Mechanism, Target
from opscope.core.errors import RunError
from opscope.experiment.target import Capabilities, SwitchOffer, feature_groups
from opscope.hosts.emulator import EmulatedMachine, find_emulator
from opscope.hosts.target_kinds import NATIVE
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import environment
from opscope.runtimes.hosted import HostedTarget
from opscope.runtimes.litert.native.building import library_of, runner_for, runner_here
from opscope.runtimes.litert.native.jobs import LitertJobs
from opscope.runtimes.litert.target import litert_here
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.native.start import NativeProgram, program_for
from opscope.runtimes.switching import nothing_to_clear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from opscope.bundle.manifest import Environment
    from opscope.experiment.target import Job, JobOutcome
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.machine.peak_rates_cache import MachineIdentity
    from opscope.program.peak_rates.peak_rates import PeakRates
    from opscope.runtimes.package_target import PackageTarget


class NativeLitertTarget(HostedTarget):
    """Runs .tflite models with the native runner.

    Args:
        host: where.
        program: makes the runner when it is needed first, since it may depend on what the host is.
        versions: of the host's software that go with those of the runner.
        python: of this machine, which measures its ceilings; None where they are not measured.
    """

    def __init__(
        self,
        host: Host,
        program: Callable[[], NativeProgram],
        versions: Mapping[str, str],
        python: PackageTarget | None = None,
    ) -> None:
        super().__init__(host)
        self._make, self._versions, self._python = program, dict(versions), python

    @cached_property
    def program(self) -> NativeProgram:
        """The runner.

        Raises:
            FeatureError: there is none for the host.
            MissingDependencyError: a compiler or the wheel is missing.
        """
        return self._make()

    @cached_property
    def _jobs(self) -> LitertJobs:
        return LitertJobs(self._host, self.program)

    def capabilities(self) -> Capabilities:
        """The name of its traces."""
        return Capabilities(host=self._host, trace=TRACE)

    def probe(self) -> NoReturn:
        """Features cannot be cleared in the library: it has no symbols, so that its variable cannot be found.

        Raises:
            FeatureError: always, with the reason.
        """
        raise nothing_to_clear(library_of(self.program))

    def environment(self) -> Environment:
        """The machine and its software, the compiler included."""
        groups = feature_groups(lambda: self._jobs.probed)
        versions = {"opscope": environment.versions()["opscope"], **self._versions, **self.program.versions}
        return self._host.environment(groups, versions)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own, which ends with its time, the caller, or the connection."""
        return self._jobs.execute(job, directory.resolve())

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the library.

        Raises:
            FeatureError: it cannot be used there; the message says why.
            MissingDependencyError: there is no compiler.
        """
        return SwitchOffer(self.probe()) if mechanism is Mechanism.CPUINFO else self._jobs.offer(mechanism)

    def roofs(self, clear: list[str] | None, threads: int) -> PeakRates | None:
        """The ceilings with these features and threads; None where Python, which measures them, is not at hand."""
        return self._python.roofs(clear, threads) if self._python else None

    def identity(self) -> MachineIdentity | None:
        """What the ceilings depend on; None where they are not measured."""
        return self._python.identity() if self._python else None

    def roofs_again(self, sample: PeakRates) -> PeakRates:
        """The same ceilings as these, measured again.

        Raises:
            RunError: they are not measured there.
        """
        if self._python is None:
            raise RunError("this target measures no ceilings")
        return self._python.roofs_again(sample)


def native_litert_here(cache: Path | None = None) -> NativeLitertTarget:
    """The native runner on this machine, with the installed LiteRT.

    Args:
        cache: where the built runner is kept; the user's cache directory when it is not given.

    Raises:
        MissingDependencyError: LiteRT or a compiler is missing, or the runner cannot be built.
        StorageError: the runner cannot be kept.
    """
    program = runner_here(cache)
    return NativeLitertTarget(ThisMachine(Target(NATIVE.name, "")), lambda: program, {}, litert_here())


def native_litert_on(
    device: Device, cache: Path | None = None, versions: Mapping[str, str] | None = None
) -> NativeLitertTarget:
    """The native runner on a device, sent with all it needs.

    Args:
        device: of Linux or Android.
        cache: where runtimes are kept here; the user's cache directory when it is not given.
        versions: to be told with those of the runner.
    """
    otherwise = "LiteRT models run on devices of Linux and Android"
    made = functools.partial(program_for, device, lambda arch: runner_for(arch, cache), otherwise)
    return NativeLitertTarget(device, made, versions or {})


def native_litert_emulated(cache: Path | None = None) -> NativeLitertTarget:
    """The native runner for 64-bit Arm under QEMU on this machine. Its times mean nothing.

    Args:
        cache: where the runtime is kept; the user's cache directory when it is not given.

    Raises:
        MissingDependencyError: QEMU, a compiler or the wheel is missing.
        StorageError: the runtime cannot be kept.
    """
    host = EmulatedMachine(find_emulator())
    found = NativeProgram.of(runner_for(host.arch, cache))
    program = found._replace(versions={**found.versions, **host.versions})
    return NativeLitertTarget(host, lambda: program, {})
