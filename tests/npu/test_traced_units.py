"""Units that cannot be, modes without times, and JSON that may have lost time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from aie_gemm import NAMES, Gemm
from aie_traces import SYNC_CYCLES, Span, Tile, header, json_text, text_of, words_of
from command_line import opscope as command
from opscope import TilesRequest, analyze_tiles
from opscope.core.errors import EmptyTraceError, MismatchError
from opscope.core.table.tiles import TraceMode

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.npu.analysis.tiles_result import TilesAnalysis

EVENTS = (("INSTR_EVENT_0", 832), ("INSTR_VECTOR", 900), ("INSTR_VECTOR", 916), ("INSTR_EVENT_1", 1204))
"""Events of a call and their program counters."""
SLOTS = ("INSTR_EVENT_0", "INSTR_EVENT_1", "INSTR_VECTOR")
CALLS = 9


def rules(analysis: TilesAnalysis) -> set[str]:
    """Rules of all findings."""
    return {message.rule for message in analysis.findings}


def address_words(mode: int) -> list[int]:
    """A buffer of one core in a mode with addresses: a Start, and a frame for each event of nine calls."""
    frames = [0b110001 << 26 | 1 << 18 + SLOTS.index(name) | address for name, address in EVENTS]
    payload = [(0xF0 | mode) << 24, 0, *frames * CALLS]
    payload += [0xFEFEFEFE] * (-len(payload) % 7)
    return [word for at in range(0, len(payload), 7) for word in (header("core", 2, 1), *payload[at : at + 7])]


def address_json(*more: Tile) -> bytes:
    """The same as JSON, with trace units beside it that have times."""
    tile = {"name": "process_name", "ph": "M", "pid": 9, "args": {"name": "core_trace for tile2,1"}}
    slots = [
        {"name": "thread_name", "ph": "M", "pid": 9, "tid": tid, "args": {"name": name}}
        for tid, name in enumerate(SLOTS)
    ]
    events = [
        {"name": name, "ph": "i", "s": "t", "ts": at, "pid": 9, "tid": SLOTS.index(name), "args": {"pc": address}}
        for at, (name, address) in enumerate(EVENTS * CALLS)
    ]
    return json.dumps([*json.loads(b"".join(json_text(more)) if more else "[]"), tile, *slots, *events]).encode()


@pytest.mark.parametrize("source", ["words", "json", "json beside a memory module"])
def test_event_pc_gives_calls_and_addresses_and_no_times(source: str, tmp_path: Path) -> None:
    """Calls come from the order of events; nothing is said that needs a time, and the exit code says so."""
    path, slots = tmp_path / "trace", ",".join(SLOTS)
    module = Tile("mem", 2, 1, ["DMA_S2MM_0_STALLED_LOCK"], [Span(0, 100, 5000)])
    content = {"words": text_of(address_words(1)), "json": address_json(), "json beside a memory module": None}
    path.write_bytes(content[source] or address_json(module))
    analysis = analyze_tiles(path, TilesRequest(slots=(slots,) if source == "words" else ())).analysis
    (core,) = (row for row in analysis.tiles if row.unit == "core")
    assert (core.mode, core.calls.paired, core.calls.dropped) == (TraceMode.EVENT_PC, CALLS, 0)
    assert (core.window_cycles, core.cycles.window, core.iterations, core.mac_per_cycle) == (0, 0, (), None)
    found = {slot.event: (slot.spans, [(one.address, one.times) for one in slot.addresses]) for slot in core.slots}
    assert found == {
        "INSTR_EVENT_0": (CALLS, [(832, CALLS)]),
        "INSTR_EVENT_1": (CALLS, [(1204, CALLS)]),
        "INSTR_VECTOR": (2 * CALLS, [(900, CALLS), (916, CALLS)]),
    }
    assert "trace_mode" in rules(analysis)
    assert not {"calls_none", "other_records", "call_end_missing"} & rules(analysis)
    done = command("aie", path, *(["--slots", slots] if source == "words" else []), "--out", tmp_path / "out")
    assert done.returncode == EmptyTraceError.exit_code
    assert "EVENT_PC" in done.stdout
    assert "0x340" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(("mode", "name"), [(2, TraceMode.EXECUTION), (3, TraceMode.UNKNOWN)])
def test_other_modes_are_named_and_not_read(mode: int, name: TraceMode, tmp_path: Path) -> None:
    """No word of them is taken for a time or an address."""
    path = tmp_path / "words.txt"
    path.write_bytes(text_of(address_words(mode)))
    (row,) = analyze_tiles(path, TilesRequest(slots=(",".join(SLOTS),))).analysis.tiles
    assert (row.mode, row.calls.paired, row.last_cycle) == (name, 0, 0)


def test_data_before_the_trace_make_no_core(tmp_path: Path) -> None:
    """Words of output data that look like packets of a tile which no device has are reported and left out."""
    gemm, path = Gemm(), tmp_path / "words.txt"
    request = TilesRequest(slots=(",".join(NAMES),))
    words = words_of([gemm.tile()])
    path.write_bytes(text_of(words))
    alone = analyze_tiles(path, request).analysis
    path.write_bytes(text_of([*range(1, 193, 3), *words]))
    analysis = analyze_tiles(path, request).analysis
    assert [row.tile for row in analysis.tiles] == [row.tile for row in alone.tiles] == ["2,0"]
    assert analysis.tiles[0].kinds == alone.tiles[0].kinds
    assert "impossible_tiles" in rules(analysis)
    assert "packets_lost" not in rules(analysis)


def test_a_device_leaves_out_tiles_that_it_does_not_have(tmp_path: Path) -> None:
    """NPU1 has columns 0 to 4; a trace of such tiles alone is of another device."""
    tiles = [Gemm(column=4).tile(), Gemm(column=5).tile()]
    both, beyond = tmp_path / "both.json", tmp_path / "beyond.json"
    both.write_bytes(b"".join(json_text(tiles)))
    beyond.write_bytes(b"".join(json_text(tiles[1:])))
    request = TilesRequest(arch="npu1")
    analysis = analyze_tiles(both, request).analysis
    assert [(row.tile, row.column, row.row) for row in analysis.tiles] == [("2,4", 4, 2)]
    assert "impossible_tiles" in rules(analysis)
    assert len(analyze_tiles(both, msgspec.structs.replace(request, arch="npu2")).analysis.tiles) == 2
    with pytest.raises(MismatchError):
        analyze_tiles(beyond, request)


@pytest.mark.parametrize(
    ("gap", "warned"), [(500, False), (SYNC_CYCLES // 4, True), (SYNC_CYCLES - 200, True), (SYNC_CYCLES + 500, False)]
)
def test_gaps_that_may_have_lost_time_are_warned_of_in_json(gap: int, warned: bool, tmp_path: Path) -> None:
    """A gap of 2^18 cycles and more was written by a tool that keeps them; raw words have all of them."""
    spans = [Span(slot, at + begin, at + begin + 1) for at in (10, 210 + gap) for slot, begin in ((0, 0), (1, 100))]
    tile = Tile("core", 2, 1, [*SLOTS, "NONE"], [*spans, Span(2, 30, 90), Span(2, 230 + gap, 290 + gap)])
    written, words = tmp_path / "trace.json", tmp_path / "words.txt"
    written.write_bytes(b"".join(json_text([tile])))
    words.write_bytes(text_of(words_of([tile])))
    assert ("time_may_be_lost" in rules(analyze_tiles(written).analysis)) is warned
    found = analyze_tiles(words, TilesRequest(slots=(",".join(SLOTS),))).analysis
    assert "time_may_be_lost" not in rules(found)
    assert found.tiles[0].window_cycles == 300 + gap
