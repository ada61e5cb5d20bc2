"""Reports of benchmark_model: tables, CSV, in logs; what they tell and what they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.api import analyze, compare
from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table import EventTable, Scope
from opscope.readers.registry import read_trace, trace_reader

DATA = Path(__file__).parents[2] / "data"
REPORTS = DATA / "benchmark_model"
STARTED = """STARTING!
Log parameter values verbosely: [0]
Graph: [/data/local/tmp/model.tflite]
Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if exceeding 150 seconds.
count=60 first=31 curr=9 min=8 max=31 avg=9.5 std=3

Running benchmark for at least 20 iterations and at least 1 seconds but terminate if exceeding 150 seconds.
count=20 first=9 curr=8 min=8 max=14 avg=9 std=1

Inference timings in us: Init: 855, First inference: 31, Warmup (avg): 9.5, Inference (avg): 9
Profiling Info for Benchmark Initialization:
============================== Run Order ==============================
\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t         AllocateTensors\t    0.100\t    0.100\t100.000%\t100.000%\t     0.000\t        1\tAllocateTensors/0

Timings (microseconds): count=1 curr=100
Memory (bytes): count=0
1 nodes observed

"""


def _read_table(path: Path) -> EventTable:
    return read_trace(path).table


def _write_report(directory: Path, text: str) -> Path:
    path = directory / "report.txt"
    path.write_text(text, encoding="utf-8")
    return path


def rows(path: Path) -> list[tuple[str, str, int, int]]:
    """Scope, name, number and duration of every operator."""
    frame = _read_table(path).frame
    wanted = frame.filter(frame["scope"].is_in([Scope.KERNEL.value, Scope.DELEGATE_OP.value]))
    return list(wanted.select("scope", "name", "instruction", "duration").iter_rows())


def test_the_tables_hold_the_average_inference() -> None:
    """Operators in the order of the run, by the share of the total, which has more digits than the milliseconds."""
    assert rows(REPORTS / "partial.txt") == [
        ("delegate_op", "Convolution (NHWC, F32) IGEMM", 0, 2100),
        ("kernel", "CUMSUM", 1, 1250),
        ("delegate_op", "Fully Connected (NC, F32) GEMM", 1, 2250),
        ("delegate_op", "Mean (ND) Reduce2", 1, 0),
    ]


def test_csv_and_logs_tell_the_same_as_text(tmp_path: Path) -> None:
    """Names may hold commas; on Android each line has its time, its process and its tag in front."""
    expected = rows(REPORTS / "partial.txt")
    text = STARTED + (REPORTS / "partial.txt").read_text(encoding="utf-8")
    stamped = "".join(f"05-31 10:31:13.023 21767 21767 I tflite  : {line}\n" for line in text.splitlines())
    assert rows(REPORTS / "partial.csv") == expected
    assert rows(_write_report(tmp_path, text)) == expected
    assert rows(_write_report(tmp_path, stamped)) == expected


def test_a_section_of_the_delegate_is_part_of_its_row() -> None:
    """Times are not counted twice: what the delegate reports lies in the call of the graph."""
    found = _read_table(REPORTS / "tiny_int8_inner.txt").frame
    place = found["scope"].to_list().index(Scope.DELEGATE_CALL.value)
    call = found.row(place, named=True)
    inner = found.filter(found["scope"] == Scope.DELEGATE_OP.value)
    assert call["name"] == "TfLiteXNNPackDelegate"
    assert set(inner["parent"]) == {place}
    assert 0 < sum(inner["duration"]) < call["duration"]
    assert found.row(0, named=True)["duration"] == call["duration"]


@pytest.mark.parametrize(("report", "program"), [("partial.txt", "partial"), ("tiny_int8_inner.txt", "tiny_int8")])
def test_with_the_program_operators_are_attributed_exactly(report: str, program: str) -> None:
    """Also through the report of another version."""
    found = analyze(REPORTS / report, program=DATA / "litert" / f"{program}.tflite")
    assert [row.attribution.value for row in found.coverage] == ["exact"]


def test_what_is_not_known_is_said() -> None:
    """Averages have no percentiles, tables alone no stopwatch; without the model the advice is LiteRT's."""
    found = analyze(REPORTS / "partial.txt")
    assert {warning.code for warning in found.trace.warnings} == {
        "averages_only",
        "no_stopwatch",
        "quantised_durations",
    }
    assert "20 inferences" in found.trace.warnings[0].message
    assert all("Partitioner" not in str(one) for one in found.findings)


def test_two_reports_decide_nothing() -> None:
    """One average a side has no spread."""
    compared = compare(REPORTS / "partial_own_kernels.txt", REPORTS / "partial.txt")
    assert compared.end_to_end.verdict.value == "undecidable"


def test_a_whole_log_tells_the_time_of_an_inference(tmp_path: Path) -> None:
    """Also what inferences differ by; initialisation is not part of it."""
    path = _write_report(tmp_path, STARTED + (REPORTS / "partial.txt").read_text(encoding="utf-8"))
    assert _read_table(path).frame.row(0, named=True)["duration"] == 9000
    told = {warning.code: warning.message for warning in _read_table(path).warnings}
    assert "no_stopwatch" not in told
    assert "longest 0.014 ms" in told["averages_only"]
    assert rows(path) == rows(REPORTS / "partial.txt")


