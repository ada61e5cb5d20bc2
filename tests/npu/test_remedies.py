"""What to do about a core: its streams, its kernel, what its calls wait for, its neighbours."""

from __future__ import annotations

import pytest

from aie_gemm import Gemm, read
from aie_stalls import Caller
from aie_traces import Span, Tile
from opscope.analysis.findings.message import Message, Severity
from opscope.core.table.tiles import TileTraceSet
from opscope.npu.analysis.specification import RunSpecification, run_specification
from opscope.npu.analysis.tiles import Examined, TilesTerms, analyse_tiles
from opscope.npu.analysis.tiles_result import TilesSource
from opscope.program.cost.gemm import tiling

SOURCE = TilesSource("t.json", "aie-json", "0", "cycles", 0, complete=True)
SAID = run_specification(tiling=tiling((16, 32, 32)), arch="npu1", dtype="bf16")


def analyse(*tiles: Tile, said: RunSpecification = SAID) -> Examined:
    """A trace of these units, analysed."""
    return analyse_tiles(TileTraceSet(read(*tiles), "aie-json"), SOURCE, TilesTerms(said))


def found(*tiles: Tile, said: RunSpecification = SAID) -> dict[str, Message]:
    """The findings of a trace by rule; the first of each."""
    return {one.rule: one for one in reversed(analyse(*tiles, said=said).analysis.findings)}


@pytest.mark.parametrize(("operand", "transfers"), [("A", (512, 128, 256)), ("B", (128, 512, 256))])
def test_a_stream_that_is_slower_than_the_call(operand: str, transfers: tuple[int, int, int]) -> None:
    """Its operand is named, what is to be gained at most, and how its tiles are used for more work."""
    sizes = (32, 32, 16) if operand == "A" else (16, 32, 32)
    advice = found(
        Gemm(transfers=transfers).tile(), said=run_specification(tiling=tiling(sizes), arch="npu1", dtype="bf16")
    )

    finding = advice["stream_sets_pace"]
    assert finding.severity is Severity.HIGH
    assert finding.title.startswith(f"the {operand} input stream limits the call rate")
    assert "every 300 cycles instead of 513: at most 1.71x faster" in finding.evidence
    assert f"reuse each tile of {operand} more" in finding.next_step


def test_a_call_that_is_slower_than_its_streams_is_no_matter_of_streams() -> None:
    """Then what is in the call counts."""
    advice = found(Gemm(call=1000, vector=400, transfers=(128, 256, 64)).tile())

    assert "stream_sets_pace" not in advice
    assert advice["scalar_cycles"].severity is Severity.MEDIUM
    assert (
        "at most 2.42x faster (95 % interval 2.39x to 2.45x, n = 15) without them" in advice["scalar_cycles"].evidence
    )


def test_memory_stalls_in_calls() -> None:
    """With the banks as the remedy."""
    gemm = Gemm(call=1000, vector=400, transfers=(128, 256, 64))
    stalls = [Span(5, gemm.start(number) + 500, gemm.start(number) + 700) for number in range(12)]
    tile = gemm.tile()
    advice = found(tile._replace(spans=sorted([*tile.spans, *stalls], key=lambda span: span.start)))

    assert advice["memory_stalls"].title == "calls wait for the data memory in 19.9 % of their cycles"
    assert "different banks" in advice["memory_stalls"].next_step


@pytest.mark.parametrize(
    ("event", "rule", "what", "step"),
    [
        ("LOCK_STALL", "lock_stalls", "a lock", "acquire buffers before event0()"),
        ("STREAM_STALL", "stream_stalls", "a stream", "let a DMA fill buffers"),
        ("CASCADE_STALL", "cascade_stalls", "the cascade", "balance the work of the cores in the cascade"),
        ("MEMORY_STALL", "memory_stalls", "the data memory", "place buffers that are read in the same cycle"),
    ],
)
def test_stalls_in_calls_are_findings_each_with_its_bound(event: str, rule: str, what: str, step: str) -> None:
    """A core that waits in 67 % of the cycles of its calls could be three times as fast, at most."""
    advice = found(Caller(stalls={event: 670}).tile(), said=run_specification())
    finding = advice[rule]

    assert finding.title == f"calls wait for {what} in 67.0 % of their cycles"
    assert finding.severity is Severity.HIGH
    assert "at most 2.98x faster (95 % interval 2.96x to 2.99x, n = 12) without them" in finding.evidence
    assert finding.next_step.startswith(step)
    assert found(Caller(stalls={event: 49}).tile(), said=run_specification()).get(rule) is None


