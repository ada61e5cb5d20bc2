"""The native runner of ExecuTorch: built against the installed package, every repetition a fresh process of it."""

from __future__ import annotations

import functools
import platform
import sys
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import Target
from opscope.core.errors import MissingDependencyError
from opscope.core.system.c_library import check_c_library
from opscope.core.system.cache import cache_directory, is_whole
from opscope.experiment.target import Capabilities
from opscope.hosts.emulator import EmulatedMachine, find_emulator
from opscope.hosts.target_kinds import NATIVE
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import environment, isa
from opscope.runtimes.executorch.installed import library_directory
from opscope.runtimes.executorch.runners.native_jobs import NativeJobs, NativeStarter, backend_of, libraries_of
from opscope.runtimes.executorch.runners.python import python_here
from opscope.runtimes.native.building import (
    COMPILER_HINT,
    build_key,
    compile_runner,
    find_compiler,
    host_architecture,
    source_flags,
)
from opscope.runtimes.native.folder import RunnerParts, RuntimeFolder, check_architecture, make_folder
from opscope.runtimes.native.start import NativeProgram, program_for
from opscope.runtimes.native.target import RunnerTarget
from opscope.runtimes.native.wheels import Wheel, unpacked_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.core.system.compiler import Compiler
    from opscope.experiment.protocol import ProbeAnswer
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.runtimes.executorch.runners.python import PythonTarget


SOURCE = Path(__file__).with_name("cpp") / "runner.cpp"
_LIBRARIES = ("executorch_etdump", "executorch_threadpool", "executorch")
# The event tracer's switch must be that of the package's own libraries, or the classes have other layouts.
_DEFINES = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED")
_TYPES = "executorch/runtime/core/portable_type/c10"


