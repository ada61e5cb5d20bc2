"""One network in two runtimes: one bundle, measured in turns on the same inputs, compared end to end and by layer."""

from __future__ import annotations

import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest

from exports import program
from fakes import FakeClock, FakeTarget
from installed import needs_litert
from native_runner import native_target
from opscope.analysis.compare.compare import Comparison
from opscope.analysis.compare.matching import MatchedBy, match_runtimes
from opscope.api import analyze, check, compare, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Role, Status
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.core.install import install_command
from opscope.program.operators.kinds import Attribution
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.reports.report import markdown_report
from opscope.runtimes.litert.target import litert_here
from opscope.workflows.measure import targets
from opscope.workflows.measure.experiment_bundle import target_of
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.run_report import RunReport
from opscope.workflows.measure.running import read_experiments, run
from opscope.workflows.measure.targets import VariantTargets
from opscope.workflows.reports.reports import content_of
from programs import tiny_program
from texts import ONLY_LITERT

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
EFFORT = "rounds = 6\nruns = 8\nwarmup = 2\nceilings = false\n"
PAIR = """
[[variants]]
name = "executorch"
model = "cnn.pte"

[[variants]]
name = "litert"
model = "cnn.tflite"
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
    return measured(written(tmp_path_factory.mktemp("two")))


def measured(file: Path) -> Path:
    """The bundle of a configuration."""
    (result,) = run(file, means=Means(lock="warn")).experiments
    assert result.error is None, result.error
    return Path(result.path)


@needs_both
def test_both_ran_in_turns_in_their_own_runtimes(bundle: Path) -> None:
    """Follow one plan with two programs and two formats of traces; the versions of both are recorded.

    Both are given the same values: channels last in one, first in the other.
    """
    manifest = Bundle.open(bundle).manifest
    assert [(one.name, one.role) for one in manifest.variants] == [
        ("litert", Role.BASELINE),
        ("onnxruntime", Role.CANDIDATE),
    ]
    assert {"ai-edge-litert", "onnxruntime"} <= manifest.environment.versions.keys()
    assert all(sorted(names) == ["litert", "onnxruntime"] for names in manifest.plan.order)
    traces = {Path(str(one.trace)).name for one in manifest.repetitions if one.trace}
    assert traces == {"trace.litert.json.zst", "trace.onnxruntime.json.zst"}
    assert validate(bundle).valid
    with np.load(bundle / manifest.plan.inputs_of["onnxruntime"].values) as file:
        assert file["arr_0"].shape == (1, 3, 224, 224)
    assert {one.variant: one.measurement.inputs[0].shape for one in manifest.repetitions} == {
        "litert": [1, 224, 224, 3],
        "onnxruntime": [1, 3, 224, 224],
    }


@needs_both
def test_labelled_inputs_are_laid_out_for_each_program(tmp_path: Path) -> None:
    """Put channels first in one of them: its outputs are those of a session that is given them so."""
    images = np.random.default_rng(3).random((3, 224, 224, 3), np.float32)
    np.savez(tmp_path / "images.npz", images, labels=np.arange(3))
    path = measured(written(tmp_path, TWO.replace("out =", 'inputs = "images.npz"\nout =')))
    assert Bundle.open(path).manifest.samples.failures == {}
    with np.load(path / "variants" / "onnxruntime" / "samples.npz") as file:
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
    path = measured(written(tmp_path, text))
    assert validate(path).valid
    assert set(Bundle.open(path).manifest.environment.versions) >= {"ai-edge-litert", "onnxruntime"}
    for other in ("litert", "onnxruntime"):
        found = compare(f"{path}#executorch", f"{path}#{other}")
        assert found.end_to_end.baseline_ns > 0
        assert "the two sides ran different programs" in " ".join(found.notes)


@needs_both
@pytest.mark.parametrize("name", ["litert", "onnxruntime"])
def test_each_side_is_attributed_with_its_own_program(bundle: Path, name: str) -> None:
    """Attribute by the rules of its runtime; outputs of two converters are compared and not graded."""
    found = analyze(f"{bundle}#{name}")
    own = [one for one in found.operators if one.kind != "framework"]
    assert {one.attribution for one in own} == {Attribution.EXACT}
    assert sum(one.macs or 0 for one in own) == 112 * 112 * 8 * (27 + 9 + 8) + 32
    assert compare(f"{bundle}#litert", f"{bundle}#onnxruntime").outputs is None
    report = (bundle / "report.md").read_text(encoding="utf-8")
    assert "The same inputs, with dimensions in another order" in report


@needs_both
@pytest.mark.parametrize(
    ("write", "text", "said"),
    [
        ("configured", PAIR.replace('model = "cnn.pte"', 'model = "cnn.pte"\ndelegate = "none"'), ONLY_LITERT),
        ("configured", f'target = "ssh:nowhere?python=python3"\n{PAIR}', "cannot run LiteRT models"),
        ("written", f'target = "runner:/bin/true"\n{TWO}', "builds of executor_runner do not run LiteRT models"),
        ("written", f'session_options = {{ level = "all" }}\n{TWO}', "unknown session option 'level'"),
    ],
    ids=["a delegate of a .pte", "a target of one runtime", "a build of a runner", "an option of neither"],
)
def test_what_one_runtime_cannot_do_refuses_both(tmp_path: Path, write: str, text: str, said: str) -> None:
    """Refuse it before anything is measured."""
    file = (configured if write == "configured" else written)(tmp_path, text)
    with pytest.raises(UsageError, match=said):
        target_of(*read_experiments(file).experiments)


@needs_both
def test_options_delegates_and_roles_are_of_each_runtime(tmp_path: Path) -> None:
    """Name options and delegates once in the file, or for one variant.

    What is measured by is the first; with something off in each, each has a baseline of its own.
    """
    text = TWO.replace('model = "images.tflite"', 'model = "images.tflite"\ndelegate = "none"').replace(
        'model = "images.onnx"', 'model = "images.onnx"\nsession_options = { graph_optimization_level = "none" }'
    )
    (experiment,) = read_experiments(written(tmp_path, text)).experiments
    assert [one.delegate for one in experiment.variants] == ["none", None]
    assert [one.options for one in experiment.variants] == [None, {"graph_optimization_level": "none"}]
    off = "".join(
        f'\n[[variants]]\nname = "{name}-off"\nmodel = "cnn.{name}"\nablate = ["avx512"]\n'
        for name in ("pte", "tflite")
    )
    plain, switched = (read_experiments(configured(tmp_path, text)).experiments[0] for text in (PAIR, PAIR + off))
    assert plain.name == "cnn-local"
    assert [one.role for one in plain.variants] == [Role.BASELINE, Role.CANDIDATE]
    assert [one.role for one in switched.variants] == [Role.ACCELERATED] * 2 + [Role.BASELINE] * 2


def configured(directory: Path, text: str, program: Path | None = None) -> Path:
    """A configuration beside both programs."""
    directory.mkdir(exist_ok=True)
    shutil.copyfile(DATA / "tflite" / "images.tflite", directory / "cnn.tflite")
    if program is None:
        (directory / "cnn.pte").write_bytes(tiny_program())
    else:
        shutil.copyfile(program, directory / "cnn.pte")
    (directory / "two.toml").write_text(EFFORT + text)
    return directory / "two.toml"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the pair, measured in both runtimes."""
    directory = tmp_path_factory.mktemp("pair")
    file = configured(directory, PAIR, program("paired_cnn-fp32"))
    both = VariantTargets({"executorch": native_target(), "litert": litert_here()})
    done: RunReport = run(file, out=directory / "out", means=Means(target=both))
    (experiment,) = done.experiments
    assert experiment.error is None, experiment.error
    return Path(experiment.path)


