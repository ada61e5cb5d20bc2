"""What sets the pace of a tile: operands of ports, predicted and measured periods."""

from __future__ import annotations

import pytest

from aie_captures import NPU1_GEMM, NPU2_GEMM, Captures
from aie_cores import analysed
from aie_gemm import Gemm, read, traced
from aie_stalls import Caller
from opscope.analysis.findings.message import Message
from opscope.core.table.tiles import TileTrace
from opscope.npu.analysis.pace import Gain, TileBound
from opscope.npu.analysis.specification import RunSpecification, run_specification
from opscope.program.cost.gemm import tiling
from texts import IN_CALLS

NPU1 = run_specification(tiling=tiling((32, 64, 64), (256, 768, 768)), arch="npu1", dtype="bf16")
NPU2 = run_specification(tiling=tiling((16, 32, 256)), arch="npu2", dtype="bfp16")
# Buffers of 8 x 32, 32 x 32 and 8 x 32 in bf16 and 4 bytes per cycle: 128, 512 and 128 cycles; C kept wide takes 256.
SMALL = run_specification(tiling=tiling((8, 32, 32), (8, 128, 96)), arch="npu1", dtype="bf16")


def judged(tile: TileTrace, said: RunSpecification) -> TileBound:
    """The verdict on a tile."""
    (row,) = analysed(tile, said=said).analysis.tiles
    assert row.bound is not None
    assert row.bound.reason == row.bound_reason
    return row.bound


def doubts(tile: TileTrace, said: RunSpecification) -> list[Message]:
    """What contradicts or limits it."""
    return [one for one in analysed(tile, said=said).analysis.findings if one.rule == "period_not_explained"]


def moved(found: TileBound) -> list[tuple[tuple[str, ...], int | None, int | None, int | None]]:
    """Operands, cycles of a transfer, whole transfers and the rest of each port."""
    return [(port.operands, port.transfer_cycles, port.transfers, port.partial_cycles) for port in found.ports]


def test_the_npu1_capture_is_bound_by_the_stream_of_b(captures: Captures) -> None:
    """A buffer of B takes 8192 bytes at 4 bytes per cycle: 2048 cycles predicted, 2049 measured."""
    tile = captures.core(NPU1_GEMM)
    found = judged(tile, NPU1)
    assert (found.by, found.port, found.call_cycles) == ("B input stream", "PORT_RUNNING_1", 1385)
    assert (found.predicted_period_cycles, found.measured_period_cycles, found.residual_cycles) == (2048, 2049, 1)
    assert moved(found) == [(("A",), 1024, 75, 947), (("B",), 2048, 75, 296), (("C",), 1024, 6, 0)]
    assert not doubts(tile, NPU1)


def test_the_npu2_capture_is_bound_by_the_stream_of_b(captures: Captures) -> None:
    """16384 bytes at 8 bytes per cycle take longer than the call; the operands lie in memory as bf16."""
    found = judged(captures.core(NPU2_GEMM), NPU2)
    assert (found.by, found.port, found.call_cycles) == ("B input stream", "PORT_RUNNING_1", 1622)
    assert (found.predicted_period_cycles, found.measured_period_cycles, found.residual_cycles) == (2048, 2049, 1)
    assert moved(found) == [(("A",), 128, 115, 16), (("B",), 2048, 114, 1585), (("C",), 1024, 4, 0)]


@pytest.mark.parametrize(("name", "said"), [(NPU1_GEMM, NPU1), (NPU2_GEMM, NPU2)])
def test_a_port_without_operand_counts_by_the_cycles_that_it_was_busy(
    captures: Captures, name: str, said: RunSpecification
) -> None:
    """Without sizes the same port paces the calls, by what was measured; which operand it carries is not said."""
    found = judged(captures.core(name), run_specification())
    assert (found.by, found.port) == ("PORT_RUNNING_1", "PORT_RUNNING_1")
    assert found.predicted_period_cycles == pytest.approx(2048, abs=1)
    assert all(not port.operands and "not given" in port.reason for port in found.ports)
    assert judged(captures.core(name), said).port == found.port


def test_without_k_the_results_of_all_calls_are_shared_by_them() -> None:
    """How many calls make a tile of C is not said: 3 buffers of 256 cycles for 12 calls are 64 a call."""
    said = run_specification(tiling=tiling((8, 32, 32)), arch="npu1", dtype="bf16")
    found = judged(traced(Gemm(transfers=(128, 512, 256)))[0], said)
    (port,) = [port for port in found.ports if port.operands == ("C",)]
    assert (port.transfers, port.transfer_cycles, port.cycles_per_call) == (3, 256, 64)


