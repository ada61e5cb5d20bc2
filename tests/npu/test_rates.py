"""Rates of a tile from the calls that were seen, and the refusal of rates that cannot be."""

from __future__ import annotations

import pytest

from aie_captures import NPU1_GEMM, NPU2_GEMM, Captures
from aie_cores import analysed, calls_of
from aie_gemm import LEAD, Gemm, read, traced
from aie_traces import Span
from opscope.analysis.findings.message import Message
from opscope.core.errors import UsageError
from opscope.core.table.tiles import TileTrace
from opscope.npu.analysis.rates import TileRate, per_vector_cycle, rate
from opscope.npu.analysis.specification import RunSpecification, assumed_clock, inconsistencies, run_specification
from opscope.npu.devices import aie_devices
from opscope.program.cost.gemm import tiling

TILE, WHOLE = (8, 32, 32), (8, 128, 96)
MACS = 8 * 32 * 32
SMALL = run_specification(tiling=tiling(TILE, WHOLE), arch="npu1", dtype="bf16")


def rated(tile: TileTrace, said: RunSpecification) -> TileRate:
    """The rates of a tile."""
    return judged(tile, said)[0]


def judged(tile: TileTrace, said: RunSpecification) -> tuple[TileRate, list[Message]]:
    """The rates of a tile, and what is wrong or doubtful about them."""
    core = calls_of(tile, said)
    found, findings = rate(core, said)
    return found, [*core.kinds.findings, *findings]


def rules(tile: TileTrace, said: RunSpecification) -> list[str]:
    """Rules of what is wrong or doubtful."""
    return [finding.rule for finding in judged(tile, said)[1]]


def test_the_npu1_capture(captures: Captures) -> None:
    """74 calls of 32 x 64 x 64 in a window of 156015 cycles: under half of the peak, and 6 % of one core's product."""
    said = run_specification(tiling=tiling((32, 64, 64), (256, 768, 768)), arch="npu1", dtype="bf16")
    tile = captures.core(NPU1_GEMM)
    found = rated(tile, said)
    assert (found.macs, found.calls_needed) == (74 * 131072, 1152)
    assert found.mac_per_cycle == pytest.approx(74 * 131072 / 156015)
    assert found.utilisation == pytest.approx(0.4857, abs=1e-4)
    assert found.in_call_mac_per_cycle == pytest.approx(94.32, abs=0.01)
    assert per_vector_cycle(found.macs, calls_of(tile, said).kinds) == 128
    assert found.coverage == pytest.approx(74 / 1152)
    assert rules(tile, said) == []


def test_the_npu2_capture_in_its_own_type_and_in_another(captures: Captures) -> None:
    """113 calls. Named bf16, its vector instructions do more than bf16's peak: it multiplies in bfp16."""
    tile = captures.core(NPU2_GEMM)
    bfp16 = run_specification(tiling=tiling((16, 32, 256)), arch="npu2", dtype="bfp16")
    own = rated(tile, bfp16)
    assert own.mac_per_cycle == pytest.approx(113 * 131072 / 234251)
    assert own.utilisation == pytest.approx(63.23 / 512, abs=1e-4)
    assert (own.coverage, rules(tile, bfp16)) == (None, [])
    other, (doubt,) = judged(tile, run_specification(tiling=tiling((16, 32, 256)), arch="npu2", dtype="bf16"))
    assert other.mac_per_cycle == own.mac_per_cycle
    assert doubt.rule == "other_type"
    assert "such as bfp16" in doubt.evidence


def test_the_work_of_the_whole_product_is_never_credited_to_a_part() -> None:
    """A trace that ends after 6 of 12 calls has the rate of these, not twice as much."""
    core = Gemm()
    whole, part = (rated(traced(one)[0], SMALL) for one in (core, core._replace(cut=core.start(6) - 40)))
    assert (whole.macs, part.macs) == (12 * MACS, 6 * MACS)
    assert (whole.coverage, part.coverage) == (1, 0.5)
    assert whole.mac_per_cycle == pytest.approx(12 * MACS / (11 * 513 + 300 + 23))
    assert part.mac_per_cycle == pytest.approx(6 * MACS / (5 * 513 + 300 + 23))


def test_a_zero_fill_is_no_call_that_multiplies() -> None:
    """The window has its cycles, the work of the product has not."""
    tile = traced(Gemm(outputs=2))[0]
    found = rated(tile, SMALL)
    assert found.macs == 8 * MACS
    assert found.in_call_mac_per_cycle == pytest.approx(MACS / 300)
    assert "200 vector cycles per call" in calls_of(tile, SMALL).kinds.reason


