"""Traces in JSON: any layout and all odd content against a plain reading with json.loads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_captures import OUTLINES, Captures
from aie_traces import Span, Tile, flat, plain_spans, records, spans_read, words_text
from opscope import analyze, read
from opscope.api import convert
from opscope.core.errors import EmptyTraceError, NotFoundError, OpscopeError, StorageError, TraceFormatError
from opscope.core.table import TraceWarning
from opscope.core.table.tiles import TileTrace, TileTraceSet, Unit
from opscope.npu.devices import aie_devices
from opscope.npu.readers import json_text as aie_json_text
from opscope.npu.readers.files import read_tiles
from opscope.npu.readers.json import AieJsonReader, read_json
from opscope.readers.registry import read_trace

PATH = Path("trace.json")
NAMES = ["INSTR_EVENT_0", "INSTR_EVENT_1", "INSTR_VECTOR", "LOCK_STALL", *["NONE"] * 4]
CORE = Tile("core", 2, 4, NAMES, (Span(3, 1, 900), Span(0, 1000, 1001), Span(2, 1010, 1030), Span(1, 1100, 1101)))
MANY = Tile("core", 3, 0, NAMES, tuple(Span(slot, 7 * n + 1, 7 * n + 3) for n in range(300) for slot in (2, 0)))


def trace(*changed: dict, tiles: tuple[Tile, ...] = (CORE,)) -> bytes:
    """The records of tiles with others behind them, as mlir-aie writes them."""
    listed = [*records(tiles), *changed]
    return b"[" + b",\n".join(json.dumps(record).encode() for record in listed) + b"]\n"


def event(name: str, ts: object, ph: str, pid: object = 0, tid: object = 0) -> dict:
    """A begin or end."""
    return {"name": name, "ts": ts, "ph": ph, "pid": pid, "tid": tid, "args": {}}


def codes(found: TileTraceSet) -> list[str]:
    """Codes of all warnings."""
    return [warning.code for warning in found.all_warnings]


def spans_read_or_none(data: bytes) -> dict[tuple, list[tuple]]:
    """The same of what is read from a file; nothing when it holds no span."""
    try:
        return spans_read(read_json(data, PATH).tiles)
    except EmptyTraceError:
        return {}


@pytest.mark.parametrize("name", sorted(path.stem for path in OUTLINES.glob("*.json")))
@pytest.mark.parametrize("layout", ["as it is", "compact", "indented", "sorted"])
def test_captures_read_as_a_plain_reading_finds_them(captures: Captures, name: str, layout: str) -> None:
    """Every event in stream order, whatever the layout; nothing to warn of."""
    path = captures.json(name)
    golden = json.loads(path.read_bytes())
    text = {
        "as it is": path.read_text(),
        "compact": json.dumps(golden, separators=(",", ":")),
        "indented": json.dumps({"traceEvents": golden, "displayTimeUnit": "ns"}, indent=2),
        "sorted": json.dumps(golden, sort_keys=True),
    }[layout]
    found = read_json(text.encode(), path)
    assert found.all_warnings == ()
    for tile in found.tiles:
        own = [r for r in golden if r["pid"] == tile.pid and r["ph"] in {"B", "E"}]
        assert flat(tile.slots) == [(r["name"], r["ts"], r["ph"] == "B", r["tid"]) for r in own]


def layouts() -> st.SearchStrategy[dict]:
    """Ways to lay out JSON."""
    return st.fixed_dictionaries(
        {
            "indent": st.sampled_from([None, None, 0, 1, "\t"]),
            "separators": st.sampled_from([(", ", ": "), (",", ":"), (" ,", " :  "), (",\r\n", ":")]),
            "sort_keys": st.booleans(),
            "ensure_ascii": st.booleans(),
        }
    )


ODD = st.sampled_from(
    [
        7,
        None,
        "x",
        [],
        {},
        {"ph": "B"},
        {"ph": {}, "name": [], "args": {"name": {}}},
        {"name": "INSTR_VECTOR", "ph": "i", "ts": 3, "pid": 0, "tid": 2},
        event("INSTR_VECTOR", 12.5, "B", tid=2),
        event("INSTR_VECTOR", 12.0, "B", tid=2),
        event("INSTR_VECTOR", 10**30, "B", tid=2),
        event("INSTR_VECTOR", 1e300, "E", tid=2),
        event("INSTR_VECTOR", True, "E", tid=2),  # noqa: FBT003 - a value that JSON may hold
        event("INSTR_VECTOR", "5", "E", tid=2),
        event("INSTR_VECTOR", -5, "B", tid=2),
        event("INSTR_VECTOR", 5, "B", pid="0", tid=2),
        event("INSTR_VECTOR", 5, "B", pid=77, tid=2),
        event("INSTR_VECTOR", 5, "B", tid=40),
        event("another", 5, "B", tid=2),
        event('quoted " \\ \u00e9 \u2028', 5, "B", tid=2),
        {**event("INSTR_VECTOR", 5, "B", tid=2), "args": {"name": "LOCK_STALL", "ph": "E", "ts": 6}},
        {**event("INSTR_VECTOR", 5, "B", tid=2), "args": [event("LOCK_STALL", 6, "B", tid=3)] * 3},
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 2, "args": {"name": "RENAMED"}},
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 2, "args": 5},
        {"name": "clock_sync", "ph": "M", "pid": 0},
    ]
)
TIMES = st.integers(0, 10**6)
EVENTS = st.builds(
    lambda slot, ts, ph, pid: event(NAMES[slot], ts, ph, pid, slot),
    st.integers(0, 3),
    st.one_of(TIMES, st.sampled_from([0, 9, 10, 99, 100, 10**7, 10**8, 10**9, 10**15, 10**16, 1 << 62])),
    st.sampled_from("BE"),
    st.sampled_from([0, 0, 0, 1, 12]),
)
TILES = [
    {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"core_trace for tile{pid},1"}}
    for pid in (0, 1, 12)
]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(EVENTS, EVENTS, EVENTS, EVENTS, ODD), min_size=1, max_size=60),
    layouts(),
    st.sampled_from([200, 700, 1 << 19]),
    st.sampled_from(["list", "object", "mark"]),
)
def test_any_records_in_any_layout_read_as_plainly(listed: list, layout: dict, window: int, around: str) -> None:
    """Windows of a few records, so that every way of going on at a border is taken."""
    content = [*TILES, event("LOCK_STALL", 1, "B", tid=3), *listed]
    whole = {"other": [1, {"traceEvents": 3}], "traceEvents": content, "more": {}} if around == "object" else content
    data = (b"\xef\xbb\xbf" if around == "mark" else b"") + json.dumps(whole, **layout).encode()
    expected = {key: spans for key, spans in plain_spans(content).items() if key[0] in {0, 1, 12}}
    with mock.patch.object(aie_json_text, "_WINDOW", window):
        assert spans_read_or_none(data) == expected


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(EVENTS, ODD), min_size=1, max_size=30), layouts(), st.floats(0.2, 1), st.booleans())
def test_a_truncated_file_is_read_as_far_as_its_records_are_whole(
    listed: list, layout: dict, share: float, zeros: bool
) -> None:
    """Cut anywhere, filled up with zero bytes or not: what is whole counts, and the cut is said."""
    content = [*TILES, event("LOCK_STALL", 1, "B", tid=3), *listed]
    text = json.dumps(content, **{**layout, "ensure_ascii": True})
    first = len(json.dumps(content[:4], **{**layout, "ensure_ascii": True})) + 2
    cut = min(len(text) - 1, max(first, int(share * len(text))))
    whole, at = [], text.index("{")
    decoder = json.JSONDecoder()
    while at < cut:
        try:
            value, at = decoder.raw_decode(text[:cut], at)
        except json.JSONDecodeError:
            break
        if at == cut and not isinstance(value, dict):
            break
        whole.append(value)
        at += len(text[at:cut]) - len(text[at:cut].lstrip(" \t\r\n,"))
    data = text[:cut].encode() + b"\0" * (64 * zeros)
    expected = {key: spans for key, spans in plain_spans(whole).items() if key[0] in {0, 1, 12}}
    with mock.patch.object(aie_json_text, "_WINDOW", 300):
        assert spans_read_or_none(data) == expected
        assert not expected or codes(read_json(data, PATH))[0] == "truncated"


@pytest.mark.parametrize("end", ["1", "1.", "1.5", "1e", "1.5E", "1.5e+", "-", ""])
def test_a_file_cut_in_a_number_is_cut_off_not_damaged(end: str) -> None:
    """Also where what is left of the number is none."""
    text = json.dumps([*TILES, event("LOCK_STALL", 1, "B", tid=3)])[:-1]
    data = f'{text}, {{"name": "LOCK_STALL", "ts": {end}'.encode()
    assert codes(read_json(data, PATH))[0] == "truncated"


@pytest.mark.parametrize(
    "layout",
    [{}, {"indent": 1}, {"sort_keys": True}, {"separators": (" ,\n", ":")}],
    ids=["plain", "indented", "sorted", "space before commas"],
)
def test_records_are_read_many_at_once(layout: dict) -> None:
    """All but those at the end; otherwise the speed would be lost unseen."""
    data = json.dumps(list(records([MANY] * 20)), **layout).encode()
    assert [tile.spans for tile in read_json(data, PATH).tiles] == [600] * 20
    sizes = [len(together) for together in aie_json_text.RecordScanner(memoryview(data), PATH).records()]
    assert sum(sizes) == 20 * (9 + 1200)
    assert sum(size == 1 for size in sizes) < sum(sizes) / 20


def test_a_key_that_is_no_text_is_skipped() -> None:
    """Half of a pair of UTF-16 as an escape is JSON, and no text that can be encoded."""
    assert codes(read_json(trace({"\ud800": 1, "ph": "X"}), PATH)) == ["other_records"]


def test_the_order_of_events_is_that_of_the_file() -> None:
    """Also of those with equal times: INSTR_EVENT_0 and 1 are paired by it."""
    found = read_json(trace(tiles=(CORE, MANY)), PATH)
    listed = [r for r in records([CORE, MANY]) if r["ph"] != "M"]
    for tile in found.tiles:
        own = [r for r in listed if r["pid"] == tile.pid]
        assert flat(tile.slots) == [(r["name"], r["ts"], r["ph"] == "B", r["tid"]) for r in own]


def test_tiles_and_slots() -> None:
    """Row, column, unit, slot names, last time; unused slots are not listed, named ones without events are."""
    tile = read_json(
        trace(tiles=(CORE._replace(names=["Event0", *NAMES[1:4], "PortRunning0", *NAMES[5:]]),)), PATH
    ).tiles[0]
    assert (tile.row, tile.column, tile.tile, tile.unit, tile.pid, tile.last) == (2, 4, "2,4", Unit.CORE, 0, 1101)
    assert [(slot.number, slot.name) for slot in tile.slots] == [*enumerate((*NAMES[:4], "PORT_RUNNING_0"))]
    assert [(slot.name, slot.recorded, len(slot.spans.start)) for slot in tile.slots][0::4] == [
        ("INSTR_EVENT_0", "Event0", 1),
        ("PORT_RUNNING_0", "PortRunning0", 0),
    ]
    vector = tile.slot("INSTR_VECTOR")
    assert vector is not None
    assert (vector.spans.start.tolist(), vector.spans.end.tolist()) == ([1010], [1030])
    assert (tile.slot("NONE"), tile.events, tile.spans) == (None, 8, 4)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ("core_trace for tile2,4", ("core", 2, 4)),
        ("mem_trace for tile5,0", ("mem", 5, 0)),
        ("memtile_trace for tile1,3", ("memtile", 1, 3)),
        ("shim_trace for tile0,2", ("shim", 0, 2)),
        ("intfc_trace for tile0,2", ("shim", 0, 2)),
        ("core_trace for tile(3, 1)", ("core", 3, 1)),
    ],
)
def test_process_names_say_tile_and_unit(recorded: str, expected: tuple) -> None:
    """Today's prefixes and the earlier one of interface tiles."""
    process = {"name": "process_name", "ph": "M", "pid": 3, "args": {"name": recorded}}
    tile = read_json(json.dumps([process, event("X", 1, "B", 3)]).encode(), PATH).tiles[0]
    assert (tile.unit.value, tile.row, tile.column) == expected


