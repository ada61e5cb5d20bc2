"""Profiles of ONNX Runtime, as releases from 1.10 to 1.31 wrote them, and what is wrong with some."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table import EventTable
from opscope.program.operators.taxonomy import classify
from opscope.readers.registry import read_trace, reader_for
from opscope.runtimes.onnxruntime import profile
from opscope.runtimes.onnxruntime.profile import OnnxRuntimeProfileReader
from opscope.workflows.analyze.analyses import analyze

DATA = Path(__file__).resolve().parents[2] / "data" / "onnxruntime"
LOOPS = sorted(DATA.glob("loop-*.json"))
WHERE = Path("profile.json")


def _row(cat: str, name: str, ts: int, dur: int, tid: int = 1, **arguments: object) -> dict[str, Any]:
    return {"cat": cat, "pid": 7, "tid": tid, "dur": dur, "ts": ts, "ph": "X", "name": name, "args": arguments}


def _node(name: str, ts: int, dur: int, op: str = "Conv", tid: int = 1, provider: str = "CPUExecutionProvider") -> Any:
    return _row("Node", f"{name}_kernel_time", ts, dur, tid, op_name=op, provider=provider)


def executed(ts: int, dur: int, *nodes: Any, tid: int = 1) -> list[Any]:
    """A run with its nodes, in the order in which they end."""
    inner = _row("Session", "SequentialExecutor::Execute", ts + 1, dur - 2, tid)
    return [*nodes, inner, _row("Session", "model_run", ts, dur, tid)]


def _table(rows: list[Any]) -> EventTable:
    return OnnxRuntimeProfileReader().read(json.dumps(rows).encode(), WHERE)


def _codes(found: EventTable) -> list[str]:
    """What the reader warned of, but for whole microseconds."""
    return [warning.code for warning in found.warnings if warning.code != "quantised_durations"]


@pytest.mark.parametrize("path", LOOPS, ids=[path.stem for path in LOOPS])
def test_every_release_gives_the_same_tree(path: Path) -> None:
    """Fences, thread statistics and arguments differ; runs, nodes and what control flow runs do not."""
    frame = read_trace(path).table.frame.filter(pl.col("inference") == 1)
    names = frame.select(pl.col("name").cast(pl.String), "depth").rows()
    body = [("SequentialExecutor::Execute", 3), ("Identity: body_id", 4), ("Add: body_add", 4)]
    assert [one for one in names if "Sqrt" not in one[0]] == [
        ("model_run", 0),
        ("SequentialExecutor::Execute", 1),
        ("Loop: the_loop", 2),
        *body * 3,
        ("If: the_if", 2),
        ("SequentialExecutor::Execute", 3),
        ("Relu: then_relu", 4),
    ]
    assert sum("Sqrt" in name for name, _ in names) == 1
    assert frame["self_time"].sum() == frame.filter(depth=0)["duration"].item()
    calls = {one.name: one.calls for one in analyze(path, warmup=0).operators if "body" in one.name}
    assert calls == {"Identity: body_id": 3, "Add: body_add": 3}, "iterations are calls of one operator"


def test_a_real_network_adds_up_to_its_runs() -> None:
    """The optimiser's names are kept; what the nodes leave is the framework's."""
    found = analyze(DATA / "cnn-1.31.json", warmup=0)
    assert found.trace.format == "onnxruntime-json"
    assert sum(one.time_ns for one in found.operators) == pytest.approx(found.headline_ns)
    shares = {row.category.value: row.share for row in found.categories}
    assert shares["Convolution"] > 0.8
    assert "Conv: stem.relu_nchwc" in {one.name for one in found.operators}


@pytest.mark.parametrize(
    ("name", "warmup", "code"), [("parallel-1.31", 0, "parallel_nodes"), ("short-1.31", 1, "nodes_do_not_add_up")]
)
def test_nodes_that_do_not_make_up_their_run_are_not_split(name: str, warmup: int, code: str) -> None:
    """They run in other threads, where times may overlap, or profiling costs as much as the model: latency counts."""
    found = analyze(DATA / f"{name}.json", warmup=warmup)
    assert [warning.code for warning in found.trace.warnings if warning.code != "quantised_durations"] == [code]
    assert not found.has_split
    assert found.latency.median_ns > 0


def test_times_are_nanoseconds_and_cut_off_to_microseconds() -> None:
    """Microseconds of the file times a thousand; the true duration is up to a microsecond longer.

    Start and duration are truncated each by itself: an end can be a microsecond late, and is moved into its run.
    """
    frame = _table(executed(10, 100, _node("a", 12, 90))).frame
    assert frame.select("start", "duration", "resolution").rows() == [
        (10_000, 100_000, 1_000),
        (11_000, 98_000, 1_000),
        (12_000, 90_000, 1_000),
    ]
    late = [_node("a", 13, 98), _row("Session", "SequentialExecutor::Execute", 12, 98)]
    moved = _table([*late, _row("Session", "model_run", 11, 98)]).frame
    assert moved["start"].to_list() == [11_000, 11_000, 11_000]


def test_a_short_node_behind_control_flow_is_not_taken_for_its_body() -> None:
    """It starts in the microsecond in which the body ended; the order of the rows says that it is outside."""
    rows = [
        _node("body", 20, 5, "Add"),
        _row("Session", "SequentialExecutor::Execute", 20, 5),
        _node("loop", 20, 5, "Loop"),
        _node("after", 25, 0, "Sqrt"),
        _row("Session", "SequentialExecutor::Execute", 19, 10),
        _row("Session", "model_run", 18, 12),
    ]
    depths = dict(_table(rows).frame.select(pl.col("name").cast(pl.String), "depth").rows())
    assert (depths["Sqrt: after"], depths["Loop: loop"], depths["Add: body"]) == (2, 2, 4)


def test_runs_of_two_sessions_are_told_apart_by_their_nodes() -> None:
    """A session always runs the same nodes, so that each list of nodes is a method."""
    first = executed(0, 100, _node("a", 5, 80))
    second = executed(200, 100, _node("b", 205, 80))
    again = executed(400, 100, _node("a", 405, 80))
    found = _table([*first, *second, *again])
    assert found.inferences()["method"].to_list() == ["session 1", "session 2", "session 1"]


def test_runs_of_several_threads_are_nested_each_by_itself_and_said() -> None:
    """Two callers at once: each has its nodes, and the warning says that they slowed each other down."""
    one, other = executed(0, 100, _node("a", 5, 80)), executed(50, 100, _node("a", 55, 80, tid=2), tid=2)
    found = _table([*one, *other])
    assert _codes(found) == ["concurrent_runs"]
    assert found.frame["self_time"].sum() == 200_000


def test_providers_are_backends_and_rows_of_an_accelerator_are_left_out() -> None:
    """What the CPU provider computes is a kernel of the runtime; a GPU's kernels run beside what started them."""
    rows = executed(0, 100, _node("a", 5, 40), _node("b", 50, 40, provider="CoreMLExecutionProvider"))
    found = _table([*rows, _row("Kernel", "gemm", 10, 60)])
    kept = found.frame.filter(pl.col("backend").is_not_null())
    assert kept.select(pl.col("scope").cast(pl.String), pl.col("backend").cast(pl.String)).rows() == [
        ("kernel", "CPUExecutionProvider"),
        ("delegate_op", "CoreMLExecutionProvider"),
    ]
    assert _codes(found) == ["device_rows"]
    assert "gemm" not in found.frame["name"].cast(pl.String).to_list()


