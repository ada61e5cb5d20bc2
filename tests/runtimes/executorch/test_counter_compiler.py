"""The compiler that builds the counter of kernels: for 64-bit Arm Linux, whatever this machine is."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.errors import MissingDependencyError
from opscope.runtimes.counting.kernel_counter import find_compiler


def _fake_compiler(place: Path, name: str, machine: str, code: int = 0) -> Path:
    file = place / name
    file.write_text(f"#!/bin/sh\necho {machine}\nexit {code}\n")
    file.chmod(0o755)
    return file


def test_the_first_compiler_that_builds_for_arm_linux_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cross compiler before that of this machine; not one for another machine or system, nor one that fails."""
    monkeypatch.delenv("OPSCOPE_CC", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/nothing")
    _fake_compiler(tmp_path, "cc", "x86_64-linux-gnu")
    with pytest.raises(MissingDependencyError):
        find_compiler()
    _fake_compiler(tmp_path, "clang", "aarch64-linux-gnu")
    assert find_compiler() == ("clang",)
    _fake_compiler(tmp_path, "gcc", "aarch64-apple-darwin")
    assert find_compiler() == ("clang",)
    _fake_compiler(tmp_path, "aarch64-linux-gnu-gcc", "aarch64-linux-gnu", code=1)
    assert find_compiler() == ("clang",)
    _fake_compiler(tmp_path, "aarch64-linux-gnu-gcc", "aarch64-linux-gnu")
    assert find_compiler() == ("aarch64-linux-gnu-gcc",)


def test_a_named_compiler_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its options; what else is at hand does not take its place."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/nothing")
    _fake_compiler(tmp_path, "aarch64-linux-gnu-gcc", "aarch64-linux-gnu")
    _fake_compiler(tmp_path, "mine", "aarch64-none-linux-android")
    monkeypatch.setenv("OPSCOPE_CC", "mine --sysroot=/there")
    assert find_compiler() == ("mine", "--sysroot=/there")
    _fake_compiler(tmp_path, "mine", "x86_64-linux-gnu")
    with pytest.raises(MissingDependencyError):
        find_compiler()
