"""Iterations of traces that lost events, over a matrix of runs whose truth is known."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import NamedTuple

import pytest

from aie_cores import analysed, core_of
from opscope.core.table.tiles import TileTrace
from opscope.npu.analysis.specification import run_specification
from opscope.npu.analysis.tiles_result import TileRow
from opscope.program.cost.gemm import tiling

ITERATIONS, CALLS, STALLS, JITTER = (3, 6, 10), (8, 24), (2_000, 60_000), (0, 20)


class Repetition(NamedTuple):
    """An iteration as it was: first and last cycle, and whether all its events are in the trace."""

    start: int
    end: int
    whole: bool


class Lossy(NamedTuple):
    """A core whose iterations wait for a lock between them, and the truth about it."""

    tile: TileTrace
    truth: list[Repetition]


def lossy(chance: random.Random, shape: tuple[int, int, int, int], lost: float) -> Lossy:
    """Calls of 100 cycles and up to a jitter more; each start and end is lost with this probability."""
    iterations, calls, stall, jitter = shape
    marks, vector, locks, truth, now = [], [], [], [], 1
    for number in range(iterations):
        if number:
            locks.append((now + 1, now + 1 + stall))
            now += stall + 2
        first, whole = now + 10, True
        for call in range(calls):
            start, end = now + 10, now + 110 + chance.randint(0, jitter)
            locks += [(start - 7, start - 3)] if call else []
            vector.append((start, start + 64))
            for mark in ((0, start), (1, end)):
                kept = chance.random() >= lost
                marks += [mark] if kept else []
                whole = whole and kept
            now = end
        truth.append(Repetition(first, now, whole))
    return Lossy(core_of(marks, {"INSTR_VECTOR": vector, "LOCK_STALL": locks}), truth)


def found_in(tile: TileTrace, shape: tuple[int, int, int, int], *, tiled: bool) -> TileRow:
    """The row of a core, with the number that was run, and with the tiling or without."""
    iterations, calls, *_ = shape
    said = run_specification(tiling=tiling((8, 32, 32), (8, 32 * calls, 32)) if tiled else None)
    return analysed(tile, said=said, measured=iterations).analysis.tiles[0]


@pytest.mark.parametrize(
    ("lost", "tiled"), [*itertools.product((0.0, 0.002, 0.01), (True, False)), (0.03, True), (0.05, True)]
)
def test_what_is_measured_is_whole_and_all_that_is_whole_is_measured(lost: float, tiled: bool) -> None:
    """Over lengths, waits and jitter, with the number of iterations that were run.

    Where more than one event in a hundred is lost the tiling must tell what is whole: calls that lost both their start
    and their end leave no other sign.
    """
    chance = random.Random(f"{lost}")
    for shape in itertools.product(ITERATIONS, CALLS, STALLS, JITTER):
        tile, truth = lossy(chance, shape, lost)
        found = found_in(tile, shape, tiled=tiled)
        measured = {(own.start, own.end) for own in found.iterations if own.phase == "measured"}
        assert measured >= {(own.start, own.end) for own in truth if own.whole}, (shape, found.iterations_reason)
        assert measured <= {(own.start, own.end) for own in truth}, (shape, found.iterations_reason)


@pytest.mark.parametrize("lost", [0.01, 0.03, 0.05])
def test_cores_tell_what_is_whole_where_no_tiling_does(lost: float) -> None:
    """Four cores that do the same; where each tells its iterations apart, all that is whole is measured."""
    chance = random.Random(f"cores {lost}")
    for shape in itertools.product(ITERATIONS, CALLS, STALLS, JITTER):
        runs = [lossy(chance, shape, lost) for _ in range(4)]
        tiles = tuple(replace(run.tile, row=2 + number) for number, run in enumerate(runs))
        rows = analysed(*tiles, measured=shape[0]).analysis.tiles
        for run, row in zip(runs, rows, strict=True):
            measured = {(own.start, own.end) for own in row.iterations if own.phase == "measured"}
            whole = {(own.start, own.end) for own in run.truth if own.whole}
            assert measured >= (whole if row.iterations else set()), (shape, row.iterations_reason)
            assert measured <= {(own.start, own.end) for own in run.truth}, (shape, row.iterations_reason)


def test_a_last_end_that_is_lost_as_others_are_is_no_full_buffer() -> None:
    """Where no other event is lost, a call without an end is one that the trace ends in."""
    _, truth = lossy(random.Random(0), (3, 12, 60_000, 0), 0.0)
    for others, cut in ((True, None), (False, True)):
        marks = [mark for number, own in enumerate(truth) for mark in _marks(own.start, 12, lost=others and not number)]
        vector = {"INSTR_VECTOR": [(at, at + 64) for kind, at in marks if not kind]}
        said = run_specification(tiling=tiling((8, 32, 32), (8, 32 * 36, 32)))
        assert analysed(core_of(marks[:-1], vector), said=said).analysis.tiles[0].advice.cut is cut


def test_one_event_lost_in_two_of_three_iterations_moves_none_over_a_wait() -> None:
    """Each of the three keeps its place; the one that is whole is measured, and waits are said to tell them apart."""
    _, truth = lossy(random.Random(0), (3, 12, 60_000, 0), 0.0)
    marks = [mark for number, own in enumerate(truth) for mark in _marks(own.start, 12, lost=number != 1)]
    waits = [(left.end + 1, right.start - 9) for left, right in itertools.pairwise(truth)]
    tile = core_of(marks, {"LOCK_STALL": waits, "INSTR_VECTOR": [(at, at + 64) for kind, at in marks if not kind]})
    found = found_in(tile, (3, 12, 60_000, 0), tiled=True)
    assert [own.phase for own in found.iterations] == ["measured", "measured", "measured"]
    assert [own.start for own in found.iterations] == [own.start for own in truth]
    assert "does not separate" not in found.iterations_reason


def _marks(start: int, calls: int, *, lost: bool) -> list[tuple[int, int]]:
    """Starts and ends of the calls of an iteration; one end in its middle is lost."""
    both = [mark for at in range(start, start + 110 * calls, 110) for mark in ((0, at), (1, at + 100))]
    return [mark for number, mark in enumerate(both) if not lost or number != calls + 1]
