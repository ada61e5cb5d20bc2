"""Who waits for whom: DMAs from cause to symptom, advice that knows what was traced, and cores that do nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from aie_gemm import Gemm
from aie_stalls import Caller, waiting
from aie_traces import Span, Tile, json_text, words_text
from opscope.analysis.findings.message import Message, Severity
from opscope.core.errors import EmptyTraceError
from opscope.core.json import to_json
from opscope.npu.analysis.tiles_result import TilesAnalysis
from opscope.npu.reports.answer import answer, join_findings
from opscope.npu.reports.page import tiles_html
from opscope.npu.workflows.aie import Tiles, analyze_tiles, missing
from texts import PART_OF_THE_TIME

Analyse = Callable[..., Tiles]
MARKS = {"INSTR_EVENT_0": 0, "INSTR_EVENT_1": 0}
STARVED = [
    waiting("shim", 0, 0, {"DMA_S2MM_0_STREAM_STARVATION": 700, "DMA_MM2S_0_MEMORY_STARVATION": 500}),
    waiting("memtile", 1, 0, {"DMA_MM2S_SEL0_STALLED_LOCK": 400, "DMA_S2MM_SEL0_STREAM_STARVATION": 450}),
    waiting("mem", 2, 0, {"DMA_MM2S_0_STALLED_LOCK": 600, "DMA_S2MM_0_STREAM_STARVATION": 300}),
]
BLOCKED = [
    waiting("mem", 2, 0, {"DMA_MM2S_0_STREAM_BACKPRESSURE": 300}),
    waiting("memtile", 1, 0, {"DMA_S2MM_SEL0_STALLED_LOCK": 400, "DMA_MM2S_SEL0_STREAM_BACKPRESSURE": 450}),
    waiting("shim", 0, 0, {"DMA_MM2S_0_STREAM_BACKPRESSURE": 700, "DMA_S2MM_0_MEMORY_BACKPRESSURE": 500}),
]


@pytest.fixture
def analysed(tmp_path: Path) -> Analyse:
    """Analyses a trace of these units."""

    def analyse(*tiles: Tile) -> Tiles:
        path = tmp_path / "t.json"
        path.write_bytes(b"".join(json_text(tiles)))
        return analyze_tiles(path)

    return analyse


def dma_waits(found: TilesAnalysis) -> list[Message]:
    """The findings on DMAs."""
    return [one for one in found.findings if one.rule == "dma_waits"]


def titled(found: Iterable[Message]) -> list[str]:
    """Unit and event of each."""
    return [one.subject for one in found]


@pytest.mark.parametrize(
    ("unit", "event", "title"),
    [
        ("mem", "DMA_S2MM_0_STREAM_STARVATION", "DMA_S2MM_0 waits for data from its stream in 50.0 % of the trace"),
        ("memtile", "DMA_MM2S_SEL0_STALLED_LOCK_ACQUIRE", None),
        (
            "shim",
            "DMA_MM2S_0_STREAM_BACKPRESSURE",
            "DMA_MM2S_0 waits for its stream to take data in 50.0 % of the trace",
        ),
    ],
)
def test_a_dma_that_waits(unit: str, event: str, title: str | None, analysed: Analyse) -> None:
    """For what, for how long, and where to look next; other events are none of its business."""
    found = dma_waits(analysed(waiting(unit, {"mem": 2, "memtile": 1, "shim": 0}[unit], 0, {event: 500})).analysis)

    assert [one.title for one in found] == ([title] if title else [])
    assert all(one.next_step for one in found)


def test_a_dma_without_a_trace_does_not_wait(analysed: Analyse) -> None:
    """A slot was given to it, and its unit recorded nothing."""
    silent = waiting("mem", 2, 0, {"DMA_S2MM_0_STREAM_STARVATION": 0})

    assert not dma_waits(analysed(Gemm().tile(), silent).analysis)


def test_a_lack_of_data_is_told_from_the_memory_on(analysed: Analyse) -> None:
    """External memory starves the interface tile, that the memory tile, that the core, and that the way out."""
    found = dma_waits(analysed(*STARVED).analysis)

    assert titled(found) == [
        "shim DMA_MM2S_0_MEMORY_STARVATION",
        "memtile DMA_S2MM_SEL0_STREAM_STARVATION",
        "memtile DMA_MM2S_SEL0_STALLED_LOCK",
        "mem DMA_S2MM_0_STREAM_STARVATION",
        "mem DMA_MM2S_0_STALLED_LOCK",
        "shim DMA_S2MM_0_STREAM_STARVATION",
    ]
    assert all("DMA_MM2S_0 of interface tile 0,0 waits for data from memory" in one.next_step for one in found[1:])
    assert "external memory is slower" in found[0].next_step


def test_a_lack_of_room_is_told_against_the_flow(analysed: Analyse) -> None:
    """External memory takes no data: the way back to the core, and to the way in."""
    found = dma_waits(analysed(*BLOCKED).analysis)

    assert titled(found) == [
        "shim DMA_S2MM_0_MEMORY_BACKPRESSURE",
        "memtile DMA_MM2S_SEL0_STREAM_BACKPRESSURE",
        "memtile DMA_S2MM_SEL0_STALLED_LOCK",
        "mem DMA_MM2S_0_STREAM_BACKPRESSURE",
        "shim DMA_MM2S_0_STREAM_BACKPRESSURE",
    ]


def test_a_slow_core_comes_before_the_memory_tile_behind_it(analysed: Analyse) -> None:
    """Only the way out lacks data, so the memory tile stands there: the core fills its buffers too slowly."""
    tiles = [
        waiting("shim", 0, 0, {"DMA_S2MM_0_STREAM_STARVATION": 700}),
        waiting("memtile", 1, 0, {"DMA_S2MM_SEL0_STREAM_STARVATION": 450}),
        waiting("mem", 2, 0, {"DMA_MM2S_0_STALLED_LOCK": 600}),
    ]
    found = dma_waits(analysed(*tiles).analysis)

    assert [one.place for one in found] == [
        "tile 2,0, its mem trace",
        "tile 1,0, its memtile trace",
        "tile 0,0, its shim trace",
    ]
    assert found[0].next_step == "no buffer is full: the core is slower"


def test_waits_of_different_places_are_shown_apart_and_in_order(analysed: Analyse) -> None:
    """In the report as in the JSON; the same wait of a second column is shown with the first."""
    more = waiting("shim", 0, 1, {"DMA_MM2S_0_MEMORY_STARVATION": 500})
    tiles = analysed(*STARVED[:2], more)
    listed = [one for one in join_findings(tiles.analysis.findings) if one.rule == "dma_waits"]
    titles = [one.title for one in listed]

    assert [one.subject for one in listed] == list(dict.fromkeys(titled(dma_waits(tiles.analysis))))
    assert listed[0].place == "tile 0,0, its shim trace, and 1 more tile"
    text = tiles_html(tiles.examined)
    places = [text.index(title) for title in titles]
    assert places == sorted(places)


@pytest.mark.parametrize(("rest", "severity"), [(700, Severity.MEDIUM), (0, Severity.INFO)])
def test_slow_memory_matters_when_a_core_waits(rest: int, severity: Severity, analysed: Analyse) -> None:
    """It is the cause then; of a core that never waits it takes nothing."""
    tiles = analysed(Gemm(outputs=12, each=1, rest=rest).tile(), STARVED[0])

    assert dma_waits(tiles.analysis)[0].severity is severity


@pytest.mark.parametrize(
    ("tiles", "asked"),
    [
        ([], "trace the DMAs of the memory tile behind them, and the DMAs of the interface tile"),
        ([waiting("memtile", 1, 0, {"DMA_MM2S_SEL0_STALLED_LOCK": 0})], "trace the DMAs of the interface tile"),
        (
            [
                waiting("shim", 0, 0, {"DMA_MM2S_0_STALLED_LOCK": 0}),
                waiting("memtile", 1, 0, {"DMA_MM2S_SEL0_STREAM_BACKPRESSURE": 500}),
            ],
            "DMA_MM2S_SEL0 of memory tile 1,0 waits for its stream to take data, upstream or downstream",
        ),
        (STARVED, "DMA_MM2S_0 of interface tile 0,0 waits for data from memory: fix that first"),
        (
            [waiting(unit, row, 0, {"DMA_MM2S_0_STALLED_LOCK": 0}) for unit, row in (("shim", 0), ("mem", 2))]
            + [waiting("memtile", 1, 0, {"DMA_MM2S_SEL0_STALLED_LOCK": 0})],
            "no traced DMA on the path does: check the order of its locks",
        ),
    ],
)
def test_a_core_that_waits_for_buffers_is_not_told_to_trace_what_is_traced(
    tiles: list[Tile],
    asked: str,
    analysed: Analyse,
) -> None:
    """Its three ports are traced; of the DMAs on the way those are asked for that are not."""
    found = analysed(Gemm(outputs=12, each=1, rest=700).tile(), *tiles).analysis.findings
    (step,) = [one.next_step for one in found if one.rule == "period_not_explained"]

    assert asked in step
    assert "ports" not in step
    assert ("trace the" in step) is ("trace the" in asked)


@pytest.mark.parametrize(
    ("banks", "asked"),
    [
        ({}, "trace CONFLICT_DM_BANK_0 to 7 of its memory module"),
        ({"CONFLICT_DM_BANK_0": 0, "CONFLICT_DM_BANK_1": 240}, "CONFLICT_DM_BANK_1 is active in 240 cycles"),
        ({"CONFLICT_DM_BANK_0": 0}, "no conflicts: trace CONFLICT_DM_BANK_1, 2, 3, 4, 5, 6, 7"),
        ({f"CONFLICT_DM_BANK_{bank}": 0 for bank in range(8)}, "no conflicts: check neighbours"),
    ],
)
def test_banks_that_were_traced_are_read_and_not_asked_for(
    banks: dict[str, int],
    asked: str,
    analysed: Analyse,
) -> None:
    """Stalls of the data memory, with none, some, or all conflicts of its banks beside them."""
    module = [waiting("mem", 2, 0, banks)] if banks else []
    found = analysed(Caller(stalls={"MEMORY_STALL": 400}).tile(), *module).analysis.findings
    (step,) = [one.next_step for one in found if one.rule == "memory_stalls"]

    assert asked in step


def test_a_neighbour_in_the_cascade_that_was_traced_is_named(analysed: Analyse) -> None:
    """Else that core is asked for."""
    core = Caller(stalls={"CASCADE_STALL": 400}).tile()
    steps = [
        [one.next_step for one in analysed(core, *more).analysis.findings if one.rule == "cascade_stalls"]
        for more in ([], [Caller(column=1).tile()])
    ]

    assert ["trace that core as well" in steps[0][0], "compare it with core 2,1" in steps[1][0]] == [True, True]


@pytest.mark.parametrize(
    ("events", "calls", "said"),
    [
        (MARKS, "none", "no call"),
        ({**MARKS, "INSTR_EVENT_0": 999}, "begun", "its call does not end"),
        ({}, "not traced", "calls not traced"),
    ],
)
def test_a_core_that_only_waits_is_the_first_thing_said(
    events: dict[str, int],
    calls: str,
    said: str,
    analysed: Analyse,
) -> None:
    """In the headline and as the first finding, with what is known of its calls."""
    tiles = analysed(waiting("core", 2, 0, {**events, "LOCK_STALL": 998}))
    (row,), first = tiles.analysis.tiles, tiles.analysis.findings[0]

    assert (row.only_waits.stall, row.only_waits.cycles, row.only_waits.calls) == ("lock_stall", 998, calls)
    assert answer(tiles.analysis)[0] == f"The core only waits: lock stall in 99.8 % of its trace, {said}"
    assert (first.rule, first.severity, first.evidence) == (
        "core_only_waits",
        Severity.HIGH,
        "LOCK_STALL: 998 of 1,000 cycles",
    )
    assert isinstance(missing(tiles), EmptyTraceError)
    assert json.loads(to_json(tiles.analysis))["tiles"][0]["only_waits"]["calls"] == calls


def test_a_wait_that_is_all_that_a_core_recorded_needs_no_length(analysed: Analyse) -> None:
    """It begins in the first cycle and never ends, so the core's own times do not tell how long it lasts."""
    stuck = Tile("core", 2, 0, (*MARKS, "LOCK_STALL", *("NONE",) * 5), [Span(2, 1, None)])
    tiles = analysed(Gemm(column=1).tile(), stuck)

    assert tiles.analysis.tiles[1].only_waits.share is None
    assert answer(tiles.analysis)[0].startswith(
        "1 of 2 cores only waits (tile 2,0): lock stall in all of its events, no call; the other is busy "
    )


