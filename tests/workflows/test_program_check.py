"""Two programs in one bundle: measured in turns on the same inputs, judged, and opened by all that opens bundles."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

import opscope
from exports import served
from fakes import FakeClock, FakeTarget
from opscope.analysis.gate.decision import Outcome
from opscope.api import (
    ProgramCheck,
    Settings,
    add_to_store,
    check_kinds,
    check_programs,
    convert,
    kernels,
    query_store,
    to_json,
)
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind, Role, Status
from opscope.core.errors import MismatchError, NotFoundError, RunError, UsageError
from opscope.core.stats.effect import Verdict
from opscope.experiment.protocol import Job
from opscope.reports.content.content import headline, operator_rows
from programs import tiny_program
from texts import IS_A_PROGRAM, MISSING_OR_CHANGED

DATA = Path(__file__).parents[1] / "data"
SMALL = Settings(rounds=6, runs=3, warmup=1, ceilings=False)


def programs(directory: Path) -> tuple[Path, Path]:
    """Two programs of one name that do the same and are not the same bytes: the new one and the old one."""
    new, old = (directory / name / "model.pte" for name in ("head", "base"))
    for path, end in ((new, b"new"), (old, b"old")):
        path.parent.mkdir(parents=True)
        path.write_bytes(tiny_program() + end)
    return new, old


def is_new(job: Job) -> bool:
    """Whether a job runs the new program."""
    return Path(job.program).read_bytes().endswith(b"new")


def checked(directory: Path, slower: float = 1.0, **changes: object) -> tuple[ProgramCheck, FakeTarget]:
    """Check the new program, whose convolution takes so much longer."""
    target = FakeTarget(noise=0.005, seed=3)
    target.slower = lambda job: slower if is_new(job) else 1.0
    new, old = programs(directory)
    given = {"settings": SMALL, "out": directory / "out", "target": target, "clock": FakeClock()} | changes
    return check_programs(new, old, **given), target  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> ProgramCheck:
    """A new program whose convolution is half as fast."""
    return checked(tmp_path_factory.mktemp("slow"), 2.0)[0]


def test_each_round_runs_both_and_each_job_its_own_program(tmp_path: Path) -> None:
    """Six rounds, two arms, two programs, nothing switched off; what they run is what was given."""
    done, target = checked(tmp_path)
    assert [is_new(job) for job in target.jobs].count(True) == 12
    assert len(target.jobs) == 24
    assert all(len({is_new(job) for job in target.jobs[at : at + 2]}) == 2 for at in range(0, 24, 2))
    assert all(job.clear is None for job in target.jobs)
    assert done.decision.evidence.end_to_end.design == "paired"
    assert done.decision.outcome is Outcome.PASSED


def test_a_slower_program_is_a_regression(slow: ProgramCheck) -> None:
    """State the verdict, the model it is about, its paths and what was computed.

    The manifest keeps two programs with their hashes, in separate directories, and roles that claim no acceleration.
    """
    decision, found = slow.decision, slow.decision.evidence
    assert (decision.outcome, found.end_to_end.verdict) == (Outcome.REGRESSION, Verdict.SLOWER)
    assert (found.model, found.candidate.label, found.baseline.label) == ("model", "new", "old")
    assert (found.outputs.agree, decision.mismatches) == (True, [])
    assert not any("model differs" in note for note in decision.notes)
    manifest, old = slow.profiled.content.manifest, slow.profiled.content.manifest.programs["old"]
    assert [(v.name, v.role, v.ablated) for v in manifest.variants] == [
        ("new", Role.CANDIDATE, []),
        ("old", Role.BASELINE, []),
    ]
    assert [manifest.model_of(name) for name in ("new", "old")] == [manifest.model, old]
    assert (manifest.model.program, old.program) == ("model/model.pte", "model/old/model.pte")
    assert manifest.model.sha256 != old.sha256
    assert (slow.profiled.path / old.program).read_bytes().endswith(b"old")


def test_reports_say_that_two_programs_ran(slow: ProgramCheck) -> None:
    """Tell new from old by headline, page and command, with both hashes, and nothing about acceleration.

    What the other program has at the same place is another operator, and tables leave the verdict out.
    """
    shown = slow.profiled.content
    old = shown.manifest.programs["old"]
    assert " as new, " in headline(shown).text
    assert ": slower, " in headline(shown).text
    for name in ("report.md", "report.html"):
        text = (slow.profiled.path / name).read_text()
        assert [part for part in (str(old.sha256), "opscope check ", "--against ") if part not in text] == []
        assert "cceleration" not in text
    assert not any(finding.rule.startswith("acceleration") for finding in shown.findings)
    rows = [row for row in operator_rows(shown) if row.operator.kind != "framework"]
    assert [row.change for row in rows] == [None, None]
    lines = (slow.profiled.path / "report.md").read_text().splitlines()
    assert not any("Convolution (NHWC" in line and "undecidable" in line for line in lines)


def test_kernels_graphs_and_stores_tell_the_programs_apart(slow: ProgramCheck, tmp_path: Path) -> None:
    """Call no operator faster by an acceleration that was not switched; show a graph of the program it is of.

    A store has one run of each, each with its own hash.
    """
    ladders = kernels([slow.profiled.path]).ladders
    assert "no baseline to compare with" in to_json(ladders).decode()
    files = convert(slow.profiled.path, "model-explorer", out=tmp_path / "graph.json")
    assert files
    assert not any("speedup" in path.name or "old" in path.name for path in files)
    pytest.importorskip("duckdb")
    add_to_store([slow.profiled.path], tmp_path / "store")
    rows = query_store("select variant, program_sha256 from runs order by variant", tmp_path / "store").rows
    manifest = Bundle.open(slow.profiled.path).manifest
    assert rows == [("new", manifest.model.sha256), ("old", manifest.programs["old"].sha256)]


def test_it_validates_and_compares_both_ways(slow: ProgramCheck) -> None:
    """All checks pass; comparisons are paired, one inverts the other; without a name the new program is meant."""
    path = slow.profiled.path
    failed = {check.name for check in opscope.validate(path).checks if check.status.value == "failed"}
    assert failed <= {"outputs"}  # the fake runtime hashes nothing
    there, back = opscope.compare(f"{path}#old", f"{path}#new"), opscope.compare(f"{path}#new", f"{path}#old")
    assert there.end_to_end.design == back.end_to_end.design == "paired"
    assert there.end_to_end.speedup * back.end_to_end.speedup == pytest.approx(1)
    assert any("different programs" in note for note in there.notes)
    assert opscope.analyze(path).variant == "new"
    assert opscope.analyze(f"{path}#old").program.sha256 == Bundle.open(path).manifest.programs["old"].sha256


def test_a_changed_program_is_found(slow: ProgramCheck, tmp_path: Path) -> None:
    """Check the second program as the first: its hash, its path, and what the manifest says of it."""
    copy = shutil.copytree(slow.profiled.path, tmp_path / "copy")
    (copy / "model/old/model.pte").write_bytes(tiny_program())
    assert opscope.validate(copy).check("hashes").status.value == "failed"
    manifest = Bundle.open(copy).manifest
    sides = manifest.model.source, manifest.programs["old"].source
    with pytest.raises(RunError, match=MISSING_OR_CHANGED):
        check_programs(*sides, out=copy, resume=True, target=FakeTarget(), clock=FakeClock())


def test_it_is_finished_where_it_stopped(tmp_path: Path) -> None:
    """Run a repetition that failed again, by the same command or by profile; another baseline is refused."""
    broken = FakeTarget(fail=lambda number: Failure(FailureKind.EXIT, "lost") if number == 5 else None)
    done, _ = checked(tmp_path, target=broken)
    out, new, old = tmp_path / "out", tmp_path / "head/model.pte", tmp_path / "base/model.pte"
    assert Bundle.open(out).manifest.status is Status.INCOMPLETE
    assert any("failed" in note for note in done.decision.notes)
    with pytest.raises(UsageError, match="not against"):
        check_programs(new, new, out=out, resume=True, target=FakeTarget(), clock=FakeClock())
    target = FakeTarget()
    check_programs(new, old, settings=SMALL, out=out, resume=True, target=target, clock=FakeClock())
    assert (Bundle.open(out).manifest.status, len(target.jobs)) == (Status.COMPLETE, 1)


def test_different_results_are_said_and_do_not_pass_unseen(tmp_path: Path) -> None:
    """Judge the times of a retrained model, which is no slower one, and tell of the results in the first note."""
    target = FakeTarget(noise=0.005)
    target.outputs = lambda job: np.arange(4, dtype=np.float32) * (3 if is_new(job) else 1)
    done, _ = checked(tmp_path, target=target)
    decision = done.decision
    assert (decision.outcome, decision.evidence.outputs.agree) == (Outcome.PASSED, False)
    assert decision.notes[0].startswith("the two sides compute different results")
    assert any(finding.rule == "outputs_agree" for finding in done.profiled.content.findings)


@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_other_inputs_are_refused_before_anything_runs(tmp_path: Path) -> None:
    """Two sizes of one model; what both take is accepted, by its sizes and by what was asked for."""
    exported = []
    for rows in (1, 2):
        model = tmp_path / f"rows_{rows}.py"
        model.write_text(f"import torch\n\ndef build():\n    return torch.nn.Linear(4, 4), (torch.zeros({rows}, 4),)\n")
        exported.append(served(tmp_path / str(rows), str(model)).program)
    given = {"out": tmp_path / "out", "target": FakeTarget(), "clock": FakeClock(), "settings": SMALL}
    with pytest.raises(MismatchError, match=r"input 0 is float32\[1,4\], there float32\[2,4\]"):
        check_programs(exported[0], exported[1], **given)  # type: ignore[arg-type]
    asked = msgspec.structs.replace(SMALL, input=("float32[1,4]=ones",))
    with pytest.raises(UsageError, match="float32"):
        check_programs(exported[0], exported[1], **given | {"settings": asked})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    same = shutil.copy(exported[0], tmp_path / "same.pte")
    check_programs(exported[0], same, **given | {"settings": asked})  # type: ignore[arg-type]
    assert Bundle.open(tmp_path / "out").manifest.plan.values == "model/inputs.npz"


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"settings": Settings(threads=(1, 2))}, UsageError, "thread"),
        ({"settings": Settings(ladder=True)}, UsageError, None),
        ({"settings": Settings(ablate=("avx2",))}, UsageError, None),
        ({"settings": Settings(target="qemu-aarch64"), "target": None}, MismatchError, "emulated"),
        ({"new": DATA / "two_methods.pte"}, MismatchError, "it calls"),
    ],
    ids=["several thread counts", "a ladder", "features off", "an emulated target", "other methods"],
)
def test_what_two_programs_have_no_use_for_is_refused_before_anything_runs(
    changes: dict[str, object], error: type[Exception], said: str | None, tmp_path: Path
) -> None:
    """Leave nothing behind, neither for times that say nothing nor for programs that differ in their calls."""
    new, old = programs(tmp_path)
    given = {"settings": SMALL, "out": tmp_path / "out", "target": FakeTarget(), "clock": FakeClock()} | changes
    with pytest.raises(error, match=said):
        check_programs(given.pop("new", new), old, **given)
    assert not (tmp_path / "out").exists()


def test_what_is_a_program(slow: ProgramCheck, tmp_path: Path) -> None:
    """Take files of programs and names of models for programs, measurements for none; one of each is an error."""
    new, old = map(str, programs(tmp_path))
    bundle, trace = str(slow.profiled.path), str(DATA / "toy_cnn.etdump")
    for sides in ((new, old), ("toy_cnn", new), (str(DATA / "scaled.bpte"), old), ("new.tflite", "old.tflite")):
        assert check_kinds(*sides)
    assert check_kinds("new.onnx", "old.onnx")
    assert not check_kinds(bundle, f"{bundle}#old")
    assert not check_kinds(trace, bundle)
    for sides in ((new, bundle), (bundle, new), (new, f"{bundle}#old"), (new, trace)):
        with pytest.raises(UsageError, match=IS_A_PROGRAM) as caught:
            check_kinds(*sides)
        assert "opscope profile" in str(caught.value.hint)
    with pytest.raises(NotFoundError):
        check_programs(new, "toy_cn", out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
