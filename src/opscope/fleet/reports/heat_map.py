"""Models and devices as a map with one line a cell: a figure in each, and a colour where it says something.

Colours go from blue (better) to orange (worse), which people who confuse red and green tell apart; the figure in the
cell says the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.fleet.analysis.fleet import counted_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.fleet.analysis.fleet import Fleet
    from opscope.fleet.analysis.fleet_run import FleetRun

    Cell = tuple[str, str]
    """Text and class of a cell."""

MOST_COLUMNS = 60
MOST_CELLS = 20_000
FIRST_ROWS = 20
"""Rows of a large map that are shown at once; the others are folded."""
_STEPS = 5
"""Shades on either side of no difference."""
_STRONGEST = 2.0
"""Binary logarithm of the speedup that has the strongest shade: a factor of four."""
_FURTHEST = 4.0
"""Likewise of the distance from the best device: sixteen."""
_CHANGES = (0.03, 0.1, 0.25, 0.6)
"""Relative changes from which the second to the fifth shade begin."""
_TEN = 10
_NOT_RUN = ("·", "")


class FleetMap(NamedTuple):
    """A map with the rows that matter most on top.

    Attributes:
        across: what a column is, ``device`` or ``model``; rows are the other.
        columns: names.
        first: names and cells of the rows that are shown at once.
        folded: those of the other rows.
        left_out: rows and columns that the page has no room for.
    """

    across: str
    columns: list[str]
    first: list[tuple[str, str]]
    folded: list[tuple[str, str]]
    left_out: tuple[int, int]

    @property
    def down(self) -> str:
        """What a row is."""
        return "model" if self.across == "device" else "device"


def change_map(fleet: Fleet) -> FleetMap | None:
    """Newest runs against their predecessors; of several configurations the one that is furthest off."""
    runs = counted_runs(fleet.runs)
    levels = {(one.model, one.device): one.ratio for one in reversed(fleet.level_changes)}
    known = any(run.change is not None for run in runs)
    return (
        _map(fleet, runs, lambda own: _change_cell(own, levels.get((own[0].model, own[0].device)))) if known else None
    )


def distance_map(fleet: Fleet) -> FleetMap | None:
    """Latency over that of the fastest device, of the fastest configuration of each pair."""
    shown = [run for run in fleet.runs if run.times_best is not None]
    return _map(fleet, shown, lambda runs: _distance_cell(runs[0])) if shown else None


def speedup_map(fleet: Fleet, variant: str) -> FleetMap | None:
    """Speedup of a variant over the baseline of the same bundle."""
    shown = [run for run in fleet.runs if run.variant == variant]
    return _map(fleet, shown, lambda runs: _speedup_cell(runs[0]))


def heat_class(run: FleetRun | None) -> str:
    """Class of a cell by its speedup; one that is not shown to be a change has the shade of none."""
    if run is None or run.speedup is None or run.speedup <= 0 or not _is_shown(run):
        return ""
    step = round(_STEPS * math.log2(run.speedup) / _STRONGEST)
    bounded = max(-_STEPS, min(_STEPS, step))
    return f"gain{bounded}" if bounded > 0 else f"loss{-bounded}" if bounded < 0 else ""


def _map(fleet: Fleet, runs: Sequence[FleetRun], cell: Callable[[Sequence[FleetRun]], Cell]) -> FleetMap | None:
    across = "device" if len(fleet.devices) <= len(fleet.models) else "model"
    pairs = grouped(runs, lambda run: (run.model, run.device) if across == "device" else (run.device, run.model))
    orders = {"device": _order(fleet.devices, fleet, "device"), "model": _order(fleet.models, fleet, "model")}
    down = "model" if across == "device" else "device"
    used = {name for _, name in pairs}
    columns = [name for name in orders[across] if name in used]
    rows = [name for name in orders[down] if any((name, column) in pairs for column in columns)]
    kept = columns[:MOST_COLUMNS]
    most = MOST_CELLS // max(1, len(kept))
    told = [
        (row, _cells([cell(pairs[row, column]) if (row, column) in pairs else None for column in kept]))
        for row in rows[:most]
    ]
    first = len(told) if len(told) <= FIRST_ROWS + FIRST_ROWS // 2 else FIRST_ROWS
    return FleetMap(across, kept, told[:first], told[first:], (len(rows) - len(told), len(columns) - len(kept)))


def _order(names: Sequence[str], fleet: Fleet, key: str) -> list[str]:
    """The names, those that got worse first."""
    ranked = [part.name for part in (fleet.by_device if key == "device" else fleet.by_model)]
    known = set(ranked)
    return [*ranked, *(name for name in names if name not in known)]


def _cells(cells: Sequence[Cell | None]) -> str:
    """Cells without end tags, which HTML lets out: a map has thousands."""
    parts = []
    for cell in cells:
        text, shade = cell or ("", "")
        quoted = f'"{shade}"' if " " in shade else shade
        parts.append(f"<td class={quoted}>{text}" if shade else f"<td>{text}")
    return "".join(parts)


def _change_cell(runs: Sequence[FleetRun], level: float | None) -> Cell:
    judged = [run.change for run in runs if run.change is not None]
    if not judged:
        return _NOT_RUN
    shown = [one for one in judged if one.verdict in {Verdict.SLOWER, Verdict.FASTER}]
    if not shown and level is not None:
        return _percent(level), f"{_shade(level)} level"
    one = max(shown or judged, key=lambda change: abs(math.log(change.since_level)))
    text = _percent(one.since_level)
    if one.verdict is Verdict.UNDECIDABLE:
        return f"{text}?", ""
    return text, _shade(one.since_level) if shown else ""


def _percent(ratio: float) -> str:
    text = f"{(ratio - 1) * 100:+.0f}"
    return "0" if text in {"+0", "-0"} else text


def _shade(ratio: float) -> str:
    step = 1 + sum(abs(ratio - 1) >= limit for limit in _CHANGES)
    return f"{'loss' if ratio > 1 else 'gain'}{step}"


def _distance_cell(run: FleetRun) -> Cell:
    times = run.times_best or 1.0
    text = f"{times:.1f}" if times < _TEN else f"{times:.0f}"
    if times <= 1:
        return "best", "best"
    shade = min(_STEPS, round(_STEPS * math.log2(times) / _FURTHEST))
    return text, f"loss{shade}" if shade else ""


def _speedup_cell(run: FleetRun) -> Cell:
    if run.speedup is None:
        return "-", ""
    text = f"{run.speedup:.2f}" if run.speedup < _TEN else f"{run.speedup:.0f}"
    return text if _is_shown(run) else f"{text}?", heat_class(run)


def _is_shown(run: FleetRun) -> bool:
    """Whether its speedup is shown to be one, by measurements that can be trusted."""
    return run.verdict in {"faster", "slower"} and run.is_trusted
