"""The signatures of .tflite files and the traces of LiteRT runs, whole and damaged."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest

from opscope.api import preflight
from opscope.core.errors import EmptyTraceError, TraceFormatError, UsageError
from opscope.core.table import EventTable
from opscope.program.structure.plan import Dynamism
from opscope.runtimes.litert.signatures import check_callable, read_callable
from opscope.runtimes.litert.tflite import decode_tflite
from opscope.runtimes.litert.trace import INTERPRETER, SCHEMA, EventRow, LitertInference, LitertTrace, LitertTraceReader

MODELS = Path(__file__).parents[2] / "data" / "litert"
WHERE = Path("run.litert.json")


def _read_table(*inferences: LitertInference) -> EventTable:
    data = msgspec.json.encode(LitertTrace(SCHEMA, "2.3.0", "xnnpack", "serving_default", list(inferences)))
    assert LitertTraceReader().sniff(data[:64])
    return LitertTraceReader().read(data, WHERE)


def rows(table: EventTable) -> list[tuple[object, ...]]:
    """What a row says, without its times."""
    names = ("scope", "name", "backend", "instruction", "delegate_id", "self_time", "depth")
    return list(table.frame.select(names).iter_rows())


def test_signatures_name_inputs_and_outputs() -> None:
    """Names, shapes and types are those of the file."""
    model = read_callable(MODELS / "two_signatures.tflite")
    told = [
        (one.name, [(i.name, i.dtype.name, i.sizes) for i in one.inputs], [o.name for o in one.outputs])
        for one in model.signatures
    ]
    assert sorted(told) == [
        ("decode", [("b", "float32", (2, 8)), ("c", "float32", (2, 8))], ["text"]),
        ("encode", [("x", "float32", (2, 16))], ["code"]),
    ]
    assert not model.custom


def test_sizes_that_are_not_fixed_and_foreign_operators_are_seen() -> None:
    """Both are refused before anything runs."""
    (signature,) = read_callable(MODELS / "dynamic.tflite").signatures
    assert signature.inputs[0].dynamism is Dynamism.UNBOUNDED
    assert read_callable(MODELS / "flex.tflite").custom == ("FlexMatrixInverse",)
    with pytest.raises(UsageError, match="FlexMatrixInverse"):
        preflight(MODELS / "flex.tflite")


@pytest.mark.parametrize(
    ("operator", "told"), [("ethos-u", "Ethos-U"), ("edgetpu-custom-op", "Edge TPU"), ("DISPATCH_OP", "LiteRT plugin")]
)
def test_a_model_that_was_compiled_for_an_npu_is_told(operator: str, told: str) -> None:
    """By the operator that its compiler wrote."""
    path = MODELS / "tiny_fp32.tflite"
    with pytest.raises(UsageError, match=told) as caught:
        check_callable(read_callable(path)._replace(custom=(operator,)), path)
    assert "before NPU compilation" in caught.value.hint


@pytest.mark.parametrize("name", ["tiny_int8", "two_signatures"])
def test_a_file_cut_at_any_length_is_described_or_refused(name: str) -> None:
    """No other error leaves the reader."""
    data = (MODELS / f"{name}.tflite").read_bytes()
    for length in range(0, len(data), 3):
        with contextlib.suppress(TraceFormatError):
            assert decode_tflite(data[:length], "cut").subgraphs


def test_operators_of_the_delegate_stand_among_those_of_the_graph() -> None:
    """Nested time is not counted twice, telemetry is dropped, and each part of the delegate has a number."""
    events = [
        EventRow("invoke", 16, 1_000, 90, 0, 0, 0),
        EventRow("Invoke", 1, 1_001, 88, 0, 0, 0),
        EventRow("Convolution (NHWC, F32) IGEMM", 8, 0, 50, 0, 0, 0),
        EventRow("CUMSUM", 2, 1_060, 10, 3, 0, 0),
        EventRow("Mean (ND) Reduce2", 8, 0, 5, 0, 0, 0),
        EventRow("Invoke", 32, 0, 1 << 32, 0, 0, 0),
        EventRow("LiteRT::Run[Buffer sync]", 1, 1_092, 4, 0, 0, 0),
    ]
    assert rows(_read_table(LitertInference(100_000, events, 999_500))) == [
        ("execute", "LiteRtRunCompiledModel", None, None, None, 6_000, 0),
        ("control", "invoke", None, None, None, 2_000, 1),
        ("control", "Invoke", None, None, None, 23_000, 2),
        ("delegate_op", "Convolution (NHWC, F32) IGEMM", "XNNPACK", 0, 0, 50_000, 3),
        ("kernel", "CUMSUM", "portable", 3, None, 10_000, 3),
        ("delegate_op", "Mean (ND) Reduce2", "XNNPACK", 1, 0, 5_000, 3),
        ("control", "LiteRT::Run[Buffer sync]", None, None, None, 4_000, 1),
    ]


def interpreted(unit_ns: int = 1, interface: str = INTERPRETER) -> bytes:
    """A call of the Interpreter, of which the delegate took a part; one operator runs another graph twice."""
    events = [
        EventRow("Invoke", 1, 1_010, 3_950, 0, 0, 0),
        EventRow("Fully Connected (NC, F32) GEMM", 8, 0, 1_000, 0, 0, 0),
        EventRow("WHILE", 2, 2_500, 2_460, 1, 0, 0),
        EventRow("Invoke", 1, 2_600, 700, 0, 1, 0),
        EventRow("CUMSUM", 2, 2_600, 700, 0, 1, 0),
        EventRow("Invoke", 1, 3_500, 1_400, 0, 1, 0),
        EventRow("CUMSUM", 2, 3_500, 1_400, 0, 1, 0),
    ]
    call = LitertInference(4_000, events, 1_000)
    trace = LitertTrace(SCHEMA, "2.3.0", "xnnpack", "serving_default", [call], unit_ns, interface)
    return msgspec.json.encode(trace)


def test_operators_of_the_interpreter_have_nanoseconds() -> None:
    """Those of a delegate have whole microseconds still; graphs that an operator runs lie in its time."""
    table = LitertTraceReader().read(interpreted(), WHERE)
    assert [(*row[:2], *row[5:]) for row in rows(table)] == [
        ("execute", "Interpreter.Invoke", 50, 0),
        ("control", "Invoke", 490, 1),
        ("delegate_op", "Fully Connected (NC, F32) GEMM", 1_000, 2),
        ("kernel", "WHILE", 360, 2),
        ("control", "Invoke", 0, 3),
        ("kernel", "CUMSUM", 700, 4),
        ("control", "Invoke", 0, 3),
        ("kernel", "CUMSUM", 1_400, 4),
    ]
    assert table.frame["resolution"].to_list() == [1, 1, 1_000, 1, 1, 1, 1, 1]
    assert [one.message[:7] for one in table.warnings] == ["XNNPACK"]


@pytest.mark.parametrize("data", [interpreted(unit_ns=7), interpreted(unit_ns=0), interpreted(interface="other")])
def test_units_and_ways_that_are_not_known_are_refused(data: bytes) -> None:
    """A later version may write them."""
    with pytest.raises(TraceFormatError, match="are not known"):
        LitertTraceReader().read(data, WHERE)


@pytest.mark.parametrize(
    ("inferences", "error"),
    [
        ([LitertInference(1_000, [EventRow("Invoke", 1, 0, 90, 0, 0, 0)], 0)], TraceFormatError),
        ([LitertInference(-1, [])], TraceFormatError),
        ([LitertInference(1_000, [EventRow("Invoke", 1, 0, 1 << 60, 0, 0, 0)], 0)], TraceFormatError),
        ([], EmptyTraceError),
    ],
)
def test_times_that_no_run_has_are_refused(inferences: list[LitertInference], error: type[Exception]) -> None:
    """An event cannot be longer than the call that it lies in; a trace without inferences is empty."""
    with pytest.raises(error):
        _read_table(*inferences)


def test_a_trace_cut_at_any_length_is_refused() -> None:
    """Of a file of the real runtime."""
    data = (MODELS / "partial.litert.json").read_bytes()
    assert LitertTraceReader().read(data, WHERE).inference_times().duration.size
    for length in range(len(data) - 1):
        with pytest.raises(TraceFormatError):
            LitertTraceReader().read(data[:length], WHERE)
