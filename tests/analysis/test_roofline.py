"""Operators under ceilings in round numbers: 100 GMAC/s, 100 GB/s in cache, 10 outside."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import rate, round_ceilings
from opscope.analysis.analysis import operator_work
from opscope.analysis.operators.operators import operators
from opscope.analysis.roofline import (
    Bound,
    Interval,
    OperatorWork,
    Placement,
    RateUnit,
    Shortfall,
    roofline,
)
from opscope.program.ceilings import KernelClass, MemoryCeiling, Pattern
from traces import table

CEILINGS = round_ceilings()
GEMM = OperatorWork(
    method="forward",
    instruction=0,
    position=0,
    name="Fully Connected (NC, F32) GEMM #1",
    dtype="f32",
    kernel=KernelClass.GEMM,
    macs=1_000_000,
    flops=2_000_000,
    activation_bytes=20_000,
    weight_bytes=0,
    time_ns=15_000.0,
)


def placed(**changes: object) -> Placement:
    """Where a matrix product of 1 million MACs in 15 us stands, with changes."""
    (one,) = roofline([msgspec.structs.replace(GEMM, **changes)], CEILINGS).operators
    return one


def test_arithmetic_at_its_ceiling_is_the_least_time() -> None:
    """1 million MACs at 100 GMAC/s take 10 us of 15: two thirds of the ceiling, 5 us of headroom."""
    one = placed()
    assert (one.bound, one.ceiling) == (Bound.COMPUTE, "products in f32")
    assert (one.compute_ns, one.memory_ns, one.ceiling_ns) == (10_000, 200, 10_000)
    assert one.macs_per_s == Interval(1e6 / 15e-6, 1e6 / 15e-6)
    assert one.bytes_per_s == Interval(pytest.approx(2e4 / 15e-6), pytest.approx(2e4 / 15e-6))
    assert one.fraction == Interval(10 / 15, 10 / 15)
    assert one.headroom_ns == Interval(5_000, 5_000)
    assert not one.above_ceiling


@pytest.mark.parametrize("kernel", [None, *KernelClass])
def test_all_kernels_of_a_number_type_have_one_ceiling(kernel: KernelClass | None) -> None:
    """The rate depends on the machine; the level of instructions that reached it is named."""
    one = placed(kernel=kernel)
    assert one.rate is not None
    assert (one.compute_ns, one.rate.unit, one.rate.measured_with) == (10_000, RateUnit.MACS, "avx512f")


def test_without_a_ceiling_for_its_arithmetic_an_operator_has_no_headroom() -> None:
    """Its memory alone would promise nearly all of its time: 0.2 us of 15 are needed for the bytes."""
    one = placed(dtype="qs8")
    assert (one.compute_ns, one.memory_ns) == (None, 200)
    assert (one.headroom_ns, one.fraction, one.bound) == (None, None, None)
    assert one.note == "no ceiling for products in qs8"


def test_moving_bytes_can_be_what_takes_the_time() -> None:
    """1 MiB at 100 GB/s takes 10.5 us of 15; the arithmetic would take 1."""
    one = placed(macs=100_000, activation_bytes=1 << 20)
    assert (one.bound, one.ceiling) == (Bound.MEMORY, "memory of 1.00 MiB")
    assert one.memory_ns == pytest.approx(10_486, abs=1)
    assert one.ceiling_ns == one.memory_ns


def test_weights_come_from_as_far_as_the_whole_inference_reaches() -> None:
    """Another operator's 256 MiB of weights push these out: 100 kB at 10 GB/s take 10 us, alone 1 us."""
    weights = msgspec.structs.replace(GEMM, macs=0, flops=0, activation_bytes=0, weight_bytes=100_000)
    other = msgspec.structs.replace(weights, position=1, weight_bytes=1 << 28, time_ns=1e8)
    assert roofline([weights], CEILINGS).operators[0].memory_ns == pytest.approx(1_000)
    both = roofline([weights, other], CEILINGS)
    assert both.footprint_bytes == (1 << 28) + 100_000
    assert both.weights_per_s == 10e9
    assert both.operators[0].memory_ns == 10_000
    assert both.operators[0].ceiling == "weights of 256 MiB"


