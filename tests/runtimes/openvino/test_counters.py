"""Counters as OpenVINO's own tools report them: the same run in each of their forms, and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.api import analyze, compare, preflight
from opscope.core.errors import EmptyTraceError, TraceFormatError

REPORTS = Path(__file__).parents[2] / "data" / "openvino" / "reports"
RUN = {"mid": 56, "stem": 32, "sum": 17, "pool": 9, "Convert_32": 8, "head": 6}
"""Times of nodes of one run in µs; those of two added layout changes are 6 and 1 µs."""


def times_us(report: Path) -> dict[str, int]:
    """Return the time of each operator by the name of its node."""
    rows = analyze(report).operators
    return {row.name.partition(": ")[2]: round((row.time_ns or 0) / 1000) for row in rows if row.kind != "framework"}


def codes(report: Path) -> set[str]:
    """Return the codes of the warnings."""
    return {warning.code for warning in analyze(report).trace.warnings}


@pytest.mark.parametrize("name", ["average_counters.csv", "counters.log", "execution_graph.xml"])
def test_one_run_has_the_same_times_in_each_form(name: str) -> None:
    """Nodes of the graph that read constants alone ran when the model was compiled; the other forms leave them out."""
    analysis = analyze(REPORTS / name)
    assert analysis.headline_ns == 135_000
    assert times_us(REPORTS / name).items() >= RUN.items()
    kernels = {row.name.partition(": ")[2]: row.kernel for row in analysis.operators}
    assert kernels["mid"] == "brgconv_avx512_amx_bf16"
    assert kernels["head"] == "brgemm_avx512_bf16"
    assert {"averages_only", "no_stopwatch", "nodes_not_run", "quantised_durations"} == codes(REPORTS / name)


@pytest.mark.parametrize(
    ("name", "call_us", "mid_us", "requests"),
    [
        ("sorted.log", 149, 85, 2),
        ("detailed_counters.json", 149, 85, 2),
        ("sorted_report.json", 201, 99, 1),
        ("sorted_report.csv", 446, 119, 1),
        ("stem_counters.csv", 1014, None, 1),
    ],
)
def test_of_several_infer_requests_the_first_is_read(
    name: str, call_us: int, mid_us: int | None, requests: int
) -> None:
    """They are not added up, and how many there are is said."""
    assert analyze(REPORTS / name).headline_ns == call_us * 1000
    assert times_us(REPORTS / name).get("mid") == mid_us
    assert ("several_reports" in codes(REPORTS / name)) == (requests > 1)
    assert "rows_lost" not in codes(REPORTS / name)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", ";\n").replace("Status.", ""),  # as the tool in C++ writes it
        lambda text: text.replace("mid;", "block;mid, b;"),  # names of TensorFlow have semicolons
        lambda text: "﻿" + text.replace("\n", "\r\n"),
        lambda text: text.encode("utf-16"),
        lambda text: text + text,  # of two infer requests
    ],
    ids="cpp semicolon bom utf-16 two".split(),
)
def test_other_forms_of_the_table_have_the_same_sum(change: object, tmp_path: Path) -> None:
    """Neither the tool nor the editor that wrote it changes a time."""
    content = change((REPORTS / "average_counters.csv").read_text())  # type: ignore[operator]
    report = tmp_path / "report.csv"
    report.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert analyze(report).headline_ns == 135_000
    assert 56 in times_us(report).values()
    assert "rows_lost" not in codes(report)


@pytest.mark.parametrize(("name", "line"), [("average_counters.csv", "mid;"), ("counters.log", "mid    ")])
def test_lost_rows_are_told(name: str, line: str, tmp_path: Path) -> None:
    """A row that is missing, and a file that ends before its total."""
    lines = (REPORTS / name).read_text().splitlines(keepends=True)
    (tmp_path / name).write_text("".join(row for row in lines if not row.startswith(line)))
    assert "rows_lost" in codes(tmp_path / name)
    assert analyze(tmp_path / name).findings == []
    place = next(number for number, row in enumerate(lines) if row.startswith("pool"))
    (tmp_path / name).write_text("".join(lines[:place]))
    assert "rows_lost" in codes(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "old", "new", "error"),
    [
        ("average_counters.csv", "0.056;0.056", "0.0x6;0.056", TraceFormatError),
        ("detailed_counters.json", '"0.085"', '"nan"', TraceFormatError),
        ("detailed_counters.json", '"nodes"', '"n"', TraceFormatError),
        ("execution_graph.xml", "</net>", "", TraceFormatError),
        ("execution_graph.xml", "<net ", '<!DOCTYPE net [<!ENTITY a "b">]><net ', TraceFormatError),
        ("execution_graph.xml", 'execTimeMcs="56"', 'execTimeMcs="9999999999999"', TraceFormatError),
    ],
)
def test_damage_is_refused(name: str, old: str, new: str, error: type[Exception], tmp_path: Path) -> None:
    """The error names the file or what is wrong in it."""
    text = (REPORTS / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new))
    with pytest.raises(error):
        analyze(tmp_path / name)


def test_a_graph_that_was_not_timed_is_empty(tmp_path: Path) -> None:
    """The model was compiled without counters."""
    text = (REPORTS / "execution_graph.xml").read_text()
    for time_us in ("1", "6", "8", "9", "17", "32", "56"):
        text = text.replace(f'execTimeMcs="{time_us}"', 'execTimeMcs="not_executed"')
    (tmp_path / "graph.xml").write_text(text)
    with pytest.raises(EmptyTraceError, match="no node has a time"):
        analyze(tmp_path / "graph.xml")


def test_an_execution_graph_is_no_model() -> None:
    """Preflight names the command that reads it."""
    with pytest.raises(TraceFormatError, match="execution graph") as caught:
        preflight(REPORTS / "execution_graph.xml")
    assert "opscope analyze" in str(caught.value.hint)


def test_two_reports_are_compared_by_their_nodes() -> None:
    """Averages have no interval."""
    comparison = compare(REPORTS / "counters.log", REPORTS / "sorted.log")
    assert comparison.end_to_end.verdict == "undecidable"
    assert (comparison.end_to_end.baseline_ns, comparison.end_to_end.candidate_ns) == (135_000, 149_000)
