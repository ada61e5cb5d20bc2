"""Parts of a result with a bug: they are not known, the rest stands, and the traceback lies beside the report."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import opscope
from command_line import ended_here
from opscope.analysis.findings.message import Message, Severity, passed
from opscope.analysis.findings.rule import declare_rule
from opscope.analysis.rules import rules
from opscope.analysis.rules.evidence import Evidence
from opscope.core.parts import VARIABLE
from opscope.reports.pictures import bars
from opscope.runtimes.onnxruntime import attribution

DATA = Path(__file__).parents[1] / "data"
BUG = "ZeroDivisionError: division by zero"
needs_onnxruntime = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")


@declare_rule(Severity.INFO)
def broken(evidence: Evidence) -> Message:
    """A rule with a bug."""
    return passed("broken", str(len(evidence.operators) / 0))


pytestmark = pytest.mark.usefixtures("as_for_users")


@pytest.fixture
def with_a_broken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more rule."""
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, broken))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A recorded bundle."""
    return Path(shutil.copytree(DATA / "bundles" / "with-ceilings", tmp_path / "out"))


@pytest.mark.usefixtures("with_a_broken_rule")
def test_a_broken_rule_costs_a_report_that_rule(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every page and document says so, all other rules are there, and the user is told what to report."""
    assert ended_here("report", bundle) == 0
    told = f"the rule broken: unknown because of a bug in opscope ({BUG})"
    kept = bundle / "problems" / "the-rule-broken.txt"
    assert BUG in kept.read_text()
    assert "test_failing_parts.py" in kept.read_text()
    errors = capsys.readouterr().err
    assert f"warning: {told}" in errors
    assert f"please report this bug in opscope, with {kept}" in errors
    for name in ("report.html", "report.md", "analysis.json"):
        assert told in (bundle / name).read_text().replace("\\", ""), name
    ruled_out = json.loads((bundle / "analysis.json").read_text())["ruled_out"]
    found = {one["rule"]: (one["kind"], one["title"]) for one in ruled_out}
    assert found.keys() >= {"data_movement", "fragmentation", "tracer_cost", "unresolved_operators"}
    assert found["broken"] == ("not_checked", f"a bug in opscope ({BUG})")


@pytest.mark.usefixtures("with_a_broken_rule")
def test_validate_says_what_it_could_not_check(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a bundle whose rule was not broken yet: no fault of the bundle, and no traceback is written into it."""
    assert ended_here("validate", bundle) == 0
    said = capsys.readouterr()
    assert "could not be checked: the rule broken" in said.out
    assert "Traceback" in said.err
    assert not (bundle / "problems").exists()


@pytest.mark.usefixtures("with_a_broken_rule")
def test_a_trace_alone_has_its_traceback_on_standard_error(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no bundle to keep it."""
    trace = next(bundle.glob("variants/*/round-00/trace.etdump"))
    assert ended_here("analyze", trace) == 0
    said = capsys.readouterr()
    assert "the rule broken: unknown" in " ".join(said.out.split())
    assert f"{BUG}\n" in said.err
    assert "please report this bug in opscope, with the lines above" in said.err


@pytest.mark.usefixtures("with_a_broken_rule")
def test_from_python_a_warning_has_the_traceback(bundle: Path) -> None:
    """Nobody else would tell of it."""
    with pytest.warns(RuntimeWarning, match="the rule broken: unknown because of a bug in opscope"):
        opscope.analyze(bundle)


@pytest.mark.usefixtures("with_a_broken_rule")
def test_whoever_develops_sees_the_bug(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a variable of the environment, as in all other tests."""
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


@needs_onnxruntime
def test_a_cost_with_a_bug_costs_a_run_these_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real run ends with 0 and its reports; nodes whose costs can be computed have them."""
    monkeypatch.setitem(attribution._COUNTS, "Gemm", lambda *_: 1 // 0)
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
