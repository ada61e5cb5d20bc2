"""Annotations of GitHub: a decision as workflow commands, and what may stand in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from hostile_names import HOSTILE
from opscope.analysis.findings.message import Severity, finding
from opscope.analysis.gate.decision import Criterion, Outcome, Quantity, let_inconclusive_pass, make_decision
from opscope.analysis.work.gate import WorkChange, WorkEvidence, WorkSide
from opscope.api import Settings, check, profile
from opscope.core.stats.effect import Verdict
from opscope.reports.formats.ci import Annotation, gate_annotations
from opscope.reports.gate import comparison_text
from opscope.reports.work import work_gate_text
from opscope.workflows.analyze.preflight import lines_of_layers, new_findings
from programs import write_tiny_program

DEMO = Path(__file__).resolve().parents[2] / "demo" / "mobilenet_v3_small_xnnpack_fp32.pte"
COMMAND = re.compile(r"::(error|warning|notice) ((?:file|line|title)=[^:,\n]*(?:,(?:file|line|title)=[^:,\n]*)*)::(.*)")
"""A workflow command as the runner reads it: properties hold neither ``:`` nor ``,``."""


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The decision on a variant whose convolution takes twice as long as that of the other."""
    directory = tmp_path_factory.mktemp("annotations")
    program = write_tiny_program(directory)
    settings = Settings(rounds=6, runs=3, warmup=1)
    profile(str(program), settings=settings, out=directory / "out", target=FakeTarget(noise=0.01), clock=FakeClock())
    return check(f"{directory / 'out'}#baseline", f"{directory / 'out'}#accelerated", threshold=0.05, force=True)


def with_source(decision: Any, source: str, name: str = "conv") -> Any:
    """The decision with a line of Python for its slowest operator."""
    first = msgspec.structs.replace(decision.evidence.slower[0], source=source, name=name)
    evidence = msgspec.structs.replace(decision.evidence, slower=[first])
    return msgspec.structs.replace(decision, evidence=evidence)


def lines_of(decision: Any, root: str = "", **given: Any) -> list[str]:
    """The commands of a decision."""
    return [one.command(root) for one in gate_annotations(decision, comparison_text(decision), **given)]


def test_the_first_one_is_the_headline_at_the_line_that_lost_most(slower: Any) -> None:
    """Error, then a warning for the operator; paths are relative to the repository."""
    found = with_source(slower, "/home/team/net/model.py:12")
    error, warning = lines_of(found, "/home/team/net")
    assert re.match(
        r"::error file=model\.py,line=12,title=opscope check%3A tiny is slower \(\+\d+\.\d %25\)::regression: ", error
    )
    assert "%25 [+" in error
    assert re.match(r"::warning file=model\.py,line=12,title=slower%3A conv::\d+ µs to \d+ µs, ", warning)


def test_a_file_outside_of_the_repository_is_named_in_the_text(slower: Any) -> None:
    """GitHub would look for it in the repository."""
    error, warning = lines_of(with_source(slower, "/opt/lib/model.py:12"), "/home/team/net")
    assert "file=" not in error + warning
    assert warning.endswith("(/opt/lib/model.py:12)")


def test_without_a_line_the_program_is_named(slower: Any) -> None:
    """Its file, without a line."""
    error, *_ = lines_of(slower, path="models/net.pte")
    assert error.startswith("::error file=models/net.pte,title=")


def test_a_candidate_that_may_pass_has_a_notice(slower: Any) -> None:
    """It is no error."""
    passed = msgspec.structs.replace(slower, let_through=True)
    assert lines_of(let_inconclusive_pass(passed))[0].startswith("::notice ")


def test_findings_that_are_new_are_told(slower: Any) -> None:
    """Three at most, each at its first line."""
    found = [
        finding(f"rule{n}", Severity.HIGH, (f"title {n}", "why", "do")).about(lines=[f"a.py:{n}"]) for n in range(1, 6)
    ]
    told = [line for line in lines_of(slower, findings=found) if line.startswith("::notice file=a.py")]
    assert told == [f"::notice file=a.py,line={n},title=title {n}::why. do" for n in (1, 2, 3)]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_ends_a_command(slower: Any, name: str) -> None:
    """Line breaks, colons, commas, percent signs and forged commands stay text."""
    for line in lines_of(with_source(slower, f"{name}.py:3", f"{name}\n::error::x"), "/work"):
        assert "\n" not in line
        assert "\r" not in line
        assert COMMAND.fullmatch(line), line
    assert Annotation("error", "a,b:c%\r\n", "x%\n", None).command() == "::error title=a%2Cb%3Ac%25%0D%0A::x%25%0A"


def test_more_work_is_told_at_the_line_of_its_layer() -> None:
    """By what the record of the export says; a layer that it does not know has no line."""
    sides = [WorkSide(model, None, count, 2) for model, count in (("old", 30), ("new", 60))]
    changed = [WorkChange("body", "Conv", "conv", 10, 40), WorkChange("head", "Conv", "conv", 20, 20)]
    changed.append(WorkChange(None, "add", "add", None, 5))
    evidence = WorkEvidence(*sides, "counter", "processor", 0, changed)
    criterion = Criterion("work", Quantity.WORK, 0.0, 1.0, None, Outcome.REGRESSION, "more", verdict=Verdict.SLOWER)
    decision = make_decision([criterion], evidence, advice=None)
    found = gate_annotations(decision, work_gate_text(decision), path="net.pte", layers={"body": "net.py:4"})
    error, *told = (one.command() for one in found)
    assert error.startswith(
        "::error file=net.py,line=4,title=opscope check%3A the candidate executes more (+100.0 %25)::"
    )
    assert told == [
        "::warning file=net.py,line=4,title=more work%3A body::10 to 40 instructions (+300.0 %25), exact",
        "::warning title=more work%3A add::0 to 5 instructions, exact",
    ]


def test_layers_have_lines_where_the_record_lies_beside_the_program(tmp_path: Path) -> None:
    """That of the demo; none without it, and none for what is no program."""
    found = lines_of_layers(DEMO)
    assert found["features.0.0"].partition(":")[0].endswith("mobilenet_v3.py")
    alone = tmp_path / DEMO.name
    alone.write_bytes(DEMO.read_bytes())
    assert lines_of_layers(alone) == {}
    alone.with_suffix(".etrecord").write_bytes(b"damaged")
    assert lines_of_layers(alone) == {}


def test_only_what_the_baseline_has_not_is_new(tmp_path: Path) -> None:
    """Shares and counts differ from program to program: a finding is known by its words."""
    program = write_tiny_program(tmp_path)
    assert new_findings(program, program) == []
    assert new_findings(program, tmp_path / "none.pte") == []
    (tmp_path / "net.pte").write_bytes(b"no program")
    assert new_findings(tmp_path / "net.pte", program) == []
