"""Names of libraries and arguments of compilers where a Mac drives a board: the folder that is sent is for Linux."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opscope.bundle.manifest import Target
from opscope.core.errors import MissingDependencyError
from opscope.core.system.compiler import compiler_for
from opscope.hosts.this_machine import ThisMachine
from opscope.runtimes.executorch.kernel_libraries import EXTRA_KERNELS
from opscope.runtimes.executorch.runners import native
from opscope.runtimes.litert.native import RUNNER as LITERT
from opscope.runtimes.native.building import RuntimeFolder
from opscope.runtimes.native.start import NativeProgram

QUANTISED = "libexecutorch_kernels_quantized"


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module as it is on macOS, for a program with quantised operators outside of delegates."""
    monkeypatch.setattr(native, "_MAC", True)
    monkeypatch.setattr(native, "_SUFFIX", ".dylib")
    quantised = [library for library in EXTRA_KERNELS if library.library == QUANTISED]
    monkeypatch.setattr(native, "extra_kernels", lambda _: quantised)


@pytest.mark.usefixtures("mac")
@pytest.mark.parametrize(("brought", "expected"), [(True, f"{QUANTISED}.so"), (False, f"@rpath/{QUANTISED}.dylib")])
def test_a_quantised_program_gets_its_kernels(tmp_path: Path, brought: bool, expected: str) -> None:
    """On the board those of the Linux folder, on the Mac its own."""
    for ending in (".so", ".dylib"):
        (tmp_path / f"{QUANTISED}{ending}").write_bytes(b"")
    folder = RuntimeFolder("aarch64", tmp_path, "0" * 16, {}) if brought else None
    program = NativeProgram("aarch64", {}, folder, library=tmp_path / "libexecutorch_backend_xnnpack.dylib")
    target = native.NativeTarget(ThisMachine(Target("native", None)), lambda: program, {})
    assert target.kernels(tmp_path) == [expected]


def test_the_target_decides_what_is_linked() -> None:
    """A runner for macOS has no libdl; one for Linux needs it, wherever it is built."""
    assert "-ldl" not in LITERT.flags_for("darwin")
    assert "-ldl" in LITERT.flags_for("linux")


def test_a_mac_is_told_what_brew_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no apt; a cross compiler of Homebrew is taken by its name."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("OPSCOPE_CXX_AARCH64", raising=False)
    with pytest.raises(MissingDependencyError) as raised:
        compiler_for("aarch64", None, "cannot build", "")
    assert "brew install" in (raised.value.hint or "")
    assert "apt" not in (raised.value.hint or "")
    compiler = tmp_path / "aarch64-unknown-linux-gnu-g++"
    compiler.write_text("#!/bin/sh\necho g++ 14.2\n")
    compiler.chmod(0o755)
    assert compiler_for("aarch64", None, "cannot build", "").version == "g++ 14.2"
