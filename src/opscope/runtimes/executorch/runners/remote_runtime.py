"""The folder that runs ExecuTorch's native runner on any Linux of an architecture."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from opscope.runtimes.executorch.installed import library_directory
from opscope.runtimes.executorch.runners.native_build import SOURCE, compiler_flags
from opscope.runtimes.native.building import find_compiler, host_architecture
from opscope.runtimes.native.folder import RunnerParts, RuntimeFolder, check_architecture, make_folder
from opscope.runtimes.native.wheels import Wheel, unpacked_wheel

if TYPE_CHECKING:
    from pathlib import Path

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

    Args:
        arch: as in ``opscope.machine.isa``.
        cache: where wheels are kept unpacked; the user's cache directory when it is not given.

    Raises:
        MissingDependencyError: there is no such wheel, or it cannot be downloaded.
        StorageError: it cannot be kept.
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
    """The folder for an architecture; made once of this runtime, compiler and runner.

    Args:
        arch: as in ``opscope.machine.isa``.
        cache: where such folders are kept; the user's cache directory when it is not given.

    Raises:
        FeatureError: no runtime is known for the architecture.
        MissingDependencyError: the wheel or a compiler for it is missing.
        StorageError: it cannot be kept.
    """
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