def test_a_file_that_was_cut_off_keeps_its_whole_runs() -> None:
    """A crashed process leaves no end of the list; nodes of its last run are counted nowhere, which is said."""
    data = (DATA / "cnn-1.31.json").read_bytes()
    second = data.rindex(b'"name" :"SequentialExecutor')
    found = OnnxRuntimeProfileReader().read(data[:second], WHERE)
    assert found.inference_times().inference.tolist() == [0]
    assert _codes(found) == ["truncated", "unfinished_inference"]


@pytest.mark.parametrize("length", [1, 2, 3, 10, 60, 120, 1_000, 9_000, 18_600])
def test_every_length_is_read_or_refused(length: int) -> None:
    """Nothing but the errors of a reader leaves it."""
    with suppress(TraceFormatError):
        assert "truncated" in _codes(OnnxRuntimeProfileReader().read(LOOPS[-1].read_bytes()[:length], WHERE))


def test_a_name_that_is_not_unicode_costs_its_row_alone() -> None:
    """Found by fuzzing: such bytes are an error of their own kind."""
    damaged = LOOPS[0].read_bytes().replace(b"body_id", b"body_\xff\xfe", 1)
    assert "rows_lost" in _codes(OnnxRuntimeProfileReader().read(damaged, WHERE))


def test_rows_in_another_order_give_the_same_times() -> None:
    """Sorted by start, as tools write them again: end times then say what encloses what."""
    rows = json.loads(LOOPS[-1].read_text())
    expected = _table(rows).frame.group_by("name").agg(pl.col("self_time").sum()).sort("name")
    random.Random(1).shuffle(rows)
    shuffled = _table(rows).frame.group_by("name").agg(pl.col("self_time").sum()).sort("name")
    whole = (sum(frame["self_time"].to_list()) for frame in (expected, shuffled))
    assert len(set(whole)) == 1


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([_row("Session", "model_run", -1, 5)], "impossible time: ts -1"),
        ([_row("Session", "model_run", 0, 1 << 60)], "impossible time"),
        (executed(0, 10, _node("a", 1, 6), _node("b", 2, 6)), "do not nest"),
        ([_row("Session", "session_initialization", 0, 50)], r"no model_run among its 1 row$"),
    ],
)
def test_times_that_cannot_be_and_files_without_a_run_are_refused(rows: list[Any], problem: str) -> None:
    """The message names what is wrong; loading alone is no measurement."""
    with pytest.raises((EmptyTraceError, TraceFormatError), match=problem) as caught:
        _table(rows)
    assert isinstance(caught.value, EmptyTraceError) == problem.startswith("no model_run")


