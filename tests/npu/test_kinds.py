"""Kinds of kernel calls: what tells them apart, what does not, and that none is lost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_captures import NPU1_GEMM, NPU2_GEMM, Captures
from aie_cores import calls_of, core, core_of, sequence
from opscope.core.table.tiles import TileTrace
from opscope.npu.analysis.calls import pair_calls
from opscope.npu.analysis.kinds import Kinds


def kinds_of(tile: TileTrace) -> Kinds:
    """Of the calls of a tile."""
    return calls_of(tile).kinds


def made(*calls: tuple[int, int], stalls: int = 0, traced: bool = True) -> TileTrace:
    """A core with calls of these cycles and vector cycles; its memory stalls so long in every second call."""
    marks, vector, stalled, now = [], [], [], 10
    for number, (duration, count) in enumerate(calls):
        extra = stalls * (number % 2)
        marks += [(0, now), (1, now + duration + extra)]
        vector += [(now + 1, now + 1 + count)] if count else []
        stalled += [(now + 1 + count, now + 1 + count + extra)] if extra else []
        now += duration + extra + 50
    return core_of(marks, {"MEMORY_STALL": stalled} | ({"INSTR_VECTOR": vector} if traced else {}))


def told(found: Kinds) -> list[tuple[str, int, int | None]]:
    """Name, number of calls and vector cycles of each kind."""
    return [(kind.kind, kind.n, kind.vector_cycles) for kind in found.kinds]


def test_vector_cycles_tell_a_zero_fill_from_the_kernel() -> None:
    """The shorter calls without vector cycles do not count as work; every statistic is that of the kind."""
    found = kinds_of(made((1400, 1024), (190, 0), (1300, 1024), (1500, 1024), (188, 0)))
    assert told(found) == [("kernel 1", 3, 1024), ("zero-fill", 2, 0)]
    assert found.labels.tolist() == [0, 1, 0, 0, 1]
    assert found.work.tolist() == [True, False, True, True, False]
    assert found.fills.tolist() == [False, True, False, False, True]
    kernel = found.kinds[0]
    figures = kernel.first_cycles, kernel.median_cycles, kernel.min_cycles, kernel.max_cycles
    assert figures == (1400, 1400, 1300, 1500)
    assert (kernel.p10_cycles, kernel.p90_cycles) == (1320, 1480)
    assert kernel.evidence == "1,024 vector cycles in each of 3 calls"


def test_two_lengths_with_equal_vector_cycles_are_one_kind() -> None:
    """A bimodal duration is said, and is not evidence against equal vector cycles."""
    found = kinds_of(made(*[(1000, 640), (1500, 640)] * 20))
    assert told(found) == [("kernel 1", 40, 640)]
    assert found.kinds[0].evidence == (
        "640 vector cycles in each of 40 calls; durations cluster around 1,000 and 1,500, "
        "which alone does not make two kinds"
    )


def test_a_gap_of_twice_the_length_outweighs_equal_vector_cycles() -> None:
    """Three calls on either side of it are two kinds, and the evidence says what told them."""
    found = kinds_of(made(*[(100, 64)] * 5, *[(300, 64)] * 3))
    assert told(found) == [("kernel 1", 3, 64), ("kernel 2", 5, 64)]
    assert found.kinds[0].evidence == (
        "64 vector cycles in each of 8 calls; one of 2 groups separated by large gaps in duration"
    )


def test_a_single_slow_call_is_no_kind_of_its_own() -> None:
    """A first call that is three times as long, with the same vector cycles, is in the maximum and first."""
    (kernel,) = kinds_of(made((300, 64), *[(100, 64)] * 9)).kinds
    assert (kernel.n, kernel.first_cycles, kernel.median_cycles, kernel.max_cycles) == (10, 300, 100, 300)


def test_stalls_do_not_make_a_kind() -> None:
    """Calls that differ by the stalls within them are as long without these; the evidence has that length."""
    found = kinds_of(made(*[(100, 64)] * 8, stalls=300))
    assert told(found) == [("kernel 1", 8, 64)]
    assert (found.kinds[0].min_cycles, found.kinds[0].max_cycles) == (100, 400)
    assert "100 cycles without stalls" in found.kinds[0].evidence


def test_without_vector_events_only_durations_tell() -> None:
    """A gap tells the kinds, the finding says that it is all there is, and nothing is called a zero-fill."""
    found = kinds_of(made(*[(1400, 1024)] * 4, (190, 0), *[(1400, 1024)] * 4, (188, 0), traced=False))
    assert told(found) == [("kernel 1", 8, None), ("kernel 2", 2, None)]
    assert found.work.sum() == 8
    assert [one.rule for one in found.findings] == ["kinds_without_vector", "several_multiplying_kinds"]


def test_scalar_code_is_no_zero_fill() -> None:
    """Without any kernel that has vector cycles, calls without them are the work."""
    found = kinds_of(made(*[(12297, 0)] * 4))
    assert told(found) == [("kernel 1", 4, 0)]
    assert found.work.all()
    assert found.kinds[0].evidence == "no vector cycles in 4 calls; scalar code"


@pytest.mark.parametrize("edge", [0, -1])
def test_a_call_at_an_edge_that_lacks_vector_cycles_stays_with_its_kind(edge: int) -> None:
    """It lasts as long as the others; that its vector cycles were not captured whole is a finding with its place."""
    calls = [(1400, 1024)] * 6
    calls[edge] = (1400, 500)
    found = kinds_of(made(*calls, *[(1400, 1024)] * 6) if edge == 0 else made(*[(1400, 1024)] * 6, *calls))
    assert told(found) == [("kernel 1", 12, 1024)]
    assert "1 take as long but lack some that were not captured" in found.kinds[0].evidence
    assert found.findings == ()


def test_a_call_amid_others_with_half_the_vector_cycles_is_another_kind() -> None:
    """A rare kernel is not an outlier to be dropped."""
    found = kinds_of(made(*[(1400, 1024)] * 6, (1400, 500), *[(1400, 1024)] * 6))
    assert told(found) == [("kernel 1", 12, 1024), ("kernel 2", 1, 500)]


def test_vector_cycles_that_depend_on_data_are_told_by_gaps() -> None:
    """Twenty different counts near each other are one kind, those of twice as many another."""
    counts = [*range(100, 120), *range(300, 320)]
    found = kinds_of(made(*[(1000, count) for count in counts]))
    assert told(found) == [("kernel 1", 20, 110), ("kernel 2", 20, 310)]
    assert found.kinds[0].evidence.startswith("100 to 119 vector cycles in 20 calls")


def test_no_calls_have_no_kinds() -> None:
    """And nothing fails."""
    found = kinds_of(core("0@5"))
    assert (found.kinds, len(found.labels), len(found.work)) == ((), 0, 0)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=30),
    st.integers(0, 40),
    st.booleans(),
)
def test_every_call_is_of_one_kind(calls: list[tuple[int, int]], stalls: int, traced: bool) -> None:
    """Whatever the calls: counts add up, statistics are those of the calls of a kind, and the largest comes first."""
    tile = made(*[(duration, min(count, duration)) for duration, count in calls], stalls=stalls, traced=traced)
    durations = pair_calls(tile).calls.durations
    found = kinds_of(tile)
    assert sum(kind.n for kind in found.kinds) == len(found.labels) == len(durations)
    totals = [int(durations[found.labels == number].sum()) for number in range(len(found.kinds))]
    assert totals == sorted(totals, reverse=True)
    for number, kind in enumerate(found.kinds):
        own = durations[found.labels == number]
        assert (kind.n, kind.median_cycles) == (len(own), np.median(own))
        assert (kind.min_cycles, kind.max_cycles, kind.first_cycles) == (own.min(), own.max(), own[0])
    assert len({kind.kind for kind in found.kinds}) == len(found.kinds)
    assert found.work.any()


def test_the_two_kernels_of_a_sequence_are_two_kinds() -> None:
    """The one with a quarter of the vector cycles is not work of the tiling."""
    found = kinds_of(sequence("mmmeemmm"))
    assert told(found) == [("kernel 1", 6, 64), ("kernel 2", 2, 16)]
    assert [kind.multiplies for kind in found.kinds] == [True, False]


def test_the_kinds_of_the_npu1_gemm(captures: Captures) -> None:
    """A zero-fill and the matmul of 1385 cycles, of which all but the memory stalls are the same in each call."""
    kernel, fill = kinds_of(captures.core(NPU1_GEMM)).kinds
    assert (kernel.kind, kernel.n, kernel.vector_cycles, kernel.median_cycles) == ("kernel 1", 74, 1024, 1385)
    assert (kernel.min_cycles, kernel.max_cycles, kernel.first_cycles) == (1321, 1434, 1365)
    assert kernel.evidence == "1,024 vector cycles in each of 74 calls; 1,273 cycles without stalls"
    assert (fill.kind, fill.n, fill.vector_cycles, fill.median_cycles) == ("zero-fill", 6, 0, 189)


def test_the_kinds_of_the_npu2_gemm(captures: Captures) -> None:
    """A zero-fill and the matmul of 1622 cycles."""
    kernel, fill = kinds_of(captures.core(NPU2_GEMM)).kinds
    assert (kernel.n, kernel.vector_cycles, kernel.median_cycles) == (113, 384, 1622)
    assert (fill.kind, fill.n, fill.vector_cycles, fill.median_cycles) == ("zero-fill", 4, 0, 263)


@pytest.mark.parametrize("name", [NPU1_GEMM, NPU2_GEMM])
def test_durations_alone_tell_the_same_kinds_of_the_gemms(captures: Captures, name: str) -> None:
    """Without the vector events the same calls are together."""
    tile = captures.core(name)
    slots = tuple(slot for slot in tile.slots if slot.name != "INSTR_VECTOR")
    without = kinds_of(dataclasses.replace(tile, slots=slots))
    assert without.labels.tolist() == kinds_of(tile).labels.tolist()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("npu1_core_small", (4, 32, 72)),
        ("npu1_core_and_mem_small", (4, 32, 109)),
        ("npu2_vector_scalar", (4, 0, 12297)),
    ],
)
def test_the_small_captures_have_one_kind(captures: Captures, name: str, kind: tuple[int, int, int]) -> None:
    """Four calls of one length each."""
    (only,) = kinds_of(captures.core(name)).kinds
    assert (only.n, only.vector_cycles, only.median_cycles) == kind
    assert only.multiplies