def test_rates_above_the_peak_are_refused() -> None:
    """A tile that is larger than the one that ran: no figure that rests on it is given, the finding says why."""
    said = run_specification(tiling=tiling((64, 64, 64)), arch="npu1", dtype="bf16", clock_mhz=1600)
    found, findings = judged(traced(Gemm())[0], said)
    assert (found.mac_per_cycle, found.in_call_mac_per_cycle, found.utilisation) == (None, None, None)
    assert (found.macs, found.coverage, found.gmac_per_s) == (None, None, None)
    assert findings[-1].rule == "above_peak"
    assert "exceed the peak of 128 MAC per cycle" in found.rate_reason


@pytest.mark.parametrize(
    ("arch", "dtype", "peak"), [(None, None, 512), ("npu1", None, 256), (None, "bf16", 128), ("npu1", "bfp16", 256)]
)
def test_without_device_or_type_no_rate_is_above_what_any_could_do(
    arch: str | None, dtype: str | None, peak: int
) -> None:
    """What is not known may be the fastest; a rate above that is still none."""
    said = run_specification(tiling=tiling((64, 64, 64)), arch=arch, dtype=dtype)
    found = rated(traced(Gemm())[0], said)
    assert found.mac_per_cycle is None
    assert f"exceed the peak of {peak} " in str(found.rate_reason)


def test_without_sizes_there_is_no_rate() -> None:
    """The window and the calls are known, their work is not."""
    found = rated(traced(Gemm())[0], run_specification(arch="npu1", dtype="bf16"))
    assert (found.macs, found.mac_per_cycle) == (None, None)
    assert "m, k, n" in str(found.rate_reason)


def test_a_slot_that_is_never_active_keeps_the_rates() -> None:
    """A scalar kernel multiplies without vector instructions: its longest calls count, as where none was traced."""
    tile = traced(Gemm(vector=0))[0]
    found = rated(tile, SMALL)
    assert found == rated(traced(Gemm())[0], SMALL)
    assert per_vector_cycle(found.macs, calls_of(tile, SMALL).kinds) is None


def test_without_a_peak_there_is_no_utilisation() -> None:
    """The rate stands, its share of the peak does not."""
    found = rated(traced(Gemm())[0], run_specification(tiling=tiling(TILE)))
    assert found.mac_per_cycle is not None
    assert (found.peak_mac_per_cycle, found.utilisation, found.gmac_per_s) == (None, None, None)


def test_gmac_per_second_needs_a_clock() -> None:
    """With one it is a number; without one a range over the driver's levels; without a device nothing."""
    tile = traced(Gemm())[0]
    known = rated(tile, run_specification(tiling=tiling(TILE), clock_mhz=1000)).gmac_per_s
    levels = rated(tile, SMALL).gmac_per_s
    assert known is not None
    assert levels is not None
    each = rated(tile, SMALL).mac_per_cycle
    assert known.low == known.high == each
    assert (levels.low_mhz, levels.high_mhz) == (800, 1600)
    assert levels.high == pytest.approx(2 * levels.low)


def test_more_calls_than_the_product_needs_are_said() -> None:
    """Twelve calls where one run needs four: coverage stays at 1; with three runs named they are as many as needed."""
    tile, cut = traced(Gemm())[0], tiling(TILE, (8, 128, 32))
    once, three = run_specification(tiling=cut), run_specification(tiling=cut, runs=3)
    assert (rated(tile, once).coverage, rules(tile, once)) == (1.0, ["more_calls_than_needed"])
    named = rated(tile, three)
    assert (named.coverage, named.calls_needed, rules(tile, three)) == (1.0, 12, [])


def test_sizes_that_do_not_divide_leave_coverage_unknown() -> None:
    """The rate needs only the tile; what is wrong is a finding about the options."""
    said = run_specification(tiling=tiling(TILE, (8, 100, 96)))
    assert rated(traced(Gemm())[0], said).coverage is None
    assert [finding.rule for finding in inconsistencies(said)] == ["sizes_do_not_divide"]


def test_a_kind_with_other_vector_cycles_is_not_counted_but_named() -> None:
    """Two kernels multiply: only the one with the most cycles counts, and the finding names the other."""
    core, late = Gemm(fill=0), 1 + LEAD + 20 * 513
    other = [Span(3, late, late + 1), Span(7, late + 3, late + 63), Span(4, late + 90, late + 91)]
    tile = core.tile()
    both = read(tile._replace(spans=(*tile.spans, *other)))[0]
    found, (doubt,) = judged(both, SMALL)
    assert (found.macs, doubt.rule) == (12 * MACS, "several_multiplying_kinds")
    assert "with 1 call" in doubt.evidence


def two_kernels(last: int) -> TileTrace:
    """Three output tiles; each ends with a call of other vector cycles, which comes after so many of the usual ones."""
    core = Gemm(each=last + 1)
    tile = core.tile()
    changed = [
        span._replace(end=span.start + 130) if span.slot == 7 and core.place(span.start) == last else span
        for span in tile.spans
    ]
    return read(tile._replace(spans=tuple(changed)))[0]


