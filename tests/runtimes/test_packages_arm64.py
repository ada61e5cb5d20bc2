"""LiteRT and ONNX Runtime on 64-bit Arm Linux with SME2, as their wheels are: which kernels and graphs SME brings.

Run by ``make test-arm64``. Under QEMU times mean nothing; what runs, and whether it computes the same, does.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from arm64 import MARKS, opscope

pytestmark = MARKS
DATA = Path(__file__).parents[1] / "data"
FEW = "--rounds 2 --runs 2 --warmup 1 --ablate sme --lock warn".split()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all bundles of this module are."""
    return tmp_path_factory.mktemp("packages")


def profiled(model: Path, out: Path, *words: str) -> Path:
    """A bundle with SME on and off."""
    opscope("profile", model, *FEW, *words, "--out", out, name=f"profile-{out.name}")
    return out


def checked(bundle: Path) -> None:
    """Complete, and the features were off: getauxval was asked, and said so."""
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["status"] == "complete"
    cleared = {variant["name"]: variant["cleared"] for variant in manifest["variants"] if variant["role"] != "control"}
    assert {"sme", "sme2"} <= set(cleared["baseline"])
    for repetition in manifest["repetitions"]:
        if repetition["variant"] in cleared:
            mask = repetition["measurement"]["mask"]
            assert (mask["mechanism"], mask["cleared"]) == ("hwcap", cleared[repetition["variant"]])
    outputs = []
    for variant in cleared:
        with np.load(next((bundle / "variants" / variant).rglob("outputs.npz"))) as file:
            outputs.append(file["arr_0"].astype(np.float64))
    np.testing.assert_allclose(outputs[0], outputs[1], atol=0.02 * max(1.0, float(np.abs(outputs[0]).max())))


def names_of(bundle: Path, variant: str) -> str:
    """Names of all operators of a variant, as its traces have them."""
    told = opscope("analyze", f"{bundle}#{variant}", "--json", "-", "--quiet", name=f"analyze-{bundle.name}-{variant}")
    return " ".join(operator["name"] for operator in json.loads(told)["operators"])


def test_litert_runs_kernels_of_sme_on_and_none_off(directory: Path) -> None:
    """An int8 model: packed kernels of SME by their names, then the plain ones."""
    bundle = profiled(DATA / "tflite" / "mlp_int8.tflite", directory / "litert")
    checked(bundle)
    on, off = names_of(bundle, "accelerated"), names_of(bundle, "baseline")
    assert "PQS8" in on
    assert "PQS8" not in off
    assert "QS8" in off


def test_sme_gives_onnx_runtime_another_graph(directory: Path) -> None:
    """Convolutions with their channels last, and transposes around them, which are not in the model."""
    bundle = profiled(DATA / "onnx" / "images.onnx", directory / "onnxruntime")
    checked(bundle)
    graphs = {}
    for variant in ("accelerated", "baseline"):
        file = next((bundle / "variants" / variant).rglob("graph.onnxruntime.json"))
        graphs[variant] = [node["op"] for node in json.loads(file.read_text(encoding="utf-8"))["nodes"]]
    assert "NhwcFusedConv" in graphs["accelerated"]
    assert "Transpose" in graphs["accelerated"]
    assert not {"NhwcFusedConv", "Transpose"} & set(graphs["baseline"])
    told = json.loads(
        opscope("analyze", f"{bundle}#accelerated", "--json", "-", "--quiet", name="analyze-onnxruntime-layout")
    )
    nodes = [one for one in told["operators"] if one["kind"] != "framework"]
    assert {one["attribution"] for one in nodes} == {"exact"}
    assert any(one["name"].startswith("Transpose") for one in nodes)


def test_kleidiai_is_a_switch_of_onnx_runtime(directory: Path) -> None:
    """Without its kernels the session makes the graph that it makes without SME, and computes the same."""
    option = ("--session-option", "mlas.disable_kleidiai=1")
    bundle = directory / "kleidiai"
    words = "--rounds 2 --runs 2 --warmup 1 --ablate none --lock warn --no-ceilings".split()
    opscope("profile", DATA / "onnx" / "images.onnx", *words, *option, "--out", bundle, name="profile-kleidiai")
    graphs = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(bundle.rglob("graph.onnxruntime.json"))]
    assert graphs
    for graph in graphs:
        assert not {"NhwcFusedConv", "Transpose"} & {node["op"] for node in graph["nodes"]}
