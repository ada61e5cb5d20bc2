"""Iterations of generated traces whose truth is known: what is measured is right, and damage withholds little."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest

from aie_generated import DAMAGES, Damage, Run, generated
from opscope import TilesRequest, analyze_tiles
from opscope.npu.workflows.aie import published

if TYPE_CHECKING:
    from pathlib import Path

SHAPES = ((1, 4, 32, 1000), (4, 3, 32, 1000), (4, 4, 8, 500), (16, 3, 16, 800), (2, 6, 24, 1000))
"""Cores, iterations, calls of each, and cycles of a call."""
LEAST = {"none": 1.0, "marks": 0.9, "calls": 0.9, "time": 0.5, "duplicates": 1.0, "outliers": 1.0}
"""Share of the iterations that must be measured, by what happened to the trace."""


def outcomes(run: Run, path: Path) -> tuple[int, int, int]:
    """How many iterations behind the warm-up were measured rightly, wrongly, and not at all."""
    data, truth = generated(run)
    path.write_bytes(data)
    request = TilesRequest(warmup=1, iterations=run.iterations - 1, clock_mhz=1250.0)
    files = published(analyze_tiles(path, request), "out")
    right = wrong = withheld = 0
    for tile, iterations in truth.items():
        rows = {row["iteration_index"]: row for row in json.loads(files[f"{tile}.json"])["iterations"]}
        for index, iteration in enumerate(iterations[1:], 1):
            row = rows.get(index)
            if row is None or row["phase"] != "perf":
                withheld += 1
            elif row["total_span_cycles"] == iteration.span and row["num_kernels"] <= iteration.calls:
                right += 1
            else:
                wrong += 1
    return right, wrong, withheld


@pytest.mark.parametrize("damage", ["none", "marks"])
def test_what_is_measured_is_right(damage: Damage, tmp_path: Path) -> None:
    """Four cores: every iteration of a clean trace, and with lost marks those whose ends are there."""
    right, wrong, withheld = outcomes(Run(4, 4, 8, 500, damage, 1), tmp_path / "trace.json")
    assert (wrong, right >= LEAST[damage] * (right + withheld)) == (0, True)


@pytest.mark.nightly
@pytest.mark.parametrize("damage", DAMAGES)
def test_no_iteration_is_measured_wrongly(damage: Damage, tmp_path: Path) -> None:
    """Thirty-five traces of 1 to 16 cores with losses, repeated marks and outliers."""
    found = [outcomes(Run(*shape, damage, seed), tmp_path / "trace.json") for seed, shape in enumerate(SHAPES)]
    right, wrong, withheld = map(sum, zip(*found, strict=True))
    assert (wrong, right >= LEAST.get(damage, 0.5) * (right + withheld)) == (0, True)


@pytest.mark.parametrize("warmup", [0, 1])
def test_lost_calls_leave_an_aggregate(warmup: int, tmp_path: Path) -> None:
    """Four cores, of which each lost an end of a call in most iterations: all are measured, and marked."""
    path = tmp_path / "trace.json"
    data, truth = generated(Run(4, 5, 32, 1000, "marks", 7))
    path.write_bytes(data)
    tiles = analyze_tiles(path, TilesRequest(warmup=warmup, iterations=5 - warmup))
    rows = [row for tile in tiles.analysis.tiles for row in tile.iterations]
    assert {row.phase for row in rows if row.number > warmup} == {"measured"}
    assert all(row.has_sure_ends for row in rows)
    assert {(row.lost_calls, row.complete) for row in rows} == {(0, True), (1, False)}
    assert {(row.calls, row.lost_calls) for row in rows} == {(32, 0), (31, 1)}
    aggregate = json.loads(published(tiles, "out")["aggregate_perf.json"])
    spans = zip(*truth.values(), strict=True)
    assert [row["runtime_cycles"] for row in aggregate["per_iteration"]] == [
        max(iteration.span for iteration in cores) for cores in list(spans)[warmup:]
    ]
    assert tiles.analysis.array is not None
    assert tiles.analysis.array.left_out == ()
    assert len(tiles.analysis.array.iterations) == 5 - warmup


@pytest.mark.parametrize("others", list(itertools.product((1, 2), ("calls", "marks"))))
def test_a_loss_inside_is_no_full_buffer(others: tuple[int, Damage], tmp_path: Path) -> None:
    """Calls that are missing between others say nothing about the end of the trace, nor about the kernel's marks."""
    cores, damage = others
    path = tmp_path / "trace.json"
    path.write_bytes(generated(Run(cores, 3, 32, 1000, damage, 3))[0])
    sizes = {"M": 32, "K": 32 * 32, "N": 32, "m": 32, "k": 32, "n": 32}
    analysis = analyze_tiles(path, TilesRequest(**sizes, warmup=0, iterations=3)).analysis
    assert any(row.calls.paired < 96 for row in analysis.tiles)
    assert not {"trace_cut", "vector_between_calls"} & {message.rule for message in analysis.findings}
    assert {row.advice.cut for row in analysis.tiles} == {False}
