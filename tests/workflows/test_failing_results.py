"""Bugs in what a result rests on: nothing that was measured is lost, the rest is reported, and the user is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeAlias

import msgspec
import pytest

import opscope
from command_line import ended_here
from fakes import FakeClock, FakeTarget
from installed import needs_onnxruntime
from kit_files import pair, write_run
from opscope.analysis import analysis as whole_analysis
from opscope.analysis.analysis import Analysis
from opscope.analysis.compare import compare as comparing
from opscope.analysis.findings.message import Message, Severity, passed
from opscope.analysis.findings.rule import declare_rule
from opscope.analysis.rules import rules
from opscope.analysis.rules.evidence import Evidence
from opscope.api import Profiled, Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.consistency import hashed_record
from opscope.bundle.manifest import Failure, FailureKind, Status
from opscope.core.errors import InternalError
from opscope.core.parts import VARIABLE
from opscope.core.table import EventTable
from opscope.kit import sides as kit
from opscope.measurements import analyses, bundle_kernels
from opscope.program.cost import cost, node_cost
from opscope.reports.pictures import bars
from opscope.runtimes import attribution
from opscope.runtimes.executorch.etdump import EtdumpReader
from opscope.runtimes.onnxruntime import attribution as onnx_attribution
from opscope.runtimes.side import Side
from opscope.workflows.validate import validation
from programs import write_tiny_program
from texts import IF_SHARED, NO_ANSWER, NO_SPLIT, NOTHING_TO_REPORT, REPORT_THE_BUG

DATA = Path(__file__).parents[1] / "data"
Run: TypeAlias = Callable[..., tuple[int, str]]
BUG = "a bug in opscope (KeyError: 'planted')"
MEASURED = whole_analysis.measured_latency
DIVIDED = "ZeroDivisionError: division by zero"


pytestmark = pytest.mark.usefixtures("as_for_users")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A recorded bundle."""
    return Path(shutil.copytree(DATA / "bundles" / "with-ceilings", tmp_path / "out"))


def broken(*_: object, **__: object) -> NoReturn:
    """Code with a bug."""
    raise KeyError("planted")


