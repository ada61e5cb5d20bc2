"""What Stream predicts, read from its files and held against a trace: like against like, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from aie_gemm import Gemm
from aie_traces import json_text
from opscope.core.errors import NotFoundError, UsageError
from opscope.npu.analysis.prediction import Against, Repeated, against
from opscope.npu.cost_model import CostModel, cost_model
from opscope.npu.readers.stream_model import read_stream_model
from opscope.npu.reports.page import tiles_html, tiles_markdown
from opscope.npu.reports.terminal import tiles_summary
from opscope.npu.workflows.aie import Tiles, TilesRequest, analyze_tiles
from terminal_text import text_of
from texts import MULTIPLYING_CALLS

# The figures of docs/source/aie_calibration.md of KULeuven-MICAS/stream.
BREAKDOWN = """\
totals:
  latency_per_iteration: 1614
  overlap: 1040
  iter_step: 574
  total_latency: 2352144
resource_slack:
- resource: Core(2)
  slack_cycles: 1040
tensor_reuse: []
slots:
- slot: 0
  slot_latency_cycles: 574
  compute_contributors:
  - name: Gemm
    lut_latency_total: 574
"""
MODEL = CostModel(iteration_step=574, overlap=1040, latency_per_iteration=1614, total=2352144, of_slots=True)
LATENCY = {"total": 2352144, "per_iteration": 1614, "overlap_between_iterations": 1040}
TRACE = {
    "note": "cycles",
    "total_iterations": 4096,
    "latency_per_iteration_cycles": 1614.0,
    "overlap_cycles": 1040.0,
    "iter_step_cycles": 574.0,
    "total_latency_cycles": 2352144.0,
    "compact": True,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BREAKDOWN, MODEL),
        (BREAKDOWN.replace("\n", "\r\n"), MODEL),
        ("latency:\n  total: 2352144\n  per_iteration: 1614\n  overlap_between_iterations: 1040\nbackend: x\n", MODEL),
        (json.dumps({"schema_version": "1.5", "latency": LATENCY, "backend": "ORTOOLS_GSCIP"}), MODEL),
        (
            json.dumps({"traceEvents": [{"ph": "X"}], "otherData": TRACE}),
            msgspec.structs.replace(MODEL, iterations=4096),
        ),
        (
            "totals:\n  latency_per_iteration: 20.5\n  overlap: null\n  iter_step: 11\n",
            CostModel(iteration_step=11, latency_per_iteration=20.5, of_slots=True),
        ),
        ("totals:\n  latency_per_iteration: 9 # cycles", CostModel(latency_per_iteration=9, of_slots=True)),
    ],
)
def test_each_of_streams_files_is_read(tmp_path: Path, text: str, expected: CostModel) -> None:
    """The breakdown of slots, the latency block in YAML and JSON, and the trace of the schedule."""
    path = tmp_path / "file"
    path.write_text(text, newline="")

    assert read_stream_model(path) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no Stream latency"),
        ("totals:\nslots: []\n", "no Stream latency"),
        ("slots:\n  totals:\n    overlap: 3\n", "no Stream latency"),
        ("totals:\n  overlap: 'inf'\n", "overlap is 'inf', not a number of cycles"),
        ("totals:\n  iter_step: many\n", "iter_step is many, not a number"),
        ('{"latency": {"total": "long"}}', "not a Stream file"),
        ('{"latency": ', "not a Stream file"),
        ('{"traceEvents": []}', "no Stream latency"),
    ],
)
def test_a_file_without_a_latency_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """With what is wrong, and which files have one."""
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(UsageError, match=problem) as error:
        read_stream_model(path)
    assert "slot_latency_breakdown.yaml" in str(error.value.hint)


@pytest.mark.parametrize("text", [BREAKDOWN, json.dumps({"otherData": TRACE})])
def test_a_file_that_is_cut_off_gives_what_is_whole_or_an_error(tmp_path: Path, text: str) -> None:
    """At every length: numbers, or what is wrong."""
    path = tmp_path / "file"
    for length in range(len(text)):
        path.write_text(text[:length])
        try:
            found = read_stream_model(path)
        except UsageError:
            continue
        assert {found.step, found.overlap, found.latency_per_iteration, found.total} != {None}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As any other."""
    with pytest.raises(NotFoundError):
        read_stream_model(tmp_path / "nothing.yaml")


# Six calls of 100 cycles, one every 110.
CALLS = Repeated("calls", tuple(range(0, 660, 110)), tuple(range(100, 760, 110)), (True,) * 6)


