"""CPUID and XGETBV, executed in this process: a few bytes of machine code, and no library in between."""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import TYPE_CHECKING

from opscope.machine.cpu_reading import CPUID_LEAVES, CpuReading

if TYPE_CHECKING:
    from collections.abc import Callable

# void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]), as System V passes arguments: edi, esi, rdx.
_CPUID = bytes.fromhex(
    "53"  # push rbx, which the caller keeps
    "4989d0"  # mov r8, rdx
    "89f8"  # mov eax, edi
    "89f1"  # mov ecx, esi
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8+4], ebx
    "41894808"  # mov [r8+8], ecx
    "4189500c"  # mov [r8+12], edx
    "5b"  # pop rbx
    "c3"  # ret
)
# uint64_t xgetbv(void): XCR0.
_XGETBV = bytes.fromhex(
    "31c9"  # xor ecx, ecx
    "0f01d0"  # xgetbv
    "48c1e220"  # shl rdx, 32
    "4809d0"  # or rax, rdx
    "c3"  # ret
)
_OSXSAVE, _HYPERVISOR = 1 << 27, 1 << 31
_EXTENDED, _SIGNATURE = 0x80000000, 0x40000000
_READ_AND_EXECUTE = 5


def read_cpuid() -> CpuReading | None:
    """What CPUID says, in an x86-64 process; None where the system lets no process make code.

    A leaf beyond the last one that the processor names is left out, except 0x24, which cpuinfo asks for all the same.
    """
    code = _executable(_CPUID + _XGETBV)
    if code is None:
        return None
    leaf = _leaves(code)
    xgetbv = ctypes.CFUNCTYPE(ctypes.c_uint64)(code + len(_CPUID))
    rows = cpuid_rows(leaf)
    return CpuReading(cpuid=rows, xcr0=xgetbv() if leaf(1, 0)[2] & _OSXSAVE else None)


def hypervisor_signature() -> bytes:
    """The twelve bytes by which a hypervisor names itself to an x86-64 process; empty where there is none."""
    code = _executable(_CPUID)
    if code is None:
        return b""
    leaf = _leaves(code)
    return struct.pack("<3I", *leaf(_SIGNATURE, 0)[1:]) if leaf(1, 0)[2] & _HYPERVISOR else b""


def _leaves(code: int) -> Callable[[int, int], list[int]]:
    """What gives the four registers of a leaf and subleaf, by code at an address."""
    cpuid = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32))(code)
    registers = (ctypes.c_uint32 * 4)()

    def leaf(number: int, subleaf: int) -> list[int]:
        cpuid(number, subleaf, registers)
        return list(registers)

    return leaf


def cpuid_rows(leaf: Callable[[int, int], list[int]]) -> list[list[int]]:
    """The rows of a :class:`CpuReading`."""
    last = {base: leaf(base, 0)[0] for base in (0, _EXTENDED)}
    asked_anyway = {0x24} if last[0] >= _STRUCTURED else set()
    return [
        [number, subleaf, *leaf(number, subleaf)]
        for number, subleaf in CPUID_LEAVES
        if number <= last[number & _EXTENDED] or number in asked_anyway
    ]


_STRUCTURED = 7


def _executable(code: bytes) -> int | None:
    """Address of code in a page of its own, which stays for the life of the process; never writable once it runs."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    _PAGES.append(page)
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), _READ_AND_EXECUTE):
        return None
    return address


_PAGES: list[mmap.mmap] = []
