"""The recorded machines themselves: complete, with an origin, and in agreement with what they say of each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from machine_zoo import ArmMachine, MacMachine, X86Machine, arm_machines, layouts, mac_machines, x86_machines
from machine_zoo import layout as layout_of
from opscope.machine import isa

X86_SIZES, ARM_SIZES = (75, 83, 85, 86), (32, 36)
ARM: list[ArmMachine | MacMachine] = [*arm_machines(), *mac_machines()]

_ROW = re.compile(r"\| `(\S+)` \| .* \| (.*) \|")


def stated_groups() -> dict[str, str]:
    """Machine -> the groups that can be switched there, strongest first, as the page of the machines has them."""
    page = (Path(__file__).parents[1] / "data/machines/README.md").read_text(encoding="utf-8")
    return dict(_ROW.findall(page.partition("## The machines")[2]))


def groups(arch: str, fields: frozenset[str]) -> str:
    """Names of the groups of such a CPU."""
    return ", ".join(group.name for group in isa.present(arch, fields)) or "none"


@pytest.mark.parametrize("machine", x86_machines(), ids=str)
def test_an_x86_machine_is_whole(machine: X86Machine) -> None:
    """Origin, registers, and the struct in every layout, each byte 0 or 1, the same fields in all."""
    assert "@" in machine.origin or machine.made
    assert {"0.0", "1.0", "80000001.0"} <= machine.cpuid.keys()
    assert (machine.flags is None) == (machine.flags_origin is None)
    assert tuple(machine.cpuinfo_isa) == X86_SIZES
    known = frozenset(layout_of("x86_64", 75).fields.split())
    for size in X86_SIZES:
        assert len(machine.struct(size)) == size
        assert set(machine.struct(size)) <= {0, 1}
        assert machine.fields(size) & known == machine.fields(75)


@pytest.mark.parametrize("machine", ARM, ids=str)
def test_an_arm_machine_is_whole(machine: ArmMachine | MacMachine) -> None:
    """Origin and the struct in both layouts, the same fields in both but for what only the newer one has."""
    assert "@" in machine.origin or "https://" in machine.origin
    assert tuple(machine.cpuinfo_isa) == ARM_SIZES
    assert all(len(machine.struct(size)) == size for size in ARM_SIZES)
    assert machine.fields(36) - {"fp8", "f8dot", "f8mm"} == machine.fields(32)


@pytest.mark.parametrize("machine", x86_machines(), ids=str)
def test_what_can_be_switched_on_x86(machine: X86Machine) -> None:
    """From AMX down to CPUs that have nothing to switch; the oldest layout has no fields for AMX."""
    stated = stated_groups()[machine.name]
    assert {groups("x86_64", machine.fields(size)) for size in X86_SIZES[1:]} == {stated}
    assert groups("x86_64", machine.fields(75)) == stated.removeprefix("amx, ")


@pytest.mark.parametrize("machine", ARM, ids=str)
def test_what_can_be_switched_on_arm(machine: ArmMachine | MacMachine) -> None:
    """From SME2 down to CPUs that have nothing to switch."""
    assert {groups("aarch64", machine.fields(size)) for size in ARM_SIZES} == {stated_groups()[machine.name]}


@pytest.mark.parametrize("machine", [machine for machine in x86_machines() if machine.flags], ids=str)
def test_the_recorded_flags_are_those_that_linux_would_list(machine: X86Machine) -> None:
    """The table for machines without recorded flags is right; an older kernel lists fewer."""
    listed = machine.listed() & _names()
    hidden = {"avx_vnni_int8", "avx_vnni_int16", "avx_ne_convert"} if machine.name.endswith("older-kernel") else set()
    assert machine.expected_flags() - hidden == listed


def _names() -> frozenset[str]:
    return frozenset(name for machine in x86_machines() for name in machine.expected_flags())


def test_the_runtime_reads_amx_where_the_system_has_not_enabled_it() -> None:
    """It asks for the state of AVX-512 only, so a kernel's list without AMX is not a sign of another layout."""
    machine = next(machine for machine in x86_machines() if machine.name == "intel-emeraldrapids-xeon-8570")
    assert "amx_tile" in machine.fields(85)
    assert "amx_tile" not in machine.expected_flags()


