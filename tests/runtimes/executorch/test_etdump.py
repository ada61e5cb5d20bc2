"""ETDump read: a trace of a few lines, and the events that come out of it; then damaged files, then real ones."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
from pathlib import Path

import flatbuffers
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from beside import DUMPS, reads_dumps
from installed import needs_executorch
from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table import Clock, EventTable
from opscope.core.table.schema import SCHEMA
from opscope.runtimes.executorch.etdump import EtdumpReader
from texts import ENDS_FIRST
from traces import Node, encode, etdump, table

DATA = Path(__file__).parents[2] / "data"
# Three inferences of the registered model toy_cnn in fp32 with one thread, as the runtime wrote them.
TOY = DATA / "toy_cnn.etdump"
OPERATORS = (DATA / "xnnpack_operators.txt").read_text("utf-8").splitlines()

TRACE = """
    Program::load_method 900
      Method::init 700
    Method::execute 100000
      DELEGATE_CALL @0 80000
        Convolution (NHWC, F32) IGEMM #1 50000
        Clamp (NC) #1 1000
      OPERATOR_CALL @1 15000
        native_call_add.out 14000
"""


def _read(data: bytes) -> EventTable:
    return EtdumpReader().read(data, Path("trace.etdump"))


def _rows(events: EventTable, *columns: str) -> list[tuple[object, ...]]:
    return events.frame.select(columns).rows()


def _codes(events: EventTable) -> list[str]:
    return [warning.code for warning in events.warnings]


def delegate_operator(builder: flatbuffers.Builder, number: int, end: int = 0) -> int:
    """An event that a delegate identifies by a number instead of a text."""
    builder.StartObject(8)
    builder.PrependInt32Slot(1, 0, 0)
    builder.PrependInt32Slot(2, 4, -1)
    builder.PrependInt32Slot(3, number, -1)
    builder.PrependUint64Slot(7, end, 0)
    return traces._table(builder, 3, [(0, builder.EndObject())])


def other_event(builder: flatbuffers.Builder, slot: int) -> int:
    """An allocation (slot 1) or debug (slot 2) event."""
    builder.StartObject(0)
    return traces._table(builder, 3, [(slot, builder.EndObject())])


def _file_of(builder: flatbuffers.Builder, events: list[int]) -> bytes:
    run = traces._run(builder, "Execute", events)
    builder.FinishSizePrefixed(traces._table(builder, 2, [(1, traces._vector(builder, [run]))]), b"ED00")
    return bytes(builder.Output())


def survives(data: bytes) -> bool:
    """Whether damaged bytes still are a trace; anything but a table or a format error is raised."""
    try:
        events = _read(data)
    except TraceFormatError:
        return False
    assert events.frame.schema == SCHEMA
    return True


def test_the_tree_of_a_trace():
    """Children precede their parent; durations are nanoseconds as in the file, self time is what the children leave."""
    events = table(TRACE)
    assert events.clock is Clock.NS
    wanted = "name", "scope", "parent", "depth", "backend", "instruction", "duration", "self_time"
    assert _rows(events, *wanted) == [
        ("Method::init", "init", 1, 1, None, None, 700, 700),
        ("Program::load_method", "load", None, 0, None, None, 900, 200),
        ("Convolution (NHWC, F32) IGEMM #1", "delegate_op", 4, 2, "XNNPACK", 0, 50_000, 50_000),
        ("Clamp (NC) #1", "delegate_op", 4, 2, "XNNPACK", 0, 1_000, 1_000),
        ("DELEGATE_CALL", "delegate_call", 7, 1, None, 0, 80_000, 29_000),
        ("native_call_add.out", "kernel", 6, 2, "portable", 1, 14_000, 14_000),
        ("OPERATOR_CALL", "operator_call", 7, 1, None, 1, 15_000, 1_000),
        ("Method::execute", "execute", None, 0, None, None, 100_000, 5_000),
    ]
    marks = {scope: pair for scope, *pair in _rows(events, "scope", "resolution", "synthetic_start")}
    assert marks.pop("delegate_op") == [1_000, True], "only delegate operators are cut off to microseconds"
    assert all(mark == [1, False] for mark in marks.values())


def test_starts_are_those_of_the_file():
    """Times are the runtime's own clock, not moved to zero."""
    events = table("Method::execute 100\n  OPERATOR_CALL @0 60\n  OPERATOR_CALL @1 40")
    assert _rows(events, "start") == [(1_000_000,), (1_000_060,), (1_000_000,)]


