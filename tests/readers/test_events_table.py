"""Tables of events as CSV and Parquet: what is written comes back, and what does not hold is refused."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table import COLUMNS, Clock, EventTable, Scope, TraceWarning
from opscope.readers.events_table import EventsCsvReader, EventsParquetReader
from opscope.readers.registry import reader_for
from opscope.reports.formats.event_files import events_csv, parquet, sign_file
from opscope.runtimes.executorch.etdump import EtdumpReader
from texts import ENDS_FIRST
from traces import Node, encode, table

TRACE = """
    Program::load_method 900
      Method::init 700
    Method::execute 100000
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
        Clamp (NC) #1 3000
      OPERATOR_CALL @1 20000
        native_call_add.out 19000
"""
HOSTILE = [
    "=HYPERLINK('x')",
    "'=1",
    "''",
    "+1",
    "-1",
    "@x",
    "\ttab",
    "\r",
    "\nline\r\nline",
    'a,"b",c',
    "",
    "null",
    "0x00",
    "1e5",
    "true",
    "\N{RIGHT-TO-LEFT OVERRIDE}x",
    "\N{GRINNING FACE}",
    "\x00",
    "opscope.sha256\x18@",
    " blank ",
    "\N{BYTE ORDER MARK}x",
]
PATH = Path("events")
READERS = {"csv": EventsCsvReader(), "parquet": EventsParquetReader()}


def written(events: EventTable, form: str) -> bytes:
    """The table as a file of the format."""
    return b"".join(events_csv(events)) if form == "csv" else parquet(events)


def again(events: EventTable, form: str) -> EventTable:
    """The table, written and read."""
    return READERS[form].read(written(events, form), PATH)


def with_everything() -> EventTable:
    """A table in which every column that may be null is so in some rows and not in others, and texts are hostile."""
    count = len(HOSTILE)
    columns = {
        "run": pl.Series([0] * count),
        "scope": pl.Series([Scope.EXECUTE.value] + [Scope.KERNEL.value] * (count - 1)),
        "name": pl.Series(HOSTILE),
        "method": pl.Series([None, *HOSTILE[1:]], dtype=pl.Categorical),
        "backend": pl.Series([*HOSTILE[1:], None], dtype=pl.Categorical),
        "delegate_label": pl.Series([None, *HOSTILE[:-1]], dtype=pl.Categorical),
        "block": pl.Series(HOSTILE[::-1], dtype=pl.Categorical),
        "metadata": pl.Series([None, b"", b"\x00\xff", b"=1", *[None] * (count - 4)], dtype=pl.Binary),
        "chain": pl.Series([-1, *range(count - 1)]),
        "instruction": pl.Series([*range(count - 1), -1]),
        "delegate_id": pl.Series([-1, 1 << 40, *[-1] * (count - 2)]),
        "bundled_input": pl.Series([-1, 3, *[-1] * (count - 2)]),
        "start": pl.Series([1 << 60, *((1 << 60) + 10 * row for row in range(count - 1))]),
        "duration": pl.Series([10 * count, *[10] * (count - 1)]),
        "resolution": pl.Series([1, *[1000] * (count - 1)]),
        "synthetic_start": pl.Series([False, *[True] * (count - 1)]),
        "parent": pl.Series([-1, *[0] * (count - 1)]),
    }
    return EventTable.build(columns, Clock.NS, [TraceWarning("limit", "=1, 'quoted'", "\N{GREEK SMALL LETTER ALPHA}")])


def test_csv_holds_nothing_that_a_terminal_obeys() -> None:
    """Whatever the names are: they are escaped, and come back (below)."""
    text = written(with_everything(), "csv").decode()
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize(
    "events",
    [
        pytest.param(table(TRACE, repeat=3, warmup=1), id="loading and warm-up"),
        pytest.param(EventTable.concat([table(TRACE), table(TRACE, repeat=4)]).with_warmup([1, 2]), id="processes"),
        pytest.param(table("Program::load_method 5"), id="loading alone"),
        pytest.param(table(TRACE).with_method("forward"), id="a method"),
        pytest.param(with_everything(), id="every column"),
    ],
)
def test_what_is_written_comes_back(events: EventTable, form: str) -> None:
    """Every row, column and type; Parquet keeps the warnings as well, CSV says that it does not."""
    found = again(events, form)
    assert_frame_equal(found.frame, events.frame)
    assert found.clock is events.clock
    if form == "parquet":
        assert found.warnings == events.warnings
    else:
        assert [warning.code for warning in found.warnings] == ["warnings_not_kept"]


@pytest.mark.parametrize("form", READERS)
def test_a_clock_of_cycles_is_kept(form: str) -> None:
    """In CSV it is a last column, since cycles must not be taken for nanoseconds."""
    given = table(TRACE).frame
    kept = ["run", "scope", "name", "start", "duration"]
    columns = {name: given[name] for name in kept} | {"parent": given["parent"].fill_null(-1)}
    events = EventTable.build(columns, Clock.CYCLES)
    assert again(events, form).clock is Clock.CYCLES
    assert_frame_equal(again(events, form).frame, events.frame)


def test_the_csv_is_tidy_and_its_columns_are_the_documented_ones() -> None:
    """One header line with the columns of the reference, then one line an event."""
    lines = written(table(TRACE), "csv").decode().splitlines()
    assert lines[0] == ",".join([*(column.name for column in COLUMNS), "rows_left"])
    assert [line.rpartition(",")[2] for line in lines[1:]] == [str(left) for left in range(len(lines) - 2, -1, -1)]
    assert lines[4] == (
        "0,1,0,false,,delegate_op,Clamp (NC) #1,XNNPACK,0,0,1,,Clamp (NC) #1,,Execute,,1051900,3000,3000,1000,true,4,2,"
        f"{len(lines) - 5}"
    )


def test_guarded_cells_and_bytes_read_as_documented() -> None:
    """An apostrophe before formulas and before an apostrophe, bytes as hexadecimal, null empty, empty text quoted."""
    text = written(with_everything(), "csv").decode()
    assert ",'=HYPERLINK('x')," in text
    assert ",''=1," in text
    assert ",0x00ff," in text
    assert ',kernel,"",' in text


@pytest.mark.parametrize("form", READERS)
def test_files_are_recognised_by_their_first_bytes(form: str) -> None:
    """Whatever they are called."""
    assert reader_for(written(table(TRACE), form)[:64], PATH).name == f"events-{form}"


def test_a_spreadsheet_may_change_line_ends_and_capitals() -> None:
    """A byte order mark, CRLF and TRUE are what some write."""
    text = written(table(TRACE), "csv").replace(b"\n", b"\r\n").replace(b"true", b"TRUE").replace(b"false", b"FALSE")
    found = EventsCsvReader().read(b"\xef\xbb\xbf" + text, PATH)
    assert_frame_equal(found.frame, table(TRACE).frame)


def read_or_refused(content: bytes, form: str) -> EventTable | None:
    """The table of a file, or nothing when it was refused in the way that files are refused."""
    try:
        return READERS[form].read(content, PATH)
    except TraceFormatError as error:
        return None if error.where == "events" else pytest.fail("the file is not named")


@pytest.mark.parametrize("form", READERS)
def test_no_truncation_gives_a_table(form: str) -> None:
    """Cut anywhere, between two inferences too, a file is refused."""
    content = written(table(TRACE, repeat=2), form)
    assert not [n for n in range(len(content)) if read_or_refused(content[:n], form)]


def test_rows_that_are_missing_are_counted() -> None:
    """At the end; elsewhere the rows do not count down to the last one."""
    lines = written(table(TRACE), "csv").splitlines(keepends=True)
    with pytest.raises(TraceFormatError, match="truncated: 2 rows are missing"):
        EventsCsvReader().read(b"".join(lines[:-2]), PATH)
    with pytest.raises(TraceFormatError, match="rows_left does not match its rows"):
        EventsCsvReader().read(b"".join([*lines[:2], *lines[3:]]), PATH)


@pytest.mark.parametrize("position", range(0, 9000, 97))
def test_a_changed_byte_of_parquet_is_noticed_before_it_is_decoded(position: int) -> None:
    """The hash covers the whole file, itself included."""
    content = bytearray(written(table(TRACE), "parquet"))
    content[position % len(content)] ^= 0x20
    with pytest.raises(TraceFormatError, match=r"damaged|hash is missing"):
        EventsParquetReader().read(bytes(content), PATH)


def edited(**columns: object) -> pl.DataFrame:
    """The rows of a trace of two inferences, with columns replaced."""
    frame = table(TRACE, repeat=2).frame
    return frame.with_columns(**{name: pl.lit(value, dtype=frame[name].dtype) for name, value in columns.items()})


WRONG = {
    "no name": (edited(name=None), "event 0 has no name"),
    "no start": (edited(start=None), "event 0 has no start"),
    "self time": (edited(self_time=7), "event 0 says self_time 7, its other columns 700"),
    "depth": (edited(depth=1), "event 1 says depth 1, its other columns 0"),
    "inference": (edited(inference=0), "event 0 says inference 0, its other columns None"),
    "warm-up": (edited(warmup=True), "event 0 says warmup True"),
    "process": (edited(process=1), "not numbered from 0"),
    "parent": (edited(parent=99), "the parent of event 0 is not an event of its process"),
    "negative parent": (edited(parent=-2), "the parent of event 0 is not an event of its process"),
    "cycle": (edited(parent=0), "cycle"),
    "duration": (edited(duration=-1), f"event 0 .*{ENDS_FIRST}"),
}


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize(("frame", "problem"), WRONG.values(), ids=WRONG)
def test_columns_that_contradict_each_other_are_refused(frame: pl.DataFrame, problem: str, form: str) -> None:
    """What follows from other columns is derived anew and compared; the first event that differs is named."""
    whole = table(TRACE)
    content = csv_of(frame) if form == "csv" else parquet_of(frame, whole)
    with pytest.raises(TraceFormatError, match=problem):
        READERS[form].read(content, PATH)


def csv_of(frame: pl.DataFrame) -> bytes:
    """Rows as CSV, their text as it is."""
    left = pl.int_range(frame.height - 1, -1, -1, eager=True).alias("rows_left")
    return frame.with_columns(pl.col("metadata").bin.encode("hex"), left).write_csv().encode()


def parquet_of(frame: pl.DataFrame, clock_and_warnings: EventTable) -> bytes:
    """Rows as Parquet with the metadata of a table, its hash true."""
    metadata = pl.read_parquet_metadata(io.BytesIO(parquet(clock_and_warnings)))
    kept = {key: value for key, value in metadata.items() if key.startswith("opscope.")}
    file = io.BytesIO()
    frame.write_parquet(file, metadata=kept)
    return sign_file(file.getvalue())


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("column", ["name", "parent", "metadata"])
def test_missing_and_unknown_columns_are_named(column: str, form: str) -> None:
    """A table without a column, and with one more."""
    whole = table(TRACE)
    less, more = whole.frame.drop(column), whole.frame.with_columns(weight=pl.lit(1))
    for frame, problem in ((less, f"missing columns '{column}'"), (more, "unknown columns 'weight'")):
        content = parquet_of(frame, whole) if form == "parquet" else frame.with_columns(metadata=None).write_csv()
        if form == "csv" and column == "metadata" and frame is less:
            content = frame.write_csv()
        with pytest.raises(TraceFormatError, match=problem):
            READERS[form].read(content if isinstance(content, bytes) else content.encode(), PATH)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b",900,", b",many,", "'many' does not have the type Int64 .event 1, column duration"),
        (b",900,", b",9e2,", "'9e2' does not have the type Int64"),
        (b",900,", b",99999999999999999999,", "does not have the type Int64"),
        (b",load,", b",lord,", "'lord' does not have the type Enum"),
        (b",false,", b",no,", "'no' does not have the type Boolean .event 0, column warmup"),
        (b"\n0,1,", b"\n0,1,2,", "not CSV: found more fields"),
        (b",Method::init,", b",\xff,", "not CSV"),
        (b",Method::init,", b',"Method::init,', "not CSV|missing|has no"),
    ],
)
def test_cells_of_the_wrong_type_are_named(old: bytes, new: bytes, problem: str) -> None:
    """The cell, its event and its column."""
    with pytest.raises(TraceFormatError, match=problem):
        EventsCsvReader().read(written(table(TRACE), "csv").replace(old, new, 1), PATH)


def test_tables_without_events_are_refused() -> None:
    """A header alone is not a trace."""
    header = written(table(TRACE), "csv").splitlines(keepends=True)[0]
    with pytest.raises(EmptyTraceError, match="no events"):
        EventsCsvReader().read(header, PATH)


def test_parquet_of_other_tools_is_refused_with_a_hint() -> None:
    """It has no hash, so nothing says that it is whole."""
    file = io.BytesIO()
    pl.DataFrame({"a": [1]}).write_parquet(file)
    with pytest.raises(TraceFormatError, match="hash is missing") as caught:
        EventsParquetReader().read(file.getvalue(), PATH)
    assert "not written by opscope convert" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"opscope.clock": "hours"}, "its clock is not one of ns, cycles"),
        ({"opscope.warnings": "[1]"}, "its warnings cannot be read"),
    ],
)
def test_wrong_metadata_is_refused(metadata: dict[str, str], problem: str) -> None:
    """A clock that is not known, and warnings of another shape."""
    file = io.BytesIO()
    rest = {"opscope.clock": "ns", "opscope.warnings": "[]"} | metadata | {"opscope.sha256": "0" * 64}
    table(TRACE).frame.write_parquet(file, metadata=rest)
    with pytest.raises(TraceFormatError, match=problem):
        EventsParquetReader().read(sign_file(file.getvalue()), PATH)


@st.composite
def inferences(draw: st.DrawFn) -> list[Node]:
    """Inferences of any number of calls, with operators of any name in them."""
    name = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
    operators = st.lists(st.tuples(name, st.integers(0, 10**6)), max_size=3)
    found = []
    for calls in draw(st.lists(st.lists(st.tuples(st.booleans(), operators), max_size=3), min_size=1, max_size=4)):
        nodes = []
        for number, (delegate, inside) in enumerate(calls):
            leaves = [Node(text, duration, number, delegate) for text, duration in inside]
            total = sum(leaf.duration for leaf in leaves)
            nodes.append(Node("DELEGATE_CALL" if delegate else "OPERATOR_CALL", total + 5, number, children=leaves))
        found.append(Node("Method::execute", sum(node.duration for node in nodes) + 7, children=nodes))
    return found


@settings(max_examples=60, deadline=None)
@given(inferences(), st.integers(0, 3), st.sampled_from(sorted(READERS)))
def test_any_trace_comes_back(roots: list[Node], warmup: int, form: str) -> None:
    """Whatever the tree, the names and the times."""
    data = encode([("Execute", [root]) for root in roots])
    events = EtdumpReader().read(data, PATH).with_warmup(warmup)
    assert_frame_equal(again(events, form).frame, events.frame)
