"""Runners that drive the one library of a wheel: built here, or as a folder on devices and emulated."""

from __future__ import annotations

import functools
import platform
import tempfile
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

from opscope.bundle.manifest import Failure, Target
from opscope.core.errors import MissingDependencyError, OpscopeError, RunError, UsageError
from opscope.core.files import scratch_directory
from opscope.core.system.c_library import check_c_library
from opscope.core.system.cache import cache_directory, is_whole
from opscope.experiment.protocol import LOG, ProbeAnswer
from opscope.experiment.target import Capabilities, JobOutcome
from opscope.hosts.adb.device import PHONE_VERSIONS, phone_device, ssh_device
from opscope.hosts.emulator import EmulatedMachine, find_emulator
from opscope.hosts.ssh import parse_address
from opscope.hosts.target_kinds import ADB, LOCAL, NATIVE, SSH, forms
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import isa
from opscope.machine.cpu_reading import CPUID_LEAVES, fixed_fields
from opscope.machine.switch.switch import fields_stated
from opscope.runtimes.hosted import FROM_PYTHON, ended_by
from opscope.runtimes.native.answer import RunnerAnswer, RunnerCall
from opscope.runtimes.native.building import build_key, compile_runner, find_compiler, host_architecture, source_flags
from opscope.runtimes.native.folder import RunnerParts, RuntimeFolder, check_architecture, make_folder
from opscope.runtimes.native.start import NativeProgram, RunnerStarter, program_for
from opscope.runtimes.native.target import RunnerTarget
from opscope.runtimes.native.wheels import Wheel, unpacked_wheel
from opscope.runtimes.switching import nothing_to_clear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opscope.bundle.manifest import Mechanism
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import RunTarget, SwitchOffer
    from opscope.experiment.target_names import TargetName
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.runtimes.switching import LibrarySwitch

SHORT_SECONDS = 60.0
"""That a runner may take for what it tells without a measurement."""
_PROBE = {"probe": 1, "cpuid_leaves": ",".join(f"{leaf}/{subleaf}" for leaf, subleaf in CPUID_LEAVES)}
_NO_RUNNER = "on this machine, you can also run from Python: --target local"


class WheelRunner(NamedTuple):
    """A runner, and the library of a wheel that it drives."""

    title: str  # of the runtime
    package: str  # name of the wheel in the index
    source: Path  # of the runner
    installed: Callable[[], tuple[str, Path]]  # version and library of the installed package
    member: Callable[[str], str]  # path of the library in the wheel of a version for Linux
    newest: str  # version that is taken for another architecture where none is installed
    platforms: tuple[str, ...]  # tags of its wheels; see Wheel

    @property
    def flags(self) -> tuple[str, ...]:
        """Of the compiler."""
        return (*source_flags(self.source), "-ldl")

    def here(self, cache: Path | None = None) -> NativeProgram:
        """The runner for the installed package; built when there is none of this source and compiler."""
        check_c_library()
        (version, _), compiler = self.installed(), find_compiler()
        path = (cache or cache_directory()) / "native" / build_key(compiler, self.source, self.flags) / "runner"
        if not is_whole(path):
            compile_runner(compiler, self.flags, path)
        versions = {self.package: version, "compiler": compiler.version}
        return NativeProgram(isa.architecture(platform.machine()), versions, command=[str(path)])

    def folder(self, arch: str, cache: Path | None = None) -> RuntimeFolder:
        """The folder that runs models on any Linux of an architecture.

        Its library is that of the installed package where that fits, else that of the wheel of the same version.
        """
        check_architecture(arch)
        find_compiler(arch)  # before anything is downloaded
        version, library = self._library_for(arch, cache)
        return make_folder(arch, RunnerParts({self.package: version}, self.source, self.flags, [library]), cache)

    def _library_for(self, arch: str, cache: Path | None) -> tuple[str, Path]:
        """Version and file of the library for Linux on an architecture."""
        try:
            version, library = self.installed()
        except MissingDependencyError:
            if arch == host_architecture():
                raise
            version = self.newest
        else:
            if arch == host_architecture():
                return version, library
        wheel = Wheel(self.package, version, self.platforms, (self.member(version),))
        return version, unpacked_wheel(wheel, arch, cache) / self.member(version)

    def library_of(self, program: NativeProgram) -> Path:
        """The library whose kernels a runner calls, on this machine."""
        if program.brought is None:
            return self.installed()[1]
        return program.brought.directory / Path(self.member(program.versions[self.package])).name


Answer = TypeVar("Answer", bound=RunnerAnswer)