def test_loading_is_no_inference():
    """It comes first or between inferences and has no number: the blocks are counted, the inferences too."""
    assert _rows(table(TRACE, repeat=2), "run", "inference") == [(0, None)] * 2 + [(1, 0)] * 6 + [(2, 1)] * 6
    inference = Node("Method::execute", 50)
    blocks = [("Execute", [inference]), ("Default", [Node("Program::load_method", 9)]), ("Execute", [inference])]
    assert _rows(_read(encode(blocks)), "run", "inference") == [(0, 0), (1, None), (2, 1)]


def test_the_events_of_a_block_stay_in_it():
    """A call whose inference is missing is not adopted by the next block's."""
    blocks = [("Execute", [Node("OPERATOR_CALL", 5)]), ("Execute", [Node("Method::execute", 50)])]
    assert _rows(_read(encode(blocks)), "name", "parent") == [
        ("OPERATOR_CALL", None),
        ("Method::execute", None),
    ]


def test_a_loop_repeats_its_instruction():
    """Both rounds are kept, each call with its own kernel, at positions of their own."""
    events = table("""
        Method::execute 1000
          OPERATOR_CALL @2 100
            native_call_add.out 90
          JF_CALL @3 10
          OPERATOR_CALL @2 110
            native_call_add.out 95
          JF_CALL @3 10
    """)
    assert _rows(events, "scope", "instruction", "position", "duration", "parent") == [
        ("kernel", 2, 0, 90, 1),
        ("operator_call", 2, 0, 100, 6),
        ("control", 3, 1, 10, 6),
        ("kernel", 2, 0, 95, 4),
        ("operator_call", 2, 2, 110, 6),
        ("control", 3, 3, 10, 6),
        ("execute", None, None, 1000, None),
    ]


@pytest.mark.parametrize("name", ["MOVE_CALL", "JF_CALL", "FREE_CALL"])
def test_control_flow_has_a_scope_of_its_own(name):
    """Moves, jumps and frees are not operators and have no backend."""
    events = table(f"Method::execute 100\n  {name} @3 10")
    assert _rows(events, "scope", "backend", "instruction") == [("control", None, 3), ("execute", None, None)]


@pytest.mark.parametrize("data", [etdump(TRACE, size_prefix=False), etdump(TRACE) + b"\0" * 7], ids=["none", "longer"])
def test_the_size_prefix_says_where_a_trace_ends(data):
    """Files without it hold the same events; bytes behind that end are ignored."""
    assert _read(data).frame.equals(_read(etdump(TRACE)).frame)


@pytest.mark.parametrize(
    ("head", "recognised"),
    [
        *((etdump(TRACE, size_prefix=prefixed)[:64], True) for prefixed in (True, False)),
        *((head, False) for head in (b"", b"ED00", b"\0" * 12 + b"ED00", b"\x10\0\0\0ET12eh00", b"\0" * 64)),
    ],
)
def test_an_etdump_is_recognised_by_its_identifier(head, recognised):
    """Behind the root offset, or behind the prefix and the root offset; not elsewhere, nor by another one."""
    assert EtdumpReader().sniff(head) is recognised


def test_the_warning_about_whole_microseconds_says_how_much_they_may_hide():
    """Two operators an inference: up to 2 us of it."""
    (warning,) = table(TRACE, repeat=3).warnings
    assert warning.code == "quantised_durations"
    assert "up to 2 µs per inference" in warning.message


@pytest.mark.parametrize(
    ("trace", "scope", "backend"),
    [
        ("DELEGATE_CALL @0 8000\n    Clamp (NC) #1 1000\n    Clamp (NC) #2 1001", "delegate_op", "XNNPACK"),
        ("OPERATOR_CALL @0 8000\n    native_call_add.out 7000", "kernel", "portable"),
    ],
    ids=["a single odd duration of the delegate", "portable kernels alone"],
)
def test_durations_that_are_exact_are_not_marked(trace, scope, backend):
    """Even where some happen to be whole microseconds."""
    events = table(f"Method::execute 9000\n  {trace}")
    inner = events.frame.filter(scope=scope).select("backend", "resolution", "synthetic_start")
    assert set(inner.rows()) == {(backend, 1, False)}
    assert events.warnings == ()


