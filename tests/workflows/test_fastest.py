"""Which of several runtimes is the fastest: one bundle, everything against that one, and the page that says it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from opscope.analysis.compare.choice import corrected_for_choice
from opscope.analysis.compare.compare import Comparison
from opscope.analysis.compare.outputs import Accuracy, OutputDifference, not_compared
from opscope.api import report, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Role
from opscope.core.stats.effect import Verdict
from opscope.measurements.sides import compared_pairs, rank_variants
from opscope.reports.content.ranking import outputs_sentences
from opscope.reports.report import markdown_report, report_document
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.running import run
from opscope.workflows.reports.reports import content_of
from programs import tiny_program

DATA = Path(__file__).parents[1] / "data"
FOUR = """
rounds = 12
runs = 6
warmup = 1
ceilings = false

[[variants]]
name = "first"
model = "net.pte"

[[variants]]
name = "lite"
model = "net.tflite"

[[variants]]
name = "onnx"
model = "net.onnx"

[[variants]]
name = "vino"
model = "net.onnx"
runtime = "openvino"
"""
SLOWER = {"first": 1.3, "lite": 1.0, "onnx": 2.0, "vino": 1.0}


def measured(directory: Path, slower: dict[str, float]) -> Path:
    """The bundle of four runtimes, each so much slower than usual."""
    for suffix, file in (("tflite", "tflite/images.tflite"), ("onnx", "onnx/images.onnx")):
        shutil.copyfile(DATA / file, directory / f"net.{suffix}")
    (directory / "net.pte").write_bytes(tiny_program())
    (directory / "four.toml").write_text(FOUR)
    target = FakeTarget(clock=FakeClock(), noise=0.01)
    target.slower = lambda job: slower[job.variant.name]
    done = run(directory / "four.toml", out=directory / "out", means=Means(target=target, clock=FakeClock()))
    assert done.experiments[0].error is None, done.experiments[0].error
    return Path(done.experiments[0].path)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two that take the same, one slower, one far slower."""
    return measured(tmp_path_factory.mktemp("four"), SLOWER)


def test_everything_is_compared_with_the_fastest(bundle: Path, tmp_path: Path) -> None:
    """Make the first pair that with the baseline; the files are named after the pairs, and are true.

    The first screen of the page has every latency.
    """
    manifest = Bundle.open(bundle).manifest
    fastest = rank_variants(manifest)
    assert (set(fastest[:2]), fastest[2:]) == ({"lite", "vino"}, ["first", "onnx"])
    pairs = compared_pairs(manifest)
    assert pairs[0] == ("first", fastest[0])
    assert set(pairs) == {(name, fastest[0]) for name in fastest[1:]}
    content = content_of(Bundle.open(bundle))
    assert (content.fastest, content.shown.variant) == (fastest, fastest[0])
    assert validate(bundle).valid
    (page,) = report(bundle, ["html"], out=tmp_path)
    assert page.read_text("utf-8").count("as long</") >= 2


def test_the_answer_names_the_fastest_and_the_next_that_is_slower(bundle: Path) -> None:
    """Its interval with it, and what is as fast; the table has the same figures."""
    content = content_of(Bundle.open(bundle))
    text = markdown_report(content).replace("\\", "")
    title, answer = text.splitlines()[0], report_document(content).answer
    names = {"lite": "LiteRT", "vino": "OpenVINO"}
    first, tied = (names[name] for name in content.fastest[:2])
    assert "in ExecuTorch, LiteRT, ONNX Runtime and OpenVINO" in title
    ends = {one.baseline.label: one.end_to_end for one in content.comparisons}
    slower = ends["first"]
    interval = f"[{slower.ci95[0]:.2f}x, {slower.ci95[1]:.2f}x]"
    assert answer.startswith(f"Fastest: {first}, ")
    assert f"no difference detected from {tied}; {slower.speedup:.2f}x {interval} as fast as ExecuTorch" in answer
    first_table = text.partition("\n## ")[0].splitlines()
    rows = [line.split(" | ") for line in first_table if line.startswith("| ") and "in " in line]
    assert [row[0].strip("| ") for row in rows] == content.fastest
    shown = [f"{slower.baseline_ns / 1e6:.3f}", f"{slower.speedup:.2f}x", "slower"]
    assert [rows[2][1], rows[2][2], rows[2][4]] == shown
    assert "verdicts corrected for 6 pairs" in text
    assert "time / fastest" in text
    assert "against net" not in text


