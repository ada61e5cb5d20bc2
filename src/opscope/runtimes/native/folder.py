"""The folder that runs a native runner on any Linux of an architecture: runner, libraries, loader and C library."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.core.files import sha256_of
from opscope.core.system.cache import cache_directory, is_whole, made_in_place
from opscope.runtimes.native.building import build_key, compile_to, find_compiler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.core.system.compiler import Compiler

RUNNER = "runner"
_LOADERS = {"aarch64": "ld-linux-aarch64.so.1", "x86_64": "ld-linux-x86-64.so.2"}
_SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libstdc++.so.6", "libgcc_s.so.1")


class RuntimeFolder(NamedTuple):
    """A folder with all that a runner needs."""

    arch: str  # as in `opscope.machine.isa`
    directory: Path  # the folder here; nothing but files
    digest: str  # of all its content, also its name on a device
    versions: Mapping[str, str]  # of the runtime and of the compiler

    def files(self) -> list[Path]:
        """Its files, by name."""
        return sorted(self.directory.iterdir())

    def command(self, directory: str | None = None) -> list[str]:
        """What starts the runner, with the folder's own loader and C library."""
        place = directory or str(self.directory)
        return [f"{place}/{_LOADERS[self.arch]}", "--library-path", place, f"{place}/{RUNNER}"]


class RunnerParts(NamedTuple):
    """What a folder is made of, beside the libraries of the system."""

    runtime: Mapping[str, str]  # names and versions of what is told in the manifest
    source: Path  # of the runner
    flags: Sequence[str]  # of the compiler; see compile_to
    libraries: Sequence[Path]  # of the runtime


def check_architecture(arch: str) -> None:
    """Refuse an architecture for which no folder can be made."""
    if arch not in _LOADERS:
        problem = f"there is no prebuilt runtime for Linux on {arch}"
        raise FeatureError(problem, hint=f"known: {', '.join(_LOADERS)}; or use the device's Python")


def make_folder(arch: str, made_of: RunnerParts, cache: Path | None = None) -> RuntimeFolder:
    """The folder for an architecture; made once of these parts and of the compiler for it."""
    compiler = find_compiler(arch)
    hashes = (*made_of.runtime.values(), *map(sha256_of, made_of.libraries))
    key = build_key(compiler, made_of.source, made_of.flags, *hashes)
    folder = (cache or cache_directory()) / "runtimes" / f"{arch}-{key}"
    if not is_whole(folder):
        with made_in_place(folder) as parts:
            parts.mkdir()
            compile_to(parts / RUNNER, compiler, made_of.flags)
            found = [_system_file(compiler, name) for name in (_LOADERS[arch], *_SYSTEM)]
            for file in [*made_of.libraries, *found]:
                shutil.copy(file, parts / file.name)
    return RuntimeFolder(arch, folder, _digest(folder), {**made_of.runtime, "compiler": compiler.version})


def _system_file(compiler: Compiler, name: str) -> Path:
    """The loader, or a library of C or of the compiler, as it finds it itself."""
    command = [*compiler.command, f"-print-file-name={name}"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(told).is_absolute() or not Path(told).exists():
        hint = "install that compiler's C and C++ libraries (Debian: libc6-dev-arm64-cross for aarch64)"
        raise MissingDependencyError(f"the compiler has no {name}", where=shlex.join(compiler.command), hint=hint)
    return Path(told).parent / name


def _digest(folder: Path) -> str:
    """Hash of the names and contents of all files."""
    lines = (f"{sha256_of(file)} {file.name}\n" for file in sorted(folder.iterdir()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
