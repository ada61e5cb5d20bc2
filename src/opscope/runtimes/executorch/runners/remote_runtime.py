"""The folder that runs the native runner on any Linux of an architecture: runner, libraries, loader and C library."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.core.files import leads_out, sha256_of
from opscope.core.system.cache import cache_directory, made_in_place
from opscope.core.system.compiler import answering_compiler
from opscope.core.system.interpreter import module_command
from opscope.core.system.stages import enter
from opscope.hosts.process import last_line
from opscope.machine import isa
from opscope.runtimes.executorch.installed import library_directory
from opscope.runtimes.executorch.runners.native_build import (
    SOURCE,
    compile_runner,
    compiler_flags,
    find_compiler,
)

if TYPE_CHECKING:
    from opscope.core.system.compiler import Compiler


_TESTED = "1.5.1"
# Oldest first: the wheels say which C library they need.
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
_PARTS = ("executorch/lib/", "executorch/include/")
_DOWNLOAD_SECONDS = 600


def host_architecture() -> str | None:
    """This machine's, as in ``opscope.machine.isa``, when it runs Linux; else None."""
    if sys.platform != "linux":
        return None
    try:
        return isa.architecture(platform.machine())
    except FeatureError:
        return None


def runtime_version() -> str:
    """Version of the runtime to send: the one installed here, else the one that opscope is tested with."""
    try:
        return version("executorch")
    except PackageNotFoundError:
        return _TESTED


def runtime_libraries(arch: str, cache: Path | None = None) -> Path:
    """Directory of the runtime's libraries for Linux on an architecture; the headers lie beside it.

    Those of the installed package where that fits, else those of the wheel of the same version, which pip downloads
    once from wherever it is set up to look.

    Args:
        arch: as in ``opscope.machine.isa``.
        cache: where wheels are kept unpacked; the user's cache directory when it is not given.

    Raises:
        MissingDependencyError: there is no such wheel, or it cannot be downloaded.
        StorageError: it cannot be kept.
    """
    if arch == host_architecture():
        return library_directory()
    wanted = runtime_version()
    unpacked = (cache or cache_directory()) / "wheels" / f"executorch-{wanted}-{arch}"
    if not unpacked.exists():
        enter(f"downloading the runtime for {arch}")
        with made_in_place(unpacked) as parts:
            _unpack(_downloaded(wanted, arch, parts.parent), parts)
    return unpacked / "executorch" / "lib"


