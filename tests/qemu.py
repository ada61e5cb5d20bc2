"""QEMU's user mode with the real runtime for 64-bit Arm; where a part of it is missing the test is skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from native_runner import native_cache, runtime_of
from opscope.errors import MissingDependencyError
from opscope.run.qemu import VARIABLE, QemuTarget, find_emulator

# Where .ci/devices unpacks one that is right, when the system's own is too old.
_UNPACKED = Path(__file__).parents[1] / ".venv/devices/usr/bin/qemu-aarch64"


def use_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this test find an emulator that computes right."""
    if VARIABLE not in os.environ and _UNPACKED.exists():
        monkeypatch.setenv(VARIABLE, str(_UNPACKED))
    try:
        found = find_emulator()
    except MissingDependencyError as error:
        pytest.skip(f"needs QEMU 11.1 (.ci/devices): {error}; {error.hint}")
    if found.doubt or shutil.which(found.command[0]) is None:
        pytest.skip(f"needs QEMU 11.1 (.ci/devices): {found.doubt}")


def qemu_target(monkeypatch: pytest.MonkeyPatch) -> QemuTarget:
    """The target, its runtime built once for all tests."""
    use_emulator(monkeypatch)
    runtime_of("aarch64")
    return QemuTarget(native_cache())