@pytest.mark.parametrize(("depth", "calls"), [(4, 12), (3, 9)])
def test_the_tiling_tells_whether_a_second_kernel_multiplies(depth: int, calls: int) -> None:
    """Three calls of one kernel, then one of another: with K/k = 4 both multiply, with 3 only the first does."""
    said = run_specification(tiling=tiling(TILE, (8, 32 * depth, 96)), arch="npu1", dtype="bf16")
    tile = two_kernels(last=3)
    found = rated(tile, said)
    assert found.macs == calls * MACS
    assert rules(tile, said) == ([] if depth == 4 else ["several_multiplying_kinds"])


def test_rates_of_iterations() -> None:
    """Each from its own calls over its own cycles; none without sizes, and none above what is possible."""
    tile = traced(Gemm())[0]
    absurd = run_specification(tiling=tiling((64, 64, 64)), arch="npu1", dtype="bf16")
    for said, macs in ((run_specification(tiling=tiling(TILE)), 4 * MACS), (run_specification(), None), (absurd, None)):
        rows = analysed(tile, said=said).analysis.tiles[0].iterations
        assert [row.macs for row in rows if row.complete] == [macs] * 3
        assert {row.mac_per_cycle for row in rows} == {macs and macs / row.cycles for row in rows}


@pytest.mark.parametrize(
    ("arch", "hwid", "mhz", "low", "high"),
    [
        ("npu1", None, 1600, 800, 1600),
        ("npu2", None, 1800, 792, 1800),
        ("npu2_4col", None, 1800, 792, 1800),
        (None, "single_core", 1250, 792, 1800),
        (None, "single_col", 1250, 792, 1800),
        ("npu1", "single_core", 1600, 800, 1600),
    ],
)
def test_a_clock_is_assumed_by_device_or_model(
    arch: str | None, hwid: str | None, mhz: int, low: int, high: int
) -> None:
    """A device's is the level that its driver sets; Stream's models have no device, and their own tool's clock."""
    device = aie_devices().named(arch) if arch else None
    found = assumed_clock(device, hwid)

    assert found is not None
    assert (found.mhz, found.low_mhz, found.high_mhz) == (mhz, low, high)


def test_no_clock_is_assumed_of_unknown_hardware() -> None:
    """Neither a device nor a name that is known."""
    assert assumed_clock(None, None) is None
    assert assumed_clock(None, "my board") is None


def test_a_rate_at_an_assumed_clock_carries_its_range() -> None:
    """Low and high stay those of the device's levels; a clock that is given takes the place of all three."""
    device = aie_devices().named("npu1")
    assumed = assumed_clock(device, None)
    tile = traced(Gemm())[0]
    said = run_specification(tiling=SMALL.tiling, arch="npu1", dtype="bf16", assumed=assumed)
    given = run_specification(tiling=SMALL.tiling, arch="npu1", dtype="bf16", clock_mhz=1000, assumed=assumed)
    one, other = (rated(tile, spec) for spec in (said, given))

    assert one.gmac_per_s is not None
    assert one.mac_per_cycle is not None
    assert (one.gmac_per_s.low_mhz, one.gmac_per_s.high_mhz, one.gmac_per_s.assumed_mhz) == (800, 1600, 1600)
    assert one.gmac_per_s.assumed == pytest.approx(one.mac_per_cycle * 1.6)
    assert other.gmac_per_s is not None
    assert (other.gmac_per_s.high_mhz, other.gmac_per_s.assumed_mhz, given.assumed_clock) == (1000, None, None)


def test_doubts_about_options() -> None:
    """Tiles beyond the memory of a core, a type without a peak, a clock that is no level."""
    said = run_specification(tiling=tiling((512, 512, 512)), arch="npu1", dtype="bfp16", clock_mhz=1250)
    assert [finding.rule for finding in inconsistencies(said)] == [
        "tile_exceeds_memory",
        "no_peak",
        "clock_is_no_level",
    ]
    assert not list(
        inconsistencies(run_specification(tiling=tiling((32, 64, 64)), arch="npu1", dtype="bf16", clock_mhz=1029))
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clock_mhz": 0.0}, "0 MHz"),
        ({"clock_mhz": float("nan")}, "nan MHz"),
        ({"clock_mhz": 1e9}, "1e[+]09 MHz"),
        ({"runs": 0}, "0 iterations"),
        ({"arch": "npu3"}, "npu3"),
        ({"dtype": "fp64"}, "fp64"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, words: str) -> None:
    """Each with what is wrong."""
    with pytest.raises(UsageError, match=words):
        run_specification(**options)
