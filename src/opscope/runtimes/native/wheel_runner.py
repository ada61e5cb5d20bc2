"""Runners that drive the single library of a wheel: built for this machine, or as a folder for devices and emulation.

The wheel of another architecture is downloaded once by pip, from wherever that is set up to look.
"""

from __future__ import annotations

import platform
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn

from opscope.bundle.manifest import Target
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.core.files import leads_out, sha256_of
from opscope.core.system.c_library import check_c_library
from opscope.core.system.cache import cache_directory, is_whole, made_in_place
from opscope.core.system.interpreter import module_command
from opscope.core.system.pythons import HERE, python_at
from opscope.core.system.stages import enter
from opscope.experiment.protocol import ProbeAnswer
from opscope.experiment.target import Capabilities
from opscope.hosts.adb.device import PHONE_VERSIONS, phone_device, ssh_device
from opscope.hosts.process import last_line
from opscope.hosts.ssh import parse_address
from opscope.hosts.target_kinds import ADB, LOCAL, NATIVE, SSH, forms
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import isa
from opscope.machine.cpu_reading import fixed_fields
from opscope.machine.switch.switch import fields_stated
from opscope.runtimes.hosted import FROM_PYTHON
from opscope.runtimes.native.building import (
    LINUX_FLAGS,
    RuntimeFolder,
    built_runner,
    check_architecture,
    find_compiler,
    host_architecture,
    make_folder,
    source_flags,
)
from opscope.runtimes.native.jobs import RunnerTarget
from opscope.runtimes.native.start import Answer, NativeProgram
from opscope.runtimes.switching import nothing_to_clear

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.core.system.pythons import Python
    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.hosts.host import ProcessSettings
    from opscope.runtimes.switching import LibrarySwitch


_DOWNLOAD_SECONDS = 600
_NO_WHEEL = "download the wheel on another machine, and name its directory in PIP_FIND_LINKS"


class Wheel(NamedTuple):
    """A wheel for Linux, and which of its files are needed."""

    package: str  # its name in the index
    version: str  # exact
    platforms: tuple[str, ...]  # tags without the architecture, oldest first: they say which C library it needs
    parts: tuple[str, ...]  # beginnings of the names of the members that are wanted


# SHA-256 of the wheels of the versions that were tried, for CPython 3.10 to 3.13 and both architectures. Source: what
# the Python Package Index states, as `pip install --dry-run --report FILE --only-binary=:all: --no-deps` gives it for
# each `--python-version` and `--platform` (`download_info.archive_info.hashes`).
_PUBLISHED = {
    ("executorch", "1.5.1"): {
        "e56525c38b1e1a428a9dd9f85081a2ef29dec1df8661963ac07cef0695cc0cf4",
        "b73f74ef4a431320aa40ca21c252316264fdbe1b5ae39208414e3a885af55b34",
        "8ee02348a3ea80ddf770822911ebf78da616b73afce0fbaaa79f23311c88c66a",
        "274c28c2fe2b76acb03f9fa381537425c40e0098dcf886baf6d97a1a55ffe300",
        "2c177f7922354a8a0d6111628c954519b87549598640e5e0042bef137b4cb83c",
        "04897dffff8d96e8af32f554c758d0a7d4f50af5c3530c90dc8d5319bb44c878",
        "685a8d85b319fc99f2611a5e0ecf598755a91cf5d39a536e057dea60cd8e9682",
        "083f998ebddc0bc98ad299e3fded57f4fcadb67792ef4c6ef920856cfd7bd3a5",
    },
    ("ai-edge-litert", "2.3.0"): {
        "a72fc35d66c1d8b17f52b195bfb39b89aa839d39ea6e0d57fb88d77ac5aeb8c9",
        "e104683ee0dead1243002a218637cc435c36fdb01103799335027252314e727b",
        "853fc608f96da87bd5f3458465dfb9abbf18d5ae6b94eceacead407146f175ae",
        "1f15078a6725d2357d9de9221664c29afa0545d807559c5f7199ce5e40b96b23",
        "9891611b23a87cc2ace60e4b5ee9a2ee6f0fb7f395f009470961ae6e6310e1b8",
        "dc9f56c23e0dcf182b6c35f23fbb102ed048296588882b806d5eff7654c04c88",
        "2ab71e4f5dfa65b3882634b42755f455f3e7415630d720200bd792733e15e257",
        "985ac3823fe1d5d6a04cf5f613cc2adf98a9c8a456af0b5efa8d9ac6b118ea14",
    },
    ("onnxruntime", "1.32.0"): {  # there is none for CPython 3.10
        "5a34fc4dfeb5a7b4a74c95dcba1e773d722abda720b474edf1b0c419dc6d163d",
        "2303372a85299b6757b0e11e1cbf13e410ddf7e10c37f4b37e99d1c90e7daf7c",
        "99e1074c4b2197accd5073052a465361be17b89c093b8ffb6e6bd8f986c52df8",
        "e36c187006e7a7c8b8d6d57f1a209dd63f52430dca6c282b177718ad6b841054",
        "02ea12a28c069ea8510093d95a7f6ff8126bfd9fc5c0d3381c03b80fb2b424ba",
        "54d02baff2df38777b4c3cc7af326406fe8b8a48f54720f4c446d2d327920a79",
    },
}