def test_every_xnnpack_name_tells_the_backend():
    """The file does not name it, but the form of the operators' names does."""
    backends = {name: table(f"Method::execute 9\n  DELEGATE_CALL @0 8\n    {name} #1 7") for name in OPERATORS}
    assert [name for name, events in backends.items() if events.frame["backend"][0] != "XNNPACK"] == []


def test_a_delegate_with_other_names_stays_unnamed():
    """One name of another form is enough: what is not known is not guessed."""
    events = table("Method::execute 9\n  DELEGATE_CALL @0 8\n    Clamp (NC) #1 3\n    my_npu_conv 4")
    assert events.frame.filter(scope="delegate_op")["backend"].to_list() == ["delegate", "delegate"]


def test_operators_that_a_delegate_numbers_are_named_by_their_number():
    """The number is kept in a column of its own."""
    builder = flatbuffers.Builder(64)
    events = _read(_file_of(builder, [delegate_operator(builder, number) for number in (12, 0, 12)]))
    assert _rows(events, "name", "delegate_id", "scope", "backend", "instruction") == [
        ("delegate operator 12", 12, "delegate_op", "delegate", 4),
        ("delegate operator 0", 0, "delegate_op", "delegate", 4),
        ("delegate operator 12", 12, "delegate_op", "delegate", 4),
    ]


def test_allocation_and_debug_events_stand_beside_the_table():
    """They carry no time; the profiling event between them is read, and a warning says where they are."""
    builder = flatbuffers.Builder(64)
    events = [
        other_event(builder, 1),
        *traces._events(builder, Node("Method::execute", 50), 0),
        other_event(builder, 2),
    ]
    found = _read(_file_of(builder, events))
    assert _rows(found, "name", "duration") == [("Method::execute", 50)]
    assert _codes(found) == ["events_beside"]
    assert found.warnings[0].message.startswith("2 allocation or debug events")


def test_an_unfinished_inference_is_kept_and_warned_of():
    """The run ended before Method::execute was written; a call and the kernel inside it are two events."""
    call = Node("OPERATOR_CALL", 9, children=[Node("native_call_add.out", 5)])
    found = _read(encode([("Execute", [Node("Method::execute", 50)]), ("Execute", [call])]))
    assert _rows(found, "name", "inference") == [
        ("Method::execute", 0),
        ("native_call_add.out", None),
        ("OPERATOR_CALL", None),
    ]
    assert _codes(found) == ["unfinished_inference"]
    assert found.warnings[0].message.startswith("2 events outside any inference")


def test_a_whole_trace_has_no_warning():
    """Loading alone is not an unfinished inference either."""
    assert table("Program::load_method 9\n  Method::init 5\nMethod::execute 50").warnings == ()
    assert table("Program::load_method 9\n  Method::init 5").warnings == ()


@pytest.mark.parametrize(
    "data", [b"", *(encode(blocks) for blocks in ([], [("Default", [])], [("Execute", []), ("Execute", [])]))]
)
def test_a_trace_without_events_is_empty(data):
    """No bytes at all: the runtime was built without event tracing, and that is what to change."""
    with pytest.raises(EmptyTraceError, match="holds no events" if data else "is empty") as caught:
        _read(data)
    assert caught.value.where == "trace.etdump"
    assert data or "EXECUTORCH_ENABLE_EVENT_TRACER" in caught.value.hint


def _late() -> bytes:
    """An operator that ends at 2^63, which no clock reaches."""
    builder = flatbuffers.Builder(64)
    return _file_of(builder, [delegate_operator(builder, 1, end=2**63)])


def _vast() -> bytes:
    """Kernels of 2^64 ns together in a call of 1,000 ns."""
    most = 2**63 // 1_000 * 1_000
    operators = [Node("native_call_add.out", length) for length in (most, most, 2_000)]
    builder = flatbuffers.Builder(64)
    events = [traces._event(builder, node, 0) for node in (*operators, Node("OPERATOR_CALL", 1_000))]
    return _file_of(builder, events)


