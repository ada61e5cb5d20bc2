"""Whatever a trace holds: rates stay below the peak, cycles and shares within their bounds, and nothing fails."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from aie_cores import analysed
from aie_gemm import NAMES
from opscope.core.errors import EmptyTraceError
from opscope.npu.analysis.specification import run_specification
from opscope.npu.readers.json import read_json
from opscope.program.cost.gemm import tiling

EVENTS = st.tuples(st.integers(0, 7), st.sampled_from("BE"), st.integers(0, 60), st.integers(0, 1))


@settings(max_examples=60, deadline=None)
@examples(
    st.lists(EVENTS, min_size=1, max_size=80),
    st.tuples(st.sampled_from([1, 2, 8]), st.sampled_from([1, 4]), st.sampled_from([1, 4, 64])),
    st.sampled_from([None, "npu1", "npu2"]),
    st.sampled_from([None, "bf16", "bfp16", "int8"]),
    st.booleans(),
)
def test_any_events(
    events: list[tuple[int, str, int, int]],
    tile: tuple[int, int, int],
    arch: str | None,
    dtype: str | None,
    whole: bool,
) -> None:
    """Begins and ends of two cores in any order, with times that may run backwards, under any options."""
    names = [
        {"name": "process_name", "ph": "M", "pid": n, "args": {"name": f"core_trace for tile2,{n}"}} for n in (0, 1)
    ]
    names += [
        {"name": "thread_name", "ph": "M", "pid": pid, "tid": slot, "args": {"name": name}}
        for pid in (0, 1)
        for slot, name in enumerate(NAMES)
    ]
    time, records = 0, []
    for slot, phase, step, pid in events:
        time += step - (50 if step == 60 else 0)
        records.append({"name": NAMES[slot], "ts": max(time, 0), "ph": phase, "pid": pid, "tid": slot, "args": {}})
    try:
        traces = read_json(json.dumps([*names, *records]).encode(), Path("any.json"))
    except EmptyTraceError:
        return
    size = tuple(4 * own for own in tile) if whole else None
    said = run_specification(tiling=tiling(tile, size, (1, 2)), arch=arch, dtype=dtype)
    analysis = analysed(*traces.cores, said=said).analysis
    assert not analysis.bugs
    for row in analysis.tiles:
        rates = [row.mac_per_cycle, row.in_call_mac_per_cycle, *(one.mac_per_cycle for one in row.iterations)]
        assert all(rate is None or 0 < rate <= said.ceiling * 1.000001 for rate in rates)
        assert row.cycles.window == row.window_cycles
        assert row.coverage is None or 0 < row.coverage <= 1
        assert row.rate_reason is None or row.gmac_per_s is None
        ports = row.bound.ports if row.bound else ()
        assert all(port.partial_cycles is None or 0 <= port.partial_cycles < port.transfer_cycles for port in ports)
        assert all(0 <= own.cycle <= own.last_cycle for own in row.lost_packets)
        assert all(step.reach > 1 for step in row.advice.steps)
    for one in analysis.array.iterations if analysis.array else ():
        assert one.runtime_cycles >= one.longest_cycles >= 0
        assert 0 < one.balance <= 1.000001
    msgspec.json.encode(analysis)


def test_no_cores_at_all() -> None:
    """Nothing to look at, nothing said of it."""
    analysis = analysed().analysis
    assert (analysis.tiles, analysis.array, analysis.findings) == ([], None, [])
