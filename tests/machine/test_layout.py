"""Whether ``cpuinfo_isa`` is laid out as known: asked of the processor, never of the system's list of flags."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from machine_zoo import ArmMachine, MacMachine, X86Machine, arm_machines, mac_machines, x86_machines
from opscope.core.errors import FeatureError
from opscope.machine import isa
from opscope.machine.cpu_reading import CpuReading, cpuid_rows, expected_fields
from opscope.machine.isa import known_layout, proved_layout
from opscope.machine.processor import midrs_of, read_processor

# AMD EPYC 9004 (Zen 4), family 25 model 17, as CPUID answers in a virtual machine; XCR0 0xe7.
ZEN4 = CpuReading(
    cpuid=[
        [0x0, 0, 0x1C, 0x68747541, 0x444D4163, 0x69746E65],
        [0x1, 0, 0xA10F11, 0x1020800, 0xFFFA3203, 0x178BFBFF],
        [0x7, 0, 0x1, 0xF1BF07AB, 0x405FC6, 0x10],
        [0x7, 1, 0x20, 0, 0, 0],
        [0xD, 0, 0xE7, 0x980, 0x980, 0],
        [0x80000000, 0, 0x80000021, 0x68747541, 0x444D4163, 0x69746E65],
        [0x80000001, 0, 0xA10F11, 0x40000000, 0x4003F3, 0x2FD3FBFF],
    ],
    xcr0=0xE7,
)
# Cortex-A76 under a kernel that reports everything it has.
A76 = 0x410FD0B0 & 0xFFF0FFF0
HWCAPS = {"aes": 3, "pmull": 4, "sha1": 5, "sha2": 6, "crc32": 7, "atomics": 8, "fphp": 9, "asimdhp": 10, "rdm": 12}
HWCAPS |= {"dot": 20, "sve": 22}


def hwcap(*names: str) -> int:
    """AT_HWCAP with these bits."""
    return sum(1 << HWCAPS[name] for name in names)


PI5 = CpuReading(hwcaps=[hwcap(*(name for name in HWCAPS if name != "sve")), 0], midrs=[A76])


def content(arch: str, size: int, reading: CpuReading, *, flipped: frozenset[str] = frozenset()) -> list[int]:
    """The struct as a runtime with that layout fills it in; fields about which the processor tells nothing are 1."""
    expected = expected_fields(reading)
    made = [0] * size
    for field, offset in isa.LAYOUTS[arch][size].offsets.items():
        made[offset] = int((True in expected.get(field, {True})) != (field in flipped))
    return made


@pytest.mark.parametrize("size", [75, 83, 85, 86])
def test_every_known_layout_is_proved_by_cpuid(size: int) -> None:
    """The size chooses it, and all fields that could be switched agree."""
    assert proved_layout("x86_64", content("x86_64", size, ZEN4), size, ZEN4) == isa.LAYOUTS["x86_64"][size]


@pytest.mark.parametrize("size", [0, 32, 74, 84, 87, 4096])
def test_an_unknown_size_is_refused(size: int) -> None:
    """No offset is known for it; the sizes that are known are named."""
    with pytest.raises(FeatureError, match=rf"{size} bytes; layouts are known for 75, 83, 85, 86 on x86_64") as caught:
        known_layout("x86_64", size)
    assert "--ablate none" in (caught.value.hint or "")


@pytest.mark.parametrize("field", ["rdseed", "aes", "clflush", "popcnt", "sha"])
def test_a_field_that_nothing_switches_is_no_reason(field: str) -> None:
    """Errata, hypervisors and boot options change such flags, and no layout follows from it."""
    changed = content("x86_64", 85, ZEN4, flipped=frozenset({field}))
    assert proved_layout("x86_64", changed, 85, ZEN4).size == 85


def test_two_other_fields_that_read_differently_are() -> None:
    """One may be an oddity of the machine, two are a sign of another layout."""
    changed = content("x86_64", 85, ZEN4, flipped=frozenset({"rdseed", "sha"}))
    with pytest.raises(FeatureError, match="rdseed reads 0, the CPU says 1; sha reads 0, the CPU says 1"):
        proved_layout("x86_64", changed, 85, ZEN4)


@pytest.mark.parametrize("field", sorted(isa.switchable("x86_64") - {"amx_fp8"}))
def test_a_field_that_could_be_switched_and_reads_differently_is(field: str) -> None:
    """Each one alone, in both directions; the message names it and says what still works."""
    changed = content("x86_64", 85, ZEN4, flipped=frozenset({field}))
    with pytest.raises(FeatureError, match=rf"{field} reads [01], the CPU says [01]\. Clearing") as caught:
        proved_layout("x86_64", changed, 85, ZEN4)
    assert "doctor" not in f"{caught.value} {caught.value.hint}"


def test_a_byte_that_is_no_flag_is_refused() -> None:
    """A vector length stands where AVX2 should."""
    changed = content("x86_64", 85, ZEN4)
    changed[isa.LAYOUTS["x86_64"][85].offsets["avx2"]] = 64
    with pytest.raises(FeatureError, match="avx2 reads 64, the CPU says 1"):
        proved_layout("x86_64", changed, 85, ZEN4)


def test_a_long_list_of_fields_is_counted() -> None:
    """The first four stand for the rest."""
    with pytest.raises(FeatureError, match=r"avx reads 0.*; avx2 reads 0.*; avx512bf16.*; avx512bitalg.* and \d+ more"):
        proved_layout("x86_64", [0] * 85, 85, ZEN4)


def test_registers_that_the_system_does_not_save_switch_features_off() -> None:
    """Without the ZMM bits of XCR0 there is no AVX-512, whatever the leaves say; without XGETBV no AVX either."""
    fields = switchable_fields(ZEN4)
    avx_only = CpuReading(cpuid=ZEN4.cpuid, xcr0=0x7)
    none = CpuReading(cpuid=ZEN4.cpuid, xcr0=None)
    left = switchable_fields(avx_only)
    assert fields - left == {name for name in fields if name.startswith("avx512")}
    assert switchable_fields(none) == {"sse4_1", "sse4_2", "sse4a"}


def switchable_fields(reading: CpuReading) -> set[str]:
    """Those that the processor has."""
    return {name for name in isa.switchable("x86_64") if True in expected_fields(reading)[name]}


def test_leaves_beyond_the_last_one_are_not_asked_for() -> None:
    """A processor of 2007 ends at leaf 10; what it would answer beyond it means nothing."""
    rows = cpuid_rows(lambda leaf, subleaf: [{0: 10, 0x80000000: 0x80000008}.get(leaf, 0), subleaf, leaf & 0xFFFF, 0])
    assert [row[:2] for row in rows] == [[0, 0], [1, 0], [7, 0], [7, 1], [0x24, 0], [0x80000000, 0], [0x80000001, 0]]
    old = cpuid_rows(lambda leaf, subleaf: [{0: 5, 0x80000000: 0x80000001}.get(leaf, 0), 0, 0, subleaf])
    assert [row[0] for row in old] == [0, 1, 0x80000000, 0x80000001]


@pytest.mark.parametrize("size", [32, 36])
def test_arm_layouts_are_proved_by_the_hardware_capabilities(size: int) -> None:
    """The fields agree with AT_HWCAP and AT_HWCAP2."""
    assert proved_layout("aarch64", content("aarch64", size, PI5), size, PI5).offsets["dot"] == size - 10


def test_what_cpuinfo_adds_for_a_core_is_allowed_and_nothing_else() -> None:
    """An old kernel reports no half precision and no dot product; cpuinfo knows that a Cortex-A76 has both."""
    reported = [hwcap("aes", "pmull", "sha1", "sha2", "crc32", "atomics"), 0]
    made = content("aarch64", 32, PI5)
    proved_layout("aarch64", made, 32, CpuReading(hwcaps=reported, midrs=[A76]))
    with pytest.raises(FeatureError, match="dot reads 1, the CPU says 0; fp16arith reads 1, the CPU says 0"):
        proved_layout("aarch64", made, 32, CpuReading(hwcaps=reported, midrs=[0x4100D080]))


@pytest.mark.parametrize(
    ("midr", "field"),
    [(0x4100D050, "dot"), (0x4110D0A0, "dot"), (0x53000020, "fp16arith")],
    ids=["first Cortex-A55", "second Cortex-A75", "Exynos 9810"],
)
def test_what_cpuinfo_takes_away_for_a_core_is_allowed(midr: int, field: str) -> None:
    """Kernels report what only some cores of the chip have, or what a first revision lacks."""
    lacking = content("aarch64", 32, PI5, flipped=frozenset({field}))
    proved_layout("aarch64", lacking, 32, CpuReading(hwcaps=PI5.hwcaps, midrs=[midr]))
    with pytest.raises(FeatureError, match=f"{field} reads 0, the CPU says 1"):
        proved_layout("aarch64", lacking, 32, CpuReading(hwcaps=PI5.hwcaps, midrs=[0x4100D080]))


def test_a_processor_that_cannot_be_asked_proves_nothing() -> None:
    """A system that lets no process make code: refused, and a plain profile named."""
    with pytest.raises(FeatureError, match="cannot query") as caught:
        proved_layout("x86_64", content("x86_64", 85, ZEN4), 85, CpuReading())
    assert "--ablate none" in (caught.value.hint or "")


M4 = CpuReading(
    sysctls=dict.fromkeys(
        "FEAT_LSE FEAT_RDM FEAT_FP16 FEAT_FHM FEAT_BF16 FEAT_FCMA FEAT_JSCVT FEAT_DotProd FEAT_I8MM FEAT_SME FEAT_SME2 "
        "SME_I16I32 SME_BI32I32".split(),
        1,
    )
    | dict.fromkeys("FEAT_SME2p1 FEAT_SME_B16B16 FEAT_SME_F16F16".split(), 0)
)


@pytest.mark.parametrize("size", [32, 36])
def test_macos_states_no_size_and_the_fields_choose_the_layout(size: int) -> None:
    """Of the two known layouts only the true one puts every field where it reads as sysctl says."""
    made = content("aarch64", size, M4)
    made[size - 16 : size - 12] = [64, 0, 0, 0]  # smelen
    padded = [*made, *[0] * (36 - size)]
    assert proved_layout("aarch64", padded, None, M4).offsets["dot"] == size - 10


def test_on_macos_a_field_that_could_stand_in_two_places_is_left_out() -> None:
    """What follows the struct happens to read as the larger layout would: SME is certain, the dot product is not."""
    padded = [*content("aarch64", 32, M4)[:31], 1, 1, 1, 1, 0]
    layout = proved_layout("aarch64", padded, None, M4)
    assert layout.offsets["sme2"] == 6
    assert "dot" not in layout.offsets
    with pytest.raises(FeatureError, match="does not have the known layout"):
        proved_layout("aarch64", [0] * 36, None, M4)


def reading_of(machine: X86Machine | ArmMachine) -> CpuReading:
    """What a recorded machine says of itself."""
    if isinstance(machine, X86Machine):
        return CpuReading(cpuid=cpuid_rows(lambda leaf, sub: list(machine.registers(leaf, sub))), xcr0=machine.xgetbv())
    hwcaps = [int(machine.hwcap, 16), int(machine.hwcap2, 16)]
    return CpuReading(hwcaps=hwcaps, midrs=[int(midr, 16) for midr in machine.midrs])


LAYOUTS = [(arch, size) for arch, layouts in isa.LAYOUTS.items() for size in layouts]


def machines(arch: str) -> list[X86Machine] | list[ArmMachine]:
    """The recorded and made machines of an architecture."""
    return x86_machines() if arch == "x86_64" else arm_machines()


@pytest.mark.parametrize(("arch", "size"), LAYOUTS)
def test_the_true_layout_is_proved_on_every_recorded_machine(arch: str, size: int) -> None:
    """With the struct as cpuinfo's own code filled it in; what can be switched is what cpuinfo found."""
    for machine in machines(arch):
        layout = proved_layout(arch, machine.struct(size), size, reading_of(machine))
        found = {field for field, offset in layout.offsets.items() if machine.struct(size)[offset]}
        assert found == machine.fields(size) - {"svelen", "smelen"}, machine.name


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize(("arch", "size"), LAYOUTS)
def test_a_layout_that_is_off_by_one_byte_is_refused_or_harmless(arch: str, size: int, shift: int) -> None:
    """Refused wherever there is anything to switch off; passed only where every byte it could clear is zero."""
    harmless = []
    for machine in machines(arch):
        true = machine.struct(size)
        shifted = [0, *true[:-1]] if shift > 0 else [*true[1:], 0]
        try:
            layout = proved_layout(arch, shifted, size, reading_of(machine))
        except FeatureError:
            continue
        switched = {field: shifted[at] for field, at in layout.offsets.items() if field in isa.switchable(arch)}
        assert not any(switched.values()), machine.name
        harmless.append(machine.name)
    assert set(harmless) == HARMLESS.get((arch, shift), set())


