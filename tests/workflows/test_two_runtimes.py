"""One network in two runtimes: one bundle, measured in turns, compared end to end and by layer."""

from __future__ import annotations

import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from opscope.analysis.compare.matching import MatchedBy, match_runtimes
from opscope.api import analyze, compare
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Role
from opscope.core.errors import UsageError
from opscope.program.operators.kinds import Attribution
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.running import read_experiments, run
from opscope.workflows.validate.validation import validate

PRODUCTS = {"convolution", "depthwise", "gemm", "linear", "matmul"}
DATA = Path(__file__).parents[1] / "data"
TWO = """
rounds = 2
runs = 4
warmup = 1
out = "out"
ceilings = false

[[variants]]
name = "litert"
model = "images.tflite"

[[variants]]
name = "onnxruntime"
model = "images.onnx"
"""
needs_both = pytest.mark.skipif(
    find_spec("ai_edge_litert") is None or find_spec("onnxruntime") is None, reason="a runtime is not installed"
)


def written(directory: Path, text: str = TWO) -> Path:
    """A configuration beside the models that it names."""
    for file in ("tflite/images.tflite", "tflite/mlp.tflite", "onnx/images.onnx"):
        shutil.copy(DATA / file, directory)
    path = directory / "two.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of both."""
    path = written(tmp_path_factory.mktemp("two"))
    (result,) = run(path, means=Means(lock="warn")).experiments
    assert result.error is None, result.error
    return Path(result.path)


@needs_both
def test_both_ran_in_turns_in_their_own_runtimes(bundle: Path) -> None:
    """One plan, two programs, two formats of traces; the versions of both are recorded."""
    manifest = Bundle.open(bundle).manifest
    assert [(one.name, one.role) for one in manifest.variants] == [
        ("litert", Role.BASELINE),
        ("onnxruntime", Role.CANDIDATE),
    ]
    assert {"ai-edge-litert", "onnxruntime"} <= manifest.environment.versions.keys()
    assert all(sorted(names) == ["litert", "onnxruntime"] for names in manifest.plan.order)
    assert {Path(str(one.trace)).name for one in manifest.repetitions if one.trace} == {
        "trace.litert.json.zst",
        "trace.onnxruntime.json.zst",
    }
    assert validate(bundle).valid


@needs_both
def test_both_are_given_the_same_values(bundle: Path) -> None:
    """Channels last in one, first in the other."""
    found = Bundle.open(bundle)
    own = found.manifest.plan.inputs_of["onnxruntime"]
    assert own.values is not None
    with np.load(bundle / own.values) as file:
        moved = file["arr_0"]
    assert moved.shape == (1, 3, 224, 224)
    measured = {one.variant: one.measurement for one in found.manifest.repetitions}
    assert {name: one.inputs[0].shape for name, one in measured.items() if one} == {
        "litert": [1, 224, 224, 3],
        "onnxruntime": [1, 3, 224, 224],
    }


@needs_both
def test_labelled_inputs_are_laid_out_for_each_program(tmp_path: Path) -> None:
    """Channels first in one of them: its outputs are those of a session that is given them so."""
    images = np.random.default_rng(3).random((3, 224, 224, 3), np.float32)
    np.savez(tmp_path / "images.npz", images, labels=np.arange(3))
    path = written(tmp_path, TWO.replace("out =", 'inputs = "images.npz"\nout ='))
    (result,) = run(path, means=Means(lock="warn")).experiments
    assert result.error is None, result.error
    found = Bundle.open(Path(result.path)).manifest
    assert found.samples is not None
    assert found.samples.failures == {}
    with np.load(Path(result.path) / "variants" / "onnxruntime" / "samples.npz") as file:
        made = file["output_0"]
    session = import_module("onnxruntime").InferenceSession(tmp_path / "images.onnx")
    given = [np.ascontiguousarray(np.transpose(one, (2, 0, 1))[None]) for one in images]
    wanted = [session.run(None, {session.get_inputs()[0].name: one})[0] for one in given]
    np.testing.assert_allclose(made, np.stack(wanted), atol=1e-5)


