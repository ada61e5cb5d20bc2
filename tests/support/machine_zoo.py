"""Recorded and made CPUs: what CPUID, Linux and macOS tell of them, and what the runtime's cpuinfo reads there.

The data and where it comes from: ``tests/machines/README.md``.
"""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

_DATA = Path(__file__).parents[1] / "data" / "machines"
_REGISTERS = ("eax", "ebx", "ecx", "edx")


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Order of ``cpuinfo_isa`` in one period of pytorch/cpuinfo.

    Attributes:
        arch: x86_64 or aarch64.
        size: of the struct in bytes.
        commit: of pytorch/cpuinfo that began the period.
        date: of that commit.
        until: date of the commit that ended it; None: it lasts.
        fields: names in their order, one byte each but ``svelen`` and ``smelen``, 32 bits each and aligned.
    """

    arch: str
    size: int
    commit: str
    date: str
    until: str | None
    fields: str

    def offsets(self) -> dict[str, int]:
        """Field -> where it begins, in bytes."""
        offsets, end = {}, 0
        for name in self.fields.split():
            width = 4 if name in {"svelen", "smelen"} else 1
            offsets[name] = -(-end // width) * width
            end = offsets[name] + width
        return offsets


class X86Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An x86-64 CPU.

    Attributes:
        name: in these tests.
        cpu: brand string.
        vendor: vendor string of leaf 0.
        origin: repository, commit and file of the registers; "made from" for a variation of another machine.
        cpuid: "leaf.subleaf" in hexadecimal -> EAX EBX ECX EDX in hexadecimal; leaves that are not there read zero.
        xcr0: what XGETBV(0) reads, in hexadecimal; None where the system has not enabled it.
        flags: of /proc/cpuinfo on a machine of this kind; None where none was found.
        flags_origin: of those.
        cpuinfo_isa: size in bytes -> the struct, a digit a byte.
    """

    name: str
    cpu: str
    vendor: str
    origin: str
    cpuid: dict[str, str]
    xcr0: str | None
    flags: str | None
    flags_origin: str | None
    cpuinfo_isa: dict[int, str]

    def __str__(self) -> str:
        """Its name, for pytest."""
        return self.name

    @property
    def made(self) -> bool:
        """Whether it is a variation of another machine and not a recorded one."""
        return self.origin.startswith("made from ")

    def registers(self, leaf: int, subleaf: int = 0) -> tuple[int, int, int, int]:
        """EAX, EBX, ECX and EDX of a leaf."""
        eax, ebx, ecx, edx = (int(word, 16) for word in self.cpuid.get(f"{leaf:x}.{subleaf:x}", "0 0 0 0").split())
        return eax, ebx, ecx, edx

    def xgetbv(self) -> int | None:
        """XCR0; None where reading it is not allowed."""
        return None if self.xcr0 is None else int(self.xcr0, 16)

    def struct(self, size: int) -> list[int]:
        """The bytes of ``cpuinfo_isa`` in the layout of this size."""
        return [int(digit) for digit in self.cpuinfo_isa[size]]

    def fields(self, size: int) -> frozenset[str]:
        """The fields that are set there."""
        return _set_fields("x86_64", self.struct(size))

    def listed(self) -> frozenset[str]:
        """Names in /proc/cpuinfo: recorded ones, else those that :data:`LINUX_FLAGS` says Linux would list."""
        return frozenset(self.flags.split()) if self.flags else self.expected_flags()

    def expected_flags(self) -> frozenset[str]:
        """Of :data:`LINUX_FLAGS` those whose bit and state are there."""
        enabled = self.xgetbv() or 0
        return frozenset(
            name
            for name, (leaf, register, bit, state) in LINUX_FLAGS.items()
            if self._bit(leaf, register, bit) and enabled & state == state
        )

    def _bit(self, leaf: str, register: str, bit: int) -> bool:
        number, subleaf = (int(part, 16) for part in leaf.split("."))
        return bool(self.registers(number, subleaf)[_REGISTERS.index(register)] >> bit & 1)

    def proc_cpuinfo(self) -> str:
        """What /proc/cpuinfo would say, as far as anything here reads it."""
        flags = " ".join(sorted(self.listed()))
        return f"processor\t: 0\nvendor_id\t: {self.vendor}\nmodel name\t: {self.cpu}\nflags\t\t: {flags}\n"


class ArmMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A 64-bit Arm CPU under Linux.

    Attributes:
        name: in these tests.
        cpu: for people.
        origin: where its /proc/cpuinfo was recorded.
        features: of /proc/cpuinfo.
        hwcap: AT_HWCAP in hexadecimal, made from the features.
        hwcap2: AT_HWCAP2, likewise.
        midrs: of its cores in the order of /proc/cpuinfo, in hexadecimal, neighbours of one kind once; the last one is
            what cpuinfo looks at.
        chipset: that cpuinfo knows as broken; None: it does not.
        svelen: bytes of a scalable vector, 0 without SVE; made from public documentation.
        smelen: of a streaming vector, likewise.
        cpuinfo_isa: size in bytes -> the struct in hexadecimal.
    """

    name: str
    cpu: str
    origin: str
    features: str
    hwcap: str
    hwcap2: str
    midrs: list[str]
    chipset: str | None
    svelen: int
    smelen: int
    cpuinfo_isa: dict[int, str]

    def __str__(self) -> str:
        """Its name, for pytest."""
        return self.name

    def struct(self, size: int) -> list[int]:
        """The bytes of ``cpuinfo_isa`` in the layout of this size."""
        return list(bytes.fromhex(self.cpuinfo_isa[size]))

    def fields(self, size: int) -> frozenset[str]:
        """The fields that are set there."""
        return _set_fields("aarch64", self.struct(size))

    def listed(self) -> frozenset[str]:
        """Names in /proc/cpuinfo."""
        return frozenset(self.features.split())

    def proc_cpuinfo(self) -> str:
        """What /proc/cpuinfo would say with one core of each kind."""
        return "\n".join(self._core(number, int(midr, 16)) for number, midr in enumerate(self.midrs or ["0"]))

    def _core(self, number: int, midr: int) -> str:
        return (
            f"processor\t: {number}\nFeatures\t: {self.features}\nCPU implementer\t: 0x{midr >> 24:02x}\n"
            f"CPU architecture: 8\nCPU variant\t: 0x{midr >> 20 & 0xF:x}\nCPU part\t: 0x{midr >> 4 & 0xFFF:03x}\n"
            f"CPU revision\t: {midr & 0xF}\n"
        )


class MacMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An Apple CPU under macOS.

    Attributes:
        name: in these tests.
        cpu: for people.
        origin: where its sysctls were recorded.
        sysctls: name -> value, ``hw.optional.*`` and ``hw.cpufamily``.
        cpuinfo_isa: size in bytes -> the struct in hexadecimal.
        cpuinfo_isa_before_2846bafc7c78: likewise, where an older pytorch/cpuinfo with this layout reads something else.
    """

    name: str
    cpu: str
    origin: str
    sysctls: dict[str, int]
    cpuinfo_isa: dict[int, str]
    cpuinfo_isa_before_2846bafc7c78: dict[int, str]

    def __str__(self) -> str:
        """Its name, for pytest."""
        return self.name

    def struct(self, size: int) -> list[int]:
        """The bytes of ``cpuinfo_isa`` in the layout of this size."""
        return list(bytes.fromhex(self.cpuinfo_isa[size]))

    def fields(self, size: int) -> frozenset[str]:
        """The fields that are set there."""
        return _set_fields("aarch64", self.struct(size))


@functools.cache
def x86_machines() -> list[X86Machine]:
    """Every x86-64 machine, recorded ones first."""
    return msgspec.json.decode((_DATA / "x86_64.json").read_bytes(), type=list[X86Machine])


@functools.cache
def arm_machines() -> list[ArmMachine]:
    """Every 64-bit Arm machine with Linux."""
    return msgspec.json.decode((_DATA / "arm64_linux.json").read_bytes(), type=list[ArmMachine])