def test_among_working_cores_it_is_told_first(analysed: Analyse) -> None:
    """Before what sets the pace of the others; a core without events is neither."""
    cores = [Gemm(column=column).tile() for column in (0, 2)]
    stuck, silent = waiting("core", 2, 1, {**MARKS, "LOCK_STALL": 990}), waiting("core", 2, 3, {"INSTR_VECTOR": 5})
    headline, lines = answer(analysed(*cores, stuck, silent).analysis)

    assert headline.startswith("1 of 4 cores only waits (tile 2,1): lock stall in 99.0 % of its trace, no call; ")
    assert f"; the 2 with calls are {PART_OF_THE_TIME}" in headline
    assert lines[-1].endswith(
        "; no calls of 1 more core (calls cannot be found: no slot for INSTR_EVENT_0 and INSTR_EVENT_1)"
    )


@pytest.mark.parametrize(("events", "waits"), [({"LOCK_STALL": 890}, False), ({"LOCK_STALL": 910}, True), ({}, False)])
def test_a_core_that_does_more_than_wait_does_not_only_wait(
    events: dict[str, int],
    waits: bool,
    analysed: Analyse,
) -> None:
    """From nine tenths of its trace on."""
    core = waiting("core", 2, 0, {**MARKS, **events, "INSTR_VECTOR": 1})

    assert ("core_only_waits" in [one.rule for one in analysed(core).analysis.findings]) is waits


