"""Whether a program was built for the processor of a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.errors import UsageError
from opscope.core.system.elf import AARCH64, ARM, X86_64
from opscope.hosts.device import check_processor


def program(directory: Path, machine: int) -> Path:
    """The header of an ELF file."""
    file = directory / "runner"
    file.write_bytes(b"\x7fELF\x02\x01".ljust(18, b"\0") + machine.to_bytes(2, "little"))
    return file


@pytest.mark.parametrize(
    ("built", "machine", "runs"),
    [
        (AARCH64, "aarch64", True),
        (ARM, "aarch64", True),
        (ARM, "armv8l", True),
        (X86_64, "aarch64", False),
        (AARCH64, "armv7l", False),
        (X86_64, "riscv64", True),
    ],
)
def test_a_program_for_another_processor_is_refused(tmp_path: Path, built: int, machine: str, *, runs: bool) -> None:
    """On one that is not known it is tried; the hint names the processor to build for."""
    file = program(tmp_path, built)
    if runs:
        check_processor(file, machine, "")
        return
    with pytest.raises(UsageError) as caught:
        check_processor(file, machine, "build it for {name} ({abi})")
    assert caught.value.hint == f"build it for {machine} ({'arm64-v8a' if machine == 'aarch64' else 'armeabi-v7a'})"


def test_what_is_no_program_may_run(tmp_path: Path) -> None:
    """A script does not tell."""
    (tmp_path / "script").write_text("#!/bin/sh\n")
    check_processor(tmp_path / "script", "aarch64", "")