_ARMV8_0 = (
    "galaxy-a8-2018 graviton1 jetson-nano kirin-970 pixel-2-xl-snapdragon-835 raspberry-pi-3 raspberry-pi-4 rk3399"
)
HARMLESS = {("aarch64", 1): set(_ARMV8_0.split())}
"""Machines on which a layout that is off by a byte passes: Armv8.0 cores, which have nothing to switch off."""


@pytest.mark.parametrize("machine", mac_machines(), ids=str)
@pytest.mark.parametrize("size", [32, 36])
def test_macs_that_were_recorded_prove_their_layout(machine: MacMachine, size: int) -> None:
    """By sysctl alone; macOS 11 knows none of the names, and cpuinfo then goes by the processor's family."""
    reading = CpuReading(sysctls={name.removeprefix(PREFIX): value for name, value in machine.sysctls.items()})
    padded = [*machine.struct(size), *[0] * (max(isa.LAYOUTS["aarch64"]) - size)]
    layout = proved_layout("aarch64", padded, None, reading)
    true = isa.LAYOUTS["aarch64"][size].offsets
    assert {"sme", "sme2", "i8mm", "bf16"} <= layout.offsets.keys()
    assert all(true[field] == at for field, at in layout.offsets.items())
    assert "dot" in layout.offsets or machine.name == "macos-11-m1"