def test_identical_variants_have_no_fastest(tmp_path: Path) -> None:
    """All take the same: the lowest latency is told as that."""
    content = content_of(Bundle.open(measured(tmp_path, dict.fromkeys(SLOWER, 1.0))))
    answer = report_document(content).answer
    assert answer.startswith("Lowest latency: ")
    assert "as fast as" not in answer


def test_only_the_correction_leaves_a_pair_undecided(bundle: Path) -> None:
    """Judge a pair by more than its own interval, which excludes no difference; none was shown then."""
    (one, *_) = content_of(Bundle.open(bundle)).comparisons

    def judged(pairs: int, **changes: object) -> Comparison:
        changed = msgspec.structs.replace(one, end_to_end=msgspec.structs.replace(one.end_to_end, **changes))
        (found,) = corrected_for_choice([changed], pairs)
        return found

    near = {"p_value": 0.02, "verdict": Verdict.FASTER}
    assert judged(3, **near).end_to_end.verdict is Verdict.UNDECIDABLE
    assert "corrected for 3 pairs" in judged(3, **near).notes[-1]
    assert judged(2, **near).end_to_end.verdict is Verdict.FASTER
    unknown = judged(3, p_value=None, verdict=Verdict.WITHHELD)
    assert (unknown.end_to_end.verdict, unknown.notes) == (Verdict.WITHHELD, one.notes)


def test_it_is_no_question_elsewhere(bundle: Path) -> None:
    """Rank none of two, with features off, at several thread counts, on an emulated CPU, or in one runtime."""
    manifest, replace = Bundle.open(bundle).manifest, msgspec.structs.replace
    first, *others = manifest.variants
    for changes in (
        {"variants": [first, others[0]]},
        {"variants": [replace(first, role=Role.ACCELERATED), *others]},
        {"variants": [replace(first, threads=2), *others]},
        {"variants": [replace(first, ablated=["avx512"]), *others]},
        {"variants": [replace(first, cleared=["avx512f"]), *others]},
        {"variants": [replace(one, runtime="openvino") for one in manifest.variants]},
        {"target": replace(manifest.target, emulated=True)},
        {"plan": replace(manifest.plan, warmup=None)},
    ):
        assert not rank_variants(replace(manifest, **changes)), changes


def beside(bundle: Path, **errors: float) -> list[str]:
    """What is told of outputs, where those of each variant differ so much from the fastest one's."""
    content = content_of(Bundle.open(bundle))
    known = {name: Accuracy(1, [OutputDifference(0, 8, error, error, error, 1.0)]) for name, error in errors.items()}
    nothing = not_compared("the inputs differ", "profile again")
    comparisons = [
        msgspec.structs.replace(one, accuracy=known.get(one.baseline.label, nothing)) for one in content.comparisons
    ]
    return outputs_sentences(msgspec.structs.replace(content, comparisons=comparisons))


def test_outputs_that_differ_are_named(bundle: Path) -> None:
    """A fast wrong result is not a result; rounding is told once for all."""
    first, tied = rank_variants(Bundle.open(bundle).manifest)[:2]
    title = {"lite": "LiteRT", "vino": "OpenVINO"}[first]
    same = beside(bundle, **{tied: 0.0}, first=1e-6, onnx=2e-6)
    assert same == ["Outputs of all 4 variants on 1 input agree: largest difference 2e-06 of the largest value"]
    (agree, onnx) = beside(bundle, **{tied: 0.0}, first=0.0, onnx=0.25)
    assert agree.endswith(f"agree with those of {title}: they are equal")
    assert onnx == f"Outputs of ONNX Runtime differ from those of {title}: by up to 25.0 % of the largest value"
    (_, unknown) = beside(bundle, **{tied: 0.0}, first=0.0)
    assert unknown == f"Outputs of ONNX Runtime were not compared with those of {title}: the inputs differ"