def _downloaded(wanted: str, arch: str, work: Path) -> Path:
    command = [*module_command("pip"), "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [word for name in _PLATFORMS for word in ("--platform", f"{name}_{arch}")]
    command += ["--dest", str(work), f"executorch=={wanted}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        problem = f"the runtime for {arch} cannot be downloaded: {last_line(done.stderr) or 'pip gave no wheel'}"
        raise MissingDependencyError(problem, hint=_NO_WHEEL)
    return wheels[0]


_NO_WHEEL = "download the wheel on another machine, and name its directory in PIP_FIND_LINKS"


def _unpack(wheel: Path, into: Path) -> None:
    """Take libraries and headers out of a wheel.

    Raises:
        MissingDependencyError: it is damaged, or a member of it points out of it.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if leads_out(member.orig_filename) or stat.S_ISLNK(member.external_attr >> 16):
                    problem = f"its member {member.orig_filename!r} points out of it"
                    raise MissingDependencyError(problem, where=wheel, hint=_NO_WHEEL)
            archive.extractall(into, [name for name in archive.namelist() if name.startswith(_PARTS)])
    except zipfile.BadZipFile:
        raise MissingDependencyError("the wheel is damaged", where=wheel, hint="download it again") from None


RUNNER = "runner"
_LOADERS = {"aarch64": "ld-linux-aarch64.so.1", "x86_64": "ld-linux-x86-64.so.2"}
_RUNTIME = tuple(
    f"libexecutorch{name}.so" for name in ("", "_threadpool", "_etdump", "_kernels_optimized", "_backend_xnnpack")
)
_KERNELS = "libexecutorch_kernels_quantized.so"
"""Goes with them where the package has it."""
_SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libstdc++.so.6", "libgcc_s.so.1")


class RuntimeFolder(NamedTuple):
    """A folder with all that the runner needs.

    Attributes:
        arch: as in ``opscope.machine.isa``.
        directory: the folder here; nothing but files.
        digest: of all its content, also its name on a device.
        versions: of the runtime and of the compiler.
    """

    arch: str
    directory: Path
    digest: str
    versions: dict[str, str]

    def files(self) -> list[Path]:
        """Its files, by name."""
        return sorted(self.directory.iterdir())

    def command(self, directory: str | None = None) -> list[str]:
        """What starts the runner, with the folder's own loader and C library.

        Args:
            directory: where the folder lies on the machine that runs it; None: here.
        """
        place = directory or str(self.directory)
        return [f"{place}/{_LOADERS[self.arch]}", "--library-path", place, f"{place}/{RUNNER}"]


def build_runtime(arch: str, cache: Path | None = None) -> RuntimeFolder:
    """The folder for an architecture; made once of this runtime, compiler and runner.

    Args:
        arch: as in ``opscope.machine.isa``.
        cache: where such folders are kept; the user's cache directory when it is not given.

    Raises:
        FeatureError: no runtime is known for the architecture.
        MissingDependencyError: the wheel or a compiler for it is missing.
        StorageError: it cannot be kept.
    """
    if arch not in _LOADERS:
        problem = f"there is no prebuilt runtime for Linux on {arch}"
        raise FeatureError(problem, hint=f"known: {', '.join(_LOADERS)}; or use the Python of the device")
    compiler, libraries = _compiler(arch), runtime_libraries(arch, cache)
    flags = compiler_flags(libraries, "$ORIGIN")
    version = runtime_version()
    parts = (version, compiler.version, *compiler.command, SOURCE.read_text(encoding="utf-8"), *flags)
    parts += tuple(sha256_of(libraries / name) for name in _parts(libraries))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = (cache or cache_directory()) / "runtimes" / f"{arch}-{key}"
    if not folder.exists():
        _make(folder, compiler, flags, libraries, arch)
    return RuntimeFolder(arch, folder, _digest(folder), {"executorch": version, "compiler": compiler.version})


def _make(folder: Path, compiler: Compiler, flags: list[str], libraries: Path, arch: str) -> None:
    with made_in_place(folder) as parts:
        compile_runner(compiler, flags, parts / RUNNER, starts=False)
        found = [_system_file(compiler, name) for name in (_LOADERS[arch], *_SYSTEM)]
        for file in [*(libraries / name for name in _parts(libraries)), *found]:
            shutil.copy(file, parts / file.name)


def _parts(libraries: Path) -> tuple[str, ...]:
    return (*_RUNTIME, _KERNELS) if (libraries / _KERNELS).exists() else _RUNTIME


def _system_file(compiler: Compiler, name: str) -> Path:
    """The loader, or a library of C or of the compiler, as it finds it itself.

    Raises:
        MissingDependencyError: it does not have it.
    """
    command = [*compiler.command, f"-print-file-name={name}"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(told).is_absolute() or not Path(told).exists():
        hint = "install the C and C++ libraries of that compiler (Debian: libc6-dev-arm64-cross for aarch64)"
        raise MissingDependencyError(f"the compiler has no {name}", where=shlex.join(compiler.command), hint=hint)
    return Path(told).parent / name


def _compiler(arch: str) -> Compiler:
    """The compiler for an architecture: as the environment names it, the usual cross compiler, or that of this machine.

    Raises:
        MissingDependencyError: none answers.
    """
    variable = f"OPSCOPE_CXX_{arch.upper()}"
    named = os.environ.get(variable)
    if named is None and arch == host_architecture():
        return find_compiler()
    command = shlex.split(named) if named else [f"{arch}-linux-gnu-g++"]
    found = answering_compiler(command)
    if found is None:
        hint = f"Debian: apt install g++-{arch.replace('_', '-')}-linux-gnu; or name one in {variable}"
        raise MissingDependencyError(f"there is no C++ compiler for {arch}: {shlex.join(command)}", hint=hint)
    return found


def _digest(folder: Path) -> str:
    """Hash of the names and contents of all files."""
    lines = (f"{sha256_of(file)} {file.name}\n" for file in sorted(folder.iterdir()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
