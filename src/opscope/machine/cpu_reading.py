"""The processor's answers about itself, and the fields of ``cpuinfo_isa`` that follow from them.

The runtime's cpuinfo asks the processor, not the operating system's list, from which flags are hidden for
errata,
by boot options and in containers. On x86-64 the answer is CPUID with XCR0; on 64-bit Arm Linux the hardware
capabilities of the process, with the identity of the cores, by which cpuinfo overrules some of them; on macOS
``hw.optional.arm.*``.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class CpuReading(msgspec.Struct, frozen=True):
    """Answers of one processor; those that do not exist on its architecture are null."""

    # x86-64: `[leaf, subleaf, eax, ebx, ecx, edx]` of every leaf in :data:`CPUID_LEAVES` that it has
    cpuid: list[list[int]] | None = None
    xcr0: int | None = None  # x86-64: the register states that the system saves; null when XGETBV may not be executed
    hwcaps: list[int] | None = None  # Arm Linux: AT_HWCAP and AT_HWCAP2
    # Arm Linux: implementer, variant and part of every core as in MIDR_EL1, as far as the system tells them
    midrs: list[int] = []
    sysctls: dict[str, int] | None = None  # macOS: values below `hw.optional.arm`, those that it knows


CPUID_LEAVES = ((0, 0), (1, 0), (7, 0), (7, 1), (0xD, 0), (0x1E, 1), (0x24, 0), (0x80000000, 0), (0x80000001, 0))
"""Leaf and subleaf of everything that the known fields follow from."""


def expected_fields(reading: CpuReading) -> dict[str, frozenset[bool]]:
    """Return the values that a known field of ``cpuinfo_isa`` may have on this processor.

    More than one value is possible where cpuinfo overrules what the system says, by the identity of a core that it
    chooses itself. Empty when the processor told nothing.
    """
    if reading.cpuid is not None:
        return {name: frozenset([value]) for name, value in _x86_fields(reading.cpuid, reading.xcr0).items()}
    if reading.hwcaps is not None:
        hwcap, hwcap2 = reading.hwcaps
        stated = {name: bool(hwcap >> bit & 1) for name, bit in _HWCAP.items()}
        stated |= {name: bool(hwcap2 >> bit & 1) for name, bit in _HWCAP2.items()}
        stated["fp16arith"] = bool(hwcap >> _FP16_SCALAR & hwcap >> _FP16_VECTOR & 1)
        stated["bf16"] = bool((hwcap2 >> _BF16 | hwcap2 >> _SVE_BF16) & 1)
        return {name: frozenset([value, *_values_by_core(name, reading.midrs)]) for name, value in stated.items()}
    if reading.sysctls is not None:
        return _apple_fields(reading.sysctls)
    return {}


class CpuidBit(NamedTuple):
    """Position of a feature in CPUID, and the register state without which it cannot be used."""

    leaf: int  # asked for in eax
    subleaf: int  # asked for in ecx
    register: int  # of the answer: 0 to 3 for eax, ebx, ecx, edx
    bit: int  # in it
    state: int  # bits of XCR0 that must be set

    @classmethod
    def parse(cls, words: list[str]) -> CpuidBit:
        """Return a bit, from its five words in the table below."""
        leaf, subleaf, register, bit, state = words
        return cls(int(leaf, 16), int(subleaf), _REGISTERS.index(register), int(bit), _STATES[state])


_REGISTERS = ("eax", "ebx", "ecx", "edx")
# Bits of XCR0: SSE and AVX; those, opmask, and both halves of the ZMM registers.
_STATES = {"-": 0, "ymm": 0x06, "zmm": 0xE6}
# Source: Intel's Software Developer's Manual, volume 2, CPUID; AMD's Architecture Programmer's Manual, volume 3,
# appendix E. The register states are those that cpuinfo asks for (src/x86/isa.c of pytorch/cpuinfo).
CPUID_BITS = {
    name: CpuidBit.parse(words)
    for name, *words in map(
        str.split,
        """
        sse4_1             1        0 ecx 19 -
        sse4_2             1        0 ecx 20 -
        sse4a              80000001 0 ecx 6  -
        avx                1        0 ecx 28 ymm
        fma3               1        0 ecx 12 ymm
        f16c               1        0 ecx 29 ymm
        fma4               80000001 0 ecx 16 ymm
        xop                80000001 0 ecx 11 ymm
        avx2               7        0 ebx 5  ymm
        avxvnni            7        1 eax 4  ymm
        avx_vnni_int8      7        1 edx 4  ymm
        avx_ne_convert     7        1 edx 5  ymm
        avx_vnni_int16     7        1 edx 10 ymm
        avx512f            7        0 ebx 16 zmm
        avx512dq           7        0 ebx 17 zmm
        avx512ifma         7        0 ebx 21 zmm
        avx512pf           7        0 ebx 26 zmm
        avx512er           7        0 ebx 27 zmm
        avx512cd           7        0 ebx 28 zmm
        avx512bw           7        0 ebx 30 zmm
        avx512vl           7        0 ebx 31 zmm
        avx512vbmi         7        0 ecx 1  zmm
        avx512vbmi2        7        0 ecx 6  zmm
        avx512vnni         7        0 ecx 11 zmm
        avx512bitalg       7        0 ecx 12 zmm
        avx512vpopcntdq    7        0 ecx 14 zmm
        avx512_4vnniw      7        0 edx 2  zmm
        avx512_4fmaps      7        0 edx 3  zmm
        avx512vp2intersect 7        0 edx 8  zmm
        avx512fp16         7        0 edx 23 zmm
        avx512bf16         7        1 eax 5  zmm
        avx10_1            7        1 edx 19 zmm
        amx_bf16           7        0 edx 22 zmm
        amx_tile           7        0 edx 24 zmm
        amx_int8           7        0 edx 25 zmm
        amx_fp16           7        1 eax 21 zmm
        amx_fp8            1e       1 eax 4  zmm
        rdtscp             80000001 0 edx 27 -
        rdpid              7        0 ecx 22 -
        sysenter           1        0 edx 11 -
        clflush            1        0 edx 19 -
        clflushopt         7        0 ebx 23 -
        mwait              1        0 ecx 3  -
        xsave              1        0 ecx 26 -
        sse3               1        0 ecx 0  -
        ssse3              1        0 ecx 9  -
        misaligned_sse     80000001 0 ecx 7  -
        cmpxchg16b         1        0 ecx 13 -
        clwb               7        0 ebx 24 -
        movbe              1        0 ecx 22 -
        lahf_sahf          80000001 0 ecx 0  -
        fs_gs_base         7        0 ebx 0  -
        lzcnt              80000001 0 ecx 5  -
        popcnt             1        0 ecx 23 -
        tbm                80000001 0 ecx 21 -
        bmi                7        0 ebx 3  -
        bmi2               7        0 ebx 8  -
        adx                7        0 ebx 19 -
        aes                1        0 ecx 25 -
        vaes               7        0 ecx 9  -
        pclmulqdq          1        0 ecx 1  -
        vpclmulqdq         7        0 ecx 10 -
        gfni               7        0 ecx 8  -
        rdrand             1        0 ecx 30 -
        rdseed             7        0 ebx 18 -
        sha                7        0 ebx 29 -
        """.strip().splitlines(),
    )
}
"""By field of ``cpuinfo_isa``; ``avx10_2`` follows from ``avx10_1`` and the version in leaf 0x24."""
_XSAVE_AND_OSXSAVE = 3 << 26


def _x86_fields(rows: list[list[int]], xcr0: int | None) -> dict[str, bool]:
    """Return the fields that the answers of CPUID state."""
    leaves = {(leaf, subleaf): registers for leaf, subleaf, *registers in rows}

    def register(leaf: int, subleaf: int, name: str) -> int:
        return leaves.get((leaf, subleaf), (0, 0, 0, 0))[_REGISTERS.index(name)]

    saves = register(1, 0, "ecx") & _XSAVE_AND_OSXSAVE == _XSAVE_AND_OSXSAVE
    state = (xcr0 or 0) & (register(0xD, 0, "edx") << 32 | register(0xD, 0, "eax")) if saves else 0
    stated = {
        name: bool(leaves.get((bit.leaf, bit.subleaf), (0, 0, 0, 0))[bit.register] >> bit.bit & 1)
        and state & bit.state == bit.state
        for name, bit in CPUID_BITS.items()
    }
    return {**stated, "avx10_2": stated["avx10_1"] and register(0x24, 0, "ebx") & 0xFF >= _AVX10_2}


_AVX10_2 = 2
# Bits of AT_HWCAP and AT_HWCAP2. Source: arch/arm64/include/uapi/asm/hwcap.h of Linux.
_HWCAP = {"atomics": 8, "rdm": 12, "jscvt": 13, "fcma": 14, "dot": 20, "sve": 22, "fhm": 23}
_HWCAP |= {"aes": 3, "pmull": 4, "sha1": 5, "sha2": 6, "crc32": 7}
_FP16_SCALAR, _FP16_VECTOR = 9, 10
_HWCAP2 = {"sve2": 1, "i8mm": 13, "sme": 23, "sme2": 37, "sme2p1": 38}
_HWCAP2 |= {"sme_i16i32": 39, "sme_bi32i32": 40, "sme_b16b16": 41, "sme_f16f16": 42}
_SVE_BF16, _BF16 = 12, 14
# Cores that cpuinfo takes to have a feature, or not to have it, whatever the system says: old Android kernels do not
# report it, or report it for cores that lack it. Implementer and part as in MIDR_EL1.
# Source: src/arm/linux/aarch64-isa.c of pytorch/cpuinfo, d610881 (2026-07-23).
_A55, _A75 = 0x4100D050, 0x4100D0A0
_HAVE_FP16 = {
    *(0x4100D060, 0x4100D0B0, 0x4100D0C0, 0x4100D0D0, 0x4100D0E0, 0x4100D400, 0x4100D490, 0x4100D4F0, 0x4800D400),
    *(0x51008020, 0x51008030, 0x51008040, 0x51008050, 0x53000030, 0x53000040, _A55, _A75),
}
_HAVE_DOT = {
    *(0x4100D060, 0x4100D0B0, 0x4100D0C0, 0x4100D0D0, 0x4100D0E0, 0x4100D400, 0x4100D490, 0x4100D4A0, 0x4100D4F0),
    *(0x4800D400, 0x51008040, 0x51008050, 0x53000030, 0x53000040),
}
# By revision: those before it lack the dot product.
_DOT_SINCE = {_A55: 1, _A75: 2}
# The big cores of the Exynos 9810, whose kernel reports what only its little cores have.
_EXYNOS_M3 = 0x53000020
_PART, _VARIANT_AT, _VARIANT = 0xFF00FFF0, 20, 0xF


def hwcap_bits(field: str) -> tuple[int, int]:
    """Return the bits of AT_HWCAP and of AT_HWCAP2 that a field follows from: all of them for one of two.

    0 for none.
    """
    first = 1 << _HWCAP[field] if field in _HWCAP else 0
    second = 1 << _HWCAP2[field] if field in _HWCAP2 else 0
    if field == "fp16arith":
        first = 1 << _FP16_SCALAR | 1 << _FP16_VECTOR
    if field == "bf16":
        second = 1 << _BF16 | 1 << _SVE_BF16
    return first, second


def fixed_fields(reading: CpuReading) -> list[str]:
    """Return the fields that cpuinfo sets because it knows these cores, whatever the system says.

    See :func:`hwcap_bits`.

    No bits of AT_HWCAP take them away.
    """
    return sorted(name for name in (*_HWCAP, *_HWCAP2, "fp16arith") if True in _values_by_core(name, reading.midrs))


def _values_by_core(field: str, midrs: list[int]) -> set[bool]:
    """Return the values that cpuinfo may give a field because of a core."""
    parts = {midr & _PART for midr in midrs}
    if field in {"fp16arith", "rdm"}:
        return {True for _ in parts & _HAVE_FP16} | {False for _ in parts & {_EXYNOS_M3}}
    if field != "dot":
        return set()
    by_revision = {
        (midr >> _VARIANT_AT & _VARIANT) >= since
        for midr in midrs
        for part, since in _DOT_SINCE.items()
        if midr & _PART == part
    }
    return {True for _ in parts & _HAVE_DOT} | by_revision


# Source: src/arm/mach/init.c of pytorch/cpuinfo, and Apple's "Determining Instruction Set Characteristics".
_SYSCTLS = {
    "atomics": "FEAT_LSE",
    "rdm": "FEAT_RDM",
    "fp16arith": "FEAT_FP16",
    "fhm": "FEAT_FHM",
    "bf16": "FEAT_BF16",
    "fcma": "FEAT_FCMA",
    "jscvt": "FEAT_JSCVT",
    "dot": "FEAT_DotProd",
    "i8mm": "FEAT_I8MM",
    "sme": "FEAT_SME",
    "sme2": "FEAT_SME2",
    "sme2p1": "FEAT_SME2p1",
    "sme_i16i32": "SME_I16I32",
    "sme_bi32i32": "SME_BI32I32",
    "sme_b16b16": "FEAT_SME_B16B16",
    "sme_f16f16": "FEAT_SME_F16F16",
}
SYSCTL_NAMES = tuple(_SYSCTLS.values())
"""Below ``hw.optional.arm``."""
# Which cpuinfo derives from the processor's family where macOS does not know the name.
_BY_FAMILY = {"atomics", "rdm", "fp16arith", "fhm", "fcma", "jscvt", "dot"}


# Which it did not read on macOS before 2846baf (2026-01-05), in a struct of the same size.
_READ_LATE = {"sme2p1", "sme_i16i32", "sme_bi32i32", "sme_b16b16", "sme_f16f16"}
# What it sets without asking, and what it never sets there.
_APPLE_ALWAYS = ("aes", "sha1", "sha2", "pmull", "crc32")
_APPLE_NEVER = ("sve", "sve2")


def _apple_fields(values: dict[str, int]) -> dict[str, frozenset[bool]]:
    """Return the values that a field may have by the answers of macOS."""
    stated = {field: bool(values.get(name, 0)) for field, name in _SYSCTLS.items()}
    possible = {
        field: frozenset({value and field not in _READ_LATE, value, value or field in _BY_FAMILY})
        for field, value in stated.items()
    }
    fixed = dict.fromkeys(_APPLE_ALWAYS, frozenset({True})) | dict.fromkeys(_APPLE_NEVER, frozenset({False}))
    return {**possible, **fixed}


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
    """Return the answers of CPUID, in an x86-64 process; None where the system lets no process make code.

    A leaf beyond the last one that the processor names is left out, except 0x24, which cpuinfo asks for all the
    same.
    """
    code = _place_code(_CPUID + _XGETBV)
    if code is None:
        return None
    leaf = _leaf_reader(code)
    xgetbv = ctypes.CFUNCTYPE(ctypes.c_uint64)(code + len(_CPUID))
    rows = cpuid_rows(leaf)
    return CpuReading(cpuid=rows, xcr0=xgetbv() if leaf(1, 0)[2] & _OSXSAVE else None)


def hypervisor_signature() -> bytes:
    """Return the twelve bytes by which a hypervisor names itself to an x86-64 process; empty where there is none."""
    code = _place_code(_CPUID)
    if code is None:
        return b""
    leaf = _leaf_reader(code)
    return struct.pack("<3I", *leaf(_SIGNATURE, 0)[1:]) if leaf(1, 0)[2] & _HYPERVISOR else b""


def _leaf_reader(code: int) -> Callable[[int, int], list[int]]:
    """Return a function that reads the four registers of a leaf and subleaf, by code at an address."""
    cpuid = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32))(code)
    registers = (ctypes.c_uint32 * 4)()

    def leaf(number: int, subleaf: int) -> list[int]:
        cpuid(number, subleaf, registers)
        return list(registers)

    return leaf


def cpuid_rows(leaf: Callable[[int, int], list[int]]) -> list[list[int]]:
    """Return the rows of a :class:`CpuReading`."""
    last = {base: leaf(base, 0)[0] for base in (0, _EXTENDED)}
    asked_anyway = {0x24} if last[0] >= _STRUCTURED else set()
    return [
        [number, subleaf, *leaf(number, subleaf)]
        for number, subleaf in CPUID_LEAVES
        if number <= last[number & _EXTENDED] or number in asked_anyway
    ]


_STRUCTURED = 7


def _place_code(code: bytes) -> int | None:
    """Place code in a page of its own, which stays for the life of the process and is not writable.

    Return its address.
    """
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    _PAGES.append(page)
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), _READ_AND_EXECUTE):
        return None
    return address


_PAGES: list[mmap.mmap] = []