SAID = {
    "an end without a begin": ([event("INSTR_VECTOR", 2000, "E", tid=2)], ["ends_without_begin"]),
    "a begin twice": ([event("INSTR_VECTOR", 2000 + n, "B", tid=2) for n in (0, 5)], ["begins_repeated"]),
    "open at the end": ([event("INSTR_VECTOR", 2000, "B", tid=2)], []),
    "backwards": ([event("INSTR_VECTOR", t, p, tid=2) for t, p in ((2000, "B"), (1999, "E"))],
                  ["times_backwards", "spans_backwards"]),
    "unknown event": ([event("INSTR_FANCY", 2000, "B", tid=6)], ["events_unknown"]),
    "another name": ([event("INSTR_LOAD", 2000, "B", tid=2)], ["slots_renamed"]),
    "slot 12": ([event("INSTR_LOAD", 2000, "B", tid=12)], ["slots_beyond"]),
    "half a cycle": ([event("LOCK_STALL", 2000.5, "B", tid=3)], ["times_fractional"]),
    "no time": ([{"name": "LOCK_STALL", "ph": "B", "pid": 0, "tid": 3}], ["events_unreadable"]),
    "huge time": ([event("LOCK_STALL", 1 << 80, "B", tid=3)], ["events_unreadable"]),
    "more than the timer has": ([event("LOCK_STALL", 1 << 56, "B", tid=3)], ["events_unreadable"]),
    "before the start": ([event("LOCK_STALL", -1, "B", tid=3)], ["events_unreadable"]),
    "counter": ([{"name": "c", "ph": "C", "ts": 5, "pid": 0}], ["other_records"]),
    "stranger": ([event("LOCK_STALL", 2000, "B", pid=9, tid=3)], ["events_of_no_tile"]),
    "renamed": ([{"name": "thread_name", "ph": "M", "pid": 0, "tid": 5, "args": {"name": n}} for n in "ab"],
                ["metadata_repeated"]),
    "said twice": (list(records([CORE]))[:9], []),
}  # fmt: skip


