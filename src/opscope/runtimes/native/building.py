"""Build a native runner with a compiler on this machine, once: for here, or as a folder that runs on any Linux."""

from __future__ import annotations

import hashlib
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.core.files import sha256_of
from opscope.core.system.compiler import build_once, compiler_for, run_compiler, usual_compiler
from opscope.core.system.stages import enter
from opscope.hosts.process import question_seconds
from opscope.machine import isa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.core.system.compiler import Compiler


SHARED = Path(__file__).with_name("cpp") / "runner.h"
"""Source that all runners include; the compiler gets its directory first."""
_START_SECONDS = 60.0
_CONSEQUENCE = "cannot build the native runner"
LINUX_FLAGS = ("-ldl",)
"""Linker flags of a runner for Linux: macOS has no such library."""
COMPILER_HINT = (
    "install a C++17 compiler (Debian: apt install g++, macOS: xcode-select --install) or use --target local"
)


def host_architecture() -> str | None:
    """Return the architecture of this machine, as in ``opscope.machine.isa``; None if it does not run Linux."""
    if sys.platform != "linux":
        return None
    try:
        return isa.architecture(platform.machine())
    except FeatureError:
        return None


def find_compiler(arch: str | None = None) -> Compiler:
    """Return the compiler for an architecture; None as architecture means this machine."""
    if arch is None:
        return usual_compiler(_CONSEQUENCE, COMPILER_HINT)
    return compiler_for(arch, host_architecture(), _CONSEQUENCE, COMPILER_HINT)


def source_flags(source: Path) -> list[str]:
    """Return the arguments of the compiler for the single source file of a runner."""
    return ["-O2", "-std=c++17", f"-I{SHARED.parent}", str(source)]


def build_parts(compiler: Compiler, source: Path, flags: Sequence[str], *parts: str) -> list[str]:
    """Return everything that the build of a runner depends on; ``parts`` are further dependencies."""
    texts = [file.read_text(encoding="utf-8") for file in (source, SHARED)]
    return [*parts, compiler.version, *compiler.command, *texts, *flags]


def built_runner(
    compiler: Compiler, source: Path, flags: Sequence[str], *parts: str, cache: Path | None = None
) -> Path:
    """Build a runner and check that it starts, or return the one built from this source, compiler and further parts."""

    def build(path: Path) -> None:
        compile_source(path, compiler, flags)
        problem = "the native runner was built but does not start"
        run_compiler([str(path), "--help"], problem, COMPILER_HINT, seconds=question_seconds(_START_SECONDS))

    return build_once("native", RUNNER, build_parts(compiler, source, flags, *parts), build, cache)


def built_library(source: Path, flags: Sequence[str], name: str, cache: Path | None = None) -> Path:
    """Build a library from one source file, or return the one built from this source with this compiler."""
    compiler = find_compiler()

    def build(path: Path) -> None:
        compile_source(path, compiler, flags)

    return build_once("native", name, build_parts(compiler, source, flags), build, cache)


def compile_source(path: Path, compiler: Compiler, flags: Sequence[str]) -> None:
    """Compile a runner or a library, whose source is one of the flags."""
    enter("building the native runner")
    command = [*compiler.command, *flags, "-o", str(path)]
    run_compiler(command, "the compiler cannot build the native runner", COMPILER_HINT)


RUNNER = "runner"
_LOADERS = {"aarch64": "ld-linux-aarch64.so.1", "x86_64": "ld-linux-x86-64.so.2"}
_SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libstdc++.so.6", "libgcc_s.so.1")


class RuntimeFolder(NamedTuple):
    """A folder with everything that a runner needs."""

    arch: str  # as in `opscope.machine.isa`
    directory: Path  # the folder here; nothing but files
    digest: str  # of all its content, also its name on a device
    versions: Mapping[str, str]  # of the runtime and of the compiler

    def files(self) -> list[Path]:
        """Return the files of the folder, by name."""
        return sorted(self.directory.iterdir())

    def command(self, directory: str | None = None) -> list[str]:
        """Return the command that starts the runner with the folder's own loader and C library."""
        folder = directory or str(self.directory)
        return [f"{folder}/{_LOADERS[self.arch]}", "--library-path", folder, f"{folder}/{RUNNER}"]


def check_architecture(arch: str) -> None:
    """Raise FeatureError for an architecture for which no folder can be made."""
    if arch not in _LOADERS:
        problem = f"there is no prebuilt runtime for Linux on {arch}"
        raise FeatureError(problem, hint=f"known: {', '.join(_LOADERS)}; or use the device's Python")


def make_folder(
    arch: str,
    runtime: Mapping[str, str],
    *,
    source: Path,
    flags: Sequence[str],
    libraries: Sequence[Path],
    cache: Path | None = None,
) -> RuntimeFolder:
    """Make the folder for an architecture, or return the one made of these parts, system libraries and compiler.

    ``runtime``: names and versions, for the manifest; ``source``: of the runner; ``flags``: see
    :func:`compile_source`.
    """
    compiler = find_compiler(arch)

    def build(directory: Path) -> None:
        directory.mkdir()
        compile_source(directory / RUNNER, compiler, flags)
        paths = [_system_file(compiler, name) for name in (_LOADERS[arch], *_SYSTEM)]
        for file in [*libraries, *paths]:
            shutil.copy(file, directory / file.name)

    parts = build_parts(compiler, source, flags, *runtime.values(), *map(sha256_of, libraries))
    folder = build_once("runtimes", arch, parts, build, cache)
    return RuntimeFolder(arch, folder, _hash_files(folder), {**runtime, "compiler": compiler.version})


def _system_file(compiler: Compiler, name: str) -> Path:
    """Return the path of the loader, or of a library of C or the compiler, as the compiler finds it."""
    command = [*compiler.command, f"-print-file-name={name}"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(text).is_absolute() or not Path(text).exists():
        hint = "install that compiler's C and C++ libraries (Debian: libc6-dev-arm64-cross for aarch64)"
        raise MissingDependencyError(f"the compiler has no {name}", where=shlex.join(compiler.command), hint=hint)
    return Path(text).parent / name


def _hash_files(folder: Path) -> str:
    """Return a hash of the names and contents of all files in a folder."""
    lines = (f"{sha256_of(file)} {file.name}\n" for file in sorted(folder.iterdir()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