@pytest.mark.everyday("one network in two runtimes")
@needs_litert
@pytest.mark.runtime
def test_each_variant_runs_its_own_program_and_leaves_its_own_trace(real: Path) -> None:
    """Run two runtimes on one host; the second has its inputs in the order of axes that it declares."""
    manifest = Bundle.open(real).manifest
    assert manifest.status is Status.COMPLETE
    assert [(one.name, one.role) for one in manifest.variants] == [
        ("executorch", Role.BASELINE),
        ("litert", Role.CANDIDATE),
    ]
    traces = {"".join(Path(one.trace).suffixes[-2:]) for one in manifest.repetitions if one.trace}
    assert traces == {".etdump.zst", ".json.zst"}
    assert {"executorch", "ai-edge-litert"} <= set(manifest.environment.versions)
    own = manifest.plan.inputs_of["litert"]
    assert (own.unlike, [one.source for one in own.inputs]) == (None, ["input 0 of cnn.pte, axes 0,2,3,1"])
    assert (manifest.target_of("executorch").kind, manifest.target_of("litert").kind) == ("native", "local")
    assert validate(real).valid


@pytest.mark.everyday("one network in two runtimes")
@needs_litert
@pytest.mark.runtime
def test_their_layers_are_matched_and_the_rest_is_not(real: Path) -> None:
    """Convolutions, product, addition and mean have partners; what only one has stands alone; all of it adds up.

    Where a clock is dear, tracing takes half as long as this network and its operators have no times: then it is told.
    """
    found: Comparison = compare(f"{real}#executorch", f"{real}#litert")
    assert any("7 of 7 operators of the candidate" in note for note in found.notes)
    if found.no_split is not None:
        assert "the untraced latency" in found.no_split.message
        return
    both = [change for change in found.operators if change.matched_by is not None]
    assert {"convolution", "depthwise", "linear", "arithmetic"} <= {change.kind for change in both}
    assert all(change.baseline_ns is not None and change.candidate_ns is not None for change in both)
    assert {MatchedBy.SHAPE} <= {change.matched_by for change in both} <= {MatchedBy.SHAPE, MatchedBy.ORDER}
    alone = [change for change in found.operators if change.matched_by is None]
    assert all(None in {change.baseline_ns, change.candidate_ns} for change in alone)
    assert [change.name for change in alone if change.kind != FRAMEWORK.kind]
    saved = found.baseline.headline_ns - found.candidate.headline_ns
    outside = sum(row.saved_ns for row in found.shift.outside)
    assert sum(change.saved_ns for change in found.operators) + outside == pytest.approx(saved)
    assert sum(change.saved_ns for change in found.categories) == pytest.approx(saved)
    assert found.end_to_end.design == "paired"
    assert any("different programs" in note for note in found.notes)


