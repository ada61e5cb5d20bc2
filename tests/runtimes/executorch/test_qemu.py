"""64-bit Arm under QEMU: what is computed is right, and no time of it is ever compared."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from job_variants import run_as
from native_runner import native_target
from opscope.bundle.bundle import Bundle
from opscope.core.errors import MismatchError, MissingDependencyError
from opscope.experiment.planned import Settings
from opscope.experiment.protocol import Job
from opscope.hosts.emulator import VARIABLE, find_emulator
from opscope.machine import isa
from opscope.readers.registry import read_trace
from opscope.workflows.analyze.analyses import analyze, compare
from opscope.workflows.analyze.gate import check
from opscope.workflows.measure.profiling import profile
from opscope.workflows.reports.combined import combined
from opscope.workflows.validate.validation import validate
from qemu import qemu_target
from texts import EMULATED, SME_SELECTED

runtime = pytest.mark.runtime


def emulator(path: Path, version: str) -> str:
    """A program that tells this version of QEMU."""
    path.write_text(f"#!/bin/sh\necho 'qemu-aarch64 version {version} (Debian 1:{version}+dfsg)'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("version", ["7.2.9", "9.1.0"])
def test_a_version_that_computes_wrong_is_refused(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its version and the one that is right."""
    monkeypatch.setenv(VARIABLE, emulator(tmp_path / "q", version))
    with pytest.raises(MissingDependencyError, match=f"QEMU {version} computes int8 .* incorrectly") as caught:
        find_emulator()
    assert "11.1" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("version", "doubt"), [("10.0.2", True), ("11.0.0", True), ("11.1.3", False), ("12.0.0", False)]
)
def test_a_version_that_was_not_seen_to_be_right_is_doubted(
    version: str, doubt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.0 has no SME2; 11.1 and newer are taken."""
    monkeypatch.setenv(VARIABLE, emulator(tmp_path / "q", version))
    assert (find_emulator().doubt is not None) is doubt


def test_what_is_no_qemu_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without a version of QEMU, and none at all."""
    monkeypatch.setenv(VARIABLE, sys.executable)
    with pytest.raises(MissingDependencyError, match="does not report a QEMU version"):
        find_emulator()
    monkeypatch.setenv(VARIABLE, "/nowhere/qemu")
    with pytest.raises(MissingDependencyError, match="/nowhere/qemu is not installed"):
        find_emulator()


@runtime
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_every_variant_computes_what_x86_computes(
    dtype: str, toy_programs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SME2, SME and NEON; and the trace names the kernels of SME where they were there."""
    target = qemu_target(monkeypatch)
    fields = frozenset(target.probe().fields)
    assert {"sme2", "sme", "i8mm"} <= fields
    job = Job(str(toy_programs[dtype]), run_as([]), 1, 0, timeout_seconds=250.0)
    variants = {"sme2": [], "sme": ["sme2"], "neon": ["sme"], "x86": []}
    outputs, names = {}, {}
    for name, off in variants.items():
        place = tmp_path / name
        place.mkdir()
        clear = [] if name == "x86" else isa.cleared_fields("aarch64", off, fields)
        used = native_target() if name == "x86" else target
        outcome = used.execute(Job(job.program, run_as(clear), 1, 0, job.timeout_seconds), place)
        assert outcome.failure is None
        outputs[name] = np.load(place / "outputs.npz")["arr_0"]
        names[name] = set(read_trace(place / "trace.etdump")[0].frame["name"].to_list())
    for name in ("sme2", "sme", "neon"):
        assert np.max(np.abs(outputs[name] - outputs["x86"])) <= 1e-5 * np.max(np.abs(outputs["x86"]))
    mark = {"fp32": "PF32", "int8": "PQS8"}[dtype]
    assert {name for name, own in names.items() if any(mark in one for one in own)} == {"sme2", "sme"}


@pytest.fixture(scope="module")
def emulated_bundle(toy_programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of an int8 model under QEMU."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        target = qemu_target(monkeypatch)
        out = tmp_path_factory.mktemp("bundle") / "b"
        settings = Settings(target="qemu-aarch64", ablate=("sme",), rounds=1, runs=1, warmup=1, untraced=False)
        profile(str(toy_programs["int8"]), settings=settings, out=out, target=target)
        return out


@runtime
def test_a_bundle_of_an_emulated_cpu_says_so(emulated_bundle: Path) -> None:
    """In its manifest, in its report, in its grade; outputs are compared, times are not."""
    bundle = Bundle.open(emulated_bundle)
    assert bundle.manifest.target.emulated
    assert "QEMU" in (bundle.manifest.environment.cpu or "")
    text = (emulated_bundle / "report.md").read_text()
    assert EMULATED in text
    assert "the outputs of accelerated equal those of baseline" in text
    assert f"{SME_SELECTED} 3 of 3 convolutions and products" in text
    assert f"{SME_SELECTED} 0 of 3" in text
    assert "Bottleneck:" not in text
    assert "timings do not represent any device" in text
    assert not (emulated_bundle / "comparison.json").exists()
    analysis = analyze(emulated_bundle)
    assert analysis.trace.warnings[0].code == "emulated_cpu"
    assert not analysis.findings


@runtime
def test_a_bundle_of_an_emulated_cpu_is_valid(emulated_bundle: Path) -> None:
    """Nothing is missing from it because its times are not compared."""
    assert validate(emulated_bundle).failed() == []


@runtime
def test_times_of_an_emulated_cpu_are_refused_everywhere(emulated_bundle: Path, tmp_path: Path) -> None:
    """In a comparison, in a gate even when it is forced, and beside other platforms."""
    one, other = f"{emulated_bundle}#accelerated", f"{emulated_bundle}#baseline"
    with pytest.raises(MismatchError, match="emulated"):
        compare(other, one)
    with pytest.raises(MismatchError, match="emulated"):
        check(one, other)
    with pytest.raises(MismatchError, match="emulated"):
        check(one, other, force=True)
    with pytest.raises(MismatchError, match="emulated"):
        combined([emulated_bundle, shutil.copytree(emulated_bundle, tmp_path / "another")])
