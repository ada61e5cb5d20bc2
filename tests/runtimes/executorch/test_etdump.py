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
DUMPS = Path(__file__).resolve().parents[4] / "shared" / "data" / "xnnpack"
needs_dumps = pytest.mark.skipif(not DUMPS.is_dir(), reason="the collection of real dumps is not beside the repository")
needs_executorch = pytest.mark.skipif(importlib.util.find_spec("executorch") is None, reason="flatc is not installed")

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


def read(data: bytes) -> EventTable:
    """The events of a file's bytes."""
    return EtdumpReader().read(data, Path("trace.etdump"))


def rows(events: EventTable, *columns: str) -> list[tuple[object, ...]]:
    """The named columns, row by row."""
    return events.frame.select(columns).rows()


def codes(events: EventTable) -> list[str]:
    """What the reader warned of."""
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


def file_of(builder: flatbuffers.Builder, events: list[int]) -> bytes:
    """One block with these events."""
    run = traces._run(builder, "Execute", events)
    builder.FinishSizePrefixed(traces._table(builder, 2, [(1, traces._vector(builder, [run]))]), b"ED00")
    return bytes(builder.Output())


def survives(data: bytes) -> bool:
    """Whether damaged bytes still are a trace; anything but a table or a format error is raised."""
    try:
        events = read(data)
    except TraceFormatError:
        return False
    assert events.frame.schema == SCHEMA
    return True


def test_the_tree_of_a_trace():
    """Children precede their parent in the file, and the rows keep that order."""
    assert rows(table(TRACE), "name", "parent", "depth") == [
        ("Method::init", 1, 1),
        ("Program::load_method", None, 0),
        ("Convolution (NHWC, F32) IGEMM #1", 4, 2),
        ("Clamp (NC) #1", 4, 2),
        ("DELEGATE_CALL", 7, 1),
        ("native_call_add.out", 6, 2),
        ("OPERATOR_CALL", 7, 1),
        ("Method::execute", None, 0),
    ]


def test_what_each_event_stands_for():
    """The scope; the backend of operators only; and the instruction of everything inside the inference."""
    assert rows(table(TRACE), "scope", "backend", "instruction") == [
        ("init", None, None),
        ("load", None, None),
        ("delegate_op", "XNNPACK", 0),
        ("delegate_op", "XNNPACK", 0),
        ("delegate_call", None, 0),
        ("kernel", "portable", 1),
        ("operator_call", None, 1),
        ("execute", None, None),
    ]


def test_durations_are_nanoseconds():
    """As the file has them, in order of the rows; self time is what the children leave."""
    events = table(TRACE)
    assert events.clock is Clock.NS
    assert rows(events, "duration", "self_time") == [
        (700, 700),
        (900, 200),
        (50_000, 50_000),
        (1_000, 1_000),
        (80_000, 29_000),
        (14_000, 14_000),
        (15_000, 1_000),
        (100_000, 5_000),
    ]


def test_starts_are_those_of_the_file():
    """Times are the runtime's own clock, not moved to zero."""
    events = table("Method::execute 100\n  OPERATOR_CALL @0 60\n  OPERATOR_CALL @1 40")
    assert rows(events, "start") == [(1_000_000,), (1_000_060,), (1_000_000,)]


def test_loading_is_no_inference():
    """The block of loading comes first and has no inference number."""
    assert rows(table(TRACE, repeat=2), "run", "inference") == [(0, None)] * 2 + [(1, 0)] * 6 + [(2, 1)] * 6


def test_a_method_that_is_loaded_late_does_not_disturb_the_count():
    """Loading may stand between inferences: the blocks are counted, the inferences too."""
    inference = Node("Method::execute", 50)
    blocks = [("Execute", [inference]), ("Default", [Node("Program::load_method", 9)]), ("Execute", [inference])]
    assert rows(read(encode(blocks)), "run", "inference") == [(0, 0), (1, None), (2, 1)]