@pytest.mark.parametrize(
    ("data", "words", "offset"),
    [
        (b"PK\x03\x04" + b"\0" * 60, "ED00 is missing", 8),
        (etdump(TRACE)[:100], f"truncated: {len(etdump(TRACE)):,} bytes were written, 100 are here", 100),
        (
            encode([("Execute", [Node("Method::execute", -5)])]),
            rf"event 0 \(Method::execute, block 0\) {ENDS_FIRST}",
            None,
        ),
        (
            etdump("Method::execute 100\n  OPERATOR_CALL @0 10\n    native_call_add.out 11"),
            "OPERATOR_CALL, block 0",
            None,
        ),
        (_late(), r"larger than 2\^63", None),
        (_vast(), r"more than 2\^62", None),
    ],
    ids=["another format", "truncated", "ends before it starts", "child longer than its call", "2^63", "sum of 2^64"],
)
def test_a_file_that_contradicts_itself_is_refused(data, words, offset):
    """The event or the place is named."""
    with pytest.raises(TraceFormatError, match=words) as caught:
        _read(data)
    assert (caught.value.where, caught.value.offset) == ("trace.etdump", offset)


@pytest.mark.parametrize(
    ("data", "first", "step"),
    [(etdump(TRACE), 0, 1), *((TOY.read_bytes(), part, 4) for part in range(4))],
    ids=["made", *(f"real-{part}" for part in range(4))],
)
def test_every_truncation_with_size_prefix_is_refused(data, first, step):
    """Wherever the copy stopped."""
    assert [size for size in range(first, len(data), step) if survives(data[:size])] == []


def test_every_truncation_without_size_prefix_is_refused_or_harmless():
    """The last bytes are the end of a text and padding; what is read without them is the same trace."""
    data = etdump(TRACE, size_prefix=False)
    whole = _read(data).frame
    harmless = [size for size in range(len(data)) if survives(data[:size])]
    assert all(size > len(data) - 8 for size in harmless)
    assert all(_read(data[:size]).frame.equals(whole) for size in harmless)


@pytest.mark.parametrize("value", [0, 1, 4, 2**31 - 1, 2**31, 2**32 - 1], ids=hex)
def test_no_offset_or_length_is_trusted(value):
    """Every word of the file replaced, one at a time: an error or a table, and nothing else."""
    data = etdump(TRACE)
    damaged = [data[:at] + struct.pack("<I", value) + data[at + 4 :] for at in range(0, len(data) - 3, 4)]
    assert sum(survives(each) for each in damaged) < len(damaged)


def test_offsets_in_circles_end():
    """Every offset made to point to itself, back to where it stands, or to the start of the file."""
    data = etdump(TRACE)
    places = [(at, target) for at in range(4, len(data) - 3, 4) for target in (at, at - 4, 4)]
    damaged = [data[:at] + struct.pack("<I", (target - at) % 2**32) + data[at + 4 :] for at, target in places]
    assert sum(survives(each) for each in damaged) < len(damaged)


def test_flipped_bytes_are_an_error_or_a_table():
    """1,000 files with one to six random bytes changed."""
    rng = np.random.default_rng(20)
    data = np.frombuffer(etdump(TRACE), np.uint8)
    outcomes = []
    for _ in range(1_000):
        damaged = data.copy()
        count = rng.integers(1, 7)
        damaged[rng.integers(0, len(data), count)] = rng.integers(0, 256, count)
        outcomes.append(survives(damaged.tobytes()))
    assert 0 < sum(outcomes) < 1_000


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=200))
def test_random_bytes_behind_the_identifier_are_never_an_internal_error(tail):
    """Whatever stands there."""
    survives(b"\x10\0\0\0ED00" + tail)
    survives(b"\0\0\0\0\x10\0\0\0ED00" + tail)


def test_a_trace_of_the_runtime():
    """Three inferences of a small network: five instructions, two of them portable kernels; self times add up."""
    events = _read(TOY.read_bytes())
    sums = events.frame.group_by("inference").agg(pl.col("self_time").sum()).sort("inference").drop_nulls()
    assert sums["self_time"].to_list() == events.inferences()["duration"].to_list()
    assert (events.inferences().height, _codes(events)) == (3, ["quantised_durations"])
    last = events.frame.filter(pl.col("inference") == 2)
    assert last.filter(depth=1).select("scope", "instruction").rows() == [
        ("delegate_call", 0),
        ("operator_call", 1),
        ("delegate_call", 2),
        ("operator_call", 3),
        ("delegate_call", 4),
    ]
    assert last.filter(depth=2).select("name", "instruction").rows() == [
        ("Transpose (ND, X32) #1", 0),
        ("Convolution (NHWC, F32) IGEMM #1", 0),
        ("Convolution (NHWC, F32) IGEMM #2", 0),
        ("Transpose (ND, X32) #2", 0),
        ("Transpose (ND, X32) #3", 0),
        ("native_call_native_layer_norm.out", 1),
        ("Transpose (ND, X32) #1", 2),
        ("Clamp (NC) #1", 2),
        ("native_call_mean.out", 3),
        ("Fully Connected (NC, F32) GEMM #1", 4),
    ]