class NativeTarget(RunnerTarget):
    """Runs jobs with ExecuTorch's native runner.

    Loading a program includes loading its method here; with Python that is part of the first inference.

    Args:
        host: where.
        program: makes the runner when it is needed first, since it may depend on what the host is.
        versions: of the host's software that go with those of the runner.
        python: of the same host, which measures its ceilings; None where they are not measured.
        probe: asks for the CPU's features; None: the runner is asked.
    """

    honours = frozenset({"affinity", "calls", "inputs", "values", "data"})

    def __init__(
        self,
        host: Host,
        program: Callable[[], NativeProgram],
        versions: Mapping[str, str],
        python: PythonTarget | None = None,
        probe: Callable[[], ProbeAnswer] | None = None,
    ) -> None:
        super().__init__(host, program, versions, python)
        self._asks = probe

    @cached_property
    def jobs(self) -> NativeJobs:
        """What runs its jobs."""
        program = self.program
        return NativeJobs(NativeStarter(self._host, program), program.versions, program.arch, self._asks)

    def capabilities(self) -> Capabilities:
        """All; the kernels that it calls can be counted."""
        return Capabilities(
            brought=self.brought_files,
            host=self._host,
            backend=lambda: backend_of(self.program),
            libraries=lambda: libraries_of(self.program),
        )

    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime there sees them."""
        return self.jobs.probed


def native_here(cache: Path | None = None, runner: Sequence[str] | None = None) -> NativeTarget:
    """The native runner on this machine."""
    built = None if runner else build_runner(cache)
    versions = {"executorch": built.runtime, "compiler": built.compiler.version} if built else {}
    command = [str(built.path)] if built else list(runner or ())
    program = NativeProgram(isa.architecture(platform.machine()), versions, command=command)
    # The runner tells features in milliseconds; on macOS it cannot tell the size of cpuinfo_isa, Python can.
    asks_runner = built is not None and sys.platform == "linux"
    target = NativeTarget(
        ThisMachine(Target(NATIVE.name, "")),
        lambda: program,
        environment.versions(),
        python_here(features=lambda: target.probe()),  # noqa: PLW0108 - the target is not there yet
        None if asks_runner else python_here().probe,
    )
    return target


def native_on(device: Device, cache: Path | None = None, versions: Mapping[str, str] | None = None) -> NativeTarget:
    """The native runner on a device, sent with all it needs."""
    otherwise = "use a Python with executorch there: ?python=PATH"
    made = functools.partial(program_for, device, lambda arch: build_runtime(arch, cache), otherwise)
    return NativeTarget(device, made, versions or {})


def native_emulated(cache: Path | None = None) -> NativeTarget:
    """The native runner for 64-bit Arm under QEMU on this machine. Its times mean nothing."""
    host = EmulatedMachine(find_emulator())
    found = NativeProgram.of(build_runtime(host.arch, cache))
    program = found._replace(versions={**found.versions, **host.versions})
    return NativeTarget(host, lambda: program, {})


_TESTED = "1.5.1"
# Oldest first: the wheels say which C library they need.
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
_WANTED = ("executorch/lib/", "executorch/include/")


def runtime_version() -> str:
    """Version of the runtime to send: the one installed here, else the one that opscope is tested with."""
    try:
        return version("executorch")
    except PackageNotFoundError:
        return _TESTED


def runtime_libraries(arch: str, cache: Path | None = None) -> Path:
    """Directory of the runtime's libraries for Linux on an architecture; the headers lie beside it.

    Those of the installed package where that fits, else those of the wheel of the same version.
    """
    if arch == host_architecture():
        return library_directory()
    wheel = Wheel("executorch", runtime_version(), _PLATFORMS, _WANTED)
    return unpacked_wheel(wheel, arch, cache) / "executorch" / "lib"


_RUNTIME = tuple(
    f"libexecutorch{name}.so" for name in ("", "_threadpool", "_etdump", "_kernels_optimized", "_backend_xnnpack")
)
_KERNELS = "libexecutorch_kernels_quantized.so"
"""Goes with them where the package has it."""


def build_runtime(arch: str, cache: Path | None = None) -> RuntimeFolder:
    """The folder for an architecture; made once of this runtime, compiler and runner."""
    check_architecture(arch)
    find_compiler(arch)  # before anything is downloaded
    libraries = runtime_libraries(arch, cache)
    parts = RunnerParts(
        {"executorch": runtime_version()}, SOURCE, compiler_flags(libraries, "$ORIGIN"), _parts(libraries)
    )
    return make_folder(arch, parts, cache)


def _parts(libraries: Path) -> list[Path]:
    names = (*_RUNTIME, _KERNELS) if (libraries / _KERNELS).exists() else _RUNTIME
    return [libraries / name for name in names]


class NativeRunner(NamedTuple):
    """The native runner."""

    path: Path  # the executable
    compiler: Compiler  # that built it
    runtime: str  # version of the executorch package that it belongs to


def build_runner(cache: Path | None = None, python: Path | None = None) -> NativeRunner:
    """The native runner for the installed package; built when there is none of this source, package and compiler."""
    check_c_library(python)
    libraries, compiler = library_directory(), find_compiler()
    flags = compiler_flags(libraries, str(libraries))
    runtime = version("executorch")
    path = (cache or cache_directory()) / "native" / build_key(compiler, SOURCE, flags, runtime) / "runner"
    if not is_whole(path):
        compile_runner(compiler, flags, path)
    return NativeRunner(path, compiler, runtime)


def compiler_flags(libraries: Path, rpath: str) -> list[str]:
    """Arguments of the compiler but for the name of the result; source before libraries."""
    include = libraries.parent / "include"
    if not (include / "executorch/extension/module/module.h").exists():
        raise MissingDependencyError("the executorch package has no C++ headers", where=include, hint=COMPILER_HINT)
    return [
        *(f"-D{name}" for name in _DEFINES),
        *("-isystem", str(include), "-isystem", str(include / _TYPES)),
        *source_flags(SOURCE),
        *(f"-L{libraries}", "-Xlinker", "-rpath", "-Xlinker", rpath, *(f"-l{name}" for name in _LIBRARIES)),
        *(() if sys.platform == "darwin" else ("-ldl",)),
    ]
