"""Inputs of models that leave sizes open: the refusal says what to give, guesses run, and the report tells them."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import onnx_models as onnx
from installed import needs_onnxruntime
from opscope.api import profile
from opscope.bundle.bundle import Bundle
from opscope.cli.main import app
from opscope.core.errors import UsageError
from opscope.experiment.planned import Settings

pytestmark = needs_onnxruntime
QUICK = {"rounds": 1, "runs": 2, "warmup": 1, "ablate": ("none",), "ceilings": False, "lock": "warn"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of a waveform of 512 samples, which it does not state, of a rate, and of indices into nine rows."""
    nodes = [
        onnx.node("Reshape", "wave shape", "blocks"),
        onnx.node("Cast", "ids", "whole", to=7),
        onnx.node("Gather", "table whole", "rows"),
        onnx.node("ReduceSum", "rows", "total"),
        onnx.node("Cast", "sr", "rate", to=1),
        onnx.node("Mul", "total rate", "scale"),
        onnx.node("Mul", "blocks scale", "out"),
    ]
    inputs = {
        "wave": ("float32", ["batch", "samples"]),
        "ids": ("int32", ["batch", "tokens"]),
        "sr": ("int64", []),
    }
    weights = {"shape": np.array([1, 8, 64], np.int64), "table": np.ones((9, 4), np.float32)}
    path = tmp_path / "waves.onnx"
    path.write_bytes(onnx.model(onnx.body(nodes, inputs, {"out": ("float32", None)}, weights)))
    return path