def flatc_events(path: Path, out: Path) -> list[dict[str, object]]:
    """The profiling events that flatc sees, in order, with the schema's defaults and the number of their block."""
    package = Path(importlib.util.find_spec("executorch").submodule_search_locations[0])
    schema = package / "devtools" / "etdump" / "etdump_schema_flatcc.fbs"
    options = ["--json", "--strict-json", "--raw-binary", "--size-prefixed", "-o", str(out)]
    flatc = package / "data" / "bin" / "flatc"
    subprocess.run([str(flatc), *options, str(schema), "--", str(path)], check=True, capture_output=True)
    defaults = {"chain_index": 0, "instruction_id": -1, "delegate_debug_id_int": -1, "start_time": 0, "end_time": 0}
    found = json.loads((out / f"{path.stem}.json").read_text("utf-8"))["run_data"]
    return [
        {"name": None, "delegate_debug_id_str": None, **defaults, **event["profile_event"], "block": block}
        for block, run in enumerate(found)
        for event in run.get("events", [])
        if "profile_event" in event
    ]


def adopting_parents(events: list[dict[str, object]]) -> list[int | None]:
    """Parents by a plain rule: a call adopts the operators that are pending, everything else adopts all."""
    parents: list[int | None] = [None] * len(events)
    pending: list[int] = []
    for row, event in enumerate(events):
        name = event["name"] or ""
        if row and events[row - 1]["block"] != event["block"]:
            pending = []
        if name in {"Method::execute", "Program::load_method"}:
            adopted = pending
        elif name.endswith("_CALL"):
            adopted = [other for other in pending if not (events[other]["name"] or "").endswith("_CALL")]
        else:
            adopted = []
        for other in adopted:
            parents[other] = row
        pending = [other for other in pending if other not in adopted] + [row]
    return parents


def real_dumps() -> list[object]:
    """The file that comes with the tests, and a dozen real ones across all number types."""
    dumps = sorted(DUMPS.glob("*.etdump"))[::7][:12] or [DUMPS]
    return [TOY, *(pytest.param(path, marks=reads_dumps) for path in dumps)]


@pytest.mark.runtime
@needs_executorch
@pytest.mark.parametrize("path", real_dumps(), ids=lambda path: path.stem)
def test_our_events_are_those_that_flatc_reads(path, tmp_path):
    """Event for event: name, place in the program, times, block and parent."""
    expected = flatc_events(path, tmp_path)
    found = _read(path.read_bytes()).frame
    wanted = ["name", "instruction", "delegate_id", "start", "duration", "run", "parent"]
    assert found.select(wanted).rows() == [
        (
            event["delegate_debug_id_str"] or event["name"],
            event["instruction_id"] if event["chain_index"] >= 0 else None,
            event["delegate_debug_id_int"] if event["delegate_debug_id_int"] >= 0 else None,
            event["start_time"],
            event["end_time"] - event["start_time"],
            event["block"],
            parent,
        )
        for event, parent in zip(expected, adopting_parents(expected), strict=True)
    ]


@reads_dumps
def test_the_operators_of_every_delegate_call_are_those_that_xnnpack_ran():
    """In the order in which the library itself was seen to run them, in every inference of every real dump."""
    truth = json.loads((DUMPS / "truth.json").read_text("utf-8"))
    for stem, delegates in truth.items():
        frame = _read((DUMPS / f"{stem}.etdump").read_bytes()).frame
        expected = {call["instruction"]: [event["name"] for event in call["events"]] for call in delegates}
        operators = frame.filter(scope="delegate_op").with_columns(pl.col("name").cast(pl.String))
        for (inference,), inside in operators.group_by("inference", maintain_order=True):
            found = inside.group_by("instruction", maintain_order=True).agg("name").rows()
            filled = {instruction: names for instruction, names in expected.items() if names}
            assert dict(found) == filled, (stem, inference)