def unpacked_wheel(wheel: Wheel, arch: str, cache: Path | None = None) -> Path:
    """Return the directory with the needed members of a wheel for an architecture; downloads it once."""
    unpacked = (cache or cache_directory()) / "wheels" / f"{wheel.package}-{wheel.version}-{arch}"
    if not is_whole(unpacked):
        enter(f"downloading the runtime for {arch}")
        with made_in_place(unpacked) as parts:
            _extract_members(_download_wheel(wheel, arch, parts.parent), parts, wheel.parts)
    return unpacked


def _download_wheel(wheel: Wheel, arch: str, work: Path) -> Path:
    command = [*module_command("pip"), "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [word for name in wheel.platforms for word in ("--platform", f"{name}_{arch}")]
    command += ["--dest", str(work), f"{wheel.package}=={wheel.version}"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    paths = list(work.glob("*.whl"))
    if process.returncode or not paths:
        problem = f"cannot download the runtime for {arch}: {last_line(process.stderr) or 'pip gave no wheel'}"
        raise MissingDependencyError(problem, hint=_NO_WHEEL)
    _check_published(wheel, paths[0])
    return paths[0]


def _check_published(wheel: Wheel, file: Path) -> None:
    """Raise MissingDependencyError for a file that is not the published wheel, wherever pip took it from.

    For versions whose hashes are not known here, pip has compared it with the index.
    """
    published, sha256 = _PUBLISHED.get((wheel.package, wheel.version)), sha256_of(file)
    if published and sha256 not in published:
        problem = f"the wheel is damaged, or not the published {wheel.package} {wheel.version}: its SHA-256 is {sha256}"
        hint = "remove it from PIP_FIND_LINKS, or from the index that pip uses"
        raise MissingDependencyError(problem, where=file.name, hint=hint)


def _extract_members(wheel: Path, into: Path, parts: tuple[str, ...]) -> None:
    """Extract the members of a wheel whose names start with one of ``parts``."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if leads_out(member.orig_filename) or stat.S_ISLNK(member.external_attr >> 16):
                    problem = f"its member {member.orig_filename!r} points outside it"
                    raise MissingDependencyError(problem, where=wheel, hint=_NO_WHEEL)
            archive.extractall(into, [name for name in archive.namelist() if name.startswith(parts)])
    except zipfile.BadZipFile:
        raise MissingDependencyError("the wheel is damaged", where=wheel, hint="download it again") from None


class WheelRunner(NamedTuple):
    """A runner, and the library of a wheel that it drives."""

    title: str  # of the runtime
    package: str  # name of the wheel in the index
    source: Path  # of the runner
    installed: Callable[[Python], tuple[str, Path]]  # version and library of the package that a Python has
    member: Callable[[str], str]  # path of the library in the wheel of a version for Linux
    newest: str  # version that is taken for another architecture where none is installed
    platforms: tuple[str, ...]  # tags of its wheels; see Wheel

    def flags_for(self, system: str) -> tuple[str, ...]:
        """Return the arguments of the compiler for a system, named as ``sys.platform`` names it."""
        return (*source_flags(self.source), *(() if system == "darwin" else LINUX_FLAGS))

    def here(self, cache: Path | None = None, python: Python = HERE) -> NativeProgram:
        """Build the runner for the package of a Python, or return the one built from this source with this compiler."""
        check_c_library()
        (version, library), compiler = self.installed(python), find_compiler()
        flags = self.flags_for(sys.platform)
        path = built_runner(compiler, self.source, flags, cache=cache)
        versions = {self.package: version, "compiler": compiler.version}
        return NativeProgram(isa.architecture(platform.machine()), versions, command=[str(path)], library=library)

    def folder(self, arch: str, cache: Path | None = None) -> RuntimeFolder:
        """Return the folder that runs models on any Linux of an architecture.

        Its library is that of the installed package where that fits, else that of the wheel of the same version.
        """
        check_architecture(arch)
        find_compiler(arch)  # before anything is downloaded
        version, library = self._library_for(arch, cache)
        flags, runtime = self.flags_for("linux"), {self.package: version}
        return make_folder(arch, runtime, source=self.source, flags=flags, libraries=[library], cache=cache)

    def _library_for(self, arch: str, cache: Path | None) -> tuple[str, Path]:
        """Return version and file of the library for Linux on an architecture."""
        try:
            version, library = self.installed(HERE)
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
        """Return the library on this machine whose kernels a runner calls."""
        if program.brought is None:
            return program.library or self.installed(HERE)[1]
        return program.brought.directory / Path(self.member(program.versions[self.package])).name


class WheelTarget(RunnerTarget[Answer]):
    """Runs models with a runner that drives the library of a wheel."""

    runner: ClassVar[WheelRunner]
    trace: ClassVar[str]  # name of its traces
    otherwise = "models of this runtime run on Linux and Android devices"
    without_runner = "on this machine, you can also run from Python: --target local"

    @classmethod
    def here(cls, ceilings: RunTarget, cache: Path | None = None, python: Python = HERE) -> WheelTarget[Answer]:
        """Return the target of this machine with the package of a Python.

        ``ceilings`` is a target with the same package.
        """
        program = cls.runner.here(cache, python)
        return cls(ThisMachine(Target(NATIVE.name, python.address)), lambda: program, {}, ceilings)

    @classmethod
    def folder(cls, arch: str, cache: Path | None = None) -> RuntimeFolder:
        """Return the folder that runs models on any Linux of an architecture."""
        return cls.runner.folder(arch, cache)

    @classmethod
    def named(cls, target_name: TargetName, from_python: Callable[[str | None, Python], RunTarget]) -> RunTarget:
        """Return the target of a name; models run from Python if it says so, or if no runner can be had.

        ``target_name`` is what a user gave. ``from_python`` makes the target that runs a Python of this machine, given
        why it stands in for the runner.
        """
        kind, address = target_name
        title = cls.runner.title
        if target_name.runner or kind.only_builds:
            hint = f"leave out the runner; {forms((NATIVE, SSH, ADB))} run it with opscope's own"
            raise UsageError(f"builds of executor_runner do not run {title} models", where=target_name.text, hint=hint)
        if kind is SSH:
            if parse_address(address).python:
                hint = "leave out ?python=: opscope sends its own runner"
                raise UsageError(f"a device's Python cannot run {title} models", where=target_name.text, hint=hint)
            return cls.on(ssh_device(address))
        if kind is ADB:
            return cls.on(phone_device(address), versions=PHONE_VERSIONS)
        if kind.emulated:
            return cls.emulated()
        python = python_at(address if kind.here else "")
        if kind is LOCAL:
            return from_python(None, python)
        try:
            return cls.here(from_python(None, python), python=python)
        except MissingDependencyError as error:
            if kind is NATIVE:
                raise
            return from_python(f"{error.problem}; {FROM_PYTHON}", python)

    def capabilities(self) -> Capabilities:
        """Return the name of its traces, and the files that it copies to the host."""
        return Capabilities(host=self._host, trace=self.trace, brought=self.brought_files)

    def probe(self) -> NoReturn:
        """Raise FeatureError: the library has no symbols, so the variable with its features cannot be found."""
        raise nothing_to_clear(self.runner.library_of(self.program))

    def _ask_features(self, process: ProcessSettings) -> ProbeAnswer:
        """Return the CPU's features as the processor there states them."""
        _, reading = self._ask_processor(process)
        arch = self.program.arch
        return ProbeAnswer(arch, fields_stated(arch, reading), None, 0, {}, fixed_fields(reading))

    def _library_switch(self) -> LibrarySwitch:
        return self._runner_starter.switch([self.runner.library_of(self.program)], lambda: self.probed)

    def _library_there(self) -> str:
        """Return the path of the library on the host."""
        return self._runner_starter.library_there(self.runner.library_of(self.program))