@needs_both
def test_layers_are_matched_by_their_work(bundle: Path) -> None:
    """Both networks have the same products in the same order; what else there is has no partner, and sums add up."""
    sides = [analyze(f"{bundle}#{name}") for name in ("litert", "onnxruntime")]
    matched = [one for one in match_runtimes(*(own.operators for own in sides)) if None not in one.pair]
    products = [one for one in matched if one.pair[0] and one.pair[0].kind in PRODUCTS]
    assert len(products) >= 3
    assert {one.by for one in products} <= {MatchedBy.SHAPE, MatchedBy.ORDER}
    found = compare(f"{bundle}#litert", f"{bundle}#onnxruntime")
    assert "are matched by layer, or by kind, work and output size" in " ".join(found.notes)
    timed = all(own.timed for own in sides)
    for side, own in zip(("baseline_ns", "candidate_ns"), sides, strict=True):
        total = sum(getattr(one, side) or 0 for one in found.operators)
        expected = own.headline_ns - sum(row.time_ns or 0.0 for row in own.outside) if timed else 0.0
        assert total == pytest.approx(expected, rel=1e-6)


@needs_both
@pytest.mark.runtime
def test_a_third_runtime_takes_its_turns(tmp_path: Path) -> None:
    """Programs whose images are of one size take the same values; every pair can be compared."""
    program = DATA.parents[1] / "demo" / "mobilenet_v3_small_xnnpack_fp32.pte"
    text = TWO + f'\n[[variants]]\nname = "executorch"\nmodel = "{program}"\n'
    (result,) = run(written(tmp_path, text), means=Means(lock="warn")).experiments
    assert result.error is None, result.error
    assert validate(Path(result.path)).valid
    assert set(Bundle.open(Path(result.path)).manifest.environment.versions) >= {"ai-edge-litert", "onnxruntime"}
    for other in ("litert", "onnxruntime"):
        found = compare(f"{result.path}#executorch", f"{result.path}#{other}")
        assert found.end_to_end.baseline_ns > 0
        assert "the two sides ran different programs" in " ".join(found.notes)


@needs_both
@pytest.mark.parametrize("name", ["litert", "onnxruntime"])
def test_each_side_is_attributed_with_its_own_program(bundle: Path, name: str) -> None:
    """By the rules of its runtime."""
    found = analyze(f"{bundle}#{name}")
    own = [one for one in found.operators if one.kind != "framework"]
    assert {one.attribution for one in own} == {Attribution.EXACT}
    assert sum(one.macs or 0 for one in own) == 112 * 112 * 8 * (27 + 9 + 8) + 32


@needs_both
def test_outputs_are_compared_and_not_graded(bundle: Path) -> None:
    """The weights differ here; what two converters made is for a person to judge."""
    found = compare(f"{bundle}#litert", f"{bundle}#onnxruntime")
    assert found.outputs is None
    report = (bundle / "report.md").read_text(encoding="utf-8")
    assert "The same inputs, with dimensions in another order" in report


@needs_both
@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("out = ", 'target = "runner:/bin/true"\nout = '), "builds of executor_runner do not run LiteRT models"),
        (("out = ", 'session_options = { level = "all" }\nout = '), "unknown session option 'level'"),
        (('model = "images.onnx"\n', ""), "this key is missing"),
        (("rounds = 2", 'models = ["images.tflite"]\nrounds = 2'), "variants have their own models"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, change: tuple[str, str], word: str) -> None:
    """Before anything runs, with the reason."""
    path = written(tmp_path, TWO.replace(*change))
    assert word in _refusal(path)
    assert not (tmp_path / "out").exists()


def _refusal(path: Path) -> str:
    """What is said of a file that cannot run; empty where it runs."""
    try:
        return " ".join(one.error or "" for one in run(path, means=Means(lock="warn")).experiments)
    except UsageError as error:
        return str(error)


@needs_both
def test_options_and_delegates_are_of_the_runtimes_that_have_them(tmp_path: Path) -> None:
    """Named once in the file, or for one variant."""
    text = TWO.replace('model = "images.tflite"', 'model = "images.tflite"\ndelegate = "none"').replace(
        'model = "images.onnx"', 'model = "images.onnx"\nsession_options = { graph_optimization_level = "none" }'
    )
    (experiment,) = read_experiments(written(tmp_path, text)).experiments
    assert [one.delegate for one in experiment.variants] == ["none", None]
    assert [one.options for one in experiment.variants] == [None, {"graph_optimization_level": "none"}]