@pytest.mark.parametrize(("more", "expected"), SAID.values(), ids=SAID)
def test_what_is_odd_is_said(more: list[dict], expected: list[str]) -> None:
    """With a code for each kind; what is whole is kept."""
    found = read_json(trace(*more), PATH)
    assert codes(found) == expected
    assert found.tiles[0].spans >= 4
    assert all(isinstance(warning, TraceWarning) and warning.hint for warning in found.all_warnings)


def ending(*last: tuple[int, int, str]) -> TileTrace:
    """A core with one call, then these events: slot, cycle, and whether it is a begin."""
    names = ("INSTR_EVENT_0", "INSTR_EVENT_1", "INSTR_VECTOR", "LOCK_STALL")
    tile = Tile("core", 2, 4, names, [Span(0, 10, 11), Span(1, 90, 91), Span(3, 120, None)])
    more = [event(names[slot], ts, phase, tid=slot) for slot, ts, phase in last]
    return read_json(json.dumps([*records([tile]), *more]).encode(), PATH).tiles[0]


@pytest.mark.parametrize("held", [[], [(3, 121, "E")]])
def test_zeros_behind_the_buffer_that_a_decoder_took_for_a_call_are_left_out(held: list[tuple[int, int, str]]) -> None:
    """A begin of slot 0, one cycle after all else: what was active ends there, and no second call has begun."""
    found = ending(*held, (0, 121, "B"))
    starts = found.slot("INSTR_EVENT_0")
    assert starts is not None
    assert starts.spans.start.tolist() == [10]
    assert found.last == (121 if held else 120)
    (warning,) = found.warnings
    assert warning.code == "padding_as_event"
    assert "begin of INSTR_EVENT_0" in warning.message


