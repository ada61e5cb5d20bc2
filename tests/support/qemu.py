"""QEMU's user mode with the real runtime: 64-bit Arm, and other x86-64 CPUs than this one.

Where a part of it is missing the test is skipped.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

import pytest

from native_runner import native_cache, runner_path, runtime_of
from opscope.bundle.manifest import Target
from opscope.core.errors import MissingDependencyError
from opscope.hosts.emulator import VARIABLE, find_emulator
from opscope.hosts.this_machine import ThisMachine
from opscope.runtimes.executorch.runners.native import NativeTarget
from opscope.runtimes.native.start import NativeProgram

# Where .ci/devices unpacks one that is right, when the system's own is too old.
_UNPACKED = Path(__file__).parents[2] / ".venv/devices/usr/bin/qemu-aarch64"


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


def qemu_target(monkeypatch: pytest.MonkeyPatch) -> NativeTarget:
    """The target, its runtime built once for all tests."""
    use_emulator(monkeypatch)
    runtime_of("aarch64")
    return NativeTarget.emulated(native_cache())


def emulated_x86(model: str) -> NativeTarget:
    """The native runner of this machine on another x86-64 CPU, by QEMU's name of it; skipped where that cannot be."""
    program = NativeProgram("x86_64", {}, command=[x86_emulator(), "-cpu", model, str(runner_path())])
    return NativeTarget(ThisMachine(Target("native", "")), lambda: program, {})


def x86_emulator() -> str:
    """The emulator for x86-64 on this x86-64 machine; skipped where that cannot be."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        pytest.skip("needs x86-64 Linux: programs are built for this machine")
    emulator = shutil.which(_UNPACKED.with_name("qemu-x86_64")) or shutil.which("qemu-x86_64")
    if emulator is None:
        pytest.skip("needs qemu-x86_64 (.ci/devices)")
    return emulator
