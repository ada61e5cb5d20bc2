"""What to do about a core: its streams, its kernel, its memory, its neighbours, and DMAs that wait."""

from __future__ import annotations

import pytest

from aie_gemm import Gemm, read
from aie_traces import Span, Tile
from opscope.analysis.findings.message import Severity
from opscope.core.table.tiles import TileTraceSet
from opscope.npu.analysis.findings import TileFinding
from opscope.npu.analysis.specification import RunSpecification, run_specification
from opscope.npu.analysis.tiles import TilesTerms, analyse_tiles
from opscope.npu.analysis.tiles_result import TilesSource
from opscope.program.cost.gemm import tiling

SOURCE = TilesSource("t.json", "aie-json", "0", "cycles", 0, complete=True)
SAID = run_specification(tiling=tiling((16, 32, 32)), arch="npu1", dtype="bf16")


def found(*tiles: Tile, said: RunSpecification = SAID) -> dict[str, TileFinding]:
    """The findings of a trace by rule; the first of each."""
    examined = analyse_tiles(TileTraceSet(read(*tiles), "aie-json"), SOURCE, TilesTerms(said))
    return {one.rule: one for one in reversed(examined.analysis.findings)}


@pytest.mark.parametrize(("operand", "transfers"), [("A", (512, 128, 256)), ("B", (128, 512, 256))])
def test_a_stream_that_is_slower_than_the_call(operand: str, transfers: tuple[int, int, int]) -> None:
    """Its operand is named, what is to be gained at most, and how its tiles are used for more work."""
    sizes = (32, 32, 16) if operand == "A" else (16, 32, 32)
    advice = found(
        Gemm(transfers=transfers).tile(), said=run_specification(tiling=tiling(sizes), arch="npu1", dtype="bf16")
    )

    finding = advice["stream_sets_pace"]
    assert finding.severity is Severity.HIGH
    assert finding.title.startswith(f"the {operand} input stream sets the pace")
    assert "every 300 cycles instead of 513: at most 1.71x as fast" in finding.evidence
    assert f"use each tile of {operand} for more work" in finding.next_step


def test_a_call_that_is_slower_than_its_streams_is_no_matter_of_streams() -> None:
    """Then what is in the call counts."""
    advice = found(Gemm(call=1000, vector=400, transfers=(128, 256, 64)).tile())

    assert "stream_sets_pace" not in advice
    assert advice["scalar_cycles"].severity is Severity.MEDIUM
    assert "as fast without them" in advice["scalar_cycles"].evidence


def test_memory_stalls_in_calls() -> None:
    """With the banks as the remedy."""
    gemm = Gemm(call=1000, vector=400, transfers=(128, 256, 64))
    stalls = [Span(5, gemm.start(number) + 500, gemm.start(number) + 700) for number in range(12)]
    tile = gemm.tile()
    advice = found(tile._replace(spans=sorted([*tile.spans, *stalls], key=lambda span: span.start)))

    assert advice["memory_stalls"].title == "calls wait for the data memory in 19.9 % of their cycles"
    assert "different banks" in advice["memory_stalls"].next_step


def test_vector_instructions_that_do_little() -> None:
    """A vector cycle of this kernel does 41 of 128 multiply-accumulates."""
    advice = found(Gemm(call=1000, vector=400, transfers=(128, 256, 64)).tile())

    assert advice["weak_vector_cycles"].title == "a cycle with a vector instruction does 41.0 of 128 MAC"


def test_a_kernel_without_vector_instructions() -> None:
    """It is scalar, when that event was traced; when it was not, nothing is known."""
    scalar, plain = Gemm(vector=0, fill=0).tile(), Gemm().tile()
    blind = plain._replace(names=["NONE" if name == "INSTR_VECTOR" else name for name in plain.names])

    assert found(scalar)["no_vector_instructions"].severity is Severity.HIGH
    assert "no_vector_instructions" not in found(plain)
    assert "no_vector_instructions" not in found(
        blind._replace(spans=[span for span in plain.spans if span.slot != plain.names.index("INSTR_VECTOR")])
    )


def test_a_core_that_the_others_wait_for() -> None:
    """The slowest tile, by how much, and where it spends the difference; not when all are alike."""
    said = run_specification(tiling=tiling((16, 32, 32), (48, 128, 96), (1, 3)), arch="npu1", dtype="bf16")
    alike = [Gemm(column=column).tile() for column in range(3)]
    late = [Gemm(column=column, rest=2000 if column == 1 else 0).tile() for column in range(3)]

    assert "slowest_tile" not in found(*alike, said=said)
    assert found(*late, said=said)["slowest_tile"].title.startswith("tile 2,1 takes ")


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
def test_a_dma_that_waits(unit: str, event: str, title: str | None) -> None:
    """For what, for how long, and where to look next; other events are none of its business."""
    advice = found(Tile(unit, 1, 0, (event, *("NONE",) * 7), [Span(0, 500, 1000)]))

    assert ("dma_waits" in advice) is (title is not None)
    if title:
        assert advice["dma_waits"].title == title
        assert advice["dma_waits"].next_step


def test_a_dma_without_a_trace_does_not_wait() -> None:
    """A slot was given to it, and its unit recorded nothing."""
    silent = Tile("mem", 2, 0, ("DMA_S2MM_0_STREAM_STARVATION", *("NONE",) * 7), [])

    assert "dma_waits" not in found(Gemm().tile(), silent)