def test_a_column_more_or_less_is_no_matter(tmp_path: Path) -> None:
    """Earlier versions tell when an operator began."""
    text = """============================== Run Order ==============================
\t [node type]\t [start]\t [first]\t [avg ms]\t [%]\t [cdf%]\t [mem KB]\t[times called]\t[Name]
\t CONV_2D\t 0.000\t 7.375\t 6.549\t 90.000%\t 90.000%\t 0.000\t 1\t[a, b]:0
\t ADD\t 7.000\t 0.500\t 0.400\t 10.000%\t100.000%\t 0.000\t 2\t[c]:4

"""
    assert rows(_write_report(tmp_path, text)) == [("kernel", "CONV_2D", 0, 6_549_000), ("kernel", "ADD", 4, 800_000)]
    codes = {warning.code for warning in _read_table(tmp_path / "report.txt").warnings}
    assert "merged_rows" in codes


def test_graphs_that_are_called_by_operators_are_not_added(tmp_path: Path) -> None:
    """The time of a loop's body is in the loop."""
    head = "============================== Run Order ==============================\n"
    columns = "\t[node type]\t[first]\t[avg ms]\t[%]\t[cdf%]\t[mem KB]\t[times called]\t[Name]\n"
    row = "\t{}\t1.0\t1.000\t100.000%\t100.000%\t0.000\t1\t[x]:0\n\n"
    text = (
        "Operator-wise Profiling Info for Regular Benchmark Runs:\nPrimary graph (name: main) profile:\n"
        f"{head}{columns}{row.format('WHILE')}Subgraph (index: 1, name: body) profile:\n"
        f"{head}{columns}{row.format('ADD')}"
    )
    path = _write_report(tmp_path, text)
    assert [name for _, name, _, _ in rows(path)] == ["WHILE"]
    assert "other_graphs" in {warning.code for warning in _read_table(path).warnings}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("STARTING!\nerror: no such model\n", EmptyTraceError),
        ("============================== Run Order ====\n\t[node type]\t[times]\n\tADD\t1\n", TraceFormatError),
        (
            (
                "============================== Run Order ==============================\n"
                "\t[node type]\t[first]\t[avg ms]\t[%]\t[cdf%]\t[mem KB]\t[times called]\t[Name]\n\tADD\t1.0\tfast\n"
            ),
            TraceFormatError,
        ),
    ],
)
def test_a_report_without_operators_or_with_other_tables_is_refused(
    tmp_path: Path, text: str, error: type[Exception]
) -> None:
    """With the line where it can be told."""
    with pytest.raises(error):
        _read_table(_write_report(tmp_path, text))


CUT = {"rows_lost", "no_delegate_operators"}
"""Warnings that say that the end is missing, or may be."""


@pytest.mark.parametrize("name", ["partial.txt", "partial.csv", "tiny_int8_inner.txt", "whole log"])
def test_every_beginning_of_a_report_tells_the_same_or_that_it_is_cut_off(tmp_path: Path, name: str) -> None:
    """Around every end of a line, and between: figures of operators and inference, or an error, or a warning."""
    log = (STARTED + (REPORTS / "partial.txt").read_text(encoding="utf-8")).encode()
    data = log if name == "whole log" else (REPORTS / name).read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(data)
    reader = trace_reader(path)
    whole = reader.read(data, path)
    assert CUT.isdisjoint(warning.code for warning in whole.warnings)
    ends = [place + near for place, byte in enumerate(data) if byte == ord("\n") for near in (0, 1, 2)]
    for length in sorted({*range(0, len(data), 11), *ends} - {len(data), len(data) + 1}):
        try:
            found = reader.read(data[:length], path)
        except (EmptyTraceError, TraceFormatError):
            continue
        assert found.frame.equals(whole.frame) or not CUT.isdisjoint(warning.code for warning in found.warnings), length


def test_lines_that_a_log_lost_are_missed(tmp_path: Path) -> None:
    """The last line of a table counts its operators, and shares add up to the whole."""
    lines = (REPORTS / "partial.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    without = [line for number, line in enumerate(lines) if number != 5]
    with pytest.raises(TraceFormatError, match="a table has 3 operators, and its last line counts 4"):
        _read_table(_write_report(tmp_path, "".join(without)))
    with pytest.raises(TraceFormatError, match=r"the shares of a table's operators add up to 59\.8 %"):
        _read_table(_write_report(tmp_path, "".join(lines[:5])))


@pytest.mark.parametrize(
    "text", ["INFO: Starting the server\n", "=== Run Order ===\n", "05-31 10:31:13.023 1 2 I other : x\n"]
)
def test_text_of_others_is_left_alone(tmp_path: Path, text: str) -> None:
    """Only what the tool prints is taken for it."""
    assert trace_reader(_write_report(tmp_path, text)) is None