@pytest.mark.parametrize(
    "last",
    [
        [(0, 122, "B")],
        [(1, 121, "B")],
        [(0, 121, "B"), (0, 122, "E")],
        [(2, 121, "B"), (0, 121, "B")],
    ],
)
def test_a_last_event_that_may_be_real_is_kept(last: list[tuple[int, int, str]]) -> None:
    """Two cycles later, of another slot, with an end, or beside another begin."""
    found = ending(*last)
    assert found.warnings == ()
    assert found.slots[last[-1][0]].spans.start.tolist()[-1] in {121, 122}


def test_two_units_of_one_name_are_kept_apart() -> None:
    """By their pid, with a warning."""
    found = read_json(trace(tiles=(CORE, CORE)), PATH)
    assert [(tile.pid, tile.tile, tile.spans) for tile in found.tiles] == [(0, "2,4", 4), (1, "2,4", 4)]
    assert codes(found) == ["tiles_repeated"]


def test_a_trace_without_a_core_is_read_and_says_so() -> None:
    """Its memory modules are worth reading; kernel calls cannot be distinguished."""
    found = read_json(trace(tiles=(CORE._replace(unit="memtile", names=["PORT_RUNNING_0"] * 8),)), PATH)
    assert (found.cores, codes(found)) == ((), ["no_core_trace"])


