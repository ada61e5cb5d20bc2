"""Lengths of instructions, against encodings written down by hand and against a disassembler."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asking_library import asking_library
from opscope.machine.switch.sites import LONGEST, length_at

KNOWN = """
90                              nop
0fa2                            cpuid
f30f1efa                        endbr64
c3                              ret
c20800                          ret 8
c8100001                        enter 16, 1
4889e5                          mov rbp, rsp
488d0511223344                  lea rax, [rip+...]
8b44240f                        mov eax, [rsp+15]
8b848811223344                  mov eax, [rax+rcx*4+...]
8b042511223344                  mov eax, [...]
678b00                          mov eax, [eax]
b811223344                      mov eax, imm32
66b81122                        mov ax, imm16
48b81122334455667788            mov rax, imm64
48a11122334455667788            mov rax, moffs64
67a111223344                    mov eax, moffs32
48c7c011223344                  mov rax, imm32
66c7001122                      mov word [rax], imm16
e811223344                      call
66480fa4c005                    shld rax, rax, 5
0f8411223344                    jz
7405                            jz short
6811223344                      push imm32
666a05                          push imm8
69c011223344                    imul
6bc005                          imul, short
f6c001                          test al, 1
f6d0                            not al
f7c011223344                    test eax, imm32
66f7c01122                      test ax, imm16
f7d8                            neg eax
0f20c0                          mov rax, cr0
0f38f0c1                        movbe or crc32
660f3a0fc108                    palignr
660f78c00504                    extrq
f20f78c10504                    insertq
0f0b                            ud2
0fb9c0                          ud1
c5f877                          vzeroupper
c5fc10442404                    vmovups ymm0, [rsp+4]
c5fd70c1e4                      vpshufd
c4e27d18442404                  vbroadcastss
c4e37d18c101                    vinsertf128
62f17c48104424 01               vmovups zmm0, [rsp+64]
62f27d484ec1                    vrcp14ps
62f37d481ac101                  vinsertf32x8
62f57c4858c1                    vaddph (map 5)
62f67d4898c1                    vfmadd132ph (map 6)
8fe878c0c105                    xop vprotb
8f00                            pop [rax]
f0480fb10a                      lock cmpxchg
65488b042528000000              mov rax, gs:...
"""
CASES = [(line.split("  ")[0].replace(" ", ""), line.split("  ")[-1].strip()) for line in KNOWN.strip().splitlines()]


@pytest.mark.parametrize(("code", "name"), CASES)
def test_an_instruction_is_as_long_as_its_encoding(code: str, name: str) -> None:
    """Whatever follows it; and it is none when its last byte is missing."""
    whole = bytes.fromhex(code)
    assert length_at(whole + bytes(LONGEST), 0) == len(whole), name
    assert length_at(whole[:-1], 0) is None, name


@pytest.mark.parametrize("code", ["06", "27", "9a", "d5", "ea", "0f04", "0f3b", "62f47c48", "c4e67d", "c4e8", "4862"])
def test_what_is_no_instruction_is_said_to_be_none(code: str) -> None:
    """In 64-bit mode, and APX, which is not known."""
    assert length_at(bytes.fromhex(code) + bytes(LONGEST), 0) is None


def test_an_instruction_has_fifteen_bytes_at_most() -> None:
    """More prefixes than that are none."""
    assert length_at(b"\x66" * 13 + b"\x90", 0) == 14
    assert length_at(b"\x66" * 15 + b"\x90", 0) is None


@given(st.binary(max_size=40), st.integers(0, 40))
def test_any_bytes_have_a_length_or_none(code: bytes, at: int) -> None:
    """Never an error, and never beyond the end."""
    length = length_at(code, at)
    assert length is None or (0 < length <= LONGEST and at + length <= len(code))


def test_lengths_are_those_of_a_disassembler(tmp_path: Path) -> None:
    """For every instruction of a library that was compiled for many extensions."""
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump: apt install binutils")
    loops = "".join(
        f'__attribute__((target("{target}"))) float f{number}(const float *a, int n, float s) '
        "{ for (int i = 0; i < n; i++) s += a[i] * a[i] + 1.0f / a[i]; return s; }\n"
        for number, target in enumerate(("sse4.2", "avx", "avx2,fma", "avx512f,avx512vl,avx512bw"))
    )
    library = asking_library(tmp_path, extra='#pragma GCC optimize("O3","fast-math")\n' + loops)
    printed = subprocess.run(
        ["objdump", "-d", "-w", "--insn-width=16", str(library)], capture_output=True, text=True, check=True
    ).stdout
    codes = [
        bytes.fromhex(found[1])
        for found in re.finditer(r"^ *[0-9a-f]+:\t((?:[0-9a-f]{2} )+) *\t", printed, re.MULTILINE)
    ]
    assert len(codes) > 200
    assert [code.hex() for code in codes if length_at(code + bytes(LONGEST), 0) != len(code)] == []
