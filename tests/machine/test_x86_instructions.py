"""What instructions of x86-64 do."""

from __future__ import annotations

import pytest

pytest.importorskip("iced_x86")

from opscope.analysis.work.work import CLASSES
from opscope.machine.instructions import UNKNOWN, Instruction, X86Instructions


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("c4e275b8c2", Instruction("multiply_add", 0, 0, 8)),  # vfmadd231ps ymm0, ymm1, ymm2
        ("c4e271b800", Instruction("multiply_add", 16, 0, 4)),  # vfmadd231ps xmm0, xmm1, [rax]
        ("c4e271b9c2", Instruction("multiply_add", 0, 0, 1)),  # vfmadd231ss xmm0, xmm1, xmm2
        ("c4e2f5b8c2", Instruction("multiply_add", 0, 0, 4)),  # vfmadd231pd ymm0, ymm1, ymm2
        ("c5f5f5c2", Instruction("dot_product", 0, 0, 16)),  # vpmaddwd ymm0, ymm1, ymm2
        ("c4e27504c2", Instruction("dot_product", 0, 0, 32)),  # vpmaddubsw ymm0, ymm1, ymm2
        ("c5f458c2", Instruction("vector", 0, 0, 0)),  # vaddps ymm0, ymm1, ymm2
        ("c5fc1000", Instruction("load", 32, 0, 0)),  # vmovups ymm0, [rax]
        ("c5fc1100", Instruction("store", 0, 32, 0)),  # vmovups [rax], ymm0
        ("c4e27d1800", Instruction("load", 4, 0, 0)),  # vbroadcastss ymm0, [rax]
        ("488b00", Instruction("load", 8, 0, 0)),  # mov rax, [rax]
        ("488900", Instruction("store", 0, 8, 0)),  # mov [rax], rax
        ("488d00", Instruction("scalar", 0, 0, 0)),  # lea rax, [rax]
        ("480100", Instruction("scalar", 8, 8, 0)),  # add [rax], rax
        ("50", Instruction("store", 0, 8, 0)),  # push rax
        ("f3aa", Instruction("scalar", 0, 1, 0)),  # rep stosb
        ("f348a5", Instruction("load", 8, 8, 0)),  # rep movsq
        ("c3", Instruction("branch", 8, 0, 0)),  # ret
        ("7500", Instruction("branch", 0, 0, 0)),  # jne
        ("ff1500000000", Instruction("branch", 8, 8, 0)),  # call [rip]
        ("06", UNKNOWN),
    ],
)
def test_an_instruction(code: str, found: Instruction) -> None:
    """Its class, its bytes, and the products that it holds."""
    assert X86Instructions().of(bytes.fromhex(code)) == found
    assert found.kind in CLASSES


def test_code_that_no_file_holds_is_not_known() -> None:
    """Neither without a file, nor beyond its code."""
    assert X86Instructions().at("???", 0x1000) == UNKNOWN
    assert X86Instructions().at("/proc/self/exe", 0) == UNKNOWN
