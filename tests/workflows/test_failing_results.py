"""Bugs in what a result rests on: nothing that was measured is lost, the rest is reported, and the user is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeAlias

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from kit_files import pair, write_run
from opscope.analysis import analysis as whole_analysis
from opscope.analysis.analysis import Analysis
from opscope.analysis.compare import compare as comparing
from opscope.api import Profiled, Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind, Status
from opscope.core.errors import InternalError
from opscope.core.table import EventTable
from opscope.kit import sides as kit
from opscope.measurements import analyses, bundle_kernels
from opscope.program.cost import cost, node_cost
from opscope.runtimes import attribution
from opscope.runtimes.executorch.etdump import EtdumpReader
from opscope.runtimes.side import Side
from opscope.workflows.validate import validation
from programs import write_tiny_program
from texts import IF_SHARED, NO_ANSWER, NO_SPLIT, NOTHING_TO_REPORT, REPORT_THE_BUG

DATA = Path(__file__).parents[1] / "data"
Run: TypeAlias = Callable[..., tuple[int, str]]
BUG = "a bug in opscope (KeyError: 'planted')"


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
    """The others are on the page, which says what is not known; no fault of the bundle, before and after."""
    monkeypatch.setattr(*PARTS[named], broken)
    code, said = run("validate", bundle)
    assert (code, f"{named}: unknown because of {BUG}" in said) == (0, True)
    assert run("report", bundle)[0] == 0
    page = (bundle / "report.md").read_text().replace("\\", "")
    assert f"{named}: unknown because of {BUG}" in page
    assert "| accelerated | 3." in page
    assert "planted" in (bundle / "problems" / f"{named.replace(' ', '-')}.txt").read_text()
    assert run("validate", bundle)[0] == 0


def test_without_the_comparison_the_page_does_not_say_that_there_is_no_second_variant(
    bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first lines are the latency, and why there is no ratio."""
    monkeypatch.setattr(comparing, "compare", broken)
    run("report", bundle, "--format", "md")
    assert (bundle / "report.md").read_text().splitlines()[2:5] == [
        "**Do not trust: 3.59 ms per inference**",
        "",
        f"the comparison of accelerated with baseline: unknown because of {BUG}",
    ]


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
    told = f"round 1 of baseline failed: its trace cannot be read because of {BUG}"
    page = (bundle / "report.md").read_text().replace("\\", "")
    assert told in page
    assert "2 + 2 processes, paired, untraced" in page
    assert "convolution" in page.lower()
    after = files(bundle)
    changed = {name for name, content in before.items() if after[name] != content}
    assert changed <= {"analysis.json", "comparison.json", "report.md", "report.html"} | {
        f"variants/{name}/analysis.json" for name in ("accelerated", "baseline")
    }
    assert run("validate", bundle)[0] == 0


def test_without_a_single_trace_the_untraced_calls_are_reported(
    bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict rests on them; the split is what is not known."""
    monkeypatch.setattr(EtdumpReader, "read", broken)
    assert run("report", bundle)[0] == 0
    page = (bundle / "report.md").read_text().replace("\\", "")
    assert "no interval: 2 + 2 processes, paired, untraced" in page
    assert f"{NO_SPLIT}its trace cannot be read because of {BUG}." in page
    assert run("validate", bundle)[0] == 0


def test_the_latency_of_one_variant_leaves_the_other(bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known is not said to be unmeasured."""
    measured = whole_analysis.measured_latency
    monkeypatch.setattr(
        whole_analysis,
        "measured_latency",
        lambda table, path: broken() if "baseline" in path else measured(table, path),
    )
    assert run("report", bundle)[0] == 0
    page = (bundle / "report.md").read_text().replace("\\", "")
    assert "no result of baseline to compare with" in page
    assert "baseline has no result: it was measured, but opscope has a bug" in page
    assert "| baseline | not known |" in page
    assert f"the analysis of baseline: unknown because of {BUG}" in page
    assert run("validate", bundle)[0] == 0


def test_where_nothing_is_left_to_report_the_error_names_the_bundle_and_what_to_attach(
    bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 70, with a page that does not say that nothing was measured."""
    monkeypatch.setattr(whole_analysis, "latency", broken)
    code, said = run("report", bundle)
    assert code == 70
    assert f"error: {bundle}: {NOTHING_TO_REPORT}: the analysis of accelerated: unknown because of {BUG}" in said
    assert f"{REPORT_THE_BUG} {bundle / 'problems'} {IF_SHARED} {bundle}" in said
    assert (bundle / "problems" / "the-analysis-of-accelerated.txt").exists()
    assert "Nothing was measured" not in (bundle / "report.md").read_text() + (bundle / "report.html").read_text()
    assert run("validate", bundle)[0] == 0


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("model_problems", "manifest"),
        ("plan_problems", "plan"),
        ("record_problems", "records"),
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
    assert code == 0
    assert checks[named]["status"] == "skipped"
    assert checks[named]["message"] == f"could not be checked: the check {named}: unknown because of {BUG}"
    assert checks["analyses"]["status"] == "passed"


def test_a_bug_that_no_part_foresees_names_the_bundle_too(
    bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its traceback is kept where the report would be."""
    monkeypatch.setattr("opscope.workflows.reports.reports.compared_pairs", broken)
    code, said = run("report", bundle)
    assert (code, f"error: {bundle}: {NOTHING_TO_REPORT}: {BUG}" in said) == (70, True)
    assert "planted" in (bundle / "problems" / "the-report.txt").read_text()


def test_pairs_without_a_common_round_are_not_compared_and_the_report_says_so(bundle: Path, run: Run) -> None:
    """Round 0 failed on one side, round 1 on the other."""
    opened = Bundle.open(bundle)
    lost = Failure(FailureKind.TIMEOUT, f"{NO_ANSWER} 60 s")
    repetitions = [
        msgspec.structs.replace(own, failure=lost) if (own.variant, own.round) in one_each else own
        for one_each in ({("accelerated", 0), ("baseline", 1)},)
        for own in opened.manifest.repetitions
    ]
    manifest = msgspec.structs.replace(opened.manifest, repetitions=repetitions, status=Status.INCOMPLETE)
    (bundle / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    code, said = run("report", bundle, "--format", "md")
    assert (code, "bug" in said) == (0, False)
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