@functools.cache
def mac_machines() -> list[MacMachine]:
    """Every machine with macOS."""
    return msgspec.json.decode((_DATA / "arm64_macos.json").read_bytes(), type=list[MacMachine])


@functools.cache
def layouts() -> list[Layout]:
    """Every layout that ``cpuinfo_isa`` has had, oldest first; on x86-64 from 2017 on."""
    return msgspec.json.decode((_DATA / "layouts.json").read_bytes(), type=list[Layout])


def layout(arch: str, size: int) -> Layout:
    """The newest layout of an architecture with this size."""
    return [candidate for candidate in layouts() if (candidate.arch, candidate.size) == (arch, size)][-1]


def _set_fields(arch: str, content: list[int]) -> frozenset[str]:
    offsets = layout(arch, len(content)).offsets()
    return frozenset(name for name, offset in offsets.items() if content[offset])


_YMM, _ZMM, _TILE, _BOUNDS = 0x6, 0xE6, 0x60000, 0x18
_BITS: tuple[tuple[str, str, int, str], ...] = (
    ("1.0", "ecx", 0, "pni:0 pclmulqdq:1 monitor:3 ssse3:9 cx16:13 sse4_1:19 sse4_2:20 movbe:22 popcnt:23 aes:25"),
    ("1.0", "ecx", 0, "xsave:26 rdrand:30"),
    ("1.0", "ecx", _YMM, "fma:12 avx:28 f16c:29"),
    ("1.0", "edx", 0, "msr:5 sep:11 clflush:19 fxsr:24"),
    ("7.0", "ebx", 0, "fsgsbase:0 bmi1:3 hle:4 bmi2:8 rtm:11 rdseed:18 adx:19 clflushopt:23 clwb:24 sha_ni:29"),
    ("7.0", "ebx", _YMM, "avx2:5"),
    ("7.0", "ebx", _BOUNDS, "mpx:14"),
    ("7.0", "ebx", _ZMM, "avx512f:16 avx512dq:17 avx512ifma:21 avx512pf:26 avx512er:27 avx512cd:28 avx512bw:30"),
    ("7.0", "ebx", _ZMM, "avx512vl:31"),
    ("7.0", "ecx", 0, "gfni:8 rdpid:22"),
    ("7.0", "ecx", _YMM, "vaes:9 vpclmulqdq:10"),
    ("7.0", "ecx", _ZMM, "avx512vbmi:1 avx512_vbmi2:6 avx512_vnni:11 avx512_bitalg:12 avx512_vpopcntdq:14"),
    ("7.0", "edx", _ZMM, "avx512_4vnniw:2 avx512_4fmaps:3 avx512_vp2intersect:8 avx512_fp16:23"),
    ("7.0", "edx", _TILE, "amx_bf16:22 amx_tile:24 amx_int8:25"),
    ("7.1", "eax", _YMM, "avx_vnni:4"),
    ("7.1", "eax", _ZMM, "avx512_bf16:5"),
    ("7.1", "eax", _TILE, "amx_fp16:21"),
    ("7.1", "edx", _YMM, "avx_vnni_int8:4 avx_ne_convert:5 avx_vnni_int16:10"),
    ("80000001.0", "ecx", 0, "lahf_lm:0 abm:5 sse4a:6 misalignsse:7 3dnowprefetch:8 lwp:15 tbm:21 mwaitx:29"),
    ("80000001.0", "ecx", _YMM, "xop:11 fma4:16"),
    ("80000001.0", "edx", 0, "rdtscp:27 3dnowext:30 3dnow:31"),
    ("80000008.0", "ebx", 0, "clzero:0"),
)
LINUX_FLAGS = {
    word.partition(":")[0]: (leaf, register, int(word.partition(":")[2]), state)
    for leaf, register, state, words in _BITS
    for word in words.split()
}
"""Name in /proc/cpuinfo -> leaf, register, bit, and the bits of XCR0 without which Linux clears it.

Source: arch/x86/include/asm/cpufeatures.h and arch/x86/kernel/fpu/xstate.c of Linux; only names of features that
``cpuinfo_isa`` has too.
"""
