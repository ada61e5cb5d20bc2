"""Reports in texts that somebody pasted, logged or redirected, and files that lost rows or never had one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.api import AnalysisResult, analyze, check, compare
from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.reports.document.terminal import terminal_document
from opscope.reports.inspected import analysis_document
from terminal_text import text_of

WILD = Path(__file__).parents[1] / "data" / "wild"
REPORT = (WILD / "litert25_gpu.txt").read_text()


def analysis_of(text: str | bytes, directory: Path, name: str = "report.txt") -> AnalysisResult:
    """Analyse a text, in UTF-8 or as it is."""
    (directory / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return analyze(directory / name)


def behind(prefix: str) -> str:
    """Return the report with a text before each line."""
    return "".join(f"{prefix}{line}\n" for line in REPORT.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        f"./linux_x86-64_benchmark_model --graph=m.tflite --enable_op_profiling=true\n{REPORT}",
        f"Mine is slow:\n\n```\n{REPORT}```\n\nWhy?\n",
        behind("> "),
        behind("    "),
        behind("05-01 12:00:00.123  1234  1240 I tflite  : "),
        behind("I/tflite  ( 1234): "),
        behind("2024-05-01 12:00:00.123456+0200 TFLiteBenchmark[321:4567] "),
        REPORT.encode("utf-16"),
        REPORT.encode("utf-16-le"),
        REPORT.encode("utf-8-sig"),
    ],
    ids="command fence quote indented logcat brief ios utf-16 utf-16-le bom".split(),
)
def test_a_report_is_found_in_a_text(text: str | bytes, tmp_path: Path) -> None:
    """Its figures are those of the report by itself."""
    analysis = analysis_of(text, tmp_path)
    assert analysis.headline_ns == 4_554_000
    assert [row.name for row in analysis.operators if row.kind != "framework"] == ["TfLiteGpuDelegateV2", "CUSTOM_OP"]


def test_of_two_reports_in_one_file_the_last_is_read(tmp_path: Path) -> None:
    """They are not added up, and how many there are is said."""
    other = (WILD / "nnapi24.txt").read_text()
    analysis = analysis_of(other + REPORT, tmp_path)
    assert analysis.headline_ns == 4_554_000
    assert any("2 reports" in warning.message for warning in analysis.trace.warnings)


def test_a_profile_is_found_behind_a_log(tmp_path: Path) -> None:
    """A process wrote both streams into one file."""
    log = "2024-05-01 12:00:00 [W:onnxruntime:, session.cc:1] nodes were not assigned\n"
    text = (WILD / "ort_qnn.json").read_text().replace('}, {"cat"', '},\n{"cat"')
    assert analysis_of(log + text, tmp_path, "log.txt").headline_ns == 2_713_000


def test_commas_that_are_no_json_cost_nothing(tmp_path: Path) -> None:
    """Some releases of ONNX Runtime write one behind the last shape."""
    text = (WILD / "ort_qnn.json").read_text().replace('}, {"cat"', '},\n{"cat"').replace("]}]", "]},]")
    analysis = analysis_of(text, tmp_path, "profile.json")
    assert analysis.headline_ns == 2_713_000
    assert "rows_lost" not in {warning.code for warning in analysis.trace.warnings}
    assert analysis.findings


def without_colons(text: str) -> str:
    """Damage some rows of nodes in the middle of a profile."""
    lines = text.replace('}, {"cat"', '},\n{"cat"').splitlines()
    return "\n".join(
        line.replace('"provider":', '"provider"') if at in {5, 9} else line for at, line in enumerate(lines)
    )


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("ort_qnn.json", without_colons),
        ("litert25_gpu.txt", lambda text: re.split(r".*nodes observed", text)[0]),
    ],
)
def test_lost_rows_are_told_first_and_carry_no_finding(file: str, damage: Callable[[str], str], tmp_path: Path) -> None:
    """The first sentence says so, before any figure; the grade is the lowest, and no split or advice is given."""
    analysis = analysis_of(damage((WILD / file).read_text()), tmp_path, file)
    screen = text_of(terminal_document(analysis_document(analysis)))
    assert screen.index("Lost input: ") < screen.index(" ms")
    assert "do not trust" in screen
    assert "category" not in screen
    assert analysis.findings == []
    assert [row.method for row in analysis.methods] == []
    compared = compare(tmp_path / file, WILD / file)
    assert compared.end_to_end.verdict == "withheld"
    assert "cannot be read" in str(compared.end_to_end.reason) or "truncated" in str(compared.end_to_end.reason)
    assert check(tmp_path / file, WILD / file).outcome.value == "untrusted"


@pytest.mark.parametrize("content", [b"[", b"[\n", b"{}"])
def test_the_profile_of_a_killed_process_is_called_that(content: bytes, tmp_path: Path) -> None:
    """It has no row."""
    with pytest.raises(EmptyTraceError, match="ends at its first bracket"):
        analysis_of(content, tmp_path, "profile.json")


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("| model | size | params | backend | ngl | test | t/s |\n| --- |\n", "llama-bench"),
        ("llama_print_timings: load time = 1 ms\n", "llama.cpp"),
    ],
)
def test_tools_that_are_not_read_are_named(text: str, tool: str, tmp_path: Path) -> None:
    """With what to do instead."""
    with pytest.raises(TraceFormatError) as caught:
        analysis_of(text, tmp_path)
    assert tool in caught.value.problem
    assert "measures the model itself" in str(caught.value.hint)
