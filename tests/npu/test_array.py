"""Several tiles as one machine: alignment, common iterations, balance, the slowest tile and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from aie_captures import NPU1_GEMM, Captures
from aie_cores import analysed
from aie_gemm import NAMES, Gemm, read, traced
from aie_traces import Span, words_text
from opscope.analysis.findings.message import Message
from opscope.core.table.tiles import TileTrace, Unit
from opscope.npu.analysis.array import align
from opscope.npu.analysis.specification import RunSpecification, run_specification
from opscope.npu.analysis.tiles_result import AlignAt, ArrayView
from opscope.npu.readers.words import read_words
from opscope.program.cost.gemm import tiling

MACS = 8 * 32 * 32
SMALL = run_specification(tiling=tiling((8, 32, 32), (32, 128, 128), (4, 4)), arch="npu1", dtype="bf16")
"""Four calls on each core."""
PLAIN = Gemm(fill=0)
ARRAY = [
    PLAIN._replace(row=2 + row, column=column, begin=1 + 7 * row + 3 * column)
    for row in range(4)
    for column in range(4)
]


def said_of(each: int, columns: int = 4) -> RunSpecification:
    """So many calls on each of the cores are an iteration."""
    cut = tiling((8, 32, 32), (8 * 4, 32 * each, 32 * columns), (4, columns))
    return run_specification(tiling=cut, arch="npu1", dtype="bf16")


def viewed(*cores: Gemm, said: RunSpecification = SMALL, at: AlignAt = "auto") -> ArrayView:
    """All cores of a trace together."""
    found = analysed(*traced(*cores), said=said, align=at).analysis.array
    assert found is not None
    return found


def told(*cores: Gemm, said: RunSpecification = SMALL, at: AlignAt = "auto") -> dict[str, Message]:
    """What is reported of them, by rule."""
    return {one.rule: one for one in analysed(*traced(*cores), said=said, align=at).analysis.findings}


def from_words(cores: Sequence[Gemm], timers: Sequence[int]) -> tuple[TileTrace, ...]:
    """The cores, written as raw words with these values of their timers and read."""
    tiles = [core.tile()._replace(timer=timer) for core, timer in zip(cores, timers, strict=True)]
    return read_words(words_text(tiles), Path("words.txt"), {Unit.CORE: NAMES}).tiles


def test_that_a_core_starts_later_is_real() -> None:
    """One of two starts 20,000 cycles later: together they take 56,384 cycles, and the rate is over all of them."""
    core = PLAIN._replace(outputs=1, each=71, call=474)
    found = viewed(core, core._replace(column=1, begin=core.begin + 20_000), said=said_of(71))
    alone, window = 36_384, 56_384

    assert (found.alignment.by, found.alignment.event) == ("trace_start", None)
    assert {shift.cycles for shift in found.alignment.shifts} == {0}
    assert [one.runtime_cycles for one in found.iterations] == [window]
    assert [(one.longest_cycles, one.start_skew_cycles) for one in found.iterations] == [(alone, 20_000)]
    assert found.median_start_skew_cycles == 20_000
    assert found.window_cycles == window
    assert found.mac_per_cycle == pytest.approx(2 * 71 * MACS / window)
    assert found.utilisation == pytest.approx(2 * 71 * MACS / window / (2 * 128))
    assert found.in_call == pytest.approx(71 * 474 / window)
    apart = told(core, core._replace(column=1, begin=core.begin + 20_000), said=said_of(71))["cores_start_apart"]
    assert "20,000 cycles apart" in apart.title
    assert "tile 2,1 last" in apart.evidence
    assert "JSON has none" in apart.evidence


def test_timers_of_raw_words_place_the_tiles() -> None:
    """Both traces look alike, but the timers say that the second one started 1,500 cycles later."""
    tiles = from_words((PLAIN, PLAIN._replace(column=1)), (257_436, 258_936))
    found = analysed(*tiles, said=SMALL).analysis.array
    assert found.alignment.by == "timer"
    assert [shift.cycles for shift in found.alignment.shifts] == [0, 1500]
    assert {one.runtime_cycles for one in found.iterations} == {3 * 513 + 300 + 1500}
    assert {one.starts_last for one in found.iterations} == {"2,1"}


def test_timers_that_have_nothing_to_do_with_each_other_place_nothing() -> None:
    """By them one trace would begin when the other was long over: both count as started at one moment."""
    tiles = from_words((PLAIN, PLAIN._replace(column=1)), (5, 9_000_000))
    found = analysed(*tiles, said=SMALL).analysis.array
    assert found.alignment.by == "trace_start"
    assert {shift.cycles for shift in found.alignment.shifts} == {0}
    assert "their timers differ by 8,999,995 cycles, more than a trace lasts" in found.alignment.reason


def test_first_calls_are_one_moment_only_when_asked() -> None:
    """A 4 x 4 array of which each core starts a little later: aligned, all do the same at the same time."""
    found = viewed(*ARRAY, at="first-call")
    assert (found.alignment.event, found.alignment.by) == ("INSTR_EVENT_0", "first_call")
    shifts = [shift.cycles for shift in found.alignment.shifts]
    assert shifts == [-(7 * row + 3 * column) for row in range(4) for column in range(4)]
    assert [one.number for one in found.iterations] == [1, 2, 3]
    assert {one.start_skew_cycles for one in found.iterations} == {0}
    assert {one.runtime_cycles for one in found.iterations} == {3 * 513 + 300}
    assert (found.balance, found.slowest) == (1.0, None)


def test_a_broadcast_that_was_traced_proves_one_moment() -> None:
    """A tile that really starts later is seen to: the first common event is one that reaches all at once."""
    cores = [PLAIN, PLAIN._replace(column=1, begin=401)]
    tiles = [core.tile() for core in cores]
    names = (*tiles[0].names[:5], "BROADCAST_15", *tiles[0].names[6:])
    timers = (1, 301)
    read_tiles = read(
        *(
            tile._replace(names=names, spans=(Span(5, timer, timer + 1), *tile.spans))
            for tile, timer in zip(tiles, timers, strict=True)
        )
    )
    found = analysed(*read_tiles, said=SMALL).analysis.array
    assert found.alignment.event == "BROADCAST_15"
    assert [shift.cycles for shift in found.alignment.shifts] == [0, -300]
    assert {one.start_skew_cycles for one in found.iterations} == {100}
    assert {one.runtime_cycles for one in found.iterations} == {3 * 513 + 300 + 100}
    assert {one.longest_cycles for one in found.iterations} == {3 * 513 + 300}


def test_only_iterations_that_all_tiles_have_count() -> None:
    """The buffer of one tile filled in its second iteration: one iteration is left, the others are said."""
    found = viewed(PLAIN, PLAIN._replace(column=1, cut=PLAIN.start(6)))
    assert [one.number for one in found.iterations] == [1]
    assert "1 iteration measured and complete on all cores; 2 are not on all of them" in found.reason


def test_without_common_iterations_there_is_no_runtime() -> None:
    """A tile that was cut in its first iteration: the reason names it, nothing is averaged."""
    found = viewed(PLAIN, PLAIN._replace(column=1, cut=PLAIN.start(2)))
    assert (found.iterations, found.median_runtime_cycles, found.balance, found.slowest) == ((), None, None, None)
    assert "tiles 2,1 have none" in found.reason


def test_the_slowest_tile_and_why() -> None:
    """One of sixteen waits 900 cycles for a lock before each output tile but the first, within an iteration of all."""
    late = ARRAY[6]._replace(rest=900)
    found = viewed(*ARRAY[:6], late, *ARRAY[7:], said=said_of(12))
    assert found.slowest is not None
    assert (found.slowest.tile, found.slowest.category) == ("3,2", "lock_stall")
    assert found.slowest.excess_cycles == 2 * 900
    assert found.slowest.category_cycles == 2 * 900
    assert "waits for data" in found.slowest.why
    assert found.balance == pytest.approx((15 * 5943 + 7743) / 16 / 7743)
    assert [own.ends_last for own in found.tiles if own.tile == "3,2"] == [1]


def test_a_tile_with_more_work_is_slow_for_that_reason() -> None:
    """More vector cycles in each call: vector work is what grew."""
    found = viewed(
        *(PLAIN._replace(column=column) for column in range(3)), PLAIN._replace(column=3, call=900, vector=800)
    )
    assert found.slowest is not None
    assert (found.slowest.tile, found.slowest.category) == ("2,3", "vector")
    assert found.slowest.category_cycles == 4 * 600


def test_the_rate_of_the_array_is_the_work_of_all_in_the_runtime() -> None:
    """Sixteen tiles with four calls each, of which the last starts 30 cycles after the first; unknown without sizes."""
    found = viewed(*ARRAY)
    assert found.iterations[0].mac_per_cycle == pytest.approx(16 * 4 * MACS / (3 * 513 + 300 + 30))
    assert viewed(*ARRAY, said=run_specification()).mac_per_cycle is None


def test_cores_that_do_not_match_the_flags_are_said() -> None:
    """Two cores where sixteen were given, and two where one was."""
    assert told(*ARRAY[:2])["cores_do_not_match"].evidence == "2 cores traced, 4 x 4 given"
    more = told(*ARRAY[:2], said=run_specification(tiling=tiling((8, 32, 32))))["cores_do_not_match"]
    assert "more cores" in more.title
    assert not {"cores_do_not_match", "cores_start_apart", "core_left_out"} & set(told(*ARRAY, at="first-call"))


def test_traces_without_a_common_event_keep_their_times() -> None:
    """A tile without calls shares no moment with the others, even where first calls were asked for."""
    tile = PLAIN.tile()
    silent = tile._replace(column=1, spans=tuple(span for span in tile.spans if span.slot == 1))
    found = align(read(tile, silent), "first-call")
    assert (found.event, [shift.cycles for shift in found.shifts]) == (None, [0, 0])
    assert align([]).event is None


def test_a_single_capture_is_an_array_of_one(captures: Captures) -> None:
    """The real NPU1 core alone: aligned with itself, and as fast as it is."""
    said = run_specification(tiling=tiling((32, 64, 64), (256, 768, 768)), arch="npu1", dtype="bf16")
    found = analysed(captures.core(NPU1_GEMM), said=said).analysis.array
    assert found.slowest is None
    assert found.utilisation == pytest.approx(0.4857, abs=1e-4)
