"""The Arm runtime under QEMU, made once for all tests; where a part is missing the tests are skipped and say which."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from native_runner import native_cache
from opscope.errors import OpscopeError
from opscope.run.kernel_evidence import CountedLibrary, backend_library, counted_library
from opscope.run.qemu import QemuTarget

SME, SME2 = ["sme", "sme2", "sme2p1"], ["sme2", "sme2p1"]
"""Fields to clear: all of SME, and its second version only."""


@functools.cache
def _made() -> tuple[QemuTarget, CountedLibrary] | str:
    try:
        target = QemuTarget(native_cache())
        return target, counted_library(backend_library(target), native_cache())
    except OpscopeError as error:
        return f"{error}; {error.hint}"


def arm_target() -> tuple[QemuTarget, CountedLibrary]:
    """The target, and the counter for its library."""
    made = _made()
    if isinstance(made, str):
        pytest.skip(f"needs QEMU 11.1, a compiler for 64-bit Arm and its runtime: {made}")
    return made


def arm_library() -> Path:
    """The library of the XNNPACK backend for 64-bit Arm Linux."""
    return backend_library(arm_target()[0])
