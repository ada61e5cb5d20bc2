"""Raw trace words: framing, every command, and all damage that captures show, against a plain decoder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aie_captures import WORDS, Captures
from aie_traces import (
    SYNC_CYCLES,
    Event,
    Span,
    Tile,
    commands,
    events_of,
    flat,
    header,
    payload,
    plain_events,
    text_of,
    words_of,
    words_text,
)
from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table.tiles import Unit
from opscope.npu.devices import event_names
from opscope.npu.readers import events as aie_events
from opscope.npu.readers.files import read_tiles
from opscope.npu.readers.words import AieWordsReader, framed, is_header, read_words
from texts import START_IS_MISSING

PATH = Path("trace.txt")
NAMES = [f"SLOT {number}" for number in range(8)]
CORE = Tile("core", 2, 1, NAMES, (Span(0, 1, 4), Span(3, 7, 9), Span(1, 8, 20), Span(3, 30, 31)), timer=257436)


def events(data: bytes, *, lost: int | None = None) -> list[Event]:
    """The events of a payload as it is decoded here."""
    words = np.frombuffer(data, ">u4").astype(np.uint32)
    lost_before = np.zeros(len(words), bool)
    if lost is not None:
        lost_before[lost] = True
    found = aie_events.decode_events(words, lost_before).spans
    rows = []
    for slot, spans in enumerate(found):
        rows += [
            (int(o), Event(int(t), begin=True, slot=slot)) for o, t in zip(spans.begin_order, spans.start, strict=True)
        ]
        closed = [(o, t) for o, t in zip(spans.end_order, spans.end, strict=True) if o >= 0]
        rows += [(int(o), Event(int(t), begin=False, slot=slot)) for o, t in closed]
    rows.sort()
    assert [order for order, _ in rows] == list(range(len(rows)))
    return [event for _, event in rows]


def padded(*parts: str) -> bytes:
    """Commands in hexadecimal, filled up to whole words."""
    data = bytes.fromhex("".join(parts))
    return data + b"\xfe" * (-len(data) % 4)


def spans_of(tile) -> list[tuple]:
    """Slot, start, end of every span, in order of the begins."""
    found = [
        (int(order), (slot.number, int(start), int(end)))
        for slot in tile.slots
        for order, start, end in zip(slot.spans.begin_order, slot.spans.start, slot.spans.end, strict=True)
    ]
    return [span for _, span in sorted(found)]


@pytest.mark.parametrize("name", WORDS)
def test_captures_decode_to_what_their_golden_files_hold(captures: Captures, name: str) -> None:
    """Every event of every unit, with name, time, kind and slot, in the same order."""
    golden = json.loads(captures.json(name).read_bytes())
    units = {r["pid"]: Unit(r["args"]["name"].partition("_")[0]) for r in golden if r["name"] == "process_name"}
    threads = [r for r in golden if r["name"] == "thread_name"]
    slots = {unit: [r["args"]["name"] for r in threads if r["pid"] == pid] for pid, unit in units.items()}
    found = read_tiles(captures.words(name), slots)[0]
    assert found.all_warnings == ()
    assert {tile.unit for tile in found.tiles} == set(units.values())
    for pid, unit in units.items():
        tile = next(tile for tile in found.tiles if tile.unit is unit)
        own = [r for r in golden if r["pid"] == pid and r["ph"] in {"B", "E"}]
        assert flat(tile.slots) == [(r["name"], r["ts"], r["ph"] == "B", r["tid"]) for r in own]


COMMANDS = {
    "single, 4 bits": ("f0" + "00" * 7 + "35", [(6, True, 3)]),
    "single, 10 bits": ("8fff", [(1024, True, 3)]),
    "single, 18 bits": ("bfffff", [(262144, True, 7)]),
    "multiple, 4 bits": ("c812", [(3, True, 0), (3, True, 7)]),
    "multiple, 10 bits": ("d20601", [(514, True, 0), (514, True, 7)]),
    "multiple, 18 bits": ("d6060001", [(131074, True, 0), (131074, True, 7)]),
    "repeat prolongs": ("10e310e215", [(1, True, 1), (8, False, 1), (13, True, 1)]),
    "repeat of 10 bits": ("10dbff15", [(1, True, 1), (1025, False, 1), (1030, True, 1)]),
    "repeat replays": ("12e2", [(3, True, 1), (4, False, 1), (6, True, 1), (7, False, 1), (9, True, 1)]),
    "level goes on": ("1010c03020", [(1, True, 1), (3, True, 0), (4, False, 0), (4, False, 1), (4, True, 2)]),
    "padding and skipped": ("fedcffffff11", [(2, True, 1)]),
    "event sync": ("11ff13", [(2, True, 1), (3, False, 1), (2 + SYNC_CYCLES + 4, True, 1)]),
    "no slot": ("10c00010", [(1, True, 1), (2, False, 1), (3, True, 1)]),
}


@pytest.mark.parametrize(("data", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_commands(data: str, expected: list[tuple]) -> None:
    """Each in its shortest example; times count from 0, a frame takes one cycle and its idle ones."""
    assert events(padded(data)) == [Event(*event) for event in expected]
    assert plain_events(padded(data)) == [Event(*event) for event in expected]


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=4, max_size=80).map(lambda data: data[: len(data) // 4 * 4]))
def test_any_bytes_decode_as_command_by_command(data: bytes) -> None:
    """Also where commands cross words all along, and where no command begins."""
    assert events(data) == plain_events(data)


COMMON = ["00", "15", "2f", "8c10", "a00101", "c030", "d21804", "d4040001", "e1", "ef", "d803", "fe", "ff", "dc000000"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(COMMON), max_size=40), st.booleans())
def test_likely_bytes_decode_as_command_by_command(parts: list[str], started: bool) -> None:
    """Commands in any order, each of which may cross into the next word."""
    data = padded("f0000000000012ab" * started, *parts)
    assert events(data) == plain_events(data)


def test_a_long_run_of_crossing_commands_is_divided_in_order() -> None:
    """Three bytes each: every word begins in another command than the one before."""
    data = padded("a00001" * 400)
    assert len(events(data)) == 799
    assert events(data) == plain_events(data)


def test_nothing_continues_where_words_are_missing() -> None:
    """The command that is cut off there is left out; the next word begins a new one."""
    words = np.array([0x1110A000, 0x11FEFEFE], np.uint32)
    whole = aie_events.decode_events(words, np.array([False, False]))
    cut = aie_events.decode_events(words, np.array([False, True]))
    assert (whole.problems["commands_cut"], cut.problems["commands_cut"]) == (0, 1)
    assert len(cut.spans[1].start) == 2


@st.composite
def units(draw: st.DrawFn) -> list[Tile]:
    """Some units with spans that do not touch."""
    places = draw(
        st.lists(
            st.tuples(st.sampled_from(["core", "mem", "shim", "memtile"]), st.integers(0, 5), st.integers(0, 7)),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    steps = st.tuples(
        st.one_of(st.integers(1, 40), st.sampled_from([1024, 262143, 262144, 262145, 800_000])),
        st.one_of(st.integers(1, 20), st.sampled_from([15, 16, 1023, 1024, 5000])),
    )
    found = []
    for unit, row, column in places:
        spans = []
        for slot in draw(st.sets(st.integers(0, 7), min_size=1, max_size=4)):
            now = 0
            for gap, length in draw(st.lists(steps, min_size=1, max_size=6)):
                spans.append(Span(slot, now + gap, now + gap + length))
                now += gap + length
        found.append(Tile(unit, row, column, NAMES, tuple(spans), draw(st.integers(0, (1 << 56) - 1))))
    return found


def alike(column: int, timer: int) -> Tile:
    """A unit whose first words are nearly those of another one."""
    return Tile("core", 0, column, NAMES, (Span(0, 1, 2),), timer)


@settings(max_examples=100, deadline=None)
@example([alike(0, 1), alike(1, 3)], "text")
@given(units(), st.sampled_from(["text", "upper", "0x", "crlf", "blank", "binary", "zeros"]))
def test_what_units_record_is_read_from_any_form_of_file(tiles: list[Tile], form: str) -> None:
    """Interleaved packets of several units, with gaps that need Event_Sync; the last span has no end."""
    words = words_of(tiles) + [0] * (1000 if form == "zeros" else 0)
    text = text_of(words)
    data = {
        "upper": text.upper(),
        "0x": b"0x" + text.strip().replace(b"\n", b"\n0x") + b"\n",
        "crlf": text.replace(b"\n", b"\r\n"),
        "blank": b"\n" + text.replace(b"\n", b"\n\n"),
        "binary": np.array(words, "<u4").tobytes(),
    }.get(form, text)
    assert AieWordsReader().sniff(data[:64])
    found = read_words(data, PATH)
    no_core = ["no_core_trace"] * (not found.cores)
    assert [warning.code for warning in found.all_warnings] == [*no_core, "slots_unnamed"]
    for tile in tiles:
        own = next(t for t in found.tiles if (t.unit.value, t.row, t.column) == (tile.unit, tile.row, tile.column))
        assert own.start_timer == tile.timer
        final = max(span.end for span in tile.spans)
        expected = [(name, time, begin, slot) for time, begin, slot in events_of(tile.spans) for name in [NAMES[slot]]]
        assert flat(own.slots) == [event for event in expected if event[2] or event[1] < final]


def test_a_buffer_without_its_zero_words_reads_the_same() -> None:
    """Some tools leave out words that are zero, which in a capture are padding only."""
    words = words_of([CORE]) + [0] * 24 + words_of([CORE._replace(column=3)]) + [0] * 9
    whole, without = read_words(text_of(words), PATH), read_words(text_of(filter(None, words)), PATH)
    assert [spans_of(tile) for tile in whole.tiles] == [spans_of(tile) for tile in without.tiles]
    assert [tile.tile for tile in whole.tiles] == ["2,1", "2,3"]


def test_padding_is_no_event() -> None:
    """Zero words behind the last packet, and at the end of a packet that was not filled."""
    words = words_of([CORE])
    unfilled = [header("core", 2, 1), 0x1213FEFE, 0, 0, 0, 0, 0, 0]
    for padding in ([], [0] * 80):
        found = read_words(text_of(unfilled + padding), PATH).tiles[0]
        assert (spans_of(found), found.last) == ([(1, 3, 4), (1, 7, 7)], 7)
    found = read_words(text_of(words + [0] * 80), PATH).tiles[0]
    assert (spans_of(found)[:3], found.last) == ([(0, 1, 4), (3, 7, 9), (1, 8, 20)], 30)


LONG = Tile("core", 2, 1, NAMES, tuple(Span(1, 10 * n, 10 * n + 3) for n in range(1, 400)))
OTHER = Tile("mem", 2, 1, NAMES, tuple(Span(2, 11 * n, 11 * n + 2) for n in range(1, 400)))


@pytest.mark.parametrize("place", [8 * 6 + 3, 8 * 6, 8 * 6 + 7, 8 * 9 + 5])
def test_a_lost_word_costs_its_packet_and_no_more(place: int) -> None:
    """Only time is lost: nearly all spans keep their length, and those of the other unit are as they were."""
    words = words_of([LONG, OTHER])
    found = read_words(text_of(words[:place] + words[place + 1 :]), PATH)
    core, mem = (next(tile for tile in found.tiles if tile.unit is unit) for unit in (Unit.CORE, Unit.MEM))
    hit, whole = (core, mem) if place // 8 % 2 == 0 else (mem, core)
    assert whole.spans == 399
    assert abs(399 - hit.spans) <= 25
    lengths = [end - start for _, start, end in spans_of(hit)]
    assert lengths.count(3 if hit is core else 2) > 399 - 28
    codes = {warning.code for warning in found.all_warnings}
    assert codes & {"words_lost", "words_without_unit"}


def test_a_lost_header_of_the_only_unit_costs_nothing() -> None:
    """Its words can belong to no other; a warning says so."""
    words = words_of([LONG])
    found = read_words(text_of(words[:24] + words[25:]), PATH)
    assert spans_of(found.tiles[0]) == spans_of(read_words(text_of(words), PATH).tiles[0])
    assert "headers_lost" in {warning.code for warning in found.all_warnings}


def test_a_word_lost_in_the_first_packet_loses_neither_the_unit_nor_its_header() -> None:
    """What is a header elsewhere is one at the start."""
    words = words_of([LONG, OTHER])
    found = read_words(text_of(words[:5] + words[6:]), PATH)
    assert [(tile.unit, abs(399 - tile.spans) < 10) for tile in found.tiles] == [(Unit.CORE, True), (Unit.MEM, True)]


def test_lost_packets_leave_decoding_in_step() -> None:
    """Whole packets in the middle: the rest is read, earlier than it was."""
    words = words_of([LONG])
    found = read_words(text_of(words[: 8 * 5] + words[8 * 8 :]), PATH).tiles[0]
    assert {end - start for _, start, end in spans_of(found)[:-1]} == {3}


def lost_in(words: list[int]) -> dict[str, list[int]]:
    """Cycles at which each unit lacks words."""
    tiles = read_words(text_of(words), PATH).tiles
    return {tile.unit.value: [lost.cycle for lost in tile.lost] for tile in tiles}


def test_where_words_are_lost_is_a_cycle_of_the_unit_that_lost_them() -> None:
    """The other unit of the buffer lost nothing; a whole packet leaves no trace in the words."""
    words = words_of([LONG, OTHER])
    assert lost_in(words) == {"core": [], "mem": []}
    whole = read_words(text_of(words), PATH).tiles[1]
    hit = lost_in(words[: 8 * 9 + 5] + words[8 * 9 + 6 :])
    assert hit["core"] == []
    (cycle,) = hit["mem"]
    ends = [end for _, _, end in spans_of(whole)]
    assert any(abs(cycle - end) < 60 for end in ends)
    assert 300 < cycle < 1000
    assert lost_in(words[: 8 * 9] + words[8 * 10 :]) == {"core": [], "mem": []}


def test_words_of_nobody_may_be_of_every_unit() -> None:
    """A header that is lost: which unit's packet it was is not known, so no unit's times are sure."""
    words = words_of([LONG, OTHER])
    found = lost_in(words[: 8 * 6] + words[8 * 6 + 1 :])
    assert [len(cycles) for cycles in found.values()] == [1, 1]


def test_a_trace_without_its_start_lacks_its_first_packet() -> None:
    """The Start command stands in the first packet of a unit, with the timer; nothing else shows that loss."""
    words = words_of([LONG])
    (tile,) = read_words(text_of(words[8:]), PATH).tiles
    assert tile.lost == ((0, START_IS_MISSING),)
    assert tile.start_timer is None


def test_room_behind_the_last_packet_shows_that_the_buffer_did_not_fill() -> None:
    """Zero words are left; without them nothing is known, since some tools leave them out."""
    words = words_of([LONG])
    assert [read_words(text_of(words + [0] * n), PATH).tiles[0].room for n in (0, 7, 8, 400)] == [
        None,
        None,
        True,
        True,
    ]


@pytest.mark.parametrize("place", [0, 8 * 6, 8 * 9])
@pytest.mark.parametrize("bit", [0, 4, 6, 18, 30])
def test_a_header_with_a_wrong_bit_between_two_headers_is_read_as_what_it_must_be(place: int, bit: int) -> None:
    """Its packet stays with its unit, and a warning says so."""
    words = words_of([LONG, OTHER])
    damaged = [word ^ 1 << bit if at == place else word for at, word in enumerate(words)]
    found, whole = (read_words(text_of(given), PATH) for given in (damaged, words))
    assert [spans_of(tile) for tile in found.tiles] == [spans_of(tile) for tile in whole.tiles]
    assert [warning.code for warning in found.warnings] == ["headers_damaged", "slots_unnamed"]


def test_a_wrong_bit_that_two_headers_are_as_far_from_is_not_guessed() -> None:
    """The headers of core and memory module differ in one bit and the parity: its packet is left out, and said."""
    words = words_of([LONG, OTHER])
    damaged = [word ^ 1 << 31 if at == 8 * 6 else word for at, word in enumerate(words)]
    assert [len(cycles) for cycles in lost_in(damaged).values()] == [1, 1]


def test_a_truncated_buffer_is_read_as_far_as_it_goes() -> None:
    """A file that ends inside a packet, in text inside a word; a warning says that more was recorded."""
    text = words_text([LONG])
    for data in (text[: 9 * 101], text[: 9 * 100 + 4]):
        found = read_words(data, PATH)
        assert "truncated" in {warning.code for warning in found.all_warnings}
        whole = spans_of(read_words(text, PATH).tiles[0])
        assert spans_of(found.tiles[0])[:-1] == whole[: found.tiles[0].spans - 1]


def test_payload_that_looks_like_a_header_is_payload() -> None:
    """Framing goes by eight words as long as headers stand where they should."""
    core, fake = header("core", 2, 1), header("mem", 1, 0)
    words = [core, 0xF0000000, 0x00000000, fake, 0x10FEFEFE, fake, 0x15FEFEFE, 0xFEFEFEFE] * 2 + [core, 0x11FEFEFE]
    found = framed(np.array(words + [0xFEFEFEFE] * 6, np.uint32))
    assert [(unit.unit, len(unit.words)) for unit in found.units] == [(Unit.CORE, 21)]
    assert found.short == 0


def test_headers_have_odd_parity_and_fixed_zero_bits() -> None:
    """Of one header no single changed bit gives another, except two at a time."""
    word = header("memtile", 1, 3, packet=5)
    changed = np.array([word] + [word ^ 1 << bit for bit in range(32)], np.uint32)
    assert is_header(changed).tolist() == [True] + [False] * 32
    assert is_header(np.array([0, 0xFEFEFEFE], np.uint32)).tolist() == [False, False]


def test_slots_are_named_by_the_caller() -> None:
    """By kind of unit; earlier names are kept beside today's, slots without events are listed, NONE is not."""
    names = ["Event0", "Event1", "NONE", "LockStall", "INSTR_VECTOR"]
    found = read_words(words_text([CORE]), PATH, {Unit.CORE: names})
    assert found.all_warnings == ()
    slots = [(slot.number, slot.name, slot.recorded, len(slot.spans.start)) for slot in found.tiles[0].slots]
    assert slots == [
        (0, "INSTR_EVENT_0", "Event0", 1),
        (1, "INSTR_EVENT_1", "Event1", 1),
        (3, "LOCK_STALL", "LockStall", 2),
        (4, "INSTR_VECTOR", "INSTR_VECTOR", 0),
    ]