class WheelJobs(ABC, Generic[Answer]):
    """Runs jobs with such a runner.

    Args:
        host: where.
        program: the runner.
    """

    runner: ClassVar[WheelRunner]
    answers: type[Answer]
    """What the runner answers with."""

    def __init__(self, host: Host, program: NativeProgram) -> None:
        self._runner = RunnerStarter(host, program, self.answers)
        self._program = program
        self._library = functools.partial(self.runner.library_of, program)

    @cached_property
    def probed(self) -> ProbeAnswer:
        """The CPU's features as the processor there states them; asked once."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            work = Path(directory)
            heard = self._runner.answer(RunnerCall(_PROBE, work, work / LOG, SHORT_SECONDS))
        if isinstance(heard, Failure) or heard.processor is None:
            reason = heard.message if isinstance(heard, Failure) else "the runner reported none"
            raise RunError(f"cannot read the CPU's features: {reason}", hint=_NO_RUNNER)
        arch = self._program.arch
        return ProbeAnswer(arch, fields_stated(arch, heard.processor), None, 0, {}, fixed_fields(heard.processor))

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the library."""
        return self._switch().offer(mechanism)

    def _switch(self) -> LibrarySwitch:
        return self._runner.switch([self._library()], lambda: self.probed)

    def _library_there(self) -> str:
        """Path of the library on the host."""
        return self._runner.library_there(self._library())

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job; see :meth:`opscope.experiment.target.RunTarget.execute`."""
        try:
            with scratch_directory(directory / ".native") as work:
                return self._execute(job, directory.resolve(), work.resolve())
        except (OpscopeError, OSError) as error:
            return ended_by(error)
        except (ValueError, IndexError) as error:
            return ended_by(RunError(f"the runner's output does not match the model: {error}"))

    @abstractmethod
    def _execute(self, job: Job, directory: Path, work: Path) -> JobOutcome:
        """The same, with a directory for files on their way."""


class WheelTarget(RunnerTarget):
    """Runs models with such a runner.

    Attributes:
        runner: it.
        trace: name of its traces.
    """

    runner: ClassVar[WheelRunner]
    trace: ClassVar[str]

    @classmethod
    def here(cls, ceilings: RunTarget, cache: Path | None = None) -> WheelTarget:
        """On this machine, with the installed package; the ceilings are those of a target of the same."""
        program = cls.runner.here(cache)
        return cls(ThisMachine(Target(NATIVE.name, "")), lambda: program, {}, ceilings)

    @classmethod
    def on(cls, device: Device, cache: Path | None = None, versions: Mapping[str, str] | None = None) -> WheelTarget:
        """On a device, sent with all it needs."""
        otherwise = f"{cls.runner.title} models run on Linux and Android devices"
        made = functools.partial(program_for, device, lambda arch: cls.runner.folder(arch, cache), otherwise)
        return cls(device, made, versions or {}, None)

    @classmethod
    def emulated(cls, cache: Path | None = None) -> WheelTarget:
        """For 64-bit Arm under QEMU on this machine. Its times mean nothing."""
        host = EmulatedMachine(find_emulator())
        found = NativeProgram.of(cls.runner.folder(host.arch, cache))
        program = found._replace(versions={**found.versions, **host.versions})
        return cls(host, lambda: program, {}, None)

    @classmethod
    def named(cls, named: TargetName, from_python: Callable[[str | None], RunTarget]) -> RunTarget:
        """Where models run, by the name of a target; from Python where it says so, or where nothing else is there.

        Args:
            named: by a user.
            from_python: makes the target of this machine that runs Python, with why it stands in for this one.
        """
        kind, address = named
        title = cls.runner.title
        if named.runner or kind.only_builds:
            hint = f"leave out the runner; {forms((NATIVE, SSH, ADB))} run it with opscope's own"
            raise UsageError(f"builds of executor_runner do not run {title} models", where=named.text, hint=hint)
        if kind is SSH:
            if parse_address(address).python:
                hint = "leave out ?python=: opscope sends its own runner"
                raise UsageError(f"a device's Python cannot run {title} models", where=named.text, hint=hint)
            return cls.on(ssh_device(address))
        if kind is ADB:
            return cls.on(phone_device(address), versions=PHONE_VERSIONS)
        if kind.emulated:
            return cls.emulated()
        if kind is LOCAL:
            return from_python(None)
        try:
            return cls.here(from_python(None))
        except MissingDependencyError as error:
            if kind is NATIVE:
                raise
            return from_python(f"{error.problem}; {FROM_PYTHON}")

    def capabilities(self) -> Capabilities:
        """The name of its traces."""
        return Capabilities(host=self._host, trace=self.trace, brought=self.brought_files)

    def probe(self) -> NoReturn:
        """Features cannot be cleared in the library: it has no symbols, so that its variable cannot be found."""
        raise nothing_to_clear(self.runner.library_of(self.program))
