"""The installed LiteRT package: which library holds the runtime, and whether its structures are known."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.core.install import install_command
from opscope.core.system.c_library import check_c_library

PACKAGE = "ai-edge-litert"
KNOWN = ("2.3.0",)
"""Versions whose C structures were read from a running library: docs/reference/versions.md."""
MODULE = "ai_edge_litert"
LIBRARY = "libLiteRt"


class InstalledLitert(NamedTuple):
    """The runtime's library."""

    version: str  # of the package
    library: Path  # with the C API, XNNPACK and the questions for the CPU's features


def installed_litert() -> InstalledLitert:
    """What is installed; nothing of it is imported."""
    spec = find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        check_c_library()  # what to install does not help where no wheel fits
        raise MissingDependencyError("LiteRT (ai-edge-litert) is not installed", hint=install_command("litert"))
    package = Path(next(iter(spec.submodule_search_locations)))
    found = _version()
    if found not in KNOWN:
        problem = f"ai-edge-litert {found} is installed; opscope knows the structures of {', '.join(KNOWN)}"
        raise MissingDependencyError(problem, where=package, hint=f"pip install '{PACKAGE}=={KNOWN[-1]}'")
    library = package / f"{LIBRARY}{'.dylib' if sys.platform == 'darwin' else '.so'}"
    if not library.exists():
        raise MissingDependencyError(f"ai-edge-litert {found} has no runtime for this system", where=package)
    return InstalledLitert(found, library)


def _version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "of an unknown version"