def test_a_span_without_an_end_lasts_to_the_last_time() -> None:
    """It is marked as open, and cannot hold its end."""
    spans = read_words(words_text([CORE]), PATH).tiles[0].slots[-1].spans
    assert (spans.start.tolist(), spans.end.tolist(), spans.open.tolist()) == ([7, 30], [9, 30], [False, True])
    assert spans.end_order.tolist()[-1] == -1


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([b"\x11", b"\xe1"], None),
        ([b"\xe1", b"\x11"], "repeats_lost"),
        ([b"\x11", b"\xff", b"\xe1"], "repeats_of_idle"),
        ([b"\x11", b"\xf7", b"\x11"], "commands_unknown"),
        ([b"\x11", b"\xf0" + bytes(7), b"\x11"], "trace_restarted"),
    ],
)
def test_what_is_odd_is_said(parts: list[bytes], code: str | None) -> None:
    """A warning for each kind, none otherwise."""
    words = [header("core", 2, 1), *payload([b"\xf0" + bytes(7), *parts])]
    found = read_words(text_of(words[:8]), PATH, {Unit.CORE: ["LOCK_STALL", "INSTR_VECTOR"]})
    assert [warning.code for warning in found.all_warnings] == ([code] if code else [])


def test_names_that_the_unit_does_not_have_are_said() -> None:
    """A list that is too short, or of another kind of unit, may have been given to the wrong slots."""
    found = read_words(words_text([CORE]), PATH, {Unit.CORE: ["LOCK_STALL", "DMA_S2MM_0_FINISHED_BD"]})
    (warning,) = found.all_warnings
    assert warning.code == "events_unknown"
    assert warning.message.endswith("2 events unknown for this unit: DMA_S2MM_0_FINISHED_BD, SLOT 3")


