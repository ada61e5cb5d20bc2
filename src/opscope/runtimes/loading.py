"""Find the library of an installed runtime, and check whether it can be loaded.

Loading is tried in a separate process, so that a crash there is only an answer here.
The process gets the name of a module to import, or the path of a shared library.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.core.install import install_command
from opscope.core.system.c_library import check_c_library
from opscope.core.system.interpreter import module_command, path_variables

if TYPE_CHECKING:
    from opscope.core.system.pythons import Python

_SECONDS = 120.0


class InstalledLibrary(NamedTuple):
    """The library of a runtime in an installed package."""

    package: str
    version: str  # of the package
    library: Path  # with the kernels and the questions for the CPU's features


def find_package(python: Python, module: str, package: str, title: str, extra: str) -> Path:
    """Return the directory of a runtime's Python package without importing it.

    Raises MissingDependencyError if it is not installed; the error names the extra that installs it.
    """
    directory = python.place(module)
    if directory is None:
        check_c_library()  # what to install does not help where no wheel fits
        raise MissingDependencyError(f"{title} ({package}) is not installed", hint=install_command(extra))
    return directory


def package_version(python: Python, package: str) -> str:
    """Return the version of a package in a Python environment."""
    return python.version(package) or "of an unknown version"


def first_file(directory: Path, *patterns: str) -> Path | None:
    """Return the first file, by name, of the first pattern that matches any; None if none does."""
    files = (file for pattern in patterns for file in sorted(directory.glob(pattern)) if file.is_file())
    return next(files, None)


def loading_problem(module_or_library: str) -> str | None:
    """Return in one sentence why a module cannot be imported or a library not loaded; None if it can."""
    command = [*module_command("opscope.runtimes.loading"), module_or_library]
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env={**os.environ, **path_variables()},
        )
    except subprocess.TimeoutExpired:
        return f"not loaded within {_SECONDS:g} s"
    if not process.returncode:
        return None
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    # An error without a message says nothing: what the package itself complained of stands first.
    texts = lines[:1] if lines and ":" not in lines[-1] else lines[-1:]
    return texts[0] if texts else f"its process exited with code {process.returncode}"


if __name__ == "__main__":
    if Path(sys.argv[1]).is_absolute():
        ctypes.CDLL(sys.argv[1])
    else:
        import_module(sys.argv[1])