@pytest.mark.everyday("one network in two runtimes")
@needs_litert
@pytest.mark.runtime
def test_their_outputs_are_compared_on_the_same_values(real: Path) -> None:
    """Tell, and do not grade, what two converters made of the same weights and inputs but for the order of axes.

    The report, the gate, and the same content open the bundle again.
    """
    found = compare(f"{real}#executorch", f"{real}#litert")
    assert found.outputs is None
    assert found.accuracy.note == "the same inputs, with dimensions in another order"
    (output,) = found.accuracy.outputs
    assert output.max_rel < 1e-4
    shown = content_of(Bundle.open(real))
    assert [(c.baseline.label, c.candidate.label) for c in shown.comparisons] == [("executorch", "litert")]
    text = markdown_report(shown)
    assert ("not matched" in text) is shown.comparisons[0].has_split
    assert "cnn.pte against cnn.tflite" in text.splitlines()[0].replace("\\", "")
    assert check(f"{real}#litert", f"{real}#executorch").evidence.end_to_end.design == "paired"


@needs_litert
@pytest.mark.runtime
def test_a_run_is_finished_where_each_variant_began(real: Path, tmp_path: Path) -> None:
    """The targets of both runtimes are told by the manifest."""
    manifest = Bundle.open(real).manifest
    again = targets.recorded_target(msgspec.structs.replace(manifest, target=litert_here().describe()), real, "auto")
    assert again.of("litert").capabilities().trace == litert_here().capabilities().trace
    assert again.of("executorch").capabilities().trace != litert_here().capabilities().trace
    other, file = real.parents[1] / "other", real.parents[1] / "two.toml"
    other.mkdir()
    shutil.copyfile(DATA / "tflite" / "cnn_int8.tflite", other / "cnn.tflite")
    file.write_text(file.read_text().replace("cnn.tflite", "other/cnn.tflite"))
    shutil.copytree(real, tmp_path / "out" / real.name)
    both = VariantTargets({"executorch": native_target(), "litert": litert_here()})
    done = run(file, out=tmp_path / "out", resume=True, means=Means(target=both))
    assert "was measured with" in (done.experiments[0].error or "")


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ('[[variants]]\nname = "a"\nmodel = "cnn.pte"\n[[variants]]\nname = "b"', "variants[1].model", "missing"),
        (f'model = "cnn.pte"\n{PAIR}', "two.toml: model", "its own model"),
        (f'models = ["cnn.pte"]\n{PAIR}', "two.toml: models", "their own models"),
        (PAIR.replace("cnn.tflite", "cnn.pte"), "variants[1].model", "in the same way"),
        (f'delegate = "both"\n{PAIR}', "two.toml: delegate", "state what runs them"),
        (f'{PAIR}delegate = "gpu"', "variants[1].delegate", "xnnpack"),
        (f'{PAIR}runner = "build"', "variants[1].runner", "a runner"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, text: str, where: str, problem: str) -> None:
    """Name the place in the file, and what is wrong there."""
    with pytest.raises(UsageError) as caught:
        read_experiments(configured(tmp_path, text))
    assert where in (caught.value.where or "")
    assert problem in str(caught.value)


@pytest.mark.runtime
def test_a_runtime_that_is_missing_refuses_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the extra, and nothing was measured."""
    monkeypatch.setattr("opscope.runtimes.litert.installed.MODULE", "no_such_module")
    monkeypatch.setattr("opscope.runtimes.litert.installed.INTERPRETERS", {})
    (experiment,) = read_experiments(configured(tmp_path, PAIR)).experiments
    with pytest.raises(MissingDependencyError, match="not installed") as caught:
        target_of(experiment)
    assert caught.value.hint == install_command("litert")


def test_inputs_that_differ_are_said_to(tmp_path: Path) -> None:
    """Give the tiny program, which takes no input, its own, and say why; one program under two names is refused."""
    means = Means(target=FakeTarget(), clock=FakeClock())
    (done,) = run(configured(tmp_path, PAIR), out=tmp_path / "out", means=means).experiments
    assert done.error is None
    manifest = Bundle.open(Path(done.path)).manifest
    assert "takes 1 input, " in (manifest.plan.inputs_of["litert"].unlike or "")
    shutil.copyfile(tmp_path / "cnn.pte", tmp_path / "copy.pte")
    file = configured(tmp_path, PAIR.replace("cnn.tflite", "copy.pte"))
    (done,) = run(file, out=tmp_path / "same", means=means).experiments
    assert ("the same program" in (done.error or ""), done.exit_code) == (True, UsageError.exit_code)
