"""What sets the pace of a tile: operands of ports, predicted and measured periods, ceilings."""

from __future__ import annotations

import pytest

from aie_gemm import NPU1_GEMM, NPU2_GEMM, Gemm, capture, traced
from opscope.core.table.tiles import TileTrace
from opscope.npu.analysis.bound import TileBound, bound
from opscope.npu.analysis.calls import pair_calls
from opscope.npu.analysis.kinds import find_kinds, multiplying
from opscope.npu.analysis.rates import rate
from opscope.npu.analysis.roofline import TileRoofline, roofline
from opscope.npu.analysis.specification import RunSpecification, run_specification
from opscope.program.cost.gemm import tiling

NPU1 = run_specification(tiling=tiling((32, 64, 64), (256, 768, 768)), arch="npu1", dtype="bf16")
NPU2 = run_specification(tiling=tiling((16, 32, 256)), arch="npu2", dtype="bfp16")
# Buffers of 8 x 32, 32 x 32 and 8 x 32 in bf16 and 4 bytes a cycle: 128, 512 and 128 cycles; C kept wide takes 256.
SMALL = run_specification(tiling=tiling((8, 32, 32), (8, 128, 96)), arch="npu1", dtype="bf16")


def judged(tile: TileTrace, said: RunSpecification) -> TileBound:
    """The verdict on a tile."""
    calls = pair_calls(tile).calls
    return bound(tile, calls, multiplying(tile, calls, find_kinds(tile, calls), said), said)


def placed(tile: TileTrace, said: RunSpecification) -> TileRoofline:
    """A tile under its ceilings."""
    calls = pair_calls(tile).calls
    work = multiplying(tile, calls, find_kinds(tile, calls), said)
    return roofline(rate(tile, calls, work, said), bound(tile, calls, work, said), said)


def moved(found: TileBound) -> list[tuple[tuple[str, ...], int | None, int | None, int | None]]:
    """Operands, cycles of a transfer, whole transfers and the rest of each port."""
    return [(port.operands, port.transfer_cycles, port.transfers, port.partial_cycles) for port in found.ports]


def test_the_npu1_capture_is_bound_by_the_stream_of_b() -> None:
    """A buffer of B takes 8192 bytes at 4 bytes a cycle: 2048 cycles predicted, 2049 measured."""
    found = judged(capture(NPU1_GEMM), NPU1)
    assert (found.by, found.port, found.call_cycles) == ("B input stream", "PORT_RUNNING_1", 1385)
    assert (found.predicted_period_cycles, found.measured_period_cycles, found.residual_cycles) == (2048, 2049, 1)
    assert moved(found) == [(("A",), 1024, 75, 947), (("B",), 2048, 75, 296), (("C",), 1024, 6, 0)]
    assert not found.findings


def test_the_npu2_capture_is_bound_by_the_stream_of_b() -> None:
    """16384 bytes at 8 bytes a cycle take longer than the call; the operands lie in memory as bf16."""
    found = judged(capture(NPU2_GEMM), NPU2)
    assert (found.by, found.port, found.call_cycles) == ("B input stream", "PORT_RUNNING_1", 1622)
    assert (found.predicted_period_cycles, found.measured_period_cycles, found.residual_cycles) == (2048, 2049, 1)
    assert moved(found) == [(("A",), 128, 115, 16), (("B",), 2048, 114, 1585), (("C",), 1024, 4, 0)]


@pytest.mark.parametrize(("name", "said"), [(NPU1_GEMM, NPU1), (NPU2_GEMM, NPU2)])
def test_a_port_without_operand_counts_by_the_cycles_that_it_was_busy(name: str, said: RunSpecification) -> None:
    """Without sizes the same port paces the calls, by what was measured; which operand it carries is not said."""
    found = judged(capture(name), run_specification())
    assert (found.by, found.port) == ("PORT_RUNNING_1", "PORT_RUNNING_1")
    assert found.predicted_period_cycles == pytest.approx(2048, abs=1)
    assert all(not port.operands and "not given" in port.reason for port in found.ports)
    assert judged(capture(name), said).port == found.port


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
    found = judged(traced(Gemm(outputs=12, each=1, rest=700))[0], run_specification())
    assert (found.by, found.port) == ("not explained", None)
    (finding,) = found.findings
    assert finding.rule == "period_not_explained"
    assert "left over" in finding.evidence
    assert "are lock stall" in finding.evidence
    assert "waits for buffers" in finding.next_step


def test_code_between_the_calls_is_named_as_such() -> None:
    """Without stalls in the gaps the loop around the kernel takes the time."""
    found = judged(traced(Gemm(call=40, vector=20, transfers=(10, 90, 10), fill=0))[0], run_specification())
    assert found.by == "PORT_RUNNING_1"
    idle = judged(traced(Gemm(call=40, vector=20, transfers=(10, 20, 10), fill=0))[0], run_specification())
    assert idle.by == "not explained"
    assert "runs code between the calls" in idle.findings[0].next_step


def test_calls_faster_than_their_data_contradict_the_sizes() -> None:
    """A buffer of B that fits the few calls by its count would take longer than the period that was measured."""
    said = run_specification(tiling=tiling((8, 32, 64)), arch="npu1", dtype="bf16")
    found = judged(traced(Gemm(outputs=1, each=4))[0], said)
    assert (found.by, found.predicted_period_cycles, found.measured_period_cycles) == ("not explained", 1024, 513)
    assert "missing" in found.findings[0].evidence


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
    found = judged(traced(Gemm(outputs=1, each=1))[0], SMALL)
    assert (found.by, found.predicted_period_cycles, found.measured_period_cycles) == (None, None, None)
    assert "single call" in found.reason


def test_a_tile_without_calls_has_no_bound() -> None:
    """A trace cut before its first call ends."""
    core = Gemm()
    found = judged(traced(core._replace(fill=0, cut=core.start(0) + 10))[0], SMALL)
    assert (found.by, found.call_cycles) == (None, None)
    assert found.reason == "the tile has no calls"


def test_ceilings_of_the_npu1_capture() -> None:
    """B's stream feeds 64 MAC a cycle, half of the peak, and the calls come within a thousandth of that."""
    found = placed(capture(NPU1_GEMM), NPU1)
    assert [(one.name, one.mac_per_cycle) for one in found.ceilings] == [
        ("B", 64),
        ("A", 128),
        ("peak", 128),
        ("C", 1536),
    ]
    assert (found.by, found.attainable, found.ridge_mac_per_byte) == ("B", 64, 32)
    assert found.reached == pytest.approx(2048 / 2049)
    assert found.mac_per_byte == pytest.approx(131072 / (4096 + 8192 + 4096 / 12))


def test_ceilings_need_the_sizes() -> None:
    """Without them there is a reason and no number."""
    found = placed(traced(Gemm())[0], run_specification())
    assert found.attainable is None
    assert "m, k, n" in str(found.reason)
