"""Damage to a trace: lost packets told from a full buffer, repeated ones, times that jump, and what follows of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aie_gemm import NAMES, Gemm
from aie_traces import Tile, json_text, packets, text_of
from opscope.npu.reports.answer import answer
from opscope.npu.workflows.aie import Tiles, TilesRequest, analyze_tiles
from texts import START_IS_MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opscope.analysis.findings.message import Message

    Packets = list[list[int]]

CORE = Gemm(outputs=4, each=10, call=900, vector=300, fill=0, rest=2200, begin=3001)
"""Four iterations of ten calls; the core waits 2,200 cycles for a lock before each."""
FILLS = CORE._replace(fill=20)
"""The same, with a zero-fill before each iteration."""
SAID = TilesRequest(
    M=8, K=80, N=32, m=8, k=8, n=32, row=1, col=1, warmup=0, iterations=4, dtype="bf16", slots=(",".join(NAMES),)
)


def analysed(path: Path, units: Sequence[Packets], said: TilesRequest = SAID) -> Tiles:
    """The packets of units, which wrote in turn."""
    longest = max(map(len, units))
    words = [word for turn in range(longest) for own in units if turn < len(own) for word in own[turn]]
    (path / "words.txt").write_bytes(text_of(words))
    return analyze_tiles(path / "words.txt", said)


def whole(core: Gemm = CORE) -> Packets:
    """All that a core wrote."""
    return packets(core.tile())


def found(tiles: Tiles, rule: str) -> list[Message]:
    """Findings of a rule."""
    return [one for one in tiles.analysis.findings if one.rule == rule]


def without(listed: Packets, first: int, count: int = 1) -> Packets:
    """The packets without some in a row."""
    return listed[:first] + listed[first + count :]


def test_a_whole_trace_has_no_damage(tmp_path: Path) -> None:
    """Nothing is lost, repeated or odd."""
    for core in (CORE, FILLS):
        tiles = analysed(tmp_path, [whole(core)])
        (row,) = tiles.analysis.tiles
        assert (row.lost_packets, row.advice.cut, row.calls.dropped) == ((), False, 0)
        assert {one.rule for one in tiles.analysis.findings} <= {"cycle_events_missing", "scalar_cycles"}


@pytest.mark.parametrize("core", [CORE, FILLS], ids=["one kind", "zero-fills"])
@pytest.mark.parametrize("count", [1, 4])
def test_calls_missing_before_the_end_are_no_full_buffer(tmp_path: Path, core: Gemm, count: int) -> None:
    """Wherever packets are taken out; but for a loss that takes the wait before the last iteration with it."""
    listed = whole(core)
    for first in range(1, len(listed) - count - 1, 3):
        tiles = analysed(tmp_path, [without(listed, first, count)])
        (row,) = tiles.analysis.tiles
        missing = 40 - sum(kind.n for kind in row.kinds if kind.multiplies)
        waits = next(slot.spans for slot in row.slots if slot.event == "LOCK_STALL")
        if missing and not (waits < 4 and row.iterations[2].phase == "measured"):
            told = [one for one in tiles.analysis.findings if one.rule in {"packets_lost", "calls_missing_at_start"}]
            assert not found(tiles, "trace_cut")
            assert "lost" in told[0].title
            assert row.advice.cut is not True


def test_where_they_were_lost_is_said(tmp_path: Path) -> None:
    """One packet of the second iteration: a call of ten is missing, and the step there is as long as no other."""
    tiles = analysed(tmp_path, [without(whole(FILLS), len(whole(FILLS)) // 2)])
    (lost,) = found(tiles, "packets_lost")
    (row,) = tiles.analysis.tiles
    (place,) = row.lost_packets

    assert lost.title == "packets were lost between cycles 23,859 and 24,223"
    assert lost.evidence == (
        "iteration 2 has 9 working calls, 10 are typical; 1 working call missing before the end; later times "
        "are too early"
    )
    assert (place.cycle, place.last_cycle, place.kind) == (23_859, 24_223, "lost")
    assert row.iterations[1].phase == "partial"
    assert [one.phase for one in row.iterations].count("measured") == 3
    assert row.advice.why == "39 of 40 calls in the trace (97.5 %); the others are missing before its end"


def test_calls_missing_at_the_end_alone_are_a_full_buffer(tmp_path: Path) -> None:
    """Half of the packets: the trace is cut, nothing is lost."""
    tiles = analysed(tmp_path, [whole()[: len(whole()) // 2]])
    assert found(tiles, "trace_cut")[0].title == "the trace ends before the work: the buffer was probably full"
    assert not found(tiles, "packets_lost")


def test_a_buffer_with_room_did_not_fill(tmp_path: Path) -> None:
    """Zero words are left behind the last packet: tracing was stopped, and no larger buffer helps."""
    tiles = analysed(tmp_path, [whole()[: len(whole()) // 2] + [[0] * 8] * 40])
    (cut,) = found(tiles, "trace_cut")
    assert cut.title == "the trace ends before the work, although its buffer had room"
    assert tiles.analysis.tiles[0].advice.steps == ()


def test_both_a_loss_and_a_full_buffer(tmp_path: Path) -> None:
    """A packet is missing in the second iteration, and all of the last one: both are said."""
    listed = without(whole(FILLS), len(whole(FILLS)) // 2)
    tiles = analysed(tmp_path, [listed[:-10]])
    assert len(found(tiles, "packets_lost")) == 1
    (cut,) = found(tiles, "trace_cut")
    assert "; 1 missing before its end" in cut.evidence


def test_a_first_packet_that_is_missing_is_lost_at_the_start(tmp_path: Path) -> None:
    """The Start command is not there, so times count from an unknown moment."""
    tiles = analysed(tmp_path, [whole()[1:]])
    (lost,) = found(tiles, "packets_lost")
    assert lost.title == "packets were lost at the start of the trace"
    assert START_IS_MISSING in lost.evidence
    assert not found(tiles, "trace_cut")


def test_calls_missing_at_the_start_of_json_are_no_full_buffer(tmp_path: Path) -> None:
    """JSON has no Start command: packets were lost, or tracing began late, and which is not known."""
    tile = FILLS.tile()
    late = tile._replace(spans=[span for span in tile.spans if span.start > FILLS.start(2) - 20])
    (tmp_path / "t.json").write_bytes(b"".join(json_text([late])))
    tiles = analyze_tiles(tmp_path / "t.json", SAID)
    (start,) = found(tiles, "calls_missing_at_start")
    assert "iteration 1 has 8 working calls, 10 are typical; 2 working calls missing" in start.evidence
    assert tiles.analysis.tiles[0].advice.cut is False
    assert not found(tiles, "trace_cut")


@pytest.mark.parametrize(("count", "calls"), [(1, 41), (4, 45)])
def test_packets_that_are_in_it_twice_make_too_many_calls(tmp_path: Path, count: int, calls: int) -> None:
    """No sequence number tells, but an iteration then has more calls than the others."""
    listed = whole()
    half = len(listed) // 2
    tiles = analysed(tmp_path, [listed[:half] + listed[half - count :]])
    (own,) = found(tiles, "packets_lost")
    assert own.title.startswith("packets were repeated")
    assert f"iteration 2 has {calls - 30} working calls, 10 are typical" in own.evidence
    assert tiles.analysis.tiles[0].calls.paired == calls


def test_marks_that_the_kernel_forgets_are_not_lost_packets(tmp_path: Path) -> None:
    """Every third call has no end: that is how the kernel is written, not how the trace was captured."""
    tile, seen = CORE.tile(), 0
    spans = []
    for span in tile.spans:
        seen += span.slot == 4
        if span.slot != 4 or seen % 3:
            spans.append(span)
    (tmp_path / "t.json").write_bytes(b"".join(json_text([tile._replace(spans=spans)])))
    tiles = analyze_tiles(tmp_path / "t.json", TilesRequest())
    assert found(tiles, "call_end_missing")
    assert not found(tiles, "packets_lost")


def test_a_core_that_lost_packets_is_left_out_of_the_figures_of_all(tmp_path: Path) -> None:
    """Three cores, of which the middle one lost a packet: the other two are compared, and it is said."""
    units = [packets(CORE._replace(column=column).tile()) for column in range(3)]
    units[1] = without(units[1], 18)
    said = TilesRequest(**{name: getattr(SAID, name) for name in SAID.__struct_fields__} | {"N": 96, "col": 3})
    tiles = analysed(tmp_path, units, said)
    array = tiles.analysis.array
    assert array is not None
    assert [own.tile for own in array.left_out] == ["2,1"]
    assert [own.tile for own in array.tiles] == ["2,0", "2,2"]
    assert {one.runtime_cycles for one in array.iterations} == {9 * 911 + 900}
    assert [one.place for one in found(tiles, "core_left_out")] == ["tile 2,1"]
    assert "without tile 2,1 (unreliable times), an iteration takes" in answer(tiles.analysis)[1][2]


def test_one_sure_core_alone_is_compared_with_nothing(tmp_path: Path) -> None:
    """Of two cores one lost a packet: there are no figures of both."""
    units = [packets(CORE._replace(column=column).tile()) for column in range(2)]
    tiles = analysed(tmp_path, [units[0], without(units[1], 18)])
    array = tiles.analysis.array
    assert array is not None
    assert (array.iterations, array.window_cycles, array.mac_per_cycle) == ((), None, None)
    assert "only the times of tile 2,0 are" in array.reason


def flipped(listed: Packets, change: Callable[[int], int | None]) -> Iterable[tuple[int, int]]:
    """Packet and word of padding bytes that a bit turns into Event_Sync."""
    return ((at, word) for at, own in enumerate(listed) for word, value in enumerate(own) if word and change(value))


def test_a_call_that_lacks_a_few_vector_cycles_lost_a_packet(tmp_path: Path) -> None:
    """It stays with its kind; the iteration lasts as long as others, so its time is kept."""
    tile: Tile = CORE.tile()
    vector = [span for span in tile.spans if span.slot == 7][17]
    spans = [span._replace(end=span.end - 8) if span == vector and span.end else span for span in tile.spans]
    (tmp_path / "t.json").write_bytes(b"".join(json_text([tile._replace(spans=spans)])))
    tiles = analyze_tiles(tmp_path / "t.json", SAID)
    assert not found(tiles, "packets_lost")
    (lost,) = tiles.analysis.tiles[0].lost_packets
    assert "call 18 has 292 of its kernel's 300 vector cycles" in lost.why
    assert lost.times_kept
    one = tiles.analysis.tiles[0].iterations[1]
    assert (one.phase, one.complete, one.lost_calls) == ("measured", False, 0)
