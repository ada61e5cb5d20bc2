"""Find the installed LiteRT package and its library, and check whether its structures are known.

The compiled-model API is reached through C structures, which differ between releases. The Interpreter is
reached through Python and what delegates are given, which are the same in all tested releases.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from opscope.core.errors import MissingDependencyError
from opscope.core.system.pythons import HERE
from opscope.runtimes.loading import InstalledLibrary, find_package, first_file, package_version

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.core.system.pythons import Python

PACKAGE = "ai-edge-litert"
KNOWN = ("2.3.0",)
"""Versions whose C structures were read from a running library: docs/reference/versions.md."""
MODULE = "ai_edge_litert"
LIBRARY = "libLiteRt"
INTERPRETERS = {MODULE: PACKAGE, "tflite_runtime": "tflite-runtime"}
"""Modules that have an Interpreter, the preferred one first, with their packages."""
_INTERPRETER_LIBRARIES = ("libpywrap_litert_common", "_pywrap_tensorflow_interpreter_wrapper")


def installed_litert(python: Python = HERE) -> InstalledLibrary:
    """Find the installed package with the compiled-model API, without importing it.

    Raises MissingDependencyError if it is missing, of an unknown version, or has no library for this system.
    """
    package, version = find_package(python, MODULE, PACKAGE, "LiteRT", "litert"), package_version(python, PACKAGE)
    if version not in KNOWN:
        problem = f"ai-edge-litert {version} is installed; opscope supports {', '.join(KNOWN)}"
        raise MissingDependencyError(problem, where=package, hint=f"pip install '{PACKAGE}=={KNOWN[-1]}'")
    library = _find_library(package, LIBRARY)
    if library is None:
        raise MissingDependencyError(f"ai-edge-litert {version} has no runtime for this system", where=package)
    return InstalledLibrary(PACKAGE, version, library)


def installed_interpreter(python: Python = HERE) -> InstalledLibrary:
    """Find the installed Interpreter of any release, without importing it.

    Raises MissingDependencyError without one.
    """
    known = ((module, package) for module, package in INTERPRETERS.items() if python.place(module))
    module, package = next(known, (MODULE, PACKAGE))
    directory, version = find_package(python, module, package, "LiteRT", "litert"), package_version(python, package)
    library = _find_library(directory, *_INTERPRETER_LIBRARIES)
    if library is None:
        raise MissingDependencyError(f"{package} {version} has no Interpreter for this system", where=directory)
    return InstalledLibrary(package, version, library)


def interpreter_module() -> str:
    """Return the name of the module with the installed Interpreter."""
    return f"{installed_interpreter().package.replace('-', '_')}.interpreter"


def has_compiled_models() -> bool:
    """Return whether the installed package has a compiled-model API that is known."""
    return HERE.spec(MODULE) is not None and package_version(HERE, PACKAGE) in KNOWN


def _find_library(package: Path, *names: str) -> Path | None:
    suffixes = (".dylib", ".so") if sys.platform == "darwin" else (".so",)
    return first_file(package, *(f"{name}{suffix}" for name in names for suffix in suffixes))