def test_metadata_may_stand_behind_the_events() -> None:
    """The names count all the same."""
    listed = list(records([CORE]))
    found = read_json(json.dumps([*listed[9:], *listed[:9]]).encode(), PATH)
    assert spans_read(found.tiles) == spans_read(read_json(trace(), PATH).tiles)


REFUSED = {
    "no list": (b'{"a": 1}', "the object has no list 'traceEvents'"),
    "no tile": (b'[{"name": "x", "ph": "B", "ts": 1, "pid": 0, "tid": 0}]', "names no AI Engine tile"),
    "cut in the metadata": (trace()[:60], "it names no AI Engine tile; the file is truncated"),
    "cut before the list": (b'{"traceEve', "truncated"),
    "no event": (trace(tiles=(CORE._replace(spans=()),)), "no events"),
    "no whole time": (trace().replace(b'"ts": ', b'"ts": 0.'), "the times of 8 have fractions, such as 0.1"),
    "complete events only": (trace().replace(b'"B"', b'"X"').replace(b'"E"', b'"X"'), "8 records that are neither"),
    "no span": (trace().replace(b'"ph": "B"', b'"ph": "E"'), "none of its 8 events makes a span"),
    "damage": (trace().replace(b'"ts": 900', b'"ts": 9x0'), r"not valid JSON: .*at byte 886"),
    "no comma": (trace().replace(b"},\n", b"}\n", 3), "a comma is missing"),
    "no comma before the list": (b'{"a": 1 "traceEvents": []}', "a comma is missing.*at byte 8"),
    "not valid UTF-8": (trace().replace(b"LOCK_STALL", b"LOCK_\xff"), "not valid UTF-8"),
    "not valid UTF-8 aside": (trace().replace(b'"args": {}', b'"\xff": {}', 1), "not valid UTF-8"),
    "depth": (b"[" + b'{"a":' * 100_000, "too deeply"),
    "digits": (b"[" + b"9" * 5000 + b"]", "a number is too long"),
    "no JSON": (b"[}", "not valid JSON"),
    "a value": (b"3", "no event list"),
}


