"""Features that libraries set because they know the cores: no mechanism outside of them can switch those off."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.bundle.manifest import Mechanism, Target
from opscope.core.errors import FeatureError
from opscope.experiment.protocol import ProbeAnswer
from opscope.experiment.target import SwitchOffer
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import isa
from opscope.machine.cpu_reading import CpuReading, fixed_fields
from opscope.runtimes.switching import LibrarySwitch
from texts import NOTHING_TO_SWITCH

CORTEX_A76, NEOVERSE_N2, QEMU = 0x4100D0B0, 0x4100D490, 0x00000510
FIELDS = ["atomics", "dot", "fp16arith", "i8mm", "rdm", "sme"]


@pytest.mark.parametrize(
    ("midr", "expected"),
    [(CORTEX_A76, ["dot", "fp16arith", "rdm"]), (NEOVERSE_N2, ["dot", "fp16arith", "rdm"]), (QEMU, [])],
)
def test_what_cores_are_known_to_have(midr: int, expected: list[str]) -> None:
    """Whatever the system says of them."""
    for hwcaps in ([0, 0], [2**64 - 1, 2**64 - 1]):
        assert fixed_fields(CpuReading(hwcaps=hwcaps, midrs=[midr])) == expected
    assert fixed_fields(CpuReading()) == []


def test_groups_that_stay_on_are_refused_by_name() -> None:
    """Others are switched as everywhere; the strongest of those is what is switched when nothing is asked."""
    fields, fixed = frozenset(FIELDS), frozenset(["dot", "fp16arith", "rdm"])
    assert isa.cleared_fields("aarch64", ["sme"], fields, fixed) == ["sme"]
    assert isa.cleared_fields("aarch64", ["dotprod"], fields) == ["i8mm", "dot"]
    with pytest.raises(FeatureError, match="hwcap cannot switch off dot here: libraries recognise these cores"):
        isa.cleared_fields("aarch64", ["sme", "dotprod"], fields, fixed)
    with pytest.raises(FeatureError, match=NOTHING_TO_SWITCH):
        isa.default_ablation("aarch64", frozenset(["dot", "fp16arith"]) - fixed)


def test_only_hwcap_is_bound_by_them(tmp_path: Path) -> None:
    """Clearing the list in memory is not; a run that asks for such a field all the same has no proof to begin with."""
    probe = ProbeAnswer("aarch64", FIELDS, None, 0, {}, ["dot"])
    assert SwitchOffer(Mechanism.HWCAP, probe).fixed == {"dot"}
    assert SwitchOffer(Mechanism.CPUINFO, probe).fixed == frozenset()
    switch = LibrarySwitch(ThisMachine(Target("native", "")), [], None, lambda: probe)
    with pytest.raises(FeatureError, match="hwcap cannot switch off dot"):
        switch.prepared_with(Mechanism.HWCAP, ["dot", "sme"], tmp_path)
    assert not list(tmp_path.iterdir())