def test_a_transfer_that_the_end_cuts_is_a_part_of_a_buffer() -> None:
    """Whole buffers and the rest are told from the busy cycles; the trace tells of the cut one until its last event."""
    core = Gemm(transfers=(128, 512, 256))
    cut = traced(core._replace(cut=core.start(10) - 300))[0]
    assert moved(judged(cut, SMALL)) == [(("A",), 128, 11, 0), (("B",), 512, 10, 205), (("C",), 256, 2, 0)]


def test_a_call_longer_than_all_transfers_sets_the_pace() -> None:
    """The verdict names the call."""
    found = judged(traced(Gemm(call=900))[0], SMALL)
    assert (found.by, found.port, found.predicted_period_cycles) == ("call", None, 900)
    assert found.measured_period_cycles == 931


def test_a_zero_fill_before_every_call_is_part_of_the_pace() -> None:
    """Where each output tile takes a single call, the call alone would explain too little."""
    said = run_specification(tiling=tiling((8, 32, 32), (8, 32, 384)), arch="npu1", dtype="bf16")
    found = judged(traced(Gemm(call=900, fill=300, outputs=12, each=1))[0], said)
    assert (found.by, found.predicted_period_cycles, found.measured_period_cycles) == ("call", 1200, 1211)


def test_an_idle_period_is_not_explained_by_what_was_traced() -> None:
    """Waiting for something that has no event here: the verdict says so, and the finding what the cycles are."""
    tile = traced(Gemm(outputs=12, each=1, rest=700))[0]
    found = judged(tile, run_specification())
    assert (found.by, found.port) == ("not explained", None)
    (finding,) = doubts(tile, run_specification())
    assert finding.rule == "period_not_explained"
    assert "left over" in finding.evidence
    assert "are lock stall" in finding.evidence
    assert "waits for buffers" in finding.next_step


def test_code_between_the_calls_is_named_as_such() -> None:
    """Without stalls in the gaps the loop around the kernel takes the time."""
    found = judged(traced(Gemm(call=40, vector=20, transfers=(10, 90, 10), fill=0))[0], run_specification())
    assert found.by == "PORT_RUNNING_1"
    idle = traced(Gemm(call=40, vector=20, transfers=(10, 20, 10), fill=0))[0]
    assert judged(idle, run_specification()).by == "not explained"
    assert "runs code between the calls" in doubts(idle, run_specification())[0].next_step


def test_few_periods_name_no_stream() -> None:
    """Periods of 105, 536 and 257 cycles, and a port that was busy in as many as the median: chance can do that."""
    core = Caller((105, 536, 257), call=60, vector=40, waits=(40, 470, 190), moves=(105, 536, 130))
    tile = read(core.tile())[0]
    found, (doubt,) = judged(tile, run_specification()), doubts(tile, run_specification())

    assert (found.by, found.port, found.gain) == ("not explained", None, None)
    assert (found.predicted_period_cycles, found.measured_period_cycles, found.period.n) == (257, 257, 3)
    assert found.period.ci95_median is None
    assert doubt.title == "no explanation for the call period, n = 3: too few periods to name a stream"
    assert doubt.evidence.endswith("needs 257 cycles per call; periods of 105 to 536 cycles")
    assert doubt.next_step.startswith("trace more calls: at least 7 ")


@pytest.mark.parametrize(("calls", "by"), [(6, "not explained"), (7, "PORT_RUNNING_1")])
def test_seven_calls_are_the_fewest_that_name_a_stream(calls: int, by: str) -> None:
    """Six periods are the fewest of which the median has a 95 % interval."""
    found = judged(traced(Gemm(outputs=1, each=calls))[0], run_specification())

    assert found.by == by
    assert (found.period.ci95_median is None) is (by == "not explained")


def test_periods_that_scatter_name_no_stream() -> None:
    """Ten periods from 105 to 900 cycles: their median goes with the port's mean, and hardly any of them does."""
    periods = (105, 536, 257, 250, 900, 130, 260, 255, 110, 700)
    moves = (105, 500, 257, 250, 300, 130, 260, 255, 110, 300)
    tile = read(Caller(periods, call=60, vector=40, moves=moves).tile())[0]
    found, (doubt,) = judged(tile, run_specification()), doubts(tile, run_specification())

    assert (found.by, found.gain) == ("not explained", None)
    assert "n = 10: the periods vary too much for one stream" in doubt.title
    assert doubt.evidence.endswith("the middle half ranges from 160 to 467")


