"""The report on a fleet in HTML and Markdown: what got worse and where, maps of models and devices, operators.

What a person must know stands first and is bounded; everything else is folded, and what a page has no room for is in
the JSON.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.core import units
from opscope.core.grouping import grouped
from opscope.core.parts import noted
from opscope.core.stats.effect import Verdict
from opscope.core.stats.prediction import FEWEST
from opscope.fleet.analysis.fleet import counted_runs
from opscope.fleet.analysis.parts import DISTANT
from opscope.fleet.reports.html_parts import Listed, listed, sparkline
from opscope.reports.document.html import policy, style_sheet, width_class
from opscope.reports.document.template import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import jinja2

    from opscope.fleet.analysis.fleet import Fleet
    from opscope.fleet.analysis.nights import FleetLevelChange
    from opscope.fleet.analysis.parts import FleetRun, Widespread

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
    """A map with the rows that matter most on top."""

    across: str  # what a column is, `device` or `model`; rows are the other
    columns: list[str]  # names
    first: list[tuple[str, str]]  # names and cells of the rows that are shown at once
    folded: list[tuple[str, str]]  # those of the other rows
    left_out: tuple[int, int]  # rows and columns that the page has no room for

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


_DOMINANT = 15
_LISTED, _MOST_LISTED = 12, 500
"""Rows of a list that are shown at once, and with those that are folded; the JSON has all of them."""
_DETAILED = 400
"""Cells of speedups, up to which they stand with intervals and latencies as well."""
_SHOWN = {
    "faster": "",
    "slower": "",
    "no_difference": "no difference detected",
    "undecidable": "undecidable",
    "withheld": "withheld",
}


def fleet_html(fleet: Fleet) -> str:
    """The report as one HTML page that needs nothing else."""
    style = style_sheet("history.css", "fleet.css")
    return _environment().get_template("fleet.html.j2").render(_values(fleet), style=style, policy=policy(style))


def fleet_markdown(fleet: Fleet) -> str:
    """The report in Markdown; maps of thousands of cells are left to the page."""
    return _environment().get_template("fleet.md.j2").render(_values(fleet))


def _values(fleet: Fleet) -> dict[str, Any]:
    counted = counted_runs(fleet.runs)
    tonight = [run for run in counted if run.change is not None]
    judged = [run for run in tonight if run.change and run.change.verdict is not Verdict.UNDECIDABLE]
    detailed = len(fleet.models) * len(fleet.devices) * len(fleet.variants) <= _DETAILED
    lost, none = dict(fleet.failed), listed([], 0, 0)
    nothing: list[Any] = []
    figures: list[tuple[str, str]] = []
    values = {
        "fleet": fleet,
        "tonight": len(tonight),
        "judged": len(judged),
        "fewest": FEWEST,
        "spread": _spread(fleet.widespread),
        "distant": _listed(fleet.distant),
        "newest": max((run.placed for run in fleet.runs), default="")[:10],
        "by_device": _listed(fleet.by_device),
        "by_model": _listed(fleet.by_model),
        "dominant": fleet.dominant[:_DOMINANT],
        "far": DISTANT,
        "tiles": noted(lost, "tiles", "the figures of the first screen", lambda: _tiles(fleet, counted), figures),
        "worse": noted(lost, "worse", "who is slower", lambda: _runs(fleet, judged, better=False), none),
        "better": noted(lost, "better", "who is faster", lambda: _runs(fleet, judged, better=True), none),
        "rose": noted(lost, "rose", "levels that rose", lambda: _changed(fleet, better=False), none),
        "fell": noted(lost, "fell", "levels that fell", lambda: _changed(fleet, better=True), none),
        "changes": noted(lost, "map", "the map of changes", lambda: change_map(fleet), None),
        "distances": noted(lost, "distances", "the map of distances", lambda: distance_map(fleet), None),
        "speedups": noted(lost, "speedups", "the maps of speedups", lambda: _speedups(fleet), nothing),
        "detailed": noted(lost, "detailed", "the table of speedups", lambda: _details(fleet), nothing)
        if detailed
        else [],
        "facts": noted(lost, "facts", "the sentences on speedups", lambda: fleet_facts(fleet), nothing),
    }
    return {**values, "lost": lost, "failed": list(dict.fromkeys(lost.values()))}


def _runs(fleet: Fleet, judged: list[FleetRun], *, better: bool) -> Listed:
    moved = [run for run in _moved(fleet, judged) if run.change and run.change.since_level != 1]
    return _listed([run for run in moved if run.change and (run.change.since_level < 1) is better])


def _changed(fleet: Fleet, *, better: bool) -> Listed:
    return _listed([one for one in _levels(fleet) if one.better is better])


def _speedups(fleet: Fleet) -> list[tuple[str, FleetMap | None]]:
    return [(variant, speedup_map(fleet, variant)) for variant in fleet.variants]


def _details(fleet: Fleet) -> list[tuple[str, list[tuple[str, list[FleetRun | None]]]]]:
    return [(variant, _detailed(fleet, variant)) for variant in fleet.variants]


def _tiles(fleet: Fleet, counted: list[FleetRun]) -> list[tuple[str, str]]:
    """Figures that a person looks for first, each with what it counts."""
    newest = [run.change for run in counted if run.change is not None]
    judged = [one for one in newest if one.verdict is not Verdict.UNDECIDABLE]
    if not newest:
        return []
    slower, faster = (sum(one.verdict is word for one in judged) for word in (Verdict.SLOWER, Verdict.FASTER))
    rose = sum(1 for one in fleet.level_changes if not one.better)
    absent = sum(1 for run in counted if run.placed < fleet.night)
    told = [
        ("changes", f"{slower:,}", f"slower than usual, of {len(judged):,} newest runs that can be judged"),
        ("changes", f"{faster:,}", "faster than usual"),
        (
            "level_changes",
            f"{rose} / {len(fleet.level_changes) - rose}",
            "levels that rose / fell in the last 14 days",
        ),
        ("distant", f"{len(fleet.distant):,}", "pairs unusually far from the best device"),
        ("changes", f"{absent:,}", "configurations without a run in the newest 24 hours"),
    ]
    return [(figure, what) for key, figure, what in told if key not in fleet.failed]


def _moved(fleet: Fleet, judged: list[FleetRun]) -> list[FleetRun]:
    """Runs that differ from their predecessors, new ones first, then the largest; without what is widespread."""
    told = {(one.key, one.name, one.better) for one in fleet.widespread if not one.lately}
    moved = [run for run in judged if run.change and run.change.verdict in {Verdict.SLOWER, Verdict.FASTER}]
    left = [run for run in moved if not told & _keys(run, better=run.change is not None and run.change.since_level < 1)]
    return sorted(
        left, key=lambda run: (run.change.in_a_row, -_distance(run.change.since_level)) if run.change else (0, 0)
    )


def _levels(fleet: Fleet) -> list[FleetLevelChange]:
    told = {(one.key, one.name, one.better) for one in fleet.widespread if one.lately}
    return [one for one in fleet.level_changes if not told & _keys(one, better=one.better)]


def _keys(one: FleetRun | FleetLevelChange, *, better: bool) -> set[tuple[str, str, bool]]:
    return {("device", one.device, better), ("model", one.model, better)}


def _distance(ratio: float) -> float:
    return max(ratio, 1 / ratio)


def _spread(found: Sequence[Widespread]) -> dict[str, list[Widespread]]:
    """What is widespread, by the list that it stands above."""
    names = {(False, False): "slower", (False, True): "faster", (True, False): "rose", (True, True): "fell"}
    return {name: [one for one in found if (one.lately, one.better) == key] for key, name in names.items()}


def _listed(rows: Sequence[Any]) -> Listed:
    return listed(rows, _LISTED, _MOST_LISTED)


def _detailed(fleet: Fleet, variant: str) -> list[tuple[str, list[FleetRun | None]]]:
    """The devices that ran a variant, each with its run of every model."""
    runs = {(run.device, run.model): run for run in fleet.runs if run.variant == variant}
    devices = {device for device, _ in runs}
    return [
        (device, [runs.get((device, model)) for model in fleet.models]) for device in fleet.devices if device in devices
    ]


def fleet_facts(fleet: Fleet) -> list[str]:
    """What a stranger should know of speedups and operators, one sentence each."""
    found = []
    told = [run for run in fleet.runs if run.verdict != "undecidable" and run.is_trusted]
    known = [(run.speedup, run) for run in told if run.speedup is not None]
    if known:
        low, high = min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0])
        found.append(f"largest speedup {units.ratio_text(high[0])}: {_place(high[1])}")
        found.append(f"smallest speedup {units.ratio_text(low[0])}: {_place(low[1])}")
        slower = sum(1 for _, run in known if run.verdict == "slower")
        if slower:
            found.append(f"slower than its baseline in {slower} of {units.counted_text(len(known), 'configuration')}")
    if fleet.rankings:
        widest = max(fleet.rankings, key=lambda one: one.ratio)
        device, latency = widest.devices[0]
        found.append(
            f"widest span {units.ratio_text(widest.ratio)}: {widest.model}, {widest.variant}, "
            f"{units.time_text(latency)} on {device}"
        )
    if fleet.dominant:
        first = fleet.dominant[0]
        found.append(f"{first.operator} ({first.backend}) dominates the fleet: {units.share_text(first.share)}")
    return found


def _place(run: FleetRun) -> str:
    return f"{run.model} on {run.device}, {run.variant}"


def widespread_text(one: Widespread) -> str:
    """A device or a model of which much changed, in one sentence without its name and a full stop."""
    others = "models" if one.key == "device" else "devices"
    how = "faster" if one.better else "slower"
    change = percent_text(one.ratio)
    if one.lately:
        word = "fell" if one.better else "rose"
        return f"{one.count} of {one.of} levels {word} in the last 14 days, median {change}"
    return f"{one.count} of {one.of} configurations are {how} than usual, median {change} over its {others}"


def percent_text(ratio: float) -> str:
    """A ratio as a change in per cent, with its sign."""
    return units.signed_share_text(ratio - 1)


def _environment() -> jinja2.Environment:
    return environment(
        {
            "time": lambda value: units.time_text(value) if value is not None else "not measured",
            "ratio": lambda value: units.ratio_text(value) if value is not None else "",
            "share": units.share_text,
            "percent": lambda value: percent_text(value) if value is not None else "",
            "expected": lambda ends: f"{percent_text(ends[0])} to {percent_text(ends[1])}" if ends else "not known",
            "interval": lambda ends: (
                f"{units.ratio_text(ends[0])} to {units.ratio_text(ends[1])}" if ends else "no interval"
            ),
            "verdict": lambda word: _SHOWN.get(word, ""),
            "heat": heat_class,
            "width": width_class,
            "spark": sparkline,
            "widespread": widespread_text,
        }
    )