def test_it_is_recognised_before_other_json() -> None:
    """Traces of tiles are JSON of records as well."""
    assert reader_for(LOOPS[0].read_bytes()[:64], WHERE).name == "onnxruntime-json"
    assert reader_for(b'[{"name": "process_name", "ph": "M"', WHERE).name == "aie-json"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Conv: add", "convolution"),
        ("NhwcFusedConv: x", "convolution"),
        ("ReorderInput: x", "layout"),
        ("DynamicQuantizeMatMul: x", "matmul"),
        ("MatMulNBits: /layers.0/q_proj", "linear"),
        ("Loop: x", "framework"),
        ("MyOwn: Conv", "unknown"),
        ("DEPTHWISE_CONV_2D", "depthwise"),
        ("CUMSUM", "reduction"),
        ("StablehloAdd", "unknown"),
    ],
)
def test_nodes_are_classified_by_their_type(name: str, kind: str) -> None:
    """Never by what a node is called."""
    assert classify(name).kind == kind


def test_a_profile_is_decoded_in_parts_and_rows_of_a_node_share_what_they_have_in_common(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of any size of the parts, and where another program laid the rows out on several lines or on one."""
    content = (DATA / "cnn-1.31.json").read_bytes()
    whole = OnnxRuntimeProfileReader().read(content, tmp_path)
    layouts = [content, json.dumps(json.loads(content)).encode(), json.dumps(json.loads(content), indent=1).encode()]
    for part in (1, 1_000, 5_000, len(content)):
        monkeypatch.setattr(profile, "_PART", part)
        for layout in layouts:
            table = OnnxRuntimeProfileReader().read(memoryview(layout), tmp_path)
            assert table.frame.equals(whole.frame)
            assert [warning.code for warning in table.warnings] == [warning.code for warning in whole.warnings]
