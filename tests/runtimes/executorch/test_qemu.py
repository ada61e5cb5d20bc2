"""64-bit Arm under QEMU: what is computed is right, and no time of it is ever compared."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
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
from waiting import HANG

runtime = pytest.mark.runtime


def _fake_qemu(path: Path, version: str) -> str:
    path.write_text(f"#!/bin/sh\necho 'qemu-aarch64 version {version} (Debian 1:{version}+dfsg)'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("version", "doubt"), [("10.0.2", True), ("11.0.0", True), ("11.1.3", False), ("12.0.0", False)]
)
def test_a_version_that_was_not_seen_to_be_right_is_doubted(
    version: str, doubt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.0 has no SME2; 11.1 and newer are taken."""
    monkeypatch.setenv(VARIABLE, _fake_qemu(tmp_path / "q", version))
    assert (find_emulator().doubt is not None) is doubt


@pytest.mark.parametrize(
    ("make", "words", "hint"),
    [
        (lambda path: _fake_qemu(path, "7.2.9"), r"QEMU 7\.2\.9 computes int8 .* incorrectly", "11.1"),
        (lambda path: _fake_qemu(path, "9.1.0"), r"QEMU 9\.1\.0 computes int8 .* incorrectly", "11.1"),
        (lambda _: sys.executable, "does not report a QEMU version", ""),
        (lambda _: "/nowhere/qemu", "/nowhere/qemu is not installed", ""),
    ],
    ids=["7.2.9", "9.1.0", "another program", "none"],
)
def test_what_computes_wrong_or_is_no_qemu_is_refused(
    make: Callable[[Path], str], words: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its version and the one that is right."""
    monkeypatch.setenv(VARIABLE, make(tmp_path / "q"))
    with pytest.raises(MissingDependencyError, match=words) as caught:
        find_emulator()
    assert hint in str(caught.value.hint)


@runtime
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_every_variant_computes_what_x86_computes(
    dtype: str, toy_programs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SME2, SME and NEON; and the trace names the kernels of SME where they were there."""
    target = qemu_target(monkeypatch)
    fields = frozenset(target.probe().fields)
    assert {"sme2", "sme", "i8mm"} <= fields
    job = Job(str(toy_programs[dtype]), run_as([]), 1, 0, timeout_seconds=HANG)
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
    """In its manifest, in its report, in its grade; outputs are compared, times are not, and nothing is missing."""
    assert validate(emulated_bundle).failed() == []
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
def test_times_of_an_emulated_cpu_are_refused_everywhere(emulated_bundle: Path, tmp_path: Path) -> None:
    """In a comparison, in a gate even when it is forced, and beside other platforms."""
    one, other = f"{emulated_bundle}#accelerated", f"{emulated_bundle}#baseline"
    another = shutil.copytree(emulated_bundle, tmp_path / "another")
    for compare_times in (
        lambda: compare(other, one),
        lambda: check(one, other),
        lambda: check(one, other, force=True),
        lambda: combined([emulated_bundle, another]),
    ):
        with pytest.raises(MismatchError, match="emulated"):
            compare_times()
