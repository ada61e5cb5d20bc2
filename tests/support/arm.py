"""The Arm runtime under QEMU with a counter for its library; a test that lacks a part is skipped and says which."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from native_runner import native_cache
from opscope.core.errors import MissingDependencyError
from opscope.runtimes.executorch.runners.native import NativeTarget
from opscope.workflows.kernel_view import backend_library, counted_library
from qemu import qemu_target

if TYPE_CHECKING:
    from opscope.bundle.kernel_evidence import KernelLibrary
    from opscope.runtimes.counting.kernel_counter import Counter

SME, SME2 = ["sme", "sme2", "sme2p1"], ["sme2", "sme2p1"]
"""Fields to clear: all of SME, and its second version only."""


@functools.cache
def arm_target() -> tuple[NativeTarget, tuple[Counter, KernelLibrary]]:
    """The target, and the counter for its library; made once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        target = qemu_target(patch)
    try:
        return target, counted_library(backend_library(target), native_cache())
    except MissingDependencyError as error:
        pytest.skip(f"needs a C compiler for 64-bit Arm: {error}; {error.hint}")


def arm_library() -> Path:
    """The library of the XNNPACK backend for 64-bit Arm Linux."""
    return backend_library(arm_target()[0])
