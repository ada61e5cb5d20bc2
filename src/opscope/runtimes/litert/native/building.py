"""LiteRT's native runner as it is built: for the installed library, or as a folder for any Linux."""

from __future__ import annotations

import platform
from pathlib import Path

from opscope.core.errors import MissingDependencyError
from opscope.core.system.c_library import check_c_library
from opscope.core.system.cache import cache_directory, is_whole
from opscope.machine import isa
from opscope.runtimes.litert.installed import KNOWN, LIBRARY, MODULE, PACKAGE, installed_litert
from opscope.runtimes.native.building import (
    build_key,
    compile_runner,
    find_compiler,
    host_architecture,
    source_flags,
)
from opscope.runtimes.native.folder import RunnerParts, RuntimeFolder, check_architecture, make_folder
from opscope.runtimes.native.start import NativeProgram
from opscope.runtimes.native.wheels import Wheel, unpacked_wheel

SOURCE = Path(__file__).with_name("cpp") / "runner.cpp"
_FLAGS = (*source_flags(SOURCE), "-ldl")
_FILE = f"{LIBRARY}.so"
_PLATFORMS = ("manylinux_2_27", "manylinux_2_28")


def runner_here(cache: Path | None = None) -> NativeProgram:
    """The runner for the installed LiteRT; built when there is none of this source and compiler."""
    check_c_library()
    found, compiler = installed_litert(), find_compiler()
    path = (cache or cache_directory()) / "native" / build_key(compiler, SOURCE, _FLAGS) / "runner"
    if not is_whole(path):
        compile_runner(compiler, _FLAGS, path)
    versions = {PACKAGE: found.version, "compiler": compiler.version}
    return NativeProgram(isa.architecture(platform.machine()), versions, command=[str(path)])


def runner_for(arch: str, cache: Path | None = None) -> RuntimeFolder:
    """The folder that runs models on any Linux of an architecture.

    Its library is that of the installed package where that fits, else that of the wheel of the same version.
    """
    check_architecture(arch)
    find_compiler(arch)  # before anything is downloaded
    version, library = _library_for(arch, cache)
    return make_folder(arch, RunnerParts({PACKAGE: version}, SOURCE, _FLAGS, [library]), cache)


def _library_for(arch: str, cache: Path | None) -> tuple[str, Path]:
    """Version and file of the library for Linux on an architecture."""
    try:
        found = installed_litert()
    except MissingDependencyError:
        if arch == host_architecture():
            raise
        version = KNOWN[-1]  # its structures are known, whatever is installed here
    else:
        version = found.version
        if arch == host_architecture():
            return version, found.library
    wheel = Wheel(PACKAGE, version, _PLATFORMS, (f"{MODULE}/{_FILE}",))
    return version, unpacked_wheel(wheel, arch, cache) / MODULE / _FILE


def library_of(program: NativeProgram) -> Path:
    """The library whose kernels a runner calls, on this machine."""
    return program.brought.directory / _FILE if program.brought else installed_litert().library