def overruled(machine: ArmMachine) -> dict[str, bool]:
    """Fields that cpuinfo sets otherwise than the hwcaps say, and how."""
    told = {"fp16arith": {"fphp", "asimdhp"}, "rdm": {"asimdrdm"}, "dot": {"asimddp"}, "bf16": {"bf16"}}
    fields, listed = machine.fields(36), machine.listed()
    return {name: name in fields for name, words in told.items() if (name in fields) != (words <= listed)}


def test_where_cpuinfo_overrules_the_hwcaps() -> None:
    """Old kernels hide what the core has, one chip lists what its large cores lack, and svebf16 stands for bf16."""
    found = {machine.name: overruled(machine) for machine in arm_machines() if overruled(machine)}
    assert found == {
        "galaxy-s9-exynos-9810": {"fp16arith": False},
        "galaxy-s9-snapdragon-845": {"rdm": True},
        "mate-20-kirin-980": {"rdm": True, "dot": True},
        "tensor-g3": {"bf16": True},
    }


def test_every_field_but_one_is_set_somewhere() -> None:
    """So that a layout that moves any of them is noticed on some machine."""
    x86 = frozenset().union(*(machine.fields(86) for machine in x86_machines()))
    assert frozenset(layout_of("x86_64", 86).fields.split()) - x86 == {"ace2"}


def test_a_size_belongs_to_one_layout_from_2024_on() -> None:
    """A layout may be chosen by its size, for all sizes but 15 and 24 of 64-bit Arm."""
    seen: dict[tuple[str, int], set[str]] = {}
    for layout in layouts():
        seen.setdefault((layout.arch, layout.size), set()).add(layout.fields)
    assert {key for key, orders in seen.items() if len(orders) > 1} == {("aarch64", 15), ("aarch64", 24)}


Seen = tuple[str, frozenset[str], frozenset[str]]


def seen_by_a_byte_off() -> list[Seen]:
    """Every machine in every layout, a byte too low and a byte too high: name, flags that are set and that seem set."""
    x86 = [(machine, "x86_64", size) for machine in x86_machines() for size in X86_SIZES]
    arm = [(machine, "aarch64", size) for machine in ARM for size in ARM_SIZES]
    return [
        (machine.name, *read_at(arch, machine.struct(size), by))
        for machine, arch, size in [*x86, *arm]
        for by in (-1, 1)
    ]


def read_at(arch: str, content: list[int], by: int) -> tuple[frozenset[str], frozenset[str]]:
    """Flags that are set, and those that seem set when every offset is wrong by this many bytes."""
    offsets = layout_of(arch, len(content)).offsets()
    flags = {name: offset for name, offset in offsets.items() if name not in {"svelen", "smelen"}}
    padded = dict(enumerate(content))
    fields, seen = (frozenset(name for name, at in flags.items() if padded.get(at + off)) for off in (0, by))
    return fields, seen


def test_a_shift_by_a_byte_shows_in_some_field_of_every_machine() -> None:
    """When all fields are compared with the truth."""
    assert [name for name, fields, seen in seen_by_a_byte_off() if fields == seen] == []


def test_the_fields_that_are_switched_do_not_show_every_shift() -> None:
    """On these the wrong bytes would be cleared although each such field reads right: all fields must be compared."""
    switched = {field for groups in isa.GROUPS.values() for group in groups for field in group.fields}
    fooled = {name for name, fields, seen in seen_by_a_byte_off() if fields & switched == seen & switched != set()}
    assert fooled == {
        "made-avx-not-enabled",
        "made-empty-leaf-d",
        "kunpeng-920",
        "apple-m1-asahi",
        "macos-11-m1",
        "macos-12-m1-pro",
        "qemu-max",
    }
