"""Iterations: groups of calls that repeat, from the tiling, the sequence of kinds, or long waits for a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from opscope.analyze.aie_findings import TileFinding

if TYPE_CHECKING:
    from opscope.analyze.aie_calls import Calls
    from opscope.analyze.aie_kinds import Kinds
    from opscope.table.tiles import TileTrace


class Iteration(msgspec.Struct, frozen=True):
    """One repetition.

    Attributes:
        number: from 1.
        first_call: its first call, counted from 0.
        last_call: its last call, counted from 0.
        start: of the first call, in cycles.
        end: of the last call.
        phase: ``warmup``, ``measured``, ``extra`` beyond those expected; ``partial`` when it would be measured but
            calls of it are missing.
        complete: whether all its calls are in the trace.
    """

    number: int
    first_call: int
    last_call: int
    start: int
    end: int
    phase: Literal["warmup", "measured", "extra", "partial"]
    complete: bool


class Iterations(msgspec.Struct, frozen=True):
    """All repetitions that a tile's calls form.

    Attributes:
        iterations: in order of time; empty where nothing tells them apart.
        by: what they were found by.
        reason: why these, or why none, in words.
        calls_each: calls of a complete one, zero-fills included.
        expected: warm-up and measured ones that were asked for; None where that was not said.
        detected: number found, partial ones included.
        pattern: the sequence of kinds that repeats, such as ``zero-fill, 12 x kernel 1``; None without one.
        findings: what does not fit.
    """

    iterations: tuple[Iteration, ...]
    by: Literal["tiling", "kinds", "lock_stall"] | None
    reason: str
    calls_each: int | None
    expected: int | None
    detected: int
    pattern: str | None = None
    findings: tuple[TileFinding, ...] = ()


def find_iterations(
    tile: TileTrace,
    calls: Calls,
    kinds: Kinds,
    calls_per_iteration: int | None = None,
    warmup: int = 0,
    measured: int | None = None,
) -> Iterations:
    """Group calls into iterations.

    Args:
        tile: whose lock stalls support or doubt the grouping.
        calls: of the tile.
        kinds: of these calls.
        calls_per_iteration: working calls (no zero-fills) of one iteration, as the tiling has it; None without one.
        warmup: iterations at the beginning that are not measured.
        measured: iterations after these; None for all.
    """
    expected = None if measured is None else warmup + measured
    reason = f"not looked for in {len(calls):,} calls of {len(kinds.kinds):,} kinds of tile {tile.tile}"
    del calls_per_iteration
    return Iterations((), None, reason, None, expected, 0)