def test_a_cut_command_is_left_out() -> None:
    """The last word announces more bytes than there are."""
    words = [header("core", 2, 1), *[0xFEFEFEFE] * 6, 0x1111D400]
    found = read_words(text_of(words), PATH)
    assert [warning.code for warning in found.tiles[0].warnings] == ["commands_cut"]
    assert found.tiles[0].spans == 2


REPEATS = ([0xDBFFDBFF] * 6 + [header("core", 2, 1)] + [0xDBFFDBFF]) * 400


@pytest.mark.parametrize(
    ("data", "kind", "problem"),
    [
        (b"00220001\nf0000000\nzzzz\n", TraceFormatError, "word 3 is not a word: 'zzzz'"),
        (b"00000000\n" * 40, TraceFormatError, "no trace packet"),
        (text_of([header("core", 2, 1)] + [0xFEFEFEFE] * 7), EmptyTraceError, "no events"),
        (text_of([header("core", 2, 1), 0x1FFEFEFE, *REPEATS]), TraceFormatError, "more than 4,194,304 frames"),
    ],
)
def test_what_cannot_be_read_is_refused(data: bytes, kind: type[Exception], problem: str) -> None:
    """With the place and a hint."""
    with pytest.raises(kind, match=problem) as caught:
        read_words(data, PATH)
    assert caught.value.where == str(PATH)
    assert caught.value.hint


