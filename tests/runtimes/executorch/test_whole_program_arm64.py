"""The whole program on 64-bit Arm Linux with SME2: every process is one for Arm, under QEMU's user mode.

Run by ``make test-arm64`` (``.ci/arm64``), which prepares what is needed and lets the kernel start programs for Arm.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from aie_gemm import Gemm
from aie_traces import json_text
from arm64 import MARKS, PLACE, opscope
from texts import EMULATED

pytestmark = MARKS
# Kernels of SME by their names in a trace; without them the same operators have the plain names.
KERNELS = {"fp32": ("PF32", "F32"), "int8": ("PQS8", "QS8")}


@functools.cache
def profiled(dtype: str, directory: Path) -> Path:
    """The bundle of a toy model with SME on and off by the native runner, made once."""
    (program,) = (PLACE / "programs" / dtype).glob("*.pte")
    out = directory / dtype
    few = "--target native --rounds 2 --runs 2 --warmup 1".split()
    opscope("profile", program, *few, "--out", out, name=f"profile-{dtype}")
    return out


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all bundles of this module are."""
    return tmp_path_factory.mktemp("arm64")


def check_emulated_run(bundle: Path) -> None:
    """What holds for a run on an emulated CPU: complete, proved, marked, and never timed against another one."""
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["status"] == "complete"
    assert manifest["target"] == {"kind": "native", "address": "", "emulated": True}
    environment = manifest["environment"]
    assert (environment["machine"], environment["emulator"]) == ("aarch64", "QEMU's user mode (qemu-aarch64)")
    cleared = {variant["name"]: variant["cleared"] for variant in manifest["variants"]}
    assert cleared["accelerated"] == []
    assert {"sme", "sme2"} <= set(cleared["baseline"])
    for repetition in manifest["repetitions"]:
        mask = repetition["measurement"]["mask"]
        assert mask["cleared"] == cleared[repetition["variant"]]
        assert (mask["same_symbol"], mask["backend_loaded_before"], mask["struct_size"]) == (True, False, 32)
    assert not (bundle / "comparison.json").exists()
    assert list(bundle.rglob("*ceilings*")) == []


def names_of(bundle: Path, variant: str) -> str:
    """Names of all operators of a variant, as its traces have them."""
    told = opscope("analyze", f"{bundle}#{variant}", "--json", "-", "--quiet", name=f"analyze-{bundle.name}-{variant}")
    return " ".join(operator["name"] for operator in json.loads(told)["operators"])


def test_doctor_sees_an_emulated_cpu_with_sme2() -> None:
    """Ready, without torch: the native runner is built for Arm, the switch is proved, and times are worth nothing."""
    checks = {check["name"]: check for check in json.loads(opscope("doctor", "--json", "-", name="doctor"))["checks"]}
    assert checks["torch"]["state"] == "note"
    assert checks["runner"]["found"].startswith("native, built with aarch64-linux-gnu-g++")
    assert checks["acceleration switch"]["state"] == "ok"
    assert "sme2, sme, i8mm, dotprod" in checks["acceleration switch"]["found"]
    assert checks["machine"]["state"] == "note"
    assert "emulated by QEMU's user mode (qemu-aarch64)" in checks["machine"]["found"]


def test_without_torch_the_python_bindings_are_refused_in_one_sentence(tmp_path: Path) -> None:
    """Before anything is written, with what to install."""
    (program,) = (PLACE / "programs" / "int8").glob("*.pte")
    said = opscope("profile", program, "--target", "local", "--out", tmp_path / "out", name="no-torch", code=5)
    assert "torch is not installed" in said
    assert "[executorch]'" in said
    assert not (tmp_path / "out").exists()


def test_features_can_be_switched_down_to_neon() -> None:
    """As the runtime's own library for Arm sees them."""
    found = json.loads(opscope("doctor", "--features", "--json", "-", name="features"))
    assert found["arch"] == "aarch64"
    assert found["ladder"] == ["sme2", "sme", "i8mm", "dotprod"]
    assert {"sme2", "sme", "i8mm", "dot", "fp16arith", "sve"} <= set(found["fields"])
    assert found["default"] == "sme"


@pytest.mark.parametrize("dtype", KERNELS)
def test_profile_switches_sme_and_gives_no_verdict(dtype: str, directory: Path) -> None:
    """With the native runner, built here for Arm; the names of the operators show what ran."""
    bundle = profiled(dtype, directory)
    check_emulated_run(bundle)
    with_sme, without = KERNELS[dtype]
    assert with_sme in names_of(bundle, "accelerated")
    baseline = names_of(bundle, "baseline")
    assert with_sme not in baseline
    assert without in baseline


def test_the_report_says_emulated_and_compares_nothing(directory: Path) -> None:
    """In every format; that outputs agree is what such a run can tell."""
    bundle = profiled("int8", directory)
    opscope("report", bundle, "--format", "html,md,json", name="report")
    text = (bundle / "report.md").read_text(encoding="utf-8")
    assert EMULATED in text
    assert "the outputs of accelerated equal those of baseline" in text
    assert "do not trust" in text
    assert "on aarch64, emulated by QEMU's user mode" in text
    analysis = json.loads((bundle / "analysis.json").read_text(encoding="utf-8"))
    assert "emulated_cpu" in {warning["code"] for warning in analysis["trace"]["warnings"]}
    assert (analysis["findings"], analysis["roofline"], analysis["ceilings"]) == ([], None, None)
    assert (bundle / "report.html").stat().st_size > 10_000


def test_a_bundle_is_valid_where_it_was_made(directory: Path) -> None:
    """All figures recomputed, on Arm."""
    opscope("validate", profiled("int8", directory), name="validate")


def test_sides_of_an_emulated_cpu_are_not_compared(directory: Path) -> None:
    """The exit code is that of sides that do not belong together."""
    bundle = profiled("int8", directory)
    said = opscope("compare", f"{bundle}#baseline", f"{bundle}#accelerated", name="compare", code=13)
    assert "emulated" in said


def test_a_trace_alone_is_analysed(directory: Path) -> None:
    """With the program beside it, for the attribution."""
    bundle = profiled("int8", directory)
    (program,) = (PLACE / "programs" / "int8").glob("*.pte")
    trace = next(path for path in sorted(bundle.rglob("trace.etdump.zst")) if "accelerated" in str(path))
    found = json.loads(opscope("analyze", trace, "--program", program, "--json", "-", "--quiet", name="analyze"))
    assert found["latency"]["n"] == 2
    assert sum(row["time_ns"] for row in found["categories"]) == pytest.approx(found["headline_ns"])


def test_kernels_are_told_by_names(directory: Path) -> None:
    """Without counting: from the names in the traces, and from what the library holds."""
    assert "sme2" in opscope("kernels", profiled("int8", directory), name="kernels").lower()


def test_an_npu_trace_is_analysed(tmp_path: Path) -> None:
    """Of a small matrix product, with words decoded and cycles counted on Arm."""
    trace = tmp_path / "trace.json"
    trace.write_bytes(b"".join(json_text([Gemm(outputs=3, rest=90, row=2, column=0, begin=1).tile()])))
    assert "tile 2,0" in opscope("aie", trace, "--out", tmp_path / "out", name="aie")
    assert (tmp_path / "out" / "report.html").exists()
