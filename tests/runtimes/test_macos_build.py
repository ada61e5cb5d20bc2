"""The runners compile and link for Apple silicon, against the wheels for macOS; nothing of it runs here."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from opscope.runtimes.executorch.runners import native
from opscope.runtimes.litert.native import RUNNER as LITERT

DEVICES = Path(__file__).parents[2] / ".venv" / "devices"
ZIG, WHEELS = DEVICES / "zig", DEVICES / "macos"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not (ZIG.is_dir() and WHEELS.is_dir()), reason="needs a compiler for macOS: .ci/devices"),
]
MACH_O_ARM64 = bytes.fromhex("cffaedfe0c000001")
"""Magic number and type of CPU of a 64-bit Mach-O file; <mach-o/loader.h> and <mach/machine.h>."""


def link_for_macos(flags: Sequence[str], built: Path) -> None:
    """Compile and link for macOS 14, the oldest system that the runtime's wheel is for."""
    command = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-macos.14.0", *flags, "-o", str(built)]
    cache = {name: str(built.parent / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    environment = {**os.environ, "PYTHONPATH": str(ZIG), **cache}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert built.read_bytes()[:8] == MACH_O_ARM64


def unpack(package: str, directory: Path) -> Path:
    """Unpack the wheel of a package."""
    (wheel,) = WHEELS.glob(f"{package}-*macosx*arm64.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory


def test_executorchs_runner_links_against_its_wheel(tmp_path: Path) -> None:
    """With the clock of nanoseconds, and every function of the runtime that it calls."""
    libraries = unpack("executorch", tmp_path / "wheel") / "executorch" / "lib"
    built = tmp_path / "runner"
    link_for_macos(native.compiler_flags(libraries, str(libraries)), built)
    assert b"libexecutorch_threadpool.dylib" in built.read_bytes()


def test_literts_runner_compiles(tmp_path: Path) -> None:
    """It loads its library, which the wheel has, when it starts."""
    assert list(unpack("ai_edge_litert", tmp_path / "wheel").rglob("libLiteRt.dylib"))
    link_for_macos(LITERT.flags_for("darwin"), tmp_path / "runner")