def test_activations_are_used_again_and_count_once() -> None:
    """Two operators of 100 kB in and out share their memory; their weights do not."""
    work = msgspec.structs.replace(GEMM, activation_bytes=100_000, weight_bytes=1_000)
    assert roofline([work, work], CEILINGS).footprint_bytes == 102_000


def test_calls_share_the_work_but_not_the_working_set() -> None:
    """Ten calls that move 256 MiB together each work on a tenth of it, which is nearer."""
    whole, parts = placed(activation_bytes=1 << 28), placed(activation_bytes=1 << 28, calls=10.0)
    assert whole.memory_ns == pytest.approx((1 << 28) / 10)
    assert parts.memory_ns is not None
    assert parts.memory_ns < (1 << 28) / 10
    assert parts.overhead_ns == 1_000


def test_functions_have_ceilings_in_elements() -> None:
    """A sigmoid of 10,000 elements at one a ns takes 10 us: not its memory, but its arithmetic is the limit."""
    one = placed(name="Sigmoid (NC) #1", kernel=None, macs=0, flops=40_000, elements=10_000, activation_bytes=80_000)
    assert (one.bound, one.ceiling, one.compute_ns) == (Bound.COMPUTE, "elements in f32", 10_000)
    assert one.macs_per_s is None


def test_an_elementwise_operator_may_work_in_place() -> None:
    """Where updates reach 200 GB/s, 80 kB take 0.4 us; a copy of them still takes 0.8."""
    update = MemoryCeiling(pattern=Pattern.UPDATE, working_set=1 << 15, rate=rate(200_000_000_000))
    ceilings = msgspec.structs.replace(CEILINGS, memory=[*CEILINGS.memory, update])
    sigmoid = msgspec.structs.replace(GEMM, macs=0, flops=40_000, elements=10_000, activation_bytes=80_000)
    copy = msgspec.structs.replace(sigmoid, flops=0)
    found = roofline([sigmoid, copy], ceilings).operators
    assert [one.memory_ns for one in found] == [400, 800]


def test_three_buffers_are_no_update_in_place() -> None:
    """An add of two tensors into a third has the bandwidth of copies, however fast updates in place are."""
    update = MemoryCeiling(pattern=Pattern.UPDATE, working_set=1 << 28, rate=rate(34_000_000_000))
    ceilings = msgspec.structs.replace(CEILINGS, elements=[], memory=[*CEILINGS.memory, update])
    elements = 10_000_000
    add = msgspec.structs.replace(
        GEMM, name="Add (ND) #1", kernel=None, macs=0, flops=elements, elements=elements, time_ns=15e6
    )
    three = msgspec.structs.replace(add, activation_bytes=12 * elements)
    two = msgspec.structs.replace(add, activation_bytes=8 * elements)
    found = roofline([three, two], ceilings).operators
    assert found[0].memory_ns == pytest.approx(12e7 / CEILINGS.bandwidth(12e7) * 1e9)
    assert found[0].bound is Bound.MEMORY
    assert found[0].rate is not None
    assert (found[0].rate.unit, found[0].rate.measured_with) == (RateUnit.BYTES, "copies or sums of the same size")
    assert found[1].memory_ns == pytest.approx(8e7 / 34e9 * 1e9)


def test_a_one_row_product_waits_for_its_weights() -> None:
    """4 MB at the bandwidth of their footprint take longer than a million products at 100 GMAC/s, 10 us."""
    weights = 4_000_000
    row = msgspec.structs.replace(GEMM, kernel=KernelClass.GEMV, weight_bytes=weights, time_ns=100_000.0)
    (one,) = roofline([row], CEILINGS).operators
    assert (one.bound, one.ceiling) == (Bound.MEMORY, "weights of 3.83 MiB")
    assert one.memory_ns == pytest.approx((weights + 20_000) / CEILINGS.bandwidth(weights + 20_000) * 1e9)


