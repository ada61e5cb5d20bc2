"""Whatever a trace holds: rates stay below the peak, cycles and shares within their bounds, and nothing fails."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from aie_gemm import NAMES
from opscope.core.errors import EmptyTraceError
from opscope.core.table.tiles import TileTrace
from opscope.npu.analysis.advice import advise
from opscope.npu.analysis.array import ArrayView, array_view
from opscope.npu.analysis.bound import bound
from opscope.npu.analysis.calls import pair_calls
from opscope.npu.analysis.damage import find_damage
from opscope.npu.analysis.iterations import find_iterations, without_damaged
from opscope.npu.analysis.kinds import find_kinds, multiplying
from opscope.npu.analysis.ports import ports
from opscope.npu.analysis.prediction import against, repeated_calls, repeated_iterations
from opscope.npu.analysis.rates import iteration_rates, rate, roofline
from opscope.npu.analysis.specification import RunSpecification, run_specification
from opscope.npu.analysis.tiles import TilesTerms, examine
from opscope.npu.analysis.traced_core import TracedCore
from opscope.npu.cost_model import cost_model
from opscope.npu.readers.json import read_json
from opscope.program.cost.gemm import tiling

EVENTS = st.tuples(st.integers(0, 7), st.sampled_from("BE"), st.integers(0, 60), st.integers(0, 1))
MODEL = cost_model(iteration_step=100, overlap=1, latency_per_iteration=90, total=1000)


def looked_at(tile: TileTrace, said: RunSpecification) -> TracedCore:
    """All that is said of one core, checked for what must hold of any."""
    pairing = pair_calls(tile)
    calls = pairing.calls
    kinds = find_kinds(tile, calls)
    work = multiplying(tile, calls, kinds, said)
    rated = rate(tile, calls, work, said)
    moved = ports(tile, work, said.tiling, said.stream_bytes, said.dtype)
    paced, _, _ = bound(tile, calls, work, moved)
    iterations = find_iterations(tile, calls, kinds, said.tiling.calls_per_core if said.tiling else None)
    for found in (
        rated.mac_per_cycle,
        rated.in_call_mac_per_cycle,
        *(per_cycle for _, per_cycle in iteration_rates(iterations.iterations, work, said)),
    ):
        assert found is None or 0 < found <= said.ceiling * 1.000001
    assert rated.coverage is None or 0 < rated.coverage <= 1
    assert rated.rate_reason is None or rated.gmac_per_s is None
    assert all(port.partial_cycles is None or 0 <= port.partial_cycles < port.transfer_cycles for port in moved)
    lost, _ = find_damage(tile, pairing, kinds, iterations)
    iterations = without_damaged(iterations, [own.cycle for own in lost])
    assert all(0 <= own.cycle <= own.last_cycle for own in lost)
    assert iterations.missing_calls >= 0
    advice = advise(tile, work, rated, missing_calls=iterations.missing_calls, lost=bool(lost))
    assert all(step.reach > 1 for step in advice.steps)
    assert MODEL is not None
    msgspec.json.encode(
        [rated, paced, advice, roofline(rated, paced, moved, said), against(MODEL, repeated_calls(work, "x"))]
    )
    return examine(tile, TilesTerms(said))


def together(cores: list[TracedCore], said: RunSpecification) -> ArrayView:
    """The array, checked likewise."""
    view = array_view(cores, said)
    for one in view.iterations:
        assert one.runtime_cycles >= one.longest_cycles >= 0
        assert 0 < one.balance <= 1.000001
    assert MODEL is not None
    msgspec.json.encode([view, against(MODEL, repeated_iterations(view))])
    return view


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
    together([looked_at(own, said) for own in traces.cores], said)


@pytest.mark.parametrize(
    "said", [run_specification(), run_specification(tiling=tiling((8, 32, 32)), arch="npu1", dtype="bf16")]
)
def test_no_cores_at_all(said: RunSpecification) -> None:
    """Nothing to look at, nothing said of it."""
    assert together([], said).iterations == ()