def rows(needed: int | None = None, **numbers: float) -> dict[str, Against]:
    """What stands against the calls, by quantity."""
    model = cost_model(of_slots=True, **numbers)
    assert model is not None
    return {row.quantity: row for row in against(model, CALLS, needed).rows}


def test_the_step_stands_against_the_period_and_the_latency_against_nothing() -> None:
    """A latency of all slots is not a duration of a call, an overlap of slots none of calls."""
    found = rows(iteration_step=99, overlap=60, latency_per_iteration=159, total=159 + 5 * 99)

    assert (found["iteration_step"].measured, found["iteration_step"].error_cycles) == (110, -11)
    assert [found[name].measured for name in ("overlap", "latency_per_iteration", "total")] == [None] * 3
    assert "including transfers" in found["latency_per_iteration"].note


def test_the_total_without_its_latency_stands_against_the_starts() -> None:
    """Six iterations: five steps from the first start to the last, all of them in the trace."""
    row = rows(iteration_step=100, latency_per_iteration=160, total=660)["first_to_last_start"]

    assert (row.predicted, row.measured, row.extrapolated) == (500, 550, False)


def test_more_iterations_than_the_trace_holds_are_extrapolated() -> None:
    """And the number says so."""
    row = rows(iteration_step=100, latency_per_iteration=160, total=160 + 99 * 100)["first_to_last_start"]

    assert (row.predicted, row.measured, row.extrapolated) == (9900, 99 * 110, True)
    assert row.note.startswith("extrapolated: 99 steps")


def test_a_model_of_other_iterations_is_not_compared() -> None:
    """The product takes 24 calls, the model has 100 iterations: a step of the one is none of the other."""
    model = cost_model(of_slots=True, iteration_step=100, latency_per_iteration=160, total=160 + 99 * 100)
    assert model is not None
    found = against(model, CALLS, needed=24)

    assert [row.measured for row in found.rows] == [None] * 4
    assert [finding.rule for finding in found.findings] == ["cost_model_other_iteration"]
    assert "100 iterations, the product takes 24 calls" in found.findings[0].evidence


PRODUCT = TilesRequest(M=48, K=128, N=32, m=16, k=32, n=32, row=1, col=1, dtype="bf16", arch="npu1")


def analysed(tmp_path: Path, text: str) -> Tiles:
    """A made product of twelve calls, with a period of 513 cycles, and a file of Stream's."""
    trace, predicted = tmp_path / "trace.json", tmp_path / "slot_latency_breakdown.yaml"
    trace.write_bytes(b"".join(json_text([Gemm().tile()])))
    predicted.write_text(text)
    return analyze_tiles(trace, msgspec.structs.replace(PRODUCT, predicted=predicted))


def test_a_file_of_streams_is_held_against_the_calls_of_a_trace(tmp_path: Path) -> None:
    """Its iteration is a call: step and period, and all steps of the product, in every report."""
    text = "totals:\n  latency_per_iteration: 900\n  overlap: 400\n  iter_step: 500\n  total_latency: 6400\n"
    tiles = analysed(tmp_path, text)
    found = tiles.analysis.prediction

    assert found is not None
    assert (found.of, found.of_slots) == (MULTIPLYING_CALLS, True)
    measured = {row.quantity: row.measured for row in found.rows}
    assert (measured["iteration_step"], measured["first_to_last_start"]) == (513, 11 * 513)
    shown = text_of(tiles_summary(tiles.analysis))
    assert "iteration step" in shown
    assert "including transfers" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80


def test_an_extrapolated_total_is_marked_wherever_it_stands(tmp_path: Path) -> None:
    """On the terminal, in HTML and in Markdown the number itself says so."""
    trace = tmp_path / "trace.json"
    trace.write_bytes(b"".join(json_text([Gemm().tile()])))
    request = TilesRequest(predicted_per="call", predicted_step=500, predicted_total=500_000, predicted_latency=500)
    tiles = analyze_tiles(trace, request)
    number = "extrapolated 512,787"

    for shown in (text_of(tiles_summary(tiles.analysis)), tiles_html(tiles.examined), tiles_markdown(tiles.examined)):
        assert number in shown


def test_a_file_and_numbers_exclude_each_other(tmp_path: Path) -> None:
    """Either says what is predicted."""
    predicted = tmp_path / "slots.yaml"
    predicted.write_text(BREAKDOWN)
    with pytest.raises(UsageError, match="the file already has"):
        analyze_tiles(tmp_path / "none.json", TilesRequest(predicted=predicted, predicted_step=5))