def files(bundle: Path) -> dict[str, bytes]:
    """Every file of a bundle."""
    return {str(path.relative_to(bundle)): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


PARTS = {
    "the comparison of accelerated with baseline": (comparing, "compare"),
    "accuracy": (analyses, "accuracy_of"),
    "kernels": (bundle_kernels, "bundle_kernels"),
    "the attribution of operators": (attribution, "attribute"),
}
"""Parts of a result, and the code that gives each."""


@pytest.mark.parametrize("named", PARTS)
def test_a_bug_in_one_part_costs_that_part(named: str, bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the others on the page, which says what is not known; no fault of the bundle, before and after.

    Without a comparison its first lines are the latency, and why there is no ratio.
    """
    monkeypatch.setattr(*PARTS[named], broken)
    code, said = run("validate", bundle)
    assert (code, f"{named}: unknown because of {BUG}" in said) == (0, True)
    page = reported(bundle, run)
    assert f"{named}: unknown because of {BUG}" in page
    assert "| accelerated | 3." in page
    assert "planted" in (bundle / "problems" / f"{named.replace(' ', '-')}.txt").read_text()
    if named.startswith("the comparison"):
        first = ["**Do not trust: 3.59 ms per inference**", "", f"{named}: unknown because of {BUG}"]
        assert page.splitlines()[2:5] == first


def reported(bundle: Path, run: Run) -> str:
    """Markdown of the report that a command writes, of a bundle that is at no fault afterwards."""
    assert run("report", bundle)[0] == 0
    assert run("validate", bundle)[0] == 0
    return (bundle / "report.md").read_text().replace("\\", "")


def test_a_trace_that_a_bug_keeps_from_being_read_is_a_failed_repetition(
    bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other repetitions are reported, and nothing in the bundle changes but its reports."""
    read, before = EtdumpReader.read, files(bundle)

    def sometimes(reader: EtdumpReader, data: bytes | memoryview, path: Path) -> EventTable:
        return broken() if "baseline/round-01" in str(path) else read(reader, data, path)

    monkeypatch.setattr(EtdumpReader, "read", sometimes)
    code, said = run("validate", bundle)
    assert (code, "could not be checked: the trace variants/baseline/round-01" in said) == (0, True)
    assert files(bundle) == before
    code, said = run("report", bundle)
    kept = bundle / "problems" / "the-trace-variants-baseline-round-01-trace.etdump.txt"
    assert (code, str(kept) in said) == (0, True)
    after = files(bundle)
    changed = {name for name, content in before.items() if after[name] != content}
    assert changed <= {"analysis.json", "comparison.json", "report.md", "report.html"} | {
        f"variants/{name}/analysis.json" for name in ("accelerated", "baseline")
    }
    page = reported(bundle, run)
    assert f"round 1 of baseline failed: its trace cannot be read because of {BUG}" in page
    assert "2 + 2 processes, paired, untraced" in page
    assert "convolution" in page.lower()


def broken_for_baseline(table: EventTable, path: str) -> object:
    """The latency, but for the baseline."""
    return broken() if "baseline" in path else MEASURED(table, path)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            (EtdumpReader, "read", broken),
            (
                "no interval: 2 + 2 processes, paired, untraced",
                f"{NO_SPLIT}its trace cannot be read because of {BUG}.",
            ),
        ),
        (
            (whole_analysis, "measured_latency", broken_for_baseline),
            (
                "no result of baseline to compare with",
                "baseline has no result: it was measured, but opscope has a bug",
                "| baseline | not known |",
                f"the analysis of baseline: unknown because of {BUG}",
            ),
        ),
    ],
    ids=["no trace", "one latency"],
)
def test_what_is_left_is_reported(
    fault: tuple[object, ...], told: tuple[str, ...], bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report the untraced calls without a single trace, and the other variant without the latency of one.

    What is not known is not said to be unmeasured.
    """
    monkeypatch.setattr(*fault)
    page = reported(bundle, run)
    assert [words for words in told if words not in page] == []


@pytest.mark.parametrize(
    ("code", "told", "kept"),
    [
        (
            "opscope.analysis.analysis.latency",
            f"the analysis of accelerated: unknown because of {BUG}",
            "the-analysis-of-accelerated.txt",
        ),
        ("opscope.workflows.reports.reports.compared_pairs", BUG, "the-report.txt"),
    ],
    ids=["the only part", "no part foresees it"],
)
def test_where_nothing_is_left_to_report_the_error_names_the_bundle_and_what_to_attach(
    code: str, told: str, kept: str, bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End with 70, keep the traceback where the report would be, and let no page say that nothing was measured."""
    monkeypatch.setattr(code, broken)
    ended, said = run("report", bundle)
    assert ended == 70
    assert f"error: {bundle}: {NOTHING_TO_REPORT}: {told}" in said
    assert f"{REPORT_THE_BUG} {bundle / 'problems'} {IF_SHARED} {bundle}" in said
    assert "planted" in (bundle / "problems" / kept).read_text()
    assert "Nothing was measured" not in (bundle / "report.md").read_text() + (bundle / "report.html").read_text()
    assert run("validate", bundle)[0] == 0


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("absent_facts", "manifest"),
        ("plan_problems", "plan"),
        ("completeness_problems", "complete"),
        ("path_problems", "paths"),
    ],
)
def test_a_check_with_a_bug_is_not_made(
    function: str, named: str, bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others are, and the bundle is not at fault."""
    monkeypatch.setattr(validation, function, broken)
    code, said = run("validate", bundle, "--json", "-")
    checks = {one["name"]: one for one in json.loads(said[: said.rindex("}") + 1])["checks"]}
    assert (code, checks[named]["status"], checks["analyses"]["status"]) == (0, "skipped", "passed")
    assert checks[named]["message"] == f"could not be checked: the check {named}: unknown because of {BUG}"


def test_pairs_without_a_common_round_are_not_compared_and_the_report_says_so(bundle: Path, run: Run) -> None:
    """Round 0 failed on one side, round 1 on the other."""
    opened = Bundle.open(bundle)
    lost = Failure(FailureKind.TIMEOUT, f"{NO_ANSWER} 60 s")
    repetitions = [
        hashed_record(msgspec.structs.replace(own, failure=lost) if (own.variant, own.round) in one_each else own)
        for one_each in ({("accelerated", 0), ("baseline", 1)},)
        for own in opened.manifest.repetitions
    ]
    manifest = msgspec.structs.replace(opened.manifest, repetitions=repetitions, status=Status.INCOMPLETE)
    (bundle / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    code, said = run("report", bundle, "--format", "md")
    assert (code, "bug" in said) == (0, False), said
    page = (bundle / "report.md").read_text().replace("\\", "")
    assert "the comparison of accelerated with baseline: unknown because no round succeeded on both sides" in page
    assert "GEMM" in page


@pytest.mark.parametrize(
    ("rules", "kind", "name"),
    [
        (node_cost._RULES, "Conv2d", "Convolution"),
        (cost._RULES, "mean", "native_call_mean.out"),
    ],
)
def test_costs_of_one_kind_of_operator_with_a_bug_leave_its_attribution(
    rules: dict[str, Callable[..., object]],
    kind: str,
    name: str,
    bundle: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What operators are and where they come from is known as before, and so are the costs of all others."""
    before = json.loads((bundle / "analysis.json").read_text())["operators"]
    assert kind in rules
    monkeypatch.setitem(rules, kind, broken)
    assert run("report", bundle, "--format", "json,md")[0] == 0
    assert f"costs of operators: unknown because of {BUG}" in (bundle / "report.md").read_text().replace("\\", "")
    assert "planted" in (bundle / "problems" / "costs-of-operators.txt").read_text()
    after = json.loads((bundle / "analysis.json").read_text())["operators"]
    for known in ("name", "kind", "attribution", "handles", "time_ns"):
        assert [row[known] for row in after] == [row[known] for row in before]
    lost = {
        row["name"].partition(" (")[0] for row, old in zip(after, before, strict=True) if row["macs"] != old["macs"]
    }
    assert lost == {name}


def test_an_experiment_of_the_kit_with_a_bug_leaves_the_others(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed as failed; without any other the error names the directory."""
    directory = write_run(tmp_path / "run", nested=False, pairs=[pair("alpha", "beta")])
    analysed = kit.analysis_of

    def sometimes(side: Side) -> Analysis:
        return broken() if side.label == "alpha_t1" else analysed(side)

    monkeypatch.setattr(kit, "analysis_of", sometimes)
    code, said = run("report", directory, "--format", "md")
    assert (code, f"warning: the experiment alpha_t1: unknown because of {BUG}" in said) == (0, True)
    assert f"failed: unknown because of {BUG}" in (directory / "opscope" / "report.md").read_text().replace("\\", "")
    monkeypatch.setattr(kit, "analysis_of", broken)
    code, said = run("report", directory, "--format", "md")
    assert (code, f"error: {directory}: {NOTHING_TO_REPORT}" in said) == (70, True)


def profiled(directory: Path, settings: Settings) -> Profiled:
    """The tiny program, on a target with faked time."""
    program = write_tiny_program(directory)
    return profile(str(program), settings=settings, out=directory / "new", target=FakeTarget(), clock=FakeClock())


@pytest.mark.filterwarnings("ignore:the trace variants:RuntimeWarning")
def test_a_run_whose_traces_cannot_be_read_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports the untraced calls; without any it ends with the bundle's name; once mended it is finished."""
    monkeypatch.setattr(EtdumpReader, "read", broken)
    done = profiled(tmp_path, Settings(rounds=2, runs=2, warmup=0))
    assert done.content.primary is not None
    kinds = [own.failure.kind for own in done.content.manifest.failures() if own.failure]
    assert kinds == [FailureKind.BUG] * 4
    assert list((done.path / "problems").glob("the-trace-*.txt"))
    assert len(list(done.path.rglob("trace.etdump"))) == 4
    again = tmp_path / "traced"
    again.mkdir()
    with pytest.raises(InternalError, match=rf"{NOTHING_TO_REPORT}: its trace cannot be read") as ended:
        profiled(again, Settings(rounds=2, runs=2, warmup=0, untraced=False))
    assert str(again / "new" / "problems") in str(ended.value.hint)
    assert Bundle.open(again / "new").manifest.status is Status.INCOMPLETE
    monkeypatch.undo()
    resumed = profile(str(again / "tiny.pte"), out=again / "new", resume=True, target=FakeTarget(), clock=FakeClock())
    assert resumed.content.manifest.failures() == []


def test_a_bug_while_measuring_leaves_a_bundle_that_can_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the bundle and the traceback in it."""
    monkeypatch.setattr("opscope.workflows.measure.experiments.keep_control", broken)
    with pytest.raises(InternalError) as ended:
        profiled(tmp_path, Settings(rounds=2, runs=2, warmup=0))
    assert ended.value.where == str(tmp_path / "new")
    assert "planted" in (tmp_path / "new" / "problems" / "the-report.txt").read_text()
    assert json.loads((tmp_path / "new" / "manifest.json").read_text())["status"] == "complete"


@declare_rule(Severity.INFO)
def broken_rule(evidence: Evidence) -> Message:
    """A rule with a bug."""
    return passed("broken_rule", str(len(evidence.operators) / 0))


def test_a_broken_rule_costs_a_report_that_rule(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep all other rules on every page and document, and tell the user what to report.

    A validation finds no fault with a bundle whose rule was not broken yet, and writes no traceback into it. A trace
    alone has no bundle to keep it, so it stands on standard error; from Python a warning has it, and whoever develops
    sees the bug itself, with a variable of the environment.
    """
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, broken_rule))
    assert ended_here("validate", bundle) == 0
    said = capsys.readouterr()
    assert "could not be checked: the rule broken_rule" in said.out
    assert "Traceback" in said.err
    assert not (bundle / "problems").exists()

    assert ended_here("report", bundle) == 0
    told = f"the rule broken_rule: unknown because of a bug in opscope ({DIVIDED})"
    kept = bundle / "problems" / "the-rule-broken_rule.txt"
    assert DIVIDED in kept.read_text()
    assert "test_failing_results.py" in kept.read_text()
    errors = capsys.readouterr().err
    assert f"warning: {told}" in errors
    assert f"please report this bug in opscope, with {kept}" in errors
    for name in ("report.html", "report.md", "analysis.json"):
        assert told in (bundle / name).read_text().replace("\\", ""), name
    ruled_out = json.loads((bundle / "analysis.json").read_text())["ruled_out"]
    found = {one["rule"]: (one["kind"], one["title"]) for one in ruled_out}
    assert found.keys() >= {"data_movement", "fragmentation", "tracer_cost", "unresolved_operators"}
    assert found["broken_rule"] == ("not_checked", f"a bug in opscope ({DIVIDED})")

    assert ended_here("analyze", next(bundle.glob("variants/*/round-00/trace.etdump"))) == 0
    said = capsys.readouterr()
    assert "the rule broken_rule: unknown" in " ".join(said.out.split())
    assert f"{DIVIDED}\n" in said.err
    assert "please report this bug in opscope, with the lines above" in said.err

    with pytest.warns(RuntimeWarning, match="the rule broken_rule: unknown because of a bug in opscope"):
        opscope.analyze(bundle)
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(ZeroDivisionError):
        opscope.analyze(bundle)