def test_the_events_of_a_block_stay_in_it():
    """A call whose inference is missing is not adopted by the next block's."""
    blocks = [("Execute", [Node("OPERATOR_CALL", 5)]), ("Execute", [Node("Method::execute", 50)])]
    assert rows(read(encode(blocks)), "name", "parent") == [("OPERATOR_CALL", None), ("Method::execute", None)]


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
    assert rows(events, "scope", "instruction", "position", "duration", "parent") == [
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
    assert rows(events, "scope", "backend", "instruction") == [("control", None, 3), ("execute", None, None)]


def test_the_size_prefix_changes_nothing():
    """Files written with and without it hold the same events."""
    assert read(etdump(TRACE, size_prefix=False)).frame.equals(read(etdump(TRACE)).frame)


def test_bytes_behind_the_trace_are_ignored():
    """The prefix says where it ends."""
    assert read(etdump(TRACE) + b"\0" * 7).frame.equals(read(etdump(TRACE)).frame)


@pytest.mark.parametrize("size_prefix", [True, False])
def test_an_etdump_is_recognised_by_its_identifier(size_prefix):
    """Behind the root offset, or behind the prefix and the root offset."""
    assert EtdumpReader().sniff(etdump(TRACE, size_prefix=size_prefix)[:64])


@pytest.mark.parametrize("head", [b"", b"ED00", b"\0" * 12 + b"ED00", b"\x10\0\0\0ET12eh00", b"\0" * 64])
def test_other_files_are_not_recognised(head):
    """The identifier stands elsewhere, is another one, or is missing."""
    assert not EtdumpReader().sniff(head)


def test_whole_microseconds_are_marked_as_such():
    """Only delegate operators are cut off; the runtime's own events are exact."""
    events = table(TRACE)
    wanted = ("scope", "resolution", "synthetic_start")
    assert [row for row in rows(events, *wanted) if row[0] != "delegate_op"] == [
        (scope, 1, False) for scope in ("init", "load", "delegate_call", "kernel", "operator_call", "execute")
    ]
    assert events.frame.filter(scope="delegate_op").select(wanted[1:]).rows() == [(1_000, True)] * 2


def test_the_warning_about_whole_microseconds_says_how_much_they_may_hide():
    """Two operators an inference: up to 2 us of it."""
    (warning,) = table(TRACE, repeat=3).warnings
    assert warning.code == "quantised_durations"
    assert "up to 2 µs per inference" in warning.message


def test_a_single_odd_duration_shows_that_the_delegate_measures_nanoseconds():
    """Then all its durations and starts are real."""
    events = table("""
        Method::execute 9000
          DELEGATE_CALL @0 8000
            Clamp (NC) #1 1000
            Clamp (NC) #2 1001
    """)
    delegate = events.frame.filter(scope="delegate_op")
    assert delegate.select("resolution", "synthetic_start").rows() == [(1, False)] * 2
    assert events.warnings == ()


def test_portable_kernels_alone_have_no_delegate():
    """Nothing is marked, even where durations happen to be whole microseconds."""
    events = table("Method::execute 9000\n  OPERATOR_CALL @0 8000\n    native_call_add.out 7000")
    assert rows(events, "backend", "resolution") == [("portable", 1), (None, 1), (None, 1)]
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
    events = read(file_of(builder, [delegate_operator(builder, number) for number in (12, 0, 12)]))
    assert rows(events, "name", "delegate_id", "scope", "backend", "instruction") == [
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
    found = read(file_of(builder, events))
    assert rows(found, "name", "duration") == [("Method::execute", 50)]
    assert codes(found) == ["events_beside"]
    assert found.warnings[0].message.startswith("2 allocation or debug events")


def test_an_unfinished_inference_is_kept_and_warned_of():
    """The run ended before Method::execute was written: its events are there, but belong to no inference."""
    blocks = [("Execute", [Node("Method::execute", 50)]), ("Execute", [Node("OPERATOR_CALL", 5)])]
    found = read(encode(blocks))
    assert rows(found, "name", "inference") == [("Method::execute", 0), ("OPERATOR_CALL", None)]
    assert codes(found) == ["unfinished_inference"]


def test_the_warning_counts_all_events_of_the_unfinished_inference():
    """A call and the kernel inside it are two events."""
    call = Node("OPERATOR_CALL", 9, children=[Node("native_call_add.out", 5)])
    (warning,) = read(encode([("Execute", [call])])).warnings
    assert warning.message.startswith("2 events outside any inference")


def test_a_whole_trace_has_no_warning():
    """Loading alone is not an unfinished inference either."""
    assert table("Program::load_method 9\n  Method::init 5\nMethod::execute 50").warnings == ()
    assert table("Program::load_method 9\n  Method::init 5").warnings == ()


def test_no_bytes_are_an_empty_trace():
    """The runtime was built without event tracing, and that is what to change."""
    with pytest.raises(EmptyTraceError, match="is empty") as caught:
        read(b"")
    assert "EXECUTORCH_ENABLE_EVENT_TRACER" in caught.value.hint


@pytest.mark.parametrize("blocks", [[], [("Default", [])], [("Execute", []), ("Execute", [])]])
def test_a_trace_without_events_is_empty(blocks):
    """Blocks or not: there is nothing to analyse."""
    with pytest.raises(EmptyTraceError, match="holds no events") as caught:
        read(encode(blocks))
    assert caught.value.where == "trace.etdump"


def test_a_file_of_another_format_is_refused():
    """With the place where the identifier should be."""
    with pytest.raises(TraceFormatError, match="ED00 is missing") as caught:
        read(b"PK\x03\x04" + b"\0" * 60)
    assert caught.value.offset == 8


def test_an_event_that_ends_before_it_starts_is_refused():
    """The contradiction is the file's, so it is named."""
    with pytest.raises(TraceFormatError, match=rf"event 0 \(Method::execute, block 0\) {ENDS_FIRST}") as caught:
        read(encode([("Execute", [Node("Method::execute", -5)])]))
    assert caught.value.where == "trace.etdump"


def test_children_that_do_not_fit_are_refused():
    """A kernel that takes longer than its call comes from a damaged file or from two clocks."""
    with pytest.raises(TraceFormatError, match="OPERATOR_CALL, block 0") as caught:
        table("Method::execute 100\n  OPERATOR_CALL @0 10\n    native_call_add.out 11")
    assert "clocks" in caught.value.hint


def test_a_time_beyond_63_bits_is_refused():
    """No clock counts that far: the value is damaged."""
    builder = flatbuffers.Builder(64)
    with pytest.raises(TraceFormatError, match=r"larger than 2\^63"):
        read(file_of(builder, [delegate_operator(builder, 1, end=2**63)]))


def test_durations_whose_sum_exceeds_64_bits_are_refused():
    """Operators of 2^64 ns together do not fit into a call of 1,000 ns."""
    most = 2**63 // 1_000 * 1_000
    operators = [Node(f"Clamp (NC) #{n}", length, delegate=True) for n, length in enumerate([most, most, 2_000])]
    builder = flatbuffers.Builder(64)
    events = [event for operator in operators for event in traces._events(builder, operator, 0)]
    events += traces._events(builder, Node("DELEGATE_CALL", 1_000), 0)
    with pytest.raises(TraceFormatError):
        read(file_of(builder, events))


def test_a_truncated_file_says_so():
    """The prefix states how many bytes were written."""
    data = etdump(TRACE)
    with pytest.raises(TraceFormatError, match=rf"truncated: {len(data):,} bytes were written, 100 are here") as caught:
        read(data[:100])
    assert caught.value.offset == 100


def test_every_truncation_with_size_prefix_is_refused():
    """Wherever the copy stopped."""
    data = etdump(TRACE)
    assert [size for size in range(len(data)) if survives(data[:size])] == []


def test_every_truncation_without_size_prefix_is_refused_or_harmless():
    """The last bytes are the end of a text and padding; what is read without them is the same trace."""
    data = etdump(TRACE, size_prefix=False)
    whole = read(data).frame
    harmless = [size for size in range(len(data)) if survives(data[:size])]
    assert all(size > len(data) - 8 for size in harmless)
    assert all(read(data[:size]).frame.equals(whole) for size in harmless)


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
    """Three inferences of a small network: five instructions, two of them portable kernels."""
    events = read(TOY.read_bytes())
    assert (events.inferences().height, codes(events)) == (3, ["quantised_durations"])
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


def test_every_inference_of_a_real_trace_is_fully_accounted_for():
    """Self times add up to the latency, to the nanosecond."""
    events = read(TOY.read_bytes())
    sums = events.frame.group_by("inference").agg(pl.col("self_time").sum()).sort("inference").drop_nulls()
    assert sums["self_time"].to_list() == events.inferences()["duration"].to_list()


@pytest.mark.parametrize("part", range(4))
def test_every_truncation_of_a_real_trace_is_refused(part):
    """Every fourth byte in each part."""
    data = TOY.read_bytes()
    assert [size for size in range(part, len(data), 4) if survives(data[:size])] == []


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


def real_dumps() -> list[Path]:
    """A dozen files across all number types."""
    return sorted(DUMPS.glob("*.etdump"))[::7][:12] or [DUMPS]


@pytest.mark.runtime
@needs_executorch
@needs_dumps
@pytest.mark.parametrize("path", real_dumps(), ids=lambda path: path.stem)
def test_our_events_are_those_that_flatc_reads(path, tmp_path):
    """Event for event: name, place in the program, times, block and parent."""
    expected = flatc_events(path, tmp_path)
    found = read(path.read_bytes()).frame
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


@pytest.mark.runtime
@needs_executorch
def test_our_events_of_the_shipped_trace_are_those_that_flatc_reads(tmp_path):
    """The same for the file that comes with the tests."""
    expected = flatc_events(TOY, tmp_path)
    assert rows(read(TOY.read_bytes()), "name", "start", "parent") == [
        (event["delegate_debug_id_str"] or event["name"], event["start_time"], parent)
        for event, parent in zip(expected, adopting_parents(expected), strict=True)
    ]


@needs_dumps
def test_the_operators_of_every_delegate_call_are_those_that_xnnpack_ran():
    """In the order in which the library itself was seen to run them, in every inference of every real dump."""
    truth = json.loads((DUMPS / "truth.json").read_text("utf-8"))
    for stem, delegates in truth.items():
        frame = read((DUMPS / f"{stem}.etdump").read_bytes()).frame
        expected = {call["instruction"]: [event["name"] for event in call["events"]] for call in delegates}
        operators = frame.filter(scope="delegate_op").with_columns(pl.col("name").cast(pl.String))
        for (inference,), inside in operators.group_by("inference", maintain_order=True):
            found = inside.group_by("instruction", maintain_order=True).agg("name").rows()
            filled = {instruction: names for instruction, names in expected.items() if names}
            assert dict(found) == filled, (stem, inference)
