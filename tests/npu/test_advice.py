"""Advice on tracing: what events take in the buffer, whether it filled, what to leave out."""

from __future__ import annotations

import numpy as np
import pytest

from aie_captures import NPU1_GEMM, NPU2_GEMM, WORDS, Captures
from aie_cores import analysed
from aie_gemm import NAMES, Gemm, read, traced
from aie_traces import Span, Tile, commands, plain_command
from beside import reads_captures
from opscope.core.table.tiles import TileTrace
from opscope.npu.analysis.capture import TraceAdvice, advise
from opscope.npu.analysis.specification import RunSpecification, run_specification
from opscope.npu.readers.words import framed
from opscope.program.cost.gemm import tiling

SMALL = run_specification(tiling=tiling((8, 32, 32), (8, 128, 96)), arch="npu1", dtype="bf16")


def advised(tile: TileTrace, said: RunSpecification) -> TraceAdvice:
    """The advice on a core."""
    return analysed(tile, said=said).analysis.tiles[0].advice


def is_reported(tile: TileTrace, said: RunSpecification) -> bool:
    """Whether a finding says that the trace ends early."""
    return "trace_cut" in [finding.rule for finding in analysed(tile, said=said).analysis.findings]


@pytest.mark.parametrize(
    "spans",
    [
        [Span(0, 5, 6)],
        [Span(0, 5, 6), Span(1, 900, 5000), Span(2, 950, 951), Span(0, 9000, 9001)],
        [Span(3, 1, 2000), Span(4, 2000, 2016), Span(5, 2016, 2018), Span(7, 600_000, 600_040)],
    ],
)
def test_commands_are_those_that_a_unit_writes(spans: list[Span]) -> None:
    """Single and multiple frames, holds and idle times of all lengths take the bytes that an encoder writes."""
    written = list(commands(spans))[1:]
    assert advise(read(Tile("core", 2, 0, NAMES, spans))[0]).bytes == sum(map(len, written))


@pytest.mark.parametrize("name", WORDS)
def test_the_estimate_is_within_five_per_cent_of_what_hardware_wrote(captures: Captures, name: str) -> None:
    """Raw words of real captures, against the estimate from the events of their JSON; padding is left out."""
    tile = captures.core(name)
    words = np.array([int(word, 16) for word in captures.words(name).read_text().split()], np.uint32)
    unit = next(own for own in framed(words).units if own.unit is tile.unit)
    data, sizes, at = unit.words.astype(">u4").tobytes(), [], 0
    while at < len(data):
        kind, size, _, _ = plain_command(data[at : at + 8].ljust(8, b"\0"))
        sizes += [size] if kind in {"frame", "repeat", "sync"} else []
        at += size
    assert advise(tile).bytes == pytest.approx(sum(sizes), rel=0.05)


def test_a_pulse_every_few_cycles_is_written_as_repeats() -> None:
    """A hundred equal frames in a row are one frame and one repeat."""
    pulses = [Span(7, 3 * n + 1, 3 * n + 2) for n in range(101)]
    assert advise(read(Tile("core", 2, 0, NAMES, pulses))[0]).bytes == 1 + 1 + 2


@reads_captures
def test_the_npu1_capture_ends_early_and_three_events_are_why(real_captures: Captures) -> None:
    """Its 64 KiB hold 6 % of the calls; without the busiest port, vector work and memory stalls the whole run fits."""
    said = run_specification(tiling=tiling((32, 64, 64), (256, 768, 768)), arch="npu1", dtype="bf16")
    tile = real_captures.core(NPU1_GEMM)
    found = advised(tile, said)
    assert found.cut is True
    assert found.bytes * 8 / 7 == pytest.approx(58_400, rel=0.05)
    assert [cost.event for cost in found.slots[:3]] == ["PORT_RUNNING_1", "INSTR_VECTOR", "MEMORY_STALL"]
    last = found.steps[-1]
    assert set(last.events) == {"PORT_RUNNING_1", "INSTR_VECTOR", "MEMORY_STALL"}
    assert last.coverage == 1
    assert last.reach > 1152 / 74
    assert is_reported(tile, said)


@reads_captures
def test_the_npu2_capture_reaches_many_times_as_far_without_vector_work(real_captures: Captures) -> None:
    """Pulses of two cycles fill it; how long the whole run is was not said, so the advice stops at ten times."""
    found = advised(
        real_captures.core(NPU2_GEMM), run_specification(tiling=tiling((16, 32, 256)), arch="npu2", dtype="bfp16")
    )
    assert (found.cut, found.why) == (True, "the trace ends within a call")
    (step,) = found.steps
    assert (step.events, step.coverage) == (("INSTR_VECTOR",), None)
    assert step.reach == pytest.approx(16, rel=0.05)


def test_a_whole_run_needs_no_advice() -> None:
    """All twelve calls are there: not cut, no steps, no finding."""
    (tile,) = traced(Gemm())
    found = advised(tile, SMALL)
    assert (found.cut, found.steps, is_reported(tile, SMALL)) == (False, (), False)


def test_the_events_that_calls_are_found_by_stay() -> None:
    """They have a cost, and no step leaves them out."""
    core = Gemm()
    cut = advised(traced(core._replace(cut=core.start(5)))[0], SMALL)
    marks = {"INSTR_EVENT_0", "INSTR_EVENT_1"}
    assert marks <= {cost.event for cost in cut.slots}
    assert not marks & {event for step in cut.steps for event in step.events}


def test_without_sizes_a_trace_that_ends_between_calls_tells_nothing() -> None:
    """It may be whole or not: null, with what to give."""
    found = advised(traced(Gemm())[0], run_specification())
    assert found.cut is None
    assert "give M, K, N" in found.why


def test_units_without_calls_have_costs_only() -> None:
    """A memory module's slots, and a unit without any events."""
    module = Tile("mem", 2, 0, ("DMA_S2MM_0_START_TASK", *["NONE"] * 7), [Span(0, 5, 6), Span(0, 90, 91)])
    silent = Tile("core", 3, 0, NAMES, [])
    found, empty = (advise(tile) for tile in read(module, silent))
    assert [cost.event for cost in found.slots] == ["DMA_S2MM_0_START_TASK"]
    assert (found.cut, found.bytes) == (None, 3)
    assert (empty.bytes, empty.slots, empty.steps) == (0, (), ())
