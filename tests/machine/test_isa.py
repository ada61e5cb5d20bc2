"""Feature groups: what is switched together, and what is refused."""

from __future__ import annotations

import itertools

import pytest

from opscope.core.errors import FeatureError
from opscope.machine import isa
from texts import NOTHING_TO_SWITCH

X86 = frozenset("sse4_1 sse4_2 avx f16c fma3 avx2 avx512f avx512bw avx512vl".split())
ARM = frozenset("atomics bf16 i8mm sme sme2 sme_f16f16 fp16arith dot".split())


def test_switching_a_group_off_takes_those_that_need_it_along() -> None:
    """Without AVX2 there is no AVX-512 either, nor FMA3 and F16C."""
    assert isa.cleared_fields("x86_64", ["avx2"], X86) == ["fma3", "f16c", "avx2", "avx512f", "avx512bw", "avx512vl"]


def test_only_fields_that_the_cpu_has_are_cleared() -> None:
    """What is off already is not listed as switched off."""
    assert isa.cleared_fields("x86_64", ["avx512"], X86) == ["avx512f", "avx512bw", "avx512vl"]


def test_sme2_alone_leaves_sme_and_sme_takes_both() -> None:
    """Clearing only sme2 gives the SME kernels; clearing sme gives NEON."""
    assert isa.cleared_fields("aarch64", ["sme2"], ARM) == ["sme2"]
    assert isa.cleared_fields("aarch64", ["sme"], ARM) == ["sme", "sme2", "sme_f16f16"]


AMX, PI_5 = X86 | {"amx_tile", "amx_int8"}, frozenset({"dot", "fp16arith"})


@pytest.mark.parametrize(
    ("arch", "fields", "bits", "default"),
    [
        ("x86_64", X86, (), "avx512"),
        ("aarch64", ARM, (), "sme"),
        ("x86_64", AMX, (), "amx"),
        ("x86_64", AMX, (8, 32), "amx"),
        ("x86_64", AMX, (32,), "avx512"),
        ("x86_64", AMX, (16,), "avx512"),
        ("aarch64", ARM, (32,), "sme"),
        ("aarch64", PI_5, (8,), "dotprod"),
        ("aarch64", PI_5, (16,), "fp16"),
    ],
)
def test_the_default_is_the_strongest_group_that_helps(
    arch: str, fields: frozenset[str], bits: tuple[int, ...], default: str
) -> None:
    """AVX-512 where there is no AMX, or where the weights are none of AMX's; SME with SME2 on Arm."""
    assert isa.default_ablation(arch, fields, bits).name == default


def test_a_cpu_without_features_for_the_weights_says_so() -> None:
    """A Raspberry Pi 5 has nothing that makes a difference to single precision."""
    with pytest.raises(FeatureError, match="no feature that can be switched off here speeds up 32-bit weights"):
        isa.default_ablation("aarch64", PI_5, (32,))


@pytest.mark.parametrize(
    ("arch", "fields", "names"),
    [("x86_64", X86, ["avx512", "avx2", "avx", "sse4"]), ("aarch64", ARM, ["sme2", "sme", "i8mm", "dotprod"])],
)
def test_the_ladder_goes_down_step_by_step(arch: str, fields: frozenset[str], names: list[str]) -> None:
    """Every step of the staircase clears more than the one before: what was off stays off."""
    ladder = isa.ladder(arch, fields)
    assert [step[-1] for step in ladder] == names
    steps = [isa.cleared_fields(arch, step, fields) for step in ladder]
    assert all(set(less) < set(more) for less, more in itertools.pairwise(steps))


@pytest.mark.parametrize(
    ("name", "problem", "hint"),
    [
        ("amx", "does not have amx", "it has: avx512, avx2, avx, sse4"),
        ("sme2", "is a feature of aarch64", "groups of x86_64"),
        ("avx51", "unknown feature group", "avx512"),
    ],
)
def test_a_group_that_cannot_be_switched_is_refused(name: str, problem: str, hint: str) -> None:
    """A feature the CPU lacks, one of another architecture, and a misspelt one each get their own answer."""
    with pytest.raises(FeatureError, match=problem) as caught:
        isa.cleared_fields("x86_64", [name], X86)
    assert hint in (caught.value.hint or "")


def test_a_cpu_without_features_has_nothing_to_switch() -> None:
    """No ladder, no default, an error that says so."""
    assert isa.ladder("x86_64", frozenset()) == []
    with pytest.raises(FeatureError, match=NOTHING_TO_SWITCH):
        isa.default_ablation("x86_64", frozenset())


def test_layouts_do_not_overlap() -> None:
    """Every field has a byte of its own inside the struct."""
    for layouts in isa.LAYOUTS.values():
        for size, layout in layouts.items():
            offsets = list(layout.offsets.values())
            assert len(set(offsets)) == len(offsets)
            assert max(offsets) < layout.size == size


@pytest.mark.parametrize(
    ("arch", "size", "places"),
    [
        ("x86_64", 75, {"avx": 22, "fma3": 23, "avx512f": 28, "lwp": 74}),
        ("x86_64", 83, {"avxvnni": 23, "amx_tile": 48, "avx_vnni_int8": 51, "lwp": 82}),
        ("x86_64", 85, {"avx10_1": 47, "amx_tile": 50, "avx_vnni_int8": 53, "lwp": 84}),
        ("x86_64", 86, {"avx10_1": 47, "amx_tile": 50, "amx_fp8": 53, "lwp": 85}),
        ("aarch64", 32, {"sme2": 6, "rdm": 20, "dot": 22, "crc32": 30}),
        ("aarch64", 36, {"sme2": 6, "f8mm": 14, "rdm": 24, "dot": 26, "crc32": 34}),
    ],
)
def test_fields_stand_where_each_version_of_cpuinfo_has_them(arch: str, size: int, places: dict[str, int]) -> None:
    """Offsets read off the struct in cpuinfo.h at the commit that the layout names, by a compiler's offsetof."""
    layout = isa.LAYOUTS[arch][size]
    assert {field: layout.offsets[field] for field in places} == places


def test_a_cpu_of_another_kind_is_refused() -> None:
    """RISC-V has no table, and the error says what to do."""
    with pytest.raises(FeatureError, match="riscv64"):
        isa.architecture("riscv64")
