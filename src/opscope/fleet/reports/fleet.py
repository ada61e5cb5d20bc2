"""The report on a fleet as a document: what got slower and why, maps of models and devices, operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.core import units
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.fleet.reports.words import cause_text, since_text, subject_text
from opscope.reports.document.blocks import (
    NOTEBOOK_ROWS,
    Bullets,
    CellMap,
    Document,
    Figures,
    Fold,
    Format,
    HeadlineFigure,
    MapCell,
    Section,
    Sentence,
    TableCell,
    Tone,
    changed_ratio,
    column,
    rest_sentence,
    table,
    verdict_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.fleet.analysis.fleet import Fleet, FleetChange, FleetRun
    from opscope.reports.document.blocks import TableBlock

MOST_COLUMNS = 60
MOST_CELLS = 20_000
_STEPS = 5
"""Shades on either side of no difference."""
_STRONGEST = 2.0
"""Binary logarithm of the speedup that has the strongest shade: a factor of four."""
_FURTHEST = 4.0
"""Binary logarithm of the distance from the best device that has the strongest shade: a factor of sixteen."""
_TEN = 10
_EMPTY = MapCell("")
_ELSEWHERE = "see fleet.json, or filter with --where"
_FOLD = Fold(12, 500, _ELSEWHERE)
_DOMINANT = 15
_DETAILED = 400
"""Cells of speedups, up to which they stand with intervals and latencies as well."""
_VERDICTS = {verdict.value: verdict_text(verdict) for verdict in set(Verdict) - {Verdict.FASTER, Verdict.SLOWER}}
"""Verdicts that a cell names: of the others its colour and its value say enough."""


def fleet_document(fleet: Fleet) -> Document:
    """Return what got slower and why first, then what the newest runs of all configurations say together."""
    devices = units.counted_text(len(fleet.devices), "device")
    newest = max((run.placed for run in fleet.runs), default="")[:10]
    answer = f"{units.counted_text(len(fleet.models), 'model')} on {devices}"
    slower = [row for row in fleet.changes if not row.change.better]
    faster = [row for row in fleet.changes if row.change.better]
    since = f"since {fleet.since[:10]}"
    figures = [
        HeadlineFigure("regressions", f"{len(slower):,}", since),
        HeadlineFigure("improvements", f"{len(faster):,}", since),
        HeadlineFigure("series", f"{fleet.series:,}", "model, device, variant and method each"),
    ]
    sections = [_slower_section(fleet, slower), _distance_section(fleet), _speedup_section(fleet)]
    if faster:
        rows = _change_table("Faster", faster)
        sections.insert(1, Section("Faster", [rows], "faster", "Faster", f"{len(faster)} series", folded=True))
    if fleet.dominant:
        sections.append(_dominant_section(fleet))
    return Document(
        title=f"Fleet of {devices}",
        answer=f"{answer}, newest run {newest}" if newest else answer,
        trust=[Sentence(f"{len(fleet.runs):,} configurations, each with its newest run.")],
        blocks=[Figures(figures, alone=True), Bullets([f"{cause_text(cause)}." for cause in fleet.causes])],
        sections=[section for section in sections if section.blocks],
    )


def fleet_screen(fleet: Fleet) -> Document:
    """Return what changed in a fleet and its first ten configurations, as a notebook shows them."""
    runs = table(
        fleet.runs[:NOTEBOOK_ROWS],
        column("model", Format.NAME, lambda run: run.model),
        column("device", Format.NAME, lambda run: run.device),
        column("variant", Format.NAME, lambda run: run.variant),
        column("latency", Format.TIME, lambda run: run.latency_ns, absent="not measured"),
        column("speedup", Format.RATIO, lambda run: run.speedup),
    )
    slower = sum(not row.change.better for row in fleet.changes)
    configurations = units.counted_text(len(fleet.runs), "configuration")
    answer = f"{configurations}: {slower} slower, {len(fleet.changes) - slower} faster since {fleet.since[:10]}"
    blocks = [
        runs,
        rest_sentence(len(runs.rows), len(fleet.runs)),
        Bullets([cause_text(cause) for cause in fleet.causes]),
    ]
    return Document(fleet.store, answer, blocks, [])


def distance_map(fleet: Fleet) -> CellMap:
    """Return latency over that of the fastest device, of the fastest variant of each model and device."""
    shown = [run for run in fleet.runs if run.times_best is not None]
    return _make_map(fleet, "Latency vs fastest device", shown, _distance_cell)


def speedup_map(fleet: Fleet, variant: str, *, is_detailed: bool = False) -> CellMap:
    """Return the speedup of a variant over the baseline of the same bundle; in detail with interval and latency."""
    shown = [run for run in fleet.runs if run.variant == variant]
    return _make_map(fleet, "Speedup over the baseline", shown, _detailed_cell if is_detailed else _speedup_cell)


def _slower_section(fleet: Fleet, slower: Sequence[FleetChange]) -> Section:
    how = (
        "Steps of the level and drifts of each series, and newest runs that are farther off than noise was in all "
        f"earlier runs; corrected for all {fleet.series:,} series (false discovery rate)."
    )
    none = "" if slower else f"No series is slower since {fleet.since[:10]}."
    blocks = [Sentence(none), _change_table("Slower", slower), Sentence(how, Tone.DIM)]
    return Section("Slower", blocks, "slower", "Slower")


def _change_table(label: str, changes: Sequence[FleetChange]) -> TableBlock:
    return table(
        changes,
        column("change", Format.CHANGE, lambda row: changed_ratio(row.change.ratio, better=row.change.better)),
        column("95 % interval", Format.CHANGE, lambda row: row.change.ci95),
        column("since", Format.TEXT, lambda row: since_text(row.change)),
        column("series", Format.TEXT, lambda row: subject_text(row.subject)),
        column("from", Format.TIME, lambda row: row.change.from_value),
        column("to", Format.TIME, lambda row: row.change.to_value),
        column("how", Format.TEXT, lambda row: row.change.kind),
        column("last runs", Format.TREND, lambda row: tuple(row.latencies_ns)),
        label=label,
    ).folded(_FOLD)


def _distance_section(fleet: Fleet) -> Section:
    distances = distance_map(fleet)
    text = "The fastest variant of each pair. Devices are shown side by side and not tested against each other."
    blocks = [distances, Sentence(text, Tone.DIM)] if distances.rows else []
    return Section("Vs fastest device", blocks, "distances", "Distances")


def _speedup_section(fleet: Fleet) -> Section:
    is_detailed = len(fleet.models) * len(fleet.devices) * len(fleet.variants) <= _DETAILED
    how = (
        "Each cell: speedup over the baseline of the same bundle, its 95 % interval, and the latency."
        if is_detailed
        else "Speedup over the baseline of the same bundle; intervals and latencies are in fleet.json. A question "
        "mark: no difference detected."
    )
    maps = [
        Section(f"Speedup of {variant} over its baseline", [speedup_map(fleet, variant, is_detailed=is_detailed)])
        for variant in fleet.variants
    ]
    colour = Sentence(f"{how} Coloured or bold: difference detected, from 0.25x to 4x. Empty: not run.", Tone.DIM)
    return Section("Speedups over baselines", [*maps, colour] if maps else [], "speedups", "Speedups")


def _dominant_section(fleet: Fleet) -> Section:
    shown = table(
        fleet.dominant[:_DOMINANT],
        column("operators of one kind", Format.NAME, lambda row: TableCell(row.operator, row.backend)),
        column("category", Format.NAME, lambda row: row.category),
        column("", Format.BAR, lambda row: row.share),
        column(f"share, mean of {fleet.counted}", Format.SHARE, lambda row: row.share),
        column("dominates in", Format.COUNT, lambda row: row.first),
        column("present in", Format.COUNT, lambda row: row.present),
        column("at most", Format.SHARE, lambda row: row.highest),
        column("where", Format.TEXT, lambda row: row.where),
        label="Operators that dominate",
    )
    text = (
        f"For {fleet.counted} configurations: the accelerated variants or, if none is accelerated, all but baselines. "
        "Excludes framework time."
    )
    return Section(shown.label, [shown, Sentence(text, Tone.DIM)], "dominant", "Operators")


def _make_map(fleet: Fleet, label: str, runs: Sequence[FleetRun], cell: Callable[[FleetRun], MapCell]) -> CellMap:
    """Return a map whose smaller side goes across."""
    down, across = ("model", "device") if len(fleet.devices) <= len(fleet.models) else ("device", "model")
    pairs = grouped(runs, lambda run: (run.model, run.device) if down == "model" else (run.device, run.model))
    rows, columns = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
    heads = columns[:MOST_COLUMNS]
    most = MOST_CELLS // max(1, len(heads))
    cells = [
        (row, [cell(pairs[row, name][0]) if (row, name) in pairs else _EMPTY for name in heads]) for row in rows[:most]
    ]
    left_out = (len(rows) - len(cells), len(columns) - len(heads))
    return CellMap(label, down, across, heads, cells, left_out, _ELSEWHERE)


def _distance_cell(run: FleetRun) -> MapCell:
    times = run.times_best or 1.0
    if times <= 1:
        return MapCell("best", 2)
    text = f"{times:.1f}" if times < _TEN else f"{times:.0f}"
    return MapCell(text, -min(_STEPS, round(_STEPS * math.log2(times) / _FURTHEST)))


def _speedup_cell(run: FleetRun) -> MapCell:
    if run.speedup is None:
        return MapCell("-")
    text = f"{run.speedup:.2f}" if run.speedup < _TEN else f"{run.speedup:.0f}"
    return MapCell(text if _is_detected(run) else f"{text}?", _speedup_shade(run))


def _detailed_cell(run: FleetRun) -> MapCell:
    latency = "not measured" if run.latency_ns is None else units.time_text(run.latency_ns)
    if run.speedup is None:
        return MapCell(latency, notes=("no baseline",))
    ends = units.range_text(*map(units.ratio_text, run.ci95)) if run.ci95 else "no interval"
    words = [ends, latency, _VERDICTS.get(run.verdict or "", ""), "" if run.is_trusted else "do not trust"]
    return MapCell(units.ratio_text(run.speedup), _speedup_shade(run), tuple(filter(None, words)))


def _speedup_shade(run: FleetRun) -> int:
    """Return the shade of a cell by its speedup; one that is no detected difference has none."""
    if run.speedup is None or run.speedup <= 0 or not _is_detected(run):
        return 0
    return max(-_STEPS, min(_STEPS, round(_STEPS * math.log2(run.speedup) / _STRONGEST)))


def _is_detected(run: FleetRun) -> bool:
    return run.verdict in {"faster", "slower"} and run.is_trusted