def test_the_refusal_is_a_line_to_copy(model: Path, tmp_path: Path) -> None:
    """All inputs, each complete; with a number put in, it runs."""
    with pytest.raises(UsageError, match=r"wave float32\[batch,samples\], ids int32\[batch,tokens\]") as caught:
        profile(model, settings=Settings(**QUICK), out=tmp_path / "refused")
    line = caught.value.hint.partition(": ")[2]
    assert line == ("--input 'wave=float32[1,16000]' --input 'ids=int32[1,128]=random(0,9)' --input 'sr=int64[]=16000'")
    out = tmp_path / "out"
    words = shlex.split(line.replace("16000]'", "512]'"))
    quick = "--rounds 1 --runs 2 --warmup 1 --ablate none --no-ceilings --lock warn".split()
    done = CliRunner().invoke(app, ["profile", str(model), *words, *quick, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert [one.shape for one in Bundle.open(out).manifest.plan.inputs] == [[1, 512], [1, 128], []]


def test_sizes_are_guessed_that_the_model_runs_with(model: Path, tmp_path: Path) -> None:
    """The first of the usual ones; the run says them, a resumed run takes the same, and another guess is refused."""
    settings = Settings(**QUICK, guess_inputs=True)
    found = profile(model, settings=settings, out=tmp_path / "out")
    told = "wave=float32[1,512], ids=int32[1,128]=random(0,9), sr=int64[]=16000"
    assert any("guessed" in note and told in note for note in found.notes)
    bundle = Bundle.open(tmp_path / "out")
    values = np.load(bundle.path / "model" / "inputs.npz")
    assert (values["arr_1"].max(), values["arr_2"]) == (8, 16_000)
    profile(model, settings=settings, out=tmp_path / "out", resume=True, named={"--guess-inputs"})
    other = Settings(**QUICK, input=("wave=float32[1,512]=ones",), dim={"batch": 1, "tokens": 128})
    with pytest.raises(UsageError, match="was begun with"):
        profile(model, settings=other, out=tmp_path / "out", resume=True, named={"--input"})


def test_sizes_by_name_and_arrays_by_name(model: Path, tmp_path: Path) -> None:
    """A symbol stands in several inputs; arrays of a file go to the inputs of their names, in any order."""
    dims = Settings(**QUICK, dim={"batch": 1, "samples": 512, "tokens": 2}, input=("ids=1",))
    profile(model, settings=dims, out=tmp_path / "dims")
    assert [one.shape for one in Bundle.open(tmp_path / "dims").manifest.plan.inputs] == [[1, 512], [1, 2], []]
    arrays = {"sr": np.array(7), "ids": np.ones((1, 3), np.int32), "wave": np.zeros((1, 512), np.float32)}
    np.savez(tmp_path / "inputs.npz", **arrays)
    named = Settings(**QUICK, inputs=str(tmp_path / "inputs.npz"))
    profile(model, settings=named, out=tmp_path / "named")
    kept = np.load(tmp_path / "named" / "model" / "inputs.npz")
    assert [kept[f"arr_{place}"].shape for place in range(3)] == [(1, 512), (1, 3), ()]


def test_what_no_usual_size_fits_is_told_by_the_runtime(model: Path, tmp_path: Path) -> None:
    """The first guess is run, and its failure is the runtime's own, without codes of a terminal."""
    path = tmp_path / "odd.onnx"
    path.write_bytes(
        model.read_bytes().replace(np.array([1, 8, 64], np.int64).tobytes(), np.array([1, 7, 3]).tobytes())
    )
    done = CliRunner().invoke(
        app, ["profile", str(path), "--guess-inputs", "--rounds", "1", "--lock", "warn", "--out", str(tmp_path / "o")]
    )
    assert done.exit_code != 0
    said = str(done.exception)
    assert "Reshape" in said
    assert "\x1b" not in said
    assert "x1b" not in said
    assert "its last output" not in said


def test_a_first_look_is_one_process_a_variant(model: Path, tmp_path: Path) -> None:
    """With guesses, an answer without a verdict, and the command for one; what is asked for goes before it."""
    words = ["profile", str(model), "--quick", "--runs", "4", "--lock", "warn", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    manifest = Bundle.open(tmp_path / "out").manifest
    per_variant = Counter((one.variant, one.arm) for one in manifest.repetitions)
    assert set(per_variant.values()) == {1}
    assert manifest.plan.rounds == 1
    assert (manifest.request.runs, manifest.request.guess_inputs) == (4, True)
    assert "A first look: " in done.output
    assert "between-process spread unknown" in done.output
    assert f"for a verdict: opscope profile {model} --guess-inputs --runs 4" in done.output.replace("\n", " ")


def _attention(path: Path, kept: str) -> Path:
    """Write attention over some scores with a mask, in which a ``kept`` element takes part."""
    hidden = {"zeros": "negative nothing", "ones": "nothing negative"}[kept]
    nodes = [
        onnx.node("Where", f"mask {hidden}", "bias"),
        onnx.node("Add", "scores bias", "masked"),
        onnx.node("Softmax", "masked", "out", axis=-1),
    ]
    inputs = {"scores": ("float32", ["batch", "tokens"]), "mask": ("bool", ["batch", "tokens"])}
    weights = {"negative": np.full(1, -np.inf, np.float32), "nothing": np.zeros(1, np.float32)}
    path.write_bytes(onnx.model(onnx.body(nodes, inputs, {"out": ("float32", ["batch", "tokens"])}, weights)))
    return path


@pytest.mark.parametrize(("kept", "refused"), [("ones", []), ("zeros", ["mask=bool[1,128]=ones"])])
def test_a_mask_that_hides_everything_is_guessed_the_other_way(tmp_path: Path, kept: str, refused: list[str]) -> None:
    """A row of which nothing takes part is NaN; the report says which guess was given up."""
    model = _attention(tmp_path / "attention.onnx", kept)
    done = profile(model, settings=Settings(**QUICK, guess_inputs=True), out=tmp_path / "out")
    plan = done.content.manifest.plan
    assert plan.guesses == ["scores=float32[1,128]", f"mask=bool[1,128]={kept}"]
    assert plan.refused_guesses == refused
    assert [word for word in refused if not any(word in note for note in done.notes)] == []
    with np.load(tmp_path / "out" / done.content.manifest.repetitions[0].directory / "outputs.npz") as outputs:
        assert np.isfinite(outputs["arr_0"]).all()


def test_inputs_that_make_every_output_nan_are_named_as_the_cause(tmp_path: Path) -> None:
    """No feature of the CPU is to blame for values that are NaN on both sides."""
    nodes = [onnx.node("Log", "x", "logs"), onnx.node("Sub", "logs infinite", "out")]
    body = onnx.body(
        nodes,
        {"x": ("float32", ["batch", "n"])},
        {"out": ("float32", ["batch", "n"])},
        {"infinite": np.full(1, np.nan, np.float32)},
    )
    model = tmp_path / "logarithm.onnx"
    model.write_bytes(onnx.model(body))
    both = {**QUICK, "ablate": ()}
    done = profile(model, settings=Settings(**both, guess_inputs=True), out=tmp_path / "out")
    for comparison in done.content.comparisons:
        assert comparison.outputs is not None
        assert comparison.outputs.inputs_at_fault
        assert (comparison.outputs.problem or "").startswith("the inputs were guessed as x=float32[1,128], and with ")
    (alike,) = (reason for reason in done.content.quality.reasons if reason.rule == "outputs_alike")
    assert "--input" in alike.next_step


def test_a_guess_that_does_not_run_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    """The error begins with the guess, and its hint has every input to edit."""
    weights = {"weight": np.ones((7, 3), np.float32)}
    body = onnx.body(
        [onnx.node("MatMul", "x weight", "out")],
        {"x": ("float32", ["batch", "features"])},
        {"out": ("float32", ["batch", 3])},
        weights,
    )
    model = tmp_path / "seven.onnx"
    model.write_bytes(onnx.model(body))
    with pytest.raises(UsageError, match=r"^seven.onnx: the inputs were guessed as x=float32\[1,128\]") as caught:
        profile(model, settings=Settings(**QUICK, guess_inputs=True), out=tmp_path / "out")
    assert "--input 'x=float32[1,128]'" in caught.value.hint
    assert not (tmp_path / "out").exists()