def test_a_port_that_is_idle_while_the_core_waits_sets_no_pace() -> None:
    """It moves data in the long periods, and is idle in the usual ones, in which the core waits for a lock."""
    core = Caller((300,) * 10 + (900,) * 3, call=60, vector=40, waits=(230,) * 10, moves=(90,) * 10 + (900,) * 3)
    tile = read(core.tile())[0]
    (doubt,) = doubts(tile, run_specification())

    assert judged(tile, run_specification()).by == "not explained"
    assert "n = 13: the core waits while PORT_RUNNING_0 is idle" in doubt.title
    assert "waits 210 of 300 cycles for a lock meanwhile" in doubt.evidence
    busy = core._replace(periods=(300,) * 12, waits=(230,) * 12, moves=(300,) * 12)
    assert judged(read(busy.tile())[0], run_specification()).by == "PORT_RUNNING_0"


@pytest.mark.parametrize("event", ["LOCK_STALL", "MEMORY_STALL", "STREAM_STALL", "CASCADE_STALL"])
def test_a_call_that_mostly_waits_is_bound_by_what_it_waits_for(event: str) -> None:
    """Of 1,000 cycles it waits 670; where it waits 300 the call itself sets the pace."""
    name = event.lower().replace("_", " ")
    long, short = (judged(read(Caller(stalls={event: cycles}).tile())[0], run_specification()) for cycles in (670, 300))

    assert (long.by, long.port, long.call_cycles) == (f"{name} in calls", None, 1000)
    assert long.reason.endswith(f"67.0 % {IN_CALLS} are {name}")
    assert short.by == "call"


def test_a_stream_that_calls_wait_for_inside_sets_their_pace() -> None:
    """The kernel acquires its buffers within its marks, so that call and transfer take equally long."""
    core = Caller(stalls={"LOCK_STALL": 700}, moves=(1000,) * 11)
    found = judged(read(core.tile())[0], run_specification())

    assert (found.by, found.call_cycles) == ("PORT_RUNNING_0", 1000)
    assert judged(read(core._replace(moves=(500,) * 11).tile())[0], run_specification()).by == "lock stall in calls"


def test_a_bound_on_the_speedup_has_an_interval() -> None:
    """Calls of 300 every 513 cycles, with an output tile of which the first call is late by 26."""
    assert judged(traced(Gemm())[0], SMALL).gain == Gain(513 / 300, (513 / 300, 513 / 300), 11)
    found = judged(traced(Gemm(rest=26))[0], SMALL).gain
    assert found == Gain(513 / 300, (513 / 300, 539 / 300), 11)


def test_calls_faster_than_their_data_contradict_the_sizes() -> None:
    """A buffer of B that fits the few calls by its count would take longer than the period that was measured."""
    said = run_specification(tiling=tiling((8, 32, 64)), arch="npu1", dtype="bf16")
    tile = traced(Gemm(outputs=1, each=4))[0]
    found = judged(tile, said)
    assert (found.by, found.predicted_period_cycles, found.measured_period_cycles) == ("not explained", 1024, 513)
    assert "missing" in doubts(tile, said)[0].evidence


def test_operands_with_buffers_of_one_size_are_not_told_apart() -> None:
    """A of 32 x 32 and B of 32 x 32: two ports could carry either, and both say so."""
    said = run_specification(tiling=tiling((32, 32, 32), (32, 128, 96)), arch="npu1", dtype="bf16")
    found = judged(traced(Gemm(transfers=(512, 512, 512)))[0], said)
    assert [port.operands for port in found.ports] == [("A", "B"), ("A", "B"), ("C",)]
    assert found.by == "A or B input stream"
    assert found.predicted_period_cycles == 512


def test_a_port_that_carries_no_buffer_of_the_tile_has_no_operand() -> None:
    """A wrong tile size leaves the port to what was measured, and says so."""
    found = judged(traced(Gemm())[0], run_specification(tiling=tiling((8, 32, 80)), arch="npu1", dtype="bf16"))
    port = found.ports[1]
    assert port.operands == ()
    assert port.transfer_cycles is None
    assert "no buffer of this tile" in port.reason


def test_one_call_has_no_period() -> None:
    """Nothing is predicted against nothing."""
    (row,) = analysed(traced(Gemm(outputs=1, each=1))[0], said=SMALL).analysis.tiles
    assert row.bound is None
    assert "one call multiplies" in row.bound_reason


def test_a_tile_without_calls_has_no_bound() -> None:
    """A trace cut before its first call ends."""
    core = Gemm()
    (row,) = analysed(traced(core._replace(fill=0, cut=core.start(0) + 10))[0], said=SMALL).analysis.tiles
    assert (row.bound, row.bound_reason) == (None, "the tile has no calls")
