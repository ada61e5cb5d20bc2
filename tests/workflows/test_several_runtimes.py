"""One network in two runtimes, in one bundle: each with its own program, on the same inputs, compared by layer."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from exports import program
from fakes import FakeClock, FakeTarget
from native_runner import native_target
from opscope.analysis.compare.compare import Comparison
from opscope.analysis.compare.matching import MatchedBy
from opscope.api import check, compare, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Role, Status
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.core.install import install_command
from opscope.program.operators.taxonomy import FRAMEWORK
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
from whole_report import whole_report

HERE = Path(__file__).parents[1]
needs_litert = pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed")
EFFORT = "rounds = 6\nruns = 8\nwarmup = 2\nceilings = false\n"
PAIR = """
[[variants]]
name = "executorch"
model = "cnn.pte"

[[variants]]
name = "litert"
model = "cnn.tflite"
"""


def written(directory: Path, text: str, program: Path | None = None) -> Path:
    """A configuration beside both programs."""
    directory.mkdir(exist_ok=True)
    shutil.copyfile(HERE / "data" / "tflite" / "images.tflite", directory / "cnn.tflite")
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
    file = written(directory, PAIR, program("paired_cnn-fp32"))
    both = VariantTargets({"executorch": native_target(), "litert": litert_here()})
    done: RunReport = run(file, out=directory / "out", means=Means(target=both))
    (experiment,) = done.experiments
    assert experiment.error is None, experiment.error
    return Path(experiment.path)


@needs_litert
@pytest.mark.runtime
def test_each_variant_runs_its_own_program_and_leaves_its_own_trace(real: Path) -> None:
    """One host, two runtimes; the second has its inputs in the order of axes that it declares."""
    manifest = Bundle.open(real).manifest
    assert manifest.status is Status.COMPLETE
    assert [(one.name, one.role) for one in manifest.variants] == [
        ("executorch", Role.BASELINE),
        ("litert", Role.CANDIDATE),
    ]
    assert {"".join(Path(one.trace).suffixes[-2:]) for one in manifest.repetitions if one.trace} == {
        ".etdump.zst",
        ".json.zst",
    }
    assert {"executorch", "ai-edge-litert"} <= set(manifest.environment.versions)
    own = manifest.plan.inputs_of["litert"]
    assert own.unlike is None
    assert [one.source for one in own.inputs] == ["input 0 of cnn.pte, axes 0,2,3,1"]
    assert (manifest.target_of("executorch").kind, manifest.target_of("litert").kind) == ("native", "local")
    assert validate(real).valid


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


@needs_litert
@pytest.mark.runtime
def test_their_outputs_are_compared_on_the_same_values(real: Path) -> None:
    """The weights are the same, so are the inputs but for the order of axes."""
    found = compare(f"{real}#executorch", f"{real}#litert")
    assert found.outputs is None  # what two converters made is told, not graded
    assert found.accuracy is not None
    assert found.accuracy.note == "the same inputs, with dimensions in another order"
    (output,) = found.accuracy.outputs
    assert output.max_rel is not None
    assert output.max_rel < 1e-4


@needs_litert
@pytest.mark.runtime
def test_whatever_opens_bundles_opens_this_one(real: Path) -> None:
    """The report, the gate, and the same content again."""
    content = content_of(Bundle.open(real))
    assert [(c.baseline.label, c.candidate.label) for c in content.comparisons] == [("executorch", "litert")]
    text = whole_report(real)
    assert ("not matched" in text) is content.comparisons[0].has_split
    assert "cnn.pte against cnn.tflite" in text.splitlines()[0].replace("\\", "")
    decision = check(f"{real}#litert", f"{real}#executorch")
    assert decision.evidence.end_to_end.design == "paired"


@needs_litert
@pytest.mark.runtime
def test_a_run_is_finished_where_each_variant_began(real: Path, tmp_path: Path) -> None:
    """The targets of both runtimes are told by the manifest."""
    manifest = Bundle.open(real).manifest
    again = targets.recorded_target(msgspec.structs.replace(manifest, target=litert_here().describe()), real)
    assert again.of("litert").capabilities().trace == litert_here().capabilities().trace
    assert again.of("executorch").capabilities().trace != litert_here().capabilities().trace
    other, file = real.parents[1] / "other", real.parents[1] / "two.toml"
    other.mkdir()
    shutil.copyfile(HERE / "data" / "tflite" / "cnn_int8.tflite", other / "cnn.tflite")
    file.write_text(file.read_text().replace("cnn.tflite", "other/cnn.tflite"))
    shutil.copytree(real, tmp_path / "out" / real.name)
    both = VariantTargets({"executorch": native_target(), "litert": litert_here()})
    done = run(file, out=tmp_path / "out", resume=True, means=Means(target=both))
    assert "was measured with" in (done.experiments[0].error or "")


def refused(directory: Path, text: str) -> UsageError:
    """Why a configuration is not accepted."""
    with pytest.raises(UsageError) as caught:
        read_experiments(written(directory, text))
    return caught.value


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
    """The place in the file, and what is wrong there."""
    error = refused(tmp_path, text)
    assert where in (error.where or "")
    assert problem in str(error)


def test_roles_of_two_runtimes(tmp_path: Path) -> None:
    """The first is measured by; with something off in each, each has a baseline of its own."""
    (plain,) = read_experiments(written(tmp_path, PAIR)).experiments
    assert [one.role for one in plain.variants] == [Role.BASELINE, Role.CANDIDATE]
    assert plain.name == "cnn-local"
    off = "".join(
        f'\n[[variants]]\nname = "{name}-off"\nmodel = "cnn.{name}"\nablate = ["avx512"]\n'
        for name in ("pte", "tflite")
    )
    (switched,) = read_experiments(written(tmp_path, PAIR + off)).experiments
    assert [one.role for one in switched.variants] == [Role.ACCELERATED] * 2 + [Role.BASELINE] * 2


@needs_litert
def test_a_delegate_is_for_litert_only(tmp_path: Path) -> None:
    """A .pte states its delegates itself."""
    text = PAIR.replace('model = "cnn.pte"', 'model = "cnn.pte"\ndelegate = "none"')
    (experiment,) = read_experiments(written(tmp_path, text)).experiments
    with pytest.raises(UsageError, match=ONLY_LITERT):
        target_of(experiment)


@needs_litert
def test_one_runtime_that_cannot_run_there_refuses_both(tmp_path: Path) -> None:
    """Before anything is measured."""
    (experiment,) = read_experiments(written(tmp_path, f'target = "ssh:nowhere?python=python3"\n{PAIR}')).experiments
    with pytest.raises(UsageError, match="cannot run LiteRT models"):
        target_of(experiment)


@pytest.mark.runtime
def test_a_runtime_that_is_missing_refuses_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the extra, and nothing was measured."""
    monkeypatch.setattr("opscope.runtimes.litert.installed.MODULE", "no_such_module")
    monkeypatch.setattr("opscope.runtimes.litert.installed.INTERPRETERS", {})
    (experiment,) = read_experiments(written(tmp_path, PAIR)).experiments
    with pytest.raises(MissingDependencyError, match="not installed") as caught:
        target_of(experiment)
    assert caught.value.hint == install_command("litert")


def test_one_program_under_two_names_is_refused(tmp_path: Path) -> None:
    """Their bytes are the same."""
    file = written(tmp_path, PAIR.replace("cnn.tflite", "copy.pte"))
    shutil.copyfile(tmp_path / "cnn.pte", tmp_path / "copy.pte")
    done = run(file, out=tmp_path / "out", means=Means(target=FakeTarget(), clock=FakeClock()))
    assert "the same program" in (done.experiments[0].error or "")
    assert done.experiments[0].exit_code == UsageError.exit_code


def test_inputs_that_differ_are_said_to(tmp_path: Path) -> None:
    """The tiny program takes no input: each gets its own, and the bundle says why."""
    file = written(tmp_path, PAIR)
    done = run(file, out=tmp_path / "out", means=Means(target=FakeTarget(), clock=FakeClock()))
    manifest = Bundle.open(Path(done.experiments[0].path)).manifest
    assert "takes 1 input, " in (manifest.plan.inputs_of["litert"].unlike or "")
    assert done.experiments[0].error is None