TRACED = "Method::execute 100000\n  DELEGATE_CALL @0 90000\n    Sigmoid (NC) #1 45000"


def test_undisturbed_times_decide_what_limits_an_operator() -> None:
    """A mean that disturbed processes made three times as long calls nothing inefficient."""
    disturbed = msgspec.structs.replace(GEMM, time_ns=45_000.0)
    (row,) = (row for row in operators(table(TRACED)) if row.position is not None)
    known = msgspec.structs.replace(row, traced_ns=45_000.0, time_ns=15_000.0, bytes=8, weight_bytes=4)
    (work,) = operator_work([known], {})
    one = roofline([msgspec.structs.replace(GEMM, time_ns=work.time_ns)], CEILINGS).operators[0]
    assert roofline([disturbed], CEILINGS).operators[0].bound is Bound.INEFFICIENT
    assert (one.bound, one.headroom_ns, one.fraction) == (
        Bound.COMPUTE,
        Interval(5_000, 5_000),
        Interval(10 / 15, 10 / 15),
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"portable": True}, Shortfall.PORTABLE),
        ({"macs": 100_000, "activation_bytes": 0}, Shortfall.LITTLE_WORK),
        ({"channels": 30}, Shortfall.CHANNELS),
        ({"channels": 64}, Shortfall.SHAPE),
        ({"macs": 0, "flops": 0, "activation_bytes": 400_000}, Shortfall.MOVES),
    ],
)
def test_far_below_both_ceilings_the_likely_reason_is_told(changes: dict[str, object], reason: Shortfall) -> None:
    """The surest first."""
    one = placed(time_ns=90_000.0, **changes)
    assert (one.bound, one.reason) == (Bound.INEFFICIENT, reason)
    assert placed().reason is None


def test_moving_data_has_no_arithmetic() -> None:
    """A transposition is compared with memory alone."""
    one = placed(name="Transpose (ND, X32)", kernel=None, macs=0, flops=0, activation_bytes=1 << 20)
    assert (one.compute_ns, one.bound, one.note) == (0, Bound.MEMORY, None)


@pytest.mark.parametrize(
    ("time_ns", "bound"),
    [
        (19_000, Bound.COMPUTE),
        (20_000, Bound.COMPUTE),
        (20_100, Bound.OVERHEAD),
        (20_200, Bound.OVERHEAD),
        (20_300, Bound.INEFFICIENT),
        (90_000, Bound.INEFFICIENT),
    ],
)
def test_half_of_the_time_must_be_explained(time_ns: float, bound: Bound) -> None:
    """10 us at the ceiling explain up to 20; with 100 ns for starting it up to 20.2; beyond that nothing does."""
    assert placed(time_ns=time_ns).bound is bound


def test_a_tiny_operator_is_bound_by_its_start() -> None:
    """100 MACs take a nanosecond of 150; starting an operator takes 100."""
    one = placed(macs=100, flops=200, activation_bytes=0, time_ns=150.0)
    assert (one.bound, one.overhead_ns) == (Bound.OVERHEAD, 100)


def test_a_cut_off_duration_is_an_interval_in_everything() -> None:
    """10 us or up to 20 us: between half and all of the ceiling, and up to 10 us of headroom."""
    one = placed(time_ns=10_000.0, uncertainty_ns=10_000.0)
    assert one.fraction == Interval(0.5, 1.0)
    assert one.headroom_ns == Interval(0, 10_000)
    assert one.macs_per_s == Interval(50e9, 100e9)
    assert one.bound is Bound.COMPUTE
    assert not one.above_ceiling


