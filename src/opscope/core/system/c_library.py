"""The C library of the Python that runs opscope. The runtime's wheels for Linux are built for glibc.

What a Python is of stands in the loader that its program asks for: ``ld-musl-x86_64.so.1`` on Alpine, ``linker64`` on
Android, none in one that is linked statically and so can load no library at all.
"""

from __future__ import annotations

import sys
from pathlib import Path

from opscope.core.errors import MissingDependencyError, TraceFormatError
from opscope.core.system.elf import interpreter_of

_OTHERS = {"ld-musl": "musl", "linker": "Android's C library", "ld-uClibc": "uClibc"}
_HINT = "use Python on a system with glibc, such as Debian, Ubuntu or Fedora, or the container python:3.12-slim"


def other_c_library(python: Path | None = None) -> str | None:
    """What a Python is built for instead of glibc, for the end of a sentence; None where it is glibc or not known."""
    if sys.platform != "linux":
        return None
    try:
        loader = interpreter_of(python or Path(sys.executable))
    except (OSError, TraceFormatError):
        return None
    if loader == "":
        return "is statically linked and cannot load libraries"
    name = Path(loader or "").name
    found = next((library for start, library in _OTHERS.items() if name.startswith(start)), None)
    return f"is built for {found}" if found else None


def check_c_library(python: Path | None = None) -> None:
    """Make sure that the runtime's libraries can be used with a Python."""
    other = other_c_library(python)
    if other:
        problem = f"this Python {other}, but the runtime's wheels need glibc"
        raise MissingDependencyError(problem, where=python or sys.executable, hint=_HINT)
