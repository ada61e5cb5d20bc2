"""The installed ONNX Runtime package: which library holds the runtime."""

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
"""The newest version that was tried: docs/reference/versions.md."""
_LIBRARIES = "capi/onnxruntime_pybind11_state*"
_WITH_C_API = "libonnxruntime.*"
_OLDEST = (1, 19)
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.\d+")


def installed_onnxruntime(python: Python = HERE) -> InstalledLibrary:
    """What is installed; nothing of it is imported."""
    package = find_package(python, PACKAGE, PACKAGE, "ONNX Runtime", PACKAGE)
    library = first_file(package, _LIBRARIES)
    if library is None:
        raise MissingDependencyError(
            "onnxruntime has no library for this Python", where=package, hint=install_command("onnxruntime")
        )
    return InstalledLibrary(PACKAGE, package_version(python, PACKAGE), library)


def imported_onnxruntime() -> ModuleType:
    """The package, without its telemetry: a thread beside what is measured, which tells of the user's model."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    return import_module(PACKAGE)


def native_library(python: Python = HERE) -> tuple[str, Path]:
    """Version of the installed package, and its library with the C API; a MissingDependencyError where none is usable.

    Its functions are called by their places in a table, which releases of one main version only add to.
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
    """What the library of a version of the package says of itself: its three numbers."""
    numbers = _NUMBERS.match(version)
    return numbers[0] if numbers else version