@pytest.mark.parametrize("machine", mac_machines(), ids=str)
def test_a_mac_is_proved_with_the_older_cpuinfo_too(machine: MacMachine) -> None:
    """Before 2846bafc7c78 cpuinfo read only SME and SME2 into the same struct; that switches like the newer one."""
    reading = CpuReading(sysctls={name.removeprefix(PREFIX): value for name, value in machine.sysctls.items()})
    for size, content in machine.cpuinfo_isa_before_2846bafc7c78.items():
        padded = [*bytes.fromhex(content), *[0] * (max(isa.LAYOUTS["aarch64"]) - size)]
        layout = proved_layout("aarch64", padded, None, reading)
        true = isa.LAYOUTS["aarch64"][size].offsets
        assert {field: true[field] for field in ("sme", "sme2", "i8mm")} == {
            field: layout.offsets[field] for field in ("sme", "sme2", "i8mm")
        }


PREFIX = "hw.optional.arm."


def test_cores_are_read_from_the_systems_list() -> None:
    """One number for every kind of core, its variant included; other lines do not count."""
    text = (
        "processor\t: 0\nCPU implementer\t: 0x51\nCPU architecture: 8\nCPU variant\t: 0xd\nCPU part\t: 0x805\n"
        "CPU revision\t: 14\n\nprocessor\t: 1\nCPU implementer\t: 0x51\nCPU variant\t: 0xd\nCPU part\t: 0x804\n"
    )
    assert midrs_of(text) == [0x51D08040, 0x51D08050]
    assert midrs_of("") == []