@pytest.mark.parametrize(("data", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused(data: bytes, problem: str) -> None:
    """With the file and, where there is one, the byte."""
    with pytest.raises(TraceFormatError, match=problem) as caught:
        read_json(data, PATH)
    assert caught.value.where == str(PATH)
    assert caught.value.hint


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bytes])
def test_files_may_be_compressed_and_become_tables(pack, tmp_path: Path) -> None:
    """By their content, through the registry and with arrays; both tell the same hash of the file as it is."""
    path = tmp_path / "trace"
    path.write_bytes(pack(trace(tiles=(CORE, MANY))))
    tables, (arrays, sha256) = read_trace(path), read_tiles(path)
    assert (tables.format, tables.sha256) == ("aie-json", sha256)
    assert tables.table.events == sum(tile.spans for tile in arrays.tiles)
    frame = tables.table.frame.filter(tables.table.frame["process"] == 0)
    assert frame.select("name", "start", "duration", "block").rows()[:2] == [
        ("LOCK_STALL", 1, 899, "core_trace for tile2,4"),
        ("INSTR_EVENT_0", 1000, 1, "core_trace for tile2,4"),
    ]
    assert frame["scope"].unique().to_list() == ["tile_event"]


@pytest.mark.parametrize("to", ["perfetto", "kit-csv", "speedscope", "github-benchmark", "tables"])
def test_other_commands_point_to_the_one_for_tiles(to: str, tmp_path: Path) -> None:
    """A trace of tiles has no inferences; it becomes a table in other files, which are refused in the same way."""
    path = tmp_path / "trace.json"
    path.write_bytes(trace(tiles=(CORE, MANY)))
    (parquet,) = convert(path, "parquet")
    for file in (path, parquet):
        assert read(file).events == 604
        with pytest.raises(TraceFormatError, match="an AI Engine trace, which has no inferences") as caught:
            analyze(file)
        assert "opscope aie" in caught.value.hint
        with pytest.raises(OpscopeError, match="AI Engine") as caught:
            convert(file, to, out=tmp_path / "out")
        assert "opscope aie" in caught.value.hint


@pytest.mark.parametrize(
    "whole",
    [
        gzip.compress(trace(tiles=(CORE, MANY))),
        gzip.compress(words_text([CORE, MANY])),
        zstandard.compress(trace(tiles=(CORE, *[MANY] * 3))),
    ],
    ids=["json", "words", "zstd"],
)
def test_a_compressed_file_that_is_cut_off_is_read_as_far_as_it_goes(whole: bytes, tmp_path: Path) -> None:
    """As the content itself would be; that it is cut is said once."""
    path = tmp_path / "trace"
    path.write_bytes(whole[:20])
    with pytest.raises(TraceFormatError, match="truncated"):
        read_tiles(path)
    path.write_bytes(whole[: len(whole) - 6])
    found, _ = read_tiles(path)
    assert [warning.code for warning in found.warnings].count("truncated") == 1
    assert found.tiles[0].spans == 4


def test_files_that_are_not_there_or_of_other_kinds(tmp_path: Path) -> None:
    """Each its own error."""
    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.touch()
    other.write_bytes(b"ED00 and so on")
    for path, kind in ((empty, EmptyTraceError), (other, TraceFormatError), (tmp_path / "absent", NotFoundError)):
        with pytest.raises(kind):
            read_tiles(path)
    with pytest.raises(StorageError):
        read_tiles(tmp_path)