def test_what_a_rough_duration_cannot_tell_is_unresolved() -> None:
    """Between 15 and 25 us the ceiling of 10 us may explain half of it or not."""
    assert placed(time_ns=15_000.0, uncertainty_ns=10_000.0).bound is Bound.UNRESOLVED


def test_a_duration_of_zero_is_less_than_a_microsecond() -> None:
    """No rate is infinite: its upper end is open."""
    one = placed(macs=10_000, time_ns=0.0, uncertainty_ns=1_000.0)
    assert one.macs_per_s == Interval(10e9, None)
    assert one.fraction is not None
    assert one.fraction.high is None
    assert one.headroom_ns == Interval(0, 800)
    assert one.bound is Bound.UNRESOLVED


def test_faster_than_the_ceiling_is_said() -> None:
    """8 us where 10 were the best seen: no headroom, more than the whole fraction, and a mark."""
    one = placed(time_ns=8_000.0)
    assert one.above_ceiling
    assert one.headroom_ns == Interval(0, 0)
    assert one.fraction == Interval(1.25, 1.25)
    assert not placed(time_ns=8_000.0, uncertainty_ns=3_000.0).above_ceiling


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"dtype": "qs8"}, "no ceiling for products in qs8"),
        ({"dtype": None}, "no ceiling for products in an unknown type"),
        ({"macs": None}, "its arithmetic is not known"),
        ({"macs": 0, "flops": None}, "its arithmetic is not known"),
        ({"macs": 0, "flops": 9, "elements": 9, "dtype": "qs8"}, "no ceiling for elements in qs8"),
    ],
)
def test_without_a_ceiling_for_arithmetic_nothing_is_claimed(changes: dict[str, object], note: str) -> None:
    """The reason is given; memory alone gives a least time, but no bound when it explains little."""
    one = placed(**changes)
    assert (one.bound, one.compute_ns, one.note) == (None, None, note)
    assert one.ceiling_ns == one.memory_ns == 200


def test_without_bytes_arithmetic_alone_is_held_against_its_ceiling() -> None:
    """When it explains the time it is the bound; when not, nothing is claimed."""
    assert placed(activation_bytes=None).bound is Bound.COMPUTE
    assert placed(activation_bytes=None, time_ns=90_000.0).bound is None


def test_nothing_known_is_nothing_claimed() -> None:
    """Neither a ceiling nor a headroom, and both reasons."""
    one = placed(macs=None, activation_bytes=None)
    assert (one.bound, one.ceiling, one.ceiling_ns, one.fraction, one.headroom_ns) == (None,) * 5
    assert one.note == "its arithmetic is not known; its bytes are not known"


def test_totals_add_up() -> None:
    """Three operators, one without a ceiling: its time is not placed, and no headroom is claimed for it."""
    unknown = msgspec.structs.replace(GEMM, position=1, macs=None, activation_bytes=None, time_ns=7_000.0)
    slow = msgspec.structs.replace(GEMM, position=2, time_ns=40_000.0, uncertainty_ns=1_000.0)
    found = roofline([GEMM, unknown, slow], CEILINGS)
    assert (found.time_ns, found.placed_ns, found.ceiling_ns) == (62_000, 55_000, 20_000)
    assert found.headroom_ns == Interval(35_000, 36_000)
    assert [(row.bound, row.operators, row.time_ns) for row in found.bounds] == [
        (Bound.INEFFICIENT, 1, 40_000),
        (Bound.COMPUTE, 1, 15_000),
        (None, 1, 7_000),
    ]
    assert found.explained == 0.5


def test_no_operators_are_no_time() -> None:
    """An empty roofline, not an error."""
    found = roofline([], CEILINGS)
    assert (found.operators, found.bounds, found.footprint_bytes, found.weights_per_s) == ([], [], 0, None)


