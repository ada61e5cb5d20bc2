"""The installed ONNX Runtime package, and which of its files is the library."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING

from opscope.core.errors import MissingDependencyError
from opscope.core.install import install_command
from opscope.core.system.pythons import HERE
from opscope.runtimes.loading import InstalledLibrary, find_package, first_file, package_version

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from opscope.core.system.pythons import Python

PACKAGE = "onnxruntime"
NEWEST = "1.32.0"
"""Newest version that was tested: docs/reference/versions.md."""
_LIBRARIES = "capi/onnxruntime_pybind11_state*"
_WITH_C_API = "libonnxruntime.*"
_OLDEST = (1, 19)
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.\d+")


def installed_onnxruntime(python: Python = HERE) -> InstalledLibrary:
    """Find the installed package without importing it. Raises MissingDependencyError if it cannot be used."""
    package = find_package(python, PACKAGE, PACKAGE, "ONNX Runtime", PACKAGE)
    library = first_file(package, _LIBRARIES)
    if library is None:
        raise MissingDependencyError(
            "onnxruntime has no library for this Python", where=package, hint=install_command("onnxruntime")
        )
    return InstalledLibrary(PACKAGE, package_version(python, PACKAGE), library)


def imported_onnxruntime() -> ModuleType:
    """Import the package without its telemetry: a thread beside the measurement, which reports the user's model."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    return import_module(PACKAGE)


def native_library(python: Python = HERE) -> tuple[str, Path]:
    """Return the version of the installed package, and its library with the C API.

    Raises MissingDependencyError if no version with a supported C API is installed. The functions of the API are
    called by their positions in a table, which releases of one major version only extend.
    """
    installed_library = installed_onnxruntime(python)
    hint = f"pip install '{PACKAGE}=={NEWEST}', or use --target local"
    numbers = _NUMBERS.match(installed_library.version)
    oldest = ".".join(map(str, _OLDEST))
    if numbers is None or not _OLDEST <= (int(numbers[1]), int(numbers[2])) < (_OLDEST[0] + 1, 0):
        problem = (
            f"onnxruntime {installed_library.version} is installed; its C API is supported for {oldest} and later 1.x"
        )
        raise MissingDependencyError(problem, where=installed_library.library.parent, hint=hint)
    library = first_file(installed_library.library.parent, _WITH_C_API)
    if library is None:
        problem = f"onnxruntime {installed_library.version} has no library with the C API"
        raise MissingDependencyError(problem, where=installed_library.library.parent, hint=hint)
    return installed_library.version, library


def stated_version(version: str) -> str:
    """Return the version that the library of a package states: the first three numbers."""
    numbers = _NUMBERS.match(version)
    return numbers[0] if numbers else version