def test_the_table_has_one_row_a_span_and_one_process_a_tile(tmp_path: Path) -> None:
    """In cycles; nothing encloses anything."""
    path = tmp_path / "trace.words.gz"
    path.write_bytes(gzip.compress(words_text([CORE, OTHER])))
    from opscope.readers.registry import read_trace

    read = read_trace(path)
    frame = read.table.frame
    assert (read.format, read.table.clock.value) == ("aie-words", "cycles")
    rows = frame.filter(frame["process"] == 0).select("scope", "name", "block", "start", "duration", "parent").rows()
    assert rows == [
        ("tile_event", "SLOT 0", "core_trace for tile2,1", 1, 3, None),
        ("tile_event", "SLOT 3", "core_trace for tile2,1", 7, 2, None),
        ("tile_event", "SLOT 1", "core_trace for tile2,1", 8, 12, None),
        ("tile_event", "SLOT 3", "core_trace for tile2,1", 30, 0, None),
    ]
    assert frame["process"].unique().to_list() == [0, 1]


def test_event_names_stand_at_their_numbers() -> None:
    """Those that the analyses go by; every earlier name leads to one of them."""
    names = event_names()
    assert [names.core[number] for number in (23, 24, 25, 26, 28, 33, 34, 37, 38, 39, 75, 79)] == [
        *("MEMORY_STALL", "STREAM_STALL", "CASCADE_STALL", "LOCK_STALL", "ACTIVE", "INSTR_EVENT_0", "INSTR_EVENT_1"),
        *("INSTR_VECTOR", "INSTR_LOAD", "INSTR_STORE", "PORT_RUNNING_0", "PORT_RUNNING_1"),
    ]
    assert (names.mem[19], names.shim[14], names.memtile[21]) == (
        *("DMA_S2MM_0_START_TASK", "DMA_S2MM_0_START_TASK", "DMA_S2MM_SEL0_START_TASK"),
    )
    known = {name for unit in Unit for name in names.of(unit.value)}
    assert set(names.earlier_names.values()) <= known


def test_the_encoder_and_the_plain_decoder_agree() -> None:
    """What the other tests rest on."""
    data = b"".join(word.to_bytes(4, "big") for word in payload(commands(CORE.spans)))
    assert plain_events(data) == events_of(CORE.spans)[:-1]