def test_this_processor_tells_its_features() -> None:
    """Every field that could be switched is known, on the machine that runs the tests."""
    arch = isa.architecture(platform.machine())
    assert expected_fields(read_processor()).keys() >= isa.switchable(arch)


@pytest.mark.runtime
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root gets a private view of /proc")
@pytest.mark.parametrize("change", ["hidden", "added", "empty", "foreign"])
def test_the_systems_list_of_flags_decides_nothing(change: str, tmp_path: Path) -> None:
    """Flags hidden for an erratum, invented, none at all, or another machine's: the same features are found."""
    if not shutil.which("unshare"):
        pytest.skip("no unshare")
    true = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    texts = {
        "hidden": true.replace(" avx2 ", " ").replace(" rdseed ", " ").replace(" asimddp ", " "),
        "added": true.replace(" avx2 ", " avx2 amx_tile avx512_fp16 ").replace(" aes ", " aes sme2 "),
        "empty": "",
        "foreign": "processor\t: 0\nFeatures\t: fp asimd sme2\nflags\t\t: fpu 3dnow\n",
    }
    fake = tmp_path / "cpuinfo"
    fake.write_text(texts[change], encoding="utf-8")
    command = f"mount --bind {fake} /proc/cpuinfo && {sys.executable} -m opscope doctor --features --json -"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, check=False)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip("a private mount namespace is not allowed here")
    words = [sys.executable, "-m", "opscope", "doctor", "--features", "--json", "-"]
    plain = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout, done.returncode) == (plain.stdout, 0)