COUNT = st.one_of(st.none(), st.integers(0, 10**12))
WORK = st.builds(
    OperatorWork,
    method=st.just("forward"),
    instruction=st.just(0),
    position=st.integers(0, 9),
    name=st.sampled_from(["Sigmoid (NC)", "Fully Connected (NC, F32) GEMM", "x"]),
    dtype=st.sampled_from([None, "f32", "f16"]),
    kernel=st.one_of(st.none(), st.sampled_from(KernelClass)),
    macs=COUNT,
    flops=COUNT,
    elements=COUNT,
    activation_bytes=COUNT,
    weight_bytes=COUNT,
    calls=st.floats(0.01, 100),
    time_ns=st.one_of(st.just(0.0), st.floats(0.01, 1e12)),
    uncertainty_ns=st.sampled_from([0.0, 1_000.0, 1e6]),
)


@given(st.lists(WORK, max_size=5))
def test_whatever_is_given_the_figures_agree_with_each_other(works: list[OperatorWork]) -> None:
    """Intervals are in order, no headroom is negative, headroom plus ceiling is the time, and totals are sums."""
    found = roofline(works, CEILINGS)
    assert sum(row.time_ns for row in found.bounds) == pytest.approx(found.time_ns)
    assert sum(row.operators for row in found.bounds) == len(works)
    assert found.headroom_ns.low <= (found.headroom_ns.high or 0)
    for work, one in zip(works, found.operators, strict=True):
        consistent(work, one)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def consistent(work: OperatorWork, one: Placement) -> None:
    """What must hold for every operator."""
    known = [time for time in (one.compute_ns, one.memory_ns) if time is not None]
    assert one.ceiling_ns == max(known, default=None)
    assert (one.note is None) is (len(known) == 2)
    if one.ceiling_ns is None:
        assert (one.bound, one.fraction, one.headroom_ns) == (None, None, None)
        return
    if one.note is not None:
        assert (one.fraction, one.headroom_ns) == (None, None)
        return
    assert one.headroom_ns is not None
    assert one.fraction is not None
    assert 0 <= one.headroom_ns.low <= (one.headroom_ns.high or 0)
    assert one.fraction.high is None or one.fraction.low <= one.fraction.high
    if one.above_ceiling:
        assert one.headroom_ns == Interval(0, 0)
    elif one.headroom_ns.low:
        assert one.headroom_ns.low + one.ceiling_ns == pytest.approx(work.time_ns)


def test_the_footprint_is_that_of_one_inference() -> None:
    """Works add up all calls of an operator: weights of one call each together, and the largest activations of one."""
    once = msgspec.structs.replace(GEMM, activation_bytes=3_000, weight_bytes=50)
    often = msgspec.structs.replace(GEMM, calls=4.0, activation_bytes=8_000, weight_bytes=400)
    assert roofline([once, often], CEILINGS).footprint_bytes == 3_000 + 50 + 100
    assert roofline([often], CEILINGS).footprint_bytes == 2_000 + 100
    unknown = msgspec.structs.replace(GEMM, activation_bytes=None, weight_bytes=None)
    assert roofline([unknown, often], CEILINGS).footprint_bytes == 2_000 + 100


def test_an_update_in_place_needs_half_of_the_memory() -> None:
    """64 KiB in and out are 32 KiB in place, where updates are fast, and not 128."""
    fast = [
        MemoryCeiling(pattern=Pattern.UPDATE, working_set=1 << size, rate=rate(per_s))
        for size, per_s in ((15, 400_000_000_000), (16, 100_000_000_000), (17, 100_000_000_000))
    ]
    ceilings = msgspec.structs.replace(CEILINGS, memory=[*CEILINGS.memory, *fast])
    update = msgspec.structs.replace(
        GEMM, name="Sigmoid", kernel=None, macs=0, flops=8_192, elements=8_192, activation_bytes=1 << 16
    )
    (one,) = roofline([update], ceilings).operators
    assert one.memory_ns == pytest.approx((1 << 16) / 400)
