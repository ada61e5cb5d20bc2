"""The report on a fleet as a document: what got worse and where, maps of models and devices, operators.

What a person must know stands first and is bounded; everything else is folded, and what has no room is in the JSON.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from opscope.core import units
from opscope.core.grouping import grouped
from opscope.core.parts import noted
from opscope.core.stats.effect import FEWEST, Verdict
from opscope.fleet.analysis.fleet import counted_runs
from opscope.fleet.analysis.parts import DISTANT
from opscope.reports.document.blocks import (
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
    TableBlock,
    TableCell,
    Tone,
    changed_ratio,
    column,
    table,
    verdict_text,
)
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.fleet.analysis.fleet import Fleet
    from opscope.fleet.analysis.nights import FleetLevelChange
    from opscope.fleet.analysis.parts import FleetPart, FleetRun
    from opscope.reports.document.blocks import TableColumn

    Changed = TypeVar("Changed", FleetRun, FleetLevelChange)

MOST_COLUMNS = 60
MOST_CELLS = 20_000
_STEPS = 5
"""Shades on either side of no difference."""
_STRONGEST = 2.0
"""Binary logarithm of the speedup that has the strongest shade: a factor of four."""
_FURTHEST = 4.0
"""Likewise of the distance from the best device: sixteen."""
_CHANGES = (0.03, 0.1, 0.25, 0.6)
"""Relative changes from which the second to the fifth shade begin."""
_TEN = 10
_NEVER, _NOT_RUN = MapCell(""), MapCell("·")
_ELSEWHERE = "see fleet.json, or filter with --where"
_FOLD = Fold(12, 500, _ELSEWHERE)
_DOMINANT = 15
_DETAILED = 400
"""Cells of speedups, up to which they stand with intervals and latencies as well."""
_LATELY = "in the last 14 days"
_TREND_RUNS = 60
_SHOWN = {one.value: verdict_text(one) for one in Verdict if one not in {Verdict.FASTER, Verdict.SLOWER}}
"""Verdicts that a cell names: of the others its colour and its value say enough."""


def change_map(fleet: Fleet) -> CellMap:
    """Newest runs against their predecessors; of several configurations the one that is furthest off."""
    levels = {(one.model, one.device): one.ratio for one in reversed(fleet.level_changes)}
    label = "Newest runs vs usual, in per cent"
    return _map(
        fleet,
        label,
        counted_runs(fleet.runs),
        lambda runs: _change_cell(runs, levels.get((runs[0].model, runs[0].device))),
    )


def distance_map(fleet: Fleet) -> CellMap:
    """Latency over that of the fastest device, of the fastest configuration of each pair."""
    shown = [run for run in fleet.runs if run.times_best is not None]
    return _map(fleet, "Latency vs fastest device", shown, lambda runs: _distance_cell(runs[0]))


def speedup_map(fleet: Fleet, variant: str, *, detailed: bool = False) -> CellMap:
    """Speedup of a variant over the baseline of the same bundle; in detail with its interval and the latency."""
    shown = [run for run in fleet.runs if run.variant == variant]
    cell = _detailed_cell if detailed else _speedup_cell
    return _map(fleet, "Speedup over the baseline", shown, lambda runs: cell(runs[0]))


def speedup_shade(run: FleetRun) -> int:
    """Shade of a cell by its speedup; one that is not shown to be a change has the shade of none."""
    if run.speedup is None or run.speedup <= 0 or not _is_shown(run):
        return 0
    return max(-_STEPS, min(_STEPS, round(_STEPS * math.log2(run.speedup) / _STRONGEST)))


def _map(fleet: Fleet, label: str, runs: Sequence[FleetRun], cell: Callable[[Sequence[FleetRun]], MapCell]) -> CellMap:
    """A map with the rows and columns that matter most first; the smaller side goes across."""
    down, across = ("model", "device") if len(fleet.devices) <= len(fleet.models) else ("device", "model")
    pairs = grouped(runs, lambda run: (run.model, run.device) if down == "model" else (run.device, run.model))
    names = {"model": (fleet.by_model, fleet.models), "device": (fleet.by_device, fleet.devices)}
    rows, columns = (
        [name for name in dict.fromkeys([*(part.name for part in names[what][0]), *names[what][1]]) if name in used]
        for what, used in ((down, {row for row, _ in pairs}), (across, {name for _, name in pairs}))
    )
    kept = columns[:MOST_COLUMNS]
    most = MOST_CELLS // max(1, len(kept))
    told = [(row, [cell(pairs[row, name]) if (row, name) in pairs else _NEVER for name in kept]) for row in rows[:most]]
    left_out = (len(rows) - len(told), len(columns) - len(kept))
    return CellMap(label, down, across, kept, told, left_out, _ELSEWHERE)


def _change_cell(runs: Sequence[FleetRun], level: float | None) -> MapCell:
    judged = [run.change for run in runs if run.change is not None]
    if not judged:
        return _NOT_RUN
    shown = [one for one in judged if one.verdict in {Verdict.SLOWER, Verdict.FASTER}]
    if not shown and level is not None:
        return MapCell(f"{_percent(level)}*", _change_shade(level))
    one = max(shown or judged, key=lambda change: abs(math.log(change.since_level)))
    text = _percent(one.since_level)
    if one.verdict is Verdict.UNDECIDABLE:
        return MapCell(f"{text}?")
    return MapCell(text, _change_shade(one.since_level) if shown else 0)


def _percent(ratio: float) -> str:
    text = f"{(ratio - 1) * 100:+.0f}"
    return "0" if text in {"+0", "-0"} else text


def _change_shade(ratio: float) -> int:
    step = 1 + sum(abs(ratio - 1) >= limit for limit in _CHANGES)
    return -step if ratio > 1 else step


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
    return MapCell(text if _is_shown(run) else f"{text}?", speedup_shade(run))


def _detailed_cell(run: FleetRun) -> MapCell:
    latency = "not measured" if run.latency_ns is None else units.time_text(run.latency_ns)
    if run.speedup is None:
        return MapCell(latency, notes=("no baseline",))
    ends = units.range_text(*map(units.ratio_text, run.ci95)) if run.ci95 else "no interval"
    words = [ends, latency, _SHOWN.get(run.verdict or "", ""), "" if run.is_trusted else "do not trust"]
    return MapCell(units.ratio_text(run.speedup), speedup_shade(run), tuple(filter(None, words)))


def _is_shown(run: FleetRun) -> bool:
    """Whether its speedup is shown to be one, by measurements that can be trusted."""
    return run.verdict in {"faster", "slower"} and run.is_trusted


def fleet_html(fleet: Fleet) -> str:
    """The report as one HTML page that needs nothing else."""
    return html_document(fleet_document(fleet), styles=("fleet.css",))


def fleet_markdown(fleet: Fleet) -> str:
    """The report in Markdown; large maps are left to the page."""
    return markdown_document(fleet_document(fleet))


def fleet_document(fleet: Fleet) -> Document:
    """What got slower and where first, then what the newest runs of all configurations say together."""
    lost, counted = dict(fleet.failed), counted_runs(fleet.runs)
    tiles = noted(lost, "tiles", "the figures of the first screen", lambda: _tiles(fleet), list[HeadlineFigure]())
    made = [noted(lost, name, name, partial(section, fleet), None) for name, section in SECTIONS.items()]
    none = "No configuration has an earlier run: regressions show from the second night on."
    known = bool(_newest(fleet)) or "changes" in lost
    first = Figures(tiles, alone=True) if tiles else Sentence("" if known else none)
    followed = f"; {len(counted):,} of them (all but baselines) are tracked from night to night"
    newest = max((run.placed for run in fleet.runs), default="")[:10]
    answer = f"{units.counted_text(len(fleet.models), 'model')} on {units.counted_text(len(fleet.devices), 'device')}"
    return Document(
        title=f"Fleet of {units.counted_text(len(fleet.devices), 'device')}",
        answer=f"{answer}, newest run {newest}" if newest else answer,
        trust=[Sentence(f"{len(fleet.runs):,} configurations, each with its newest run{followed if counted else ''}.")],
        blocks=[first, *(Sentence(line, Tone.BAD) for line in dict.fromkeys(lost.values()))],
        sections=[section for section in made if section is not None],
    )


def _newest(fleet: Fleet) -> list[FleetRun]:
    """Runs of the newest night that have a predecessor."""
    return [run for run in counted_runs(fleet.runs) if run.change is not None]


def _judged(fleet: Fleet, *verdicts: Verdict) -> list[FleetRun]:
    """Those of them with one of these verdicts; with any that is one where none is named."""
    wanted = verdicts or tuple(one for one in Verdict if one is not Verdict.UNDECIDABLE)
    return [run for run in _newest(fleet) if run.change and run.change.verdict in wanted]


def _tiles(fleet: Fleet) -> list[HeadlineFigure]:
    """Figures that a person looks for first, each with what it counts."""
    if not _newest(fleet):
        return []
    slower, faster = (len(_judged(fleet, verdict)) for verdict in (Verdict.SLOWER, Verdict.FASTER))
    rose = sum(1 for one in fleet.level_changes if not one.better)
    absent = sum(1 for run in counted_runs(fleet.runs) if run.placed < fleet.night)
    of = f"of {len(_judged(fleet)):,} newest runs that can be judged"
    told = [
        ("changes", "slower than usual", f"{slower:,}", of),
        ("changes", "faster than usual", f"{faster:,}", ""),
        ("level_changes", "regressions / improvements", f"{rose} / {len(fleet.level_changes) - rose}", _LATELY),
        ("distant", "pairs unusually far", f"{len(fleet.distant):,}", "from the best device"),
        ("changes", "configurations without a run", f"{absent:,}", "in the newest 24 hours"),
    ]
    return [HeadlineFigure(*one) for key, *one in told if key not in fleet.failed]


def _slower(fleet: Fleet) -> Section | None:
    newest, judged = len(_newest(fleet)), len(_judged(fleet))
    if not newest:
        return None
    many, moved = _widespread(fleet, lately=False, better=False), _runs(fleet, better=False)
    none = f"{'No other' if many.items else 'No'} configuration is slower than its own noise explains."
    short = f" {newest - judged:,} have too few earlier runs to judge (fewer than {FEWEST})."
    how = (
        "Usual is the level of the earlier runs since its last change; expected is the range of 95 % of further "
        f"runs, from their noise. A run is listed when it is off by more, after correction for all {judged:,} judged "
        "runs (false discovery rate of 5 %). It must also be off by at least 1 %. The change from the run before "
        f"compares two single runs and is not tested.{short if newest > judged else ''}"
    )
    alone = Section("Single configurations", [moved])
    rest = alone if moved.rows else Sentence(none if judged else "None can be judged yet.")
    blocks = [many, rest, Sentence(how, Tone.DIM)]
    return Section("Slower than usual in the newest run", blocks, "slower", "Slower")


def _faster(fleet: Fleet) -> Section | None:
    many = _widespread(fleet, lately=False, better=True)
    return _better("Faster than usual in the newest run", "Faster", many, _runs(fleet, better=True))


def _fell(fleet: Fleet) -> Section | None:
    many = _widespread(fleet, lately=True, better=True)
    return _better(f"Improvements {_LATELY}", "Fell", many, _levels(fleet, better=True))


def _better(title: str, link: str, many: Bullets, alone: TableBlock) -> Section | None:
    """What became faster, closed on a page; nothing where nothing did."""
    if not many.items and not alone.rows:
        return None
    count = units.counted_text(len(alone.rows), "single configuration") if alone.rows else ""
    return Section(title, [many, alone], link.lower(), link, count, folded=True)


def _changes(fleet: Fleet) -> Section | None:
    if not _newest(fleet):
        return None
    shown = change_map(fleet)
    text = (
        "Coloured or bold: beyond noise, from 1, 10 and 60 % on. Asterisk: no such run, but the level changed by "
        f"this much {_LATELY}; question mark: too few runs to tell; dot: no run in the newest 24 hours; empty: never "
        f"run. A pair with several configurations shows the one that is furthest off. {shown.down.capitalize()}s and "
        f"{shown.across}s with the most regressions come first."
    )
    return Section(shown.label, [shown, Sentence(text, Tone.DIM)], "changes", "Changes")


def _rose(fleet: Fleet) -> Section | None:
    if not _newest(fleet) or "level_changes" in fleet.failed:
        return None
    many, block = _widespread(fleet, lately=True, better=False), _levels(fleet, better=False)
    none = "" if block.rows else f"No {'other ' if many.items else ''}regression."
    how = (
        "Newest first: steps of at least three runs, and drifts, found in the newest 60 runs of each configuration (at "
        "least 12). Their size comes from all runs. Corrected for all configurations (false discovery rate of 5 %)."
    )
    blocks = [many, block, Sentence(none), Sentence(how, Tone.DIM)]
    return Section(f"Regressions {_LATELY}", blocks, "rose", "Rose")


def _distant(fleet: Fleet) -> Section | None:
    if all(run.times_best is None for run in fleet.runs):
        return None
    none = f"No pair is {DISTANT} times as far from the fastest device as its device usually is."
    how = (
        f"A pair is far when it is {DISTANT} times as far as the median over its device's models. Latencies of "
        "different devices are shown side by side and not tested against each other."
    )
    far = table(
        fleet.distant,
        column("vs fastest", Format.RATIO, lambda one: one.times_best),
        column("usual for the device", Format.RATIO, lambda one: one.usual),
        *_CONFIGURATION,
        column("latency", Format.TIME, lambda one: one.latency_ns),
        label="Far from the best device",
    ).folded(_FOLD)
    text = "" if fleet.distant or "distant" in fleet.failed else none
    return Section(far.label, [far, Sentence(text), Sentence(how, Tone.DIM)], "distant", "Far")


def _distances(fleet: Fleet) -> Section | None:
    shown = distance_map(fleet)
    blocks = [shown, Sentence("The fastest configuration of each pair.", Tone.DIM)]
    return Section("Vs fastest device", blocks, "distances", "Distances") if shown.rows else None


def _parts(fleet: Fleet) -> Section | None:
    if not fleet.by_device and not fleet.by_model:
        return None
    ranked = (
        column("fastest on", Format.NAME, lambda one: one.fastest and one.fastest[0]),
        column("latency", Format.TIME, lambda one: one.fastest and one.fastest[1]),
        column("slowest on", Format.NAME, lambda one: one.slowest and one.slowest[0]),
        column("latency", Format.TIME, lambda one: one.slowest and one.slowest[1]),
    )
    text = (
        "Over all configurations of a device or model: how many are slower or faster than usual, and level changes "
        f"{_LATELY}. The medians are of newest run / run before, and of the distance from the fastest device."
    )
    sides = (("Devices", fleet.by_device, ()), ("Models", fleet.by_model, ranked))
    parts = [Section(title, [_part_table(title, rows, more)]) for title, rows, more in sides if rows]
    return Section("Devices and models", [*parts, Sentence(text, Tone.DIM)], "parts", "Devices")


def _facts(fleet: Fleet) -> Section | None:
    texts = fleet_facts(fleet)
    return Section("Speedups and operators", [Bullets(texts)], "facts", "Facts") if texts else None


def _speedups(fleet: Fleet) -> Section | None:
    detailed = len(fleet.models) * len(fleet.devices) * len(fleet.variants) <= _DETAILED
    how = (
        "Each cell: speedup over the baseline of the same bundle, its 95 % interval, and the latency."
        if detailed
        else "Speedup over the baseline of the same bundle; intervals and latencies are in fleet.json. A question "
        "mark: no difference detected."
    )
    colour = "Coloured or bold: difference detected, from 0.25x to 4x."
    maps = [
        Section(f"Speedup of {variant} over its baseline", [speedup_map(fleet, variant, detailed=detailed)])
        for variant in fleet.variants
    ]
    sentence = Sentence(f"{how} {colour} Empty: not run.", Tone.DIM)
    return Section("Speedups over baselines", [*maps, sentence], "speedups", "Speedups") if maps else None


def _dominant(fleet: Fleet) -> Section | None:
    if not fleet.dominant:
        return None
    shown = table(
        fleet.dominant[:_DOMINANT],
        column("operators of one kind", Format.NAME, lambda one: TableCell(one.operator, one.backend)),
        column("category", Format.NAME, lambda one: one.category),
        column("", Format.BAR, lambda one: one.share),
        column(f"share, mean of {fleet.counted}", Format.SHARE, lambda one: one.share),
        column("dominates in", Format.COUNT, lambda one: one.first),
        column("present in", Format.COUNT, lambda one: one.present),
        column("at most", Format.SHARE, lambda one: one.highest),
        column("where", Format.TEXT, lambda one: one.where),
        label="Operators that dominate",
    )
    text = (
        f"For {fleet.counted} configurations: the accelerated variants or, if none is accelerated, all but baselines. "
        "Excludes framework time."
    )
    return Section(shown.label, [shown, Sentence(text, Tone.DIM)], "dominant", "Operators")


SECTIONS: dict[str, Callable[[Fleet], Section | None]] = {
    "slower configurations": _slower,
    "the map of changes": _changes,
    "faster configurations": _faster,
    "regressions": _rose,
    "improvements": _fell,
    "the table of distant pairs": _distant,
    "the map of distances": _distances,
    "the tables of devices and models": _parts,
    "the sentences on speedups": _facts,
    "the maps of speedups": _speedups,
    "the table of operators": _dominant,
}
"""By what is not known where a bug ends one."""
_CONFIGURATION: tuple[TableColumn, ...] = (
    column("model", Format.NAME, lambda one: one.model),
    column("device", Format.NAME, lambda one: one.device),
    column("variant", Format.NAME, lambda one: one.variant),
)


def _runs(fleet: Fleet, *, better: bool) -> TableBlock:
    """Runs that differ from their predecessors, new ones first, then the largest; without what is widespread."""
    moved = _alone(fleet, _judged(fleet, Verdict.FASTER if better else Verdict.SLOWER), lately=False, better=better)
    changes = [(run.change, run) for run in moved if run.change is not None]
    ordered = sorted(changes, key=lambda pair: (pair[0].in_a_row, -abs(math.log(pair[0].since_level))))
    return table(
        [run for _, run in ordered],
        column("off by", Format.CHANGE, lambda run: changed_ratio(run.change.since_level, better=better)),
        *_CONFIGURATION,
        column("newest", Format.TIME, lambda run: run.latency_ns),
        column("usual", Format.TIME, lambda run: run.change.level_ns),
        column("run before", Format.TIME, lambda run: run.change.previous_ns),
        column("change", Format.CHANGE, lambda run: run.change.since_previous),
        column("expected", Format.CHANGE, lambda run: run.change.expected, absent="not known"),
        column("runs in a row", Format.COUNT, lambda run: run.change.in_a_row),
        column("last runs", Format.TREND, lambda run: tuple(run.change.latencies_ns)),
        label=f"{'Faster' if better else 'Slower'} than usual",
    ).folded(_FOLD)


def _levels(fleet: Fleet, *, better: bool) -> TableBlock:
    """Changes of level in one direction, the newest first; without what is widespread."""
    return table(
        _alone(fleet, [one for one in fleet.level_changes if one.better is better], lately=True, better=better),
        column("change", Format.CHANGE, lambda one: changed_ratio(one.ratio, better=one.better)),
        column("since", Format.FIGURE, _since),
        *_CONFIGURATION,
        column("from", Format.TIME, lambda one: one.from_ns),
        column("to", Format.TIME, lambda one: one.to_ns),
        column("95 % interval", Format.CHANGE, lambda one: one.ci95, absent="not known"),
        column("runs since", Format.COUNT, lambda one: one.runs),
        column("how", Format.TEXT, lambda one: "drift" if one.drifts else "step"),
        column("last runs", Format.TREND, lambda one: tuple(one.latencies_ns[-_TREND_RUNS:])),
        label="Improvements" if better else "Regressions",
    ).folded(_FOLD)


def _since(change: FleetLevelChange) -> str:
    """The date of a step, or the dates between which it is; when a drift began."""
    if change.drifts:
        return change.before
    return change.label if change.certain else f"{change.before} to {change.label}"


def _part_table(title: str, parts: Sequence[FleetPart], more: Sequence[TableColumn]) -> TableBlock:
    """Devices or models, each over all of its configurations."""
    return table(
        parts,
        column(title.lower().removesuffix("s"), Format.NAME, lambda one: one.name),
        column("configurations", Format.COUNT, lambda one: one.configurations),
        column("slower", Format.COUNT, lambda one: _counted(one, one.worse, Tone.WORSE)),
        column("faster", Format.COUNT, lambda one: _counted(one, one.better, Tone.BETTER)),
        column("regressions / improvements", Format.FIGURE, lambda one: f"{one.rose} / {one.fell}"),
        column("median change", Format.CHANGE, lambda one: one.median_change),
        column("vs fastest device", Format.RATIO, lambda one: one.times_best),
        *more,
        label=title,
    ).folded(_FOLD)


def _counted(part: FleetPart, count: int, tone: Tone) -> TableCell:
    return TableCell(count if part.tonight else None, tone=tone if count else Tone.PLAIN)


def _widespread(fleet: Fleet, *, lately: bool, better: bool) -> Bullets:
    """Devices and models of which much changed, in a sentence each."""
    usual = f"configurations are {'faster' if better else 'slower'} than usual"
    what = f"{'improvements' if better else 'regressions'} {_LATELY}" if lately else usual
    over = {"device": "" if lately else " over its models", "model": "" if lately else " over its devices"}
    return Bullets(
        [
            f"{plain(one.name)} ({one.key}): {one.count} of {one.of} {what}, "
            f"median {units.signed_share_text(one.ratio - 1)}{over[one.key]}"
            for one in fleet.widespread
            if (one.lately, one.better) == (lately, better)
        ]
    )


def _alone(fleet: Fleet, found: Sequence[Changed], *, lately: bool, better: bool) -> list[Changed]:
    """Those of neither a device nor a model of which much changed."""
    told = {(one.key, one.name) for one in fleet.widespread if (one.lately, one.better) == (lately, better)}
    return [one for one in found if not told & {("device", one.device), ("model", one.model)}]


def fleet_facts(fleet: Fleet) -> list[str]:
    """What a stranger should know of speedups and operators, one sentence each."""
    facts = []
    runs = [run for run in fleet.runs if run.verdict != "undecidable" and run.is_trusted]
    known = [(run.speedup, run) for run in runs if run.speedup is not None]
    if known:
        low, high = min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0])
        facts.append(f"largest speedup {units.ratio_text(high[0])}: {_place(high[1])}")
        facts.append(f"smallest speedup {units.ratio_text(low[0])}: {_place(low[1])}")
        slower = sum(1 for _, run in known if run.verdict == "slower")
        if slower:
            facts.append(f"slower than its baseline in {slower} of {units.counted_text(len(known), 'configuration')}")
    if fleet.rankings:
        widest = max(fleet.rankings, key=lambda one: one.ratio)
        device, latency = widest.devices[0]
        facts.append(
            f"widest span {units.ratio_text(widest.ratio)}: {widest.model}, {widest.variant}, "
            f"{units.time_text(latency)} on {device}"
        )
    if fleet.dominant:
        first = fleet.dominant[0]
        facts.append(f"{first.operator} ({first.backend}) dominates the fleet: {units.share_text(first.share)}")
    return facts


def _place(run: FleetRun) -> str:
    return f"{run.model} on {run.device}, {run.variant}"