def test_a_picture_that_cannot_be_drawn_leaves_the_page(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its place stands why; here a category has no colour, of which no picture of categories can be drawn."""
    monkeypatch.setattr(bars, "COLOURS", dict(list(bars.COLOURS.items())[1:]))
    assert ended_here("report", bundle, "--format", "html") == 0
    page = (bundle / "report.html").read_text()
    assert "<p>the picture split by category: unknown because of a bug in opscope (KeyError" in page
    assert page.rstrip().endswith("</html>")
    assert (bundle / "problems" / "the-picture-split-by-category.txt").exists()
    assert "warning: the picture split by category" in capsys.readouterr().err


@pytest.mark.nightly  # a real run
@needs_onnxruntime
def test_a_cost_with_a_bug_costs_a_run_these_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real run ends with 0 and its reports; nodes whose costs can be computed have them."""
    monkeypatch.setitem(onnx_attribution._COUNTS, "Gemm", lambda *_: 1 // 0)
    out, quick = tmp_path / "out", ("--rounds", "2", "--runs", "2", "--warmup", "1", "--ablate", "none")
    model = DATA / "onnx" / "cnn.onnx"
    assert ended_here("profile", model, *quick, "--lock", "warn", "--no-ceilings", "--out", out) == 0
    assert "costs of nodes: unknown because of a bug in opscope" in (out / "report.html").read_text()
    assert (out / "problems" / "costs-of-nodes.txt").exists()
    rows = json.loads((out / "analysis.json").read_text())["operators"]
    known = {row["name"].partition(":")[0]: row["macs"] for row in rows}
    assert known["Gemm"] is None
    assert known["Conv"]
    assert ended_here("validate", out) == 0
    assert "warning: costs of nodes" in capsys.readouterr().err
