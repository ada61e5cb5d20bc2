"""The mask of hardware capabilities on the real runtime for 64-bit Arm, under QEMU: the kernels that it takes away."""

from __future__ import annotations

from pathlib import Path

import pytest

from arm import SME, arm_target
from job_variants import run_as
from opscope.bundle.manifest import Measurement, Mechanism
from opscope.experiment.protocol import Job
from opscope.readers.registry import read_trace

pytestmark = pytest.mark.runtime


def measured(program: Path, clear: list[str], switch: Mechanism, place: Path) -> tuple[Measurement, set[str]]:
    """What a traced inference reports, and the names of its operators that kernels of the SME family ran."""
    place.mkdir()
    outcome = arm_target()[0].execute(Job(str(program), run_as(clear, switch=switch), 1, 0, 250.0), place)
    assert outcome.failure is None
    names = set(read_trace(place / "trace.etdump")[0].frame["name"].to_list())
    return outcome.measurement, {name for name in names if "PQS8" in name}


def test_the_mask_takes_the_same_kernels_away_as_clearing(toy_programs: dict[str, Path], tmp_path: Path) -> None:
    """And alone it takes none."""
    program = toy_programs["int8"]
    whole, with_sme = measured(program, [], Mechanism.HWCAP, tmp_path / "whole")
    masked, without = measured(program, SME, Mechanism.HWCAP, tmp_path / "masked")
    cleared, expected = measured(program, SME, Mechanism.CPUINFO, tmp_path / "cleared")
    assert with_sme
    assert without == expected == set()
    assert masked.output_sha256 == cleared.output_sha256
    assert (masked.mask.mechanism, masked.mask.cleared) == (Mechanism.HWCAP, SME)
    assert masked.mask.masked
    assert whole.mask.masked == 0