@pytest.mark.parametrize(
    ("events", "problem", "rule", "step"),
    [
        (
            MARKS,
            "no call: INSTR_EVENT_0 and INSTR_EVENT_1 never occurred",
            "calls_none",
            "check that the kernel ran",
        ),
        (
            {"INSTR_EVENT_0": 300},
            "calls cannot be found: no slot for INSTR_EVENT_1",
            "calls_not_traced",
            "trace INSTR_EVENT_1 too,",
        ),
    ],
)
def test_no_call_is_told_from_calls_that_were_not_traced(
    events: dict[str, int],
    problem: str,
    rule: str,
    step: str,
    analysed: Analyse,
) -> None:
    """What to do differs: mark the kernel, or give the missing event a slot."""
    tiles = analysed(waiting("core", 2, 0, {**events, "INSTR_VECTOR": 300}))

    assert answer(tiles.analysis)[0] == f"Unknown whether the cores are busy: {problem}"
    assert str(missing(tiles)).find(problem) >= 0
    (finding,) = [one for one in tiles.analysis.findings if one.rule == rule]
    assert finding.next_step.startswith(step)


def test_slots_without_names_are_not_called_untraced(tmp_path: Path) -> None:
    """Raw words do not hold the names of events: the advice is to name them, not to trace them."""
    path = tmp_path / "words.txt"
    path.write_bytes(words_text([Gemm().tile()]))
    tiles = analyze_tiles(path)
    found, _ = answer(tiles.analysis)

    assert found.endswith("calls cannot be found: the events of its slots are not named")
    assert not any("trace these too" in one.next_step for one in tiles.analysis.findings)
