"""Libraries with ``cpuid`` where it is executed and the same bytes where they are data: compiled for a test.

What is what stands in their symbols before they are stripped; where functions lie is read by binutils, which knows
nothing of opscope.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from asking_library import compiled

_TABLE = '__asm__(".text\\n.balign {align}\\n{head}planted_{number}: .byte 0x0f,0xa2,{more}\\n");'
_SECTION = (
    '__attribute__((section(".text,\\"ax\\",@progbits#"), used, aligned(1)))\n'
    "static const unsigned char planted_{number}[] = {{0x0f, 0xa2, {more}}};"
)
_BEHIND = (
    '__asm__(".text\\n.globl hand_{number}\\n.type hand_{number},@function\\nhand_{number}: .cfi_startproc\\n'
    "mov $0x0fa2a20f,%eax\\nret\\n.cfi_endproc\\n.size hand_{number}, .-hand_{number}\\n"
    'planted_{number}: .byte 0x0f,0xa2,{more}\\n");'
)
_BARE = '__asm__(".text\\nbare_{number}: push %rbx\\nreal_bare_{number}: cpuid\\npop %rbx\\nret\\n");'
_CPUID = (
    "__attribute__((noinline)) {static}void asks_{number}(unsigned *o) {{\n"
    '  if (o[0] & {mask}) o[3] ^= {mask}u;\n  __asm__ volatile("real_%=: cpuid" : "+a"(o[0]), "=b"(o[1]), "+c"(o[2]),'
    ' "=d"(o[3]));\n  o[2] += o[3] * {mask}u;\n}}'
)
_PLAIN = (
    "__attribute__((noinline)) {static}unsigned plain_{number}(unsigned a, unsigned b) {{\n"
    "  switch (a % {cases}) {{\n{rows}  default: a ^= 0x{mask:x}a20fu;\n  }}\n"
    "  for (unsigned i = 0; i < (b & 15); i++) a = a * 0xa20fu + (b >> (i & 7)) % {cases};\n  return a;\n}}"
)


class PlantedLibrary(NamedTuple):
    """A library and what is where in it; addresses are relative to where it is loaded.

    Attributes:
        path: of it.
        planted: where the bytes of the instruction are data.
        real: where the instruction is executed, in a function that the library names.
        unnamed: where it is executed in code that is in no such function.
        functions: where functions lie, as binutils read it.
    """

    path: Path
    planted: frozenset[int]
    real: frozenset[int]
    unnamed: frozenset[int]
    functions: frozenset[tuple[int, int]]


def planted_library(place: Path, seed: int) -> PlantedLibrary:
    """A library of its own for each seed; half of them execute ``cpuid``."""
    chance = random.Random(seed)
    asks = bool(seed % 2)
    parts = [_part(chance, number, asks=asks) for number in range(chance.randint(12, 40))]
    uses = "\n".join(re.findall(r"(?:asks|plain)_\d+", "\n".join(parts)))
    table = f"void *const used[] = {{{', '.join(f'(void *){name}' for name in dict.fromkeys(uses.split()))}}};"
    flags = ["-shared", "-fPIC", "-w", f"-O{chance.randint(0, 3)}"]
    if chance.random() < 0.5:
        flags += ["-fno-asynchronous-unwind-tables", *(["-fcf-protection=full"] if chance.random() < 0.5 else [])]
    if chance.random() < 0.3:
        flags += ["-falign-functions=1", "-freorder-blocks-and-partition"]
    library = compiled("\n".join([*parts, table]), place / f"lib{seed}.so", *flags)
    labels = _labels(library)
    if chance.random() < 0.5:
        subprocess.run([_tool("strip"), str(library)], check=True)
    functions = _functions(library)
    real = [address for name, address in labels if name.startswith("real_")]
    named = frozenset(address for address in real if any(start <= address < end - 1 for start, end in functions))
    planted = frozenset(address for name, address in labels if name.startswith("planted_"))
    return PlantedLibrary(library, planted, named, frozenset(real) - named, functions)


def _part(chance: random.Random, number: int, *, asks: bool) -> str:
    """A function or a table."""
    more = ",".join(str(chance.choice((0x0F, 0xA2, 0xC3, 0x55, chance.randrange(256)))) for _ in range(9))
    static = chance.choice(("", "static "))
    mask, cases = chance.randint(1, 0xFFF), chance.randint(3, 12)
    rows = "".join(f"  case {case}: a += b * {chance.randint(2, 99)}; break;\n" for case in range(cases - 1))
    head = "".join(chance.choice((".byte 0x48\n", ".byte 0x0f\n", "nop\n", "")) for _ in range(2)).replace("\n", "\\n")
    values = {"number": number, "more": more, "static": static, "mask": mask, "cases": cases, "rows": rows}
    values |= {"align": chance.choice((1, 4, 16)), "head": head}
    kinds = [_TABLE, _SECTION, _BEHIND, _PLAIN, _PLAIN, *([_CPUID, _CPUID, _BARE] if asks else [])]
    return chance.choice(kinds).format(**values)


def _labels(library: Path) -> list[tuple[str, int]]:
    """Names and addresses of its symbols."""
    rows = [line.split() for line in _told("nm", "-n", str(library)).splitlines()]
    return [(row[2], int(row[0], 16)) for row in rows if len(row) == 3]


def _functions(library: Path) -> frozenset[tuple[int, int]]:
    """Where functions lie: by the symbols that are left, and by the table for unwinding."""
    frames = _told("readelf", "--debug-dump=frames", str(library))
    found = [(int(start, 16), int(end, 16)) for start, end in re.findall(r"pc=([0-9a-f]+)\.\.([0-9a-f]+)", frames)]
    for line in _told("readelf", "-W", "--syms", "--dyn-syms", str(library)).splitlines():
        row = line.split()
        if len(row) > 6 and row[3] in {"FUNC", "IFUNC"} and row[6] != "UND" and int(row[2], 0):
            found.append((int(row[1], 16), int(row[1], 16) + int(row[2], 0)))
    return frozenset(found)


def _told(tool: str, *words: str) -> str:
    return subprocess.run([_tool(tool), *words], check=True, capture_output=True, text=True).stdout


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} of binutils")
    return found
