"""The installed executorch package: which libraries hold the runtime, and what they can do."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.core.files import text_of
from opscope.core.install import install_command
from opscope.core.system.c_library import check_c_library
from opscope.core.system.pythons import HERE

if TYPE_CHECKING:
    from opscope.core.system.pythons import Python

BACKEND = "libexecutorch_backend_xnnpack"
THREADPOOL = "libexecutorch_threadpool"
TRACES_SINCE = "1.5.0"
"""The first version whose wheels trace events, and whose libraries other programs can link."""
TRIED = {"executorch": ("0.7.0", "1.4.0", "1.4.1", "1.5.0", "1.5.1"), "torch": ("2.8.0", "2.13.0")}
"""Versions that runs were made with: docs/reference/versions.md."""
_BINDINGS = "_portable_lib"
_SUFFIXES = (".so", ".dylib")
_COMMIT = re.compile(r"^git_version\b[^=]*= ['\"]([0-9a-f]{40})['\"]", re.MULTILINE)


class InstalledRuntime(NamedTuple):
    """The libraries of the installed runtime."""

    version: str  # of the package
    features: Path  # library with `cpuinfo_isa`, by which kernels are chosen
    backend: Path  # library that copies it when it is loaded: the XNNPACK backend
    bindings: str  # name of the module with the Python bindings, in `executorch.extension.pybindings`
    traces: bool  # whether it can write traces of events


def runtime_hint() -> str:
    """Return how to install what runs programs, and what exports them."""
    with_torch = install_command("executorch")
    return f"{install_command('runtime')}; with torch, to export models: {with_torch}"


def installed_runtime(python: Python = HERE) -> InstalledRuntime:
    """Find the installed runtime; neither executorch nor torch is imported.

    Raises MissingDependencyError if it is not installed or cannot run models here.
    """
    package = python.place("executorch")
    if package is None:
        check_c_library()  # what to install does not help where no wheel fits
        raise MissingDependencyError("executorch is not installed", hint=runtime_hint())
    installed_version = python.version("executorch") or "of unknown version"
    directory = package / "lib"
    pool, backend = library_path(directory, THREADPOOL), library_path(directory, BACKEND)
    if pool.exists() and backend.exists():
        return InstalledRuntime(installed_version, pool, backend, "_C", traces=True)
    bindings = next(iter(sorted((package / "extension/pybindings").glob(f"{_BINDINGS}*.so"))), None)
    if bindings is None:
        problem = f"executorch {installed_version} has no runtime for this system"
        raise MissingDependencyError(problem, where=package, hint=install_command("executorch"))
    torch = python.place("torch")
    if torch is None:
        problem = f"torch is not installed, and executorch {installed_version} needs it to run models"
        raise MissingDependencyError(problem, hint=install_command("executorch"))
    return InstalledRuntime(installed_version, library_path(torch / "lib", "libc10"), bindings, _BINDINGS, traces=False)


def source_versions(python: Python = HERE) -> dict[str, str]:
    """Return ``{"executorch commit": COMMIT}`` of the installed package; empty if its ``version.py`` names no commit.

    The file is read as text and not imported.
    """
    package = python.place("executorch")
    text = text_of(package / "version.py") if package else ""
    commit = _COMMIT.search(text)
    return {"executorch commit": commit[1]} if commit else {}


def library_directory(python: Python = HERE) -> Path:
    """Return the directory of the libraries that other programs link: the native runner, and what measures ceilings."""
    runtime = installed_runtime(python)
    if not runtime.traces:
        problem = f"executorch {runtime.version} keeps its runtime inside the Python bindings"
        hint = f"--target local runs models with it; executorch {TRACES_SINCE} or newer has libraries to link"
        raise MissingDependencyError(problem, hint=hint)
    return runtime.features.parent


def binding_libraries() -> list[Path]:
    """Return the libraries that the Python bindings load, and those of further kernels that the package ships."""
    runtime = installed_runtime()
    package = HERE.place("executorch") or Path()
    folders = ("lib", "extension/pybindings", "kernels/quantized", "extension/llm/custom_ops")
    paths = [path for folder in folders for path in sorted((package / folder).glob("*")) if path.suffix in _SUFFIXES]
    return list(dict.fromkeys([runtime.backend, *paths]))


def library_path(directory: Path, name: str) -> Path:
    """Return the path of one of the runtime's libraries."""
    return directory / f"{name}.{'dylib' if sys.platform == 'darwin' else 'so'}"