def test_several_stalls_in_calls_are_told_from_the_largest_on() -> None:
    """In the findings and in the result, where each has what is to be gained without it."""
    stalls = {"LOCK_STALL": 100, "MEMORY_STALL": 300, "STREAM_STALL": 200}
    examined = analyse(Caller(stalls=stalls).tile(), said=run_specification())
    (row,), rules = examined.analysis.tiles, [one.rule for one in examined.analysis.findings]

    assert [rule for rule in rules if rule.endswith("_stalls")] == ["memory_stalls", "stream_stalls", "lock_stalls"]
    assert [(one.stall, one.cycles, one.share) for one in row.call_stalls] == [
        ("memory_stall", 3600, 0.3),
        ("stream_stall", 2400, 0.2),
        ("lock_stall", 1200, 0.1),
    ]
    assert [one.gain.at_most for one in row.call_stalls] == pytest.approx(
        [12110 / left for left in (8510, 9710, 10910)]
    )


def test_no_more_is_promised_than_the_streams_allow() -> None:
    """Without its stalls the call would take 330 cycles; the port needs 800 of each of eleven periods."""
    tile = Caller(stalls={"MEMORY_STALL": 670}, moves=(800,) * 11).tile()
    (row,) = analyse(tile, said=run_specification()).analysis.tiles

    assert row.call_stalls[0].gain.at_most == pytest.approx(12110 / (11 * 800))


@pytest.mark.parametrize(
    ("periods", "worth"),
    [
        ((1010,) * 2, "at most about 1.7x faster (n = 3, too few for an interval)"),
        ((1010, 1020, 1003, 1110, 1001, 1090, 1300, 1005), "at most 1.6x faster (95 % interval 1.5x to 1.7x, n = 9)"),
    ],
)
def test_a_gain_has_the_digits_that_its_interval_leaves(periods: tuple[int, ...], worth: str) -> None:
    """None where calls are too few, one where periods differ."""
    advice = found(Caller(periods, stalls={"MEMORY_STALL": 400}).tile(), said=run_specification())

    assert f"{worth} without them" in advice["memory_stalls"].evidence


@pytest.mark.parametrize(
    ("transfer", "rest", "worth", "severity"),
    [
        (512, 0, "no gain while the B input stream is the limit", Severity.INFO),
        (128, 600, "without them; the limit is unknown", Severity.MEDIUM),
    ],
)
def test_stalls_are_worthless_only_while_something_known_sets_the_pace(
    transfer: int, rest: int, worth: str, severity: Severity
) -> None:
    """Behind a stream that takes longer; a pace that nothing explains is no such reason."""
    gemm = Gemm(transfers=(128, transfer, 256), rest=rest, outputs=12, each=1)
    stalls = [Span(5, gemm.start(number) + 210, gemm.start(number) + 290) for number in range(12)]
    tile = gemm.tile()
    advice = found(tile._replace(spans=sorted([*tile.spans, *stalls], key=lambda span: span.start)))

    assert worth in advice["memory_stalls"].evidence
    assert advice["memory_stalls"].severity is severity


def test_vector_instructions_that_do_little() -> None:
    """A vector cycle of this kernel does 41 of 128 multiply-accumulates."""
    advice = found(Gemm(call=1000, vector=400, transfers=(128, 256, 64)).tile())

    assert advice["weak_vector_cycles"].title == "a vector cycle does 41.0 of 128 MAC"


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