@pytest.mark.parametrize("head", [b'[{"name"', b'[\n  {\n    "ph": "B"', b'{"traceEvents": [', b"\xef\xbb\xbf[", b"[]"])
def test_json_is_recognised(head: bytes) -> None:
    """A list of objects or an object."""
    assert AieJsonReader().sniff(head)


@pytest.mark.parametrize("head", [b"[1, 2]", b"PAR1", b"process,run", b"", b"00220001\n", b"{}"])
def test_other_formats_are_not_taken_for_it(head: bytes) -> None:
    """Numbers, and what other readers read."""
    assert not AieJsonReader().sniff(head)


RECORD = b'{"name": "LOCK_STALL", "ts": 2000, "ph": "B", "pid": 0, "tid": 3, "args": {}}'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"2000", b"2000.0"),
        (b"2000", b"2e3"),
        (b"2000", b'1, "ts": 2000'),
        (b'"name"', b'"n\\u0061me"'),
        (b"{}", b'{}, "n\\u0061me": "INSTR_VECTOR"'),
        (b"LOCK", b"\\u004cOCK"),
        (b'"B"', b'"\\u0042"'),
        (b"{}", b'{"name": [1, {"ts": 2}, {"ts": 3}]}'),
    ],
)
def test_any_spelling_of_a_record_reads_as_json_loads_reads_it(old: bytes, new: bytes) -> None:
    """Numbers with a point, keys that are repeated or escaped, lists of objects in a record."""
    data = trace()[:-2] + b",\n" + b",\n".join([RECORD.replace(old, new)] * 3) + b"]\n"
    assert spans_read(read_json(data, PATH).tiles) == plain_spans(json.loads(data))


@pytest.mark.parametrize(("old", "new"), [(b"2000", b"02000"), (b"{}}", b"{}};"), (b"{}", b"{}}"), (b'"pid"', b"pid")])
def test_a_record_that_is_no_json_is_refused_at_its_byte(old: bytes, new: bytes) -> None:
    """Wherever it stands among whole ones."""
    whole = trace()[:-2] + b",\n"
    damaged = (
        whole + b",\n".join([RECORD, RECORD.replace(old, new, 1) if old != b"}," else RECORD + b"\n;", RECORD]) + b"]\n"
    )
    with pytest.raises(TraceFormatError) as caught:
        read_json(damaged, PATH)
    assert caught.value.offset is not None
    assert len(whole + RECORD) < caught.value.offset < len(damaged) - len(RECORD)


@given(st.integers(0, (1 << 56) - 1), st.sampled_from(["first", "last"]))
def test_times_of_any_width_are_read(time: int, where: str) -> None:
    """One to seventeen digits, in front of the name and behind it."""
    number = {"name": "LOCK_STALL", "ts": time, "ph": "B", "pid": 0, "tid": 3}
    record = number if where == "last" else {"ts": time, **number}
    listed = [*records([CORE]), *[record, {**record, "ph": "E"}] * 20]
    found = read_json(json.dumps(listed).encode(), PATH).tiles[0]
    lock = found.slot("LOCK_STALL")
    assert lock is not None
    assert (lock.spans.start[1:] == time).all()
    assert len(lock.spans.start) == 21


def test_devices_are_what_their_tables_say() -> None:
    """Both arrays, with all that the analyses ask for."""
    npu1, npu2 = (aie_devices().named(name) for name in ("npu1", "npu2"))
    assert npu1 is not None
    assert npu2 is not None
    assert (npu1.core_rows * npu1.core_columns, npu2.core_rows * npu2.core_columns) == (16, 32)
    assert (npu1.mac_per_cycle["bf16"], npu2.mac_per_cycle["bfp16"]) == (128, 512)
    assert (npu1.stream_bytes_per_cycle, npu2.stream_bytes_per_cycle) == (4, 8)
    assert aie_devices().named("npu9") is None
    assert np.diff([level[0] for level in npu2.clock_mhz]).min() > 0
