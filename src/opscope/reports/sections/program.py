"""Sections that need the program: layers, source lines, delegates, the layout tax, the roofline."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.operators.delegates import attributed_share
from opscope.analysis.operators.operators import sums
from opscope.analysis.roofline import RateUnit, Shortfall
from opscope.analysis.rules.evidence import LEAST_SHARE
from opscope.core.grouping import grouped
from opscope.core.table.places import by_operator
from opscope.core.units import counted_text, range_text, rate_text, share_text, time_text
from opscope.program.ceilings import Origin
from opscope.program.operators.kinds import Attribution
from opscope.reports.content.content import NOT_KNOWN
from opscope.reports.content.places import (
    bound_text,
    boundary_text,
    is_delegated,
    layer_text,
    method_prefix,
    source_text,
)
from opscope.reports.document.blocks import (
    Beside,
    Bullets,
    Closing,
    Details,
    Format,
    Section,
    Sentence,
    TableCell,
    Tone,
    column,
    table,
)
from opscope.reports.document.template import picture
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis, ProgramInfo
    from opscope.analysis.operators.delegates import DelegateFigure, PortableTime
    from opscope.analysis.operators.modules import ModuleTime
    from opscope.analysis.roofline import CeilingRate, Interval, Placement
    from opscope.program.ceilings import Ceilings, Drift, DriftCheck
    from opscope.reports.document.blocks import Block, TableBlock


def ceilings_text(ceilings: Ceilings) -> str:
    """Return when ceilings were measured and whether they still hold, in one or more sentences."""
    text = (
        _reused_ceilings_text(ceilings, ceilings.drift)
        if ceilings.origin is Origin.CACHE
        else _measured_ceilings_text(ceilings)
    )
    why = ceilings.disturbance()
    disturbed = [f"They may be too low: {why}."] if why else []
    return " ".join([text, *disturbed, *(f"Note: {plain(note)}." for note in ceilings.notes)])


def _measured_ceilings_text(ceilings: Ceilings) -> str:
    when = f", on {_moment_text(ceilings.measured_at)}" if ceilings.measured_at else ""
    text = f"Ceilings were measured after these runs{when}."
    failed = [check for check in ceilings.drift.checks if not check.agrees] if ceilings.drift else []
    if not ceilings.drift or not failed:
        return text
    reasons = ", ".join(f"{plain(check.ceiling)} {_rate_share_text(check)}" for check in failed)
    return f"{text} Those of {_moment_text(ceilings.drift.kept_since)} no longer held: {reasons} of the stored rate."


def _reused_ceilings_text(ceilings: Ceilings, drift: Drift | None) -> str:
    text = f"Ceilings were measured for an earlier run on this machine, on {_moment_text(ceilings.measured_at or '')}."
    if drift is None:
        return text
    ratios = sorted(check.ratio for check in drift.checks if check.ratio is not None)
    tolerances = sorted(check.tolerance for check in drift.checks)
    tolerance = _range_text(tolerances)
    figures = f"{len(ratios)} of them reached {_range_text(ratios)} of their stored rates (tolerance {tolerance})"
    return f"{text} A probe of {drift.seconds:.1f} s after these runs agrees: {figures}."


def _range_text(values: list[float]) -> str:
    return f"{range_text(f'{values[0] * 100:.0f}', f'{values[-1] * 100:.0f}')} %"


def _rate_share_text(check: DriftCheck) -> str:
    return "no rate" if check.ratio is None else f"{check.ratio * 100:.0f} %"


def _moment_text(text: str) -> str:
    """Return an ISO 8601 moment in UTC, to the minute; other text is returned cleaned."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return plain(text)


_MOST_MODULES = 400
_SMALLEST = 0.001
_MOST_DELEGATES = 20
_NAME = 60


def layers_section(analysis: Analysis) -> Section:
    """Return the section on modules and lines of code with their times."""
    blocks: list[Block] = [Sentence(f"{coverage_sentence(analysis)}.", Tone.DIM)]
    rows, hidden = module_rows(analysis.modules)
    if not rows:
        why = _no_layers_reason(analysis.program) if analysis.program else "there is no program"
        blocks.append(Sentence(f"Modules and lines are unknown: {why}."))
    else:
        blocks += [
            _modules_table(analysis, rows),
            *_hidden_modules(hidden),
            Section("Which line of code", [_source_lines_table(analysis)]),
        ]
    leaves = [row for row in analysis.modules if row.path and row.self_share > 0]
    first = max(leaves, key=lambda row: row.self_share, default=None)
    answer = (
        f"the longest is {plain(first.path, _NAME)}, {share_text(first.self_share)}"
        if first
        else "modules are not known"
    )
    return Section("Which layer takes the time", blocks, "layers", "Layers", answer, folded=True)


def _modules_table(analysis: Analysis, rows: Sequence[ModuleRow]) -> TableBlock:
    method_of = method_prefix(analysis)
    return table(
        rows,
        column(
            "module",
            Format.NAME,
            lambda row: TableCell(f"{method_of(row.module)}{row.label}", _steps_text(row.module), depth=row.depth),
        ),
        column("class", Format.NAME, lambda row: (row.module.type or "").rpartition(".")[2]),
        column("self ms", Format.MS, lambda row: row.module.self_ns),
        column("total ms", Format.MS, lambda row: row.module.total_ns),
        column("share", Format.SHARE, lambda row: row.module.share, total=True),
        column("MACs", Format.LARGE, lambda row: row.module.macs, absent=NOT_KNOWN),
        column("", Format.BAR, lambda row: (row.module.self_share, row.module.share - row.module.self_share)),
        tree=True,
    )


def _steps_text(module: ModuleTime) -> str:
    """Return into how many steps the exporter unrolled a module; empty if it did not."""
    return counted_text(module.steps, "step") if module.steps else ""


def _hidden_modules(hidden: tuple[int, float]) -> list[Block]:
    if not hidden[0]:
        return []
    text = f"{counted_text(hidden[0], 'smaller module')} omitted; self time: {share_text(hidden[1])} of the latency."
    return [Sentence(f"{text} All are in analysis.json.", Tone.DIM)]


def _source_lines_table(analysis: Analysis) -> TableBlock:
    return table(
        analysis.sources[:_MOST_DELEGATES],
        column("line", Format.NAME, lambda row: source_text(row.source)),
        column("code", Format.TEXT, lambda row: row.code or ""),
        column("operators", Format.TEXT, lambda row: ", ".join(row.aten)),
        column("ms", Format.MS, lambda row: row.time_ns, total=True),
        column("share", Format.SHARE, lambda row: row.share),
        column("", Format.BAR, lambda row: row.share),
        sortable=True,
    )


def backends_section(analysis: Analysis, closing: Sequence[Closing]) -> Section:
    """Return the section on delegates: their time, what they did not take and why, and the cost of moving data."""
    blocks: list[Block] = [
        table(
            analysis.backends,
            column("backend", Format.NAME, lambda row: row.backend),
            column("ms", Format.MS, lambda row: row.time_ns),
            column("share", Format.SHARE, lambda row: row.share),
            column("", Format.BAR, lambda row: row.share),
            closing=closing,
        )
    ]
    answer = f"{counted_text(len(analysis.portable), 'operator')} not delegated"
    if not is_delegated(analysis):
        blocks += [_layout_section(analysis)] if analysis.program else [Sentence("This runtime has no delegates.")]
        tax = f", layout tax {share_text(sums(analysis.layout).share)}" if analysis.program else ""
        answer = f"no delegates{tax}"
    elif analysis.program is None:
        blocks += _portable_operator_blocks(analysis)
    else:
        blocks += [*_portable_operator_blocks(analysis), _delegate_calls_section(analysis), _layout_section(analysis)]
        calls, tax = counted_text(len(analysis.delegates), "delegate call"), share_text(sums(analysis.layout).share)
        answer = f"{calls}, layout tax {tax}, {answer}"
    if analysis.delegate_values:
        values = [Sentence(_DELEGATE_VALUES, Tone.DIM), delegate_values_table(analysis.delegate_values)]
        blocks.append(Section("Values of delegates in their own units", values))
    return Section("Portable vs Delegated", blocks, "delegates", "Delegates", answer, folded=True)


_NO_PROGRAM = "The reasons are unknown: there is no program next to the traces."
_OPTIONS = (
    "Delegate them: export with a partitioner of a delegate that supports them, in a number type that it supports.",
    (
        "Change the model: replace them by operators that are delegated, or fuse them into others; the reason below "
        "says what is not supported, and the recommendations name recipes."
    ),
    "Write a custom backend or kernel: register an own kernel of the operator with the runtime, or a delegate for it.",
)


def _portable_operator_blocks(analysis: Analysis) -> list[Block]:
    """List operators that run in the runtime's own kernels, grouped by name and reason, and the options."""
    if not analysis.portable:
        return [Sentence("No operator ran outside of a delegate.")]
    unknown = "unknown: all known rules are met" if analysis.program else "unknown"

    def name_and_reason(row: PortableTime) -> tuple[str, str]:
        reason = row.reason or unknown
        return row.name, f"{reason} ({row.evidence})" if row.evidence else reason

    groups = grouped(analysis.portable, name_and_reason).items()
    rows = sorted(groups, key=lambda group: -sums(group[1]).share)
    share = sums(analysis.portable).share
    side = "above" if share > LEAST_SHARE else "below"
    text = (
        f"{counted_text(len(analysis.portable), 'operator')} ran in the runtime's portable kernels: "
        f"{share_text(share)} of the latency, {side} the {share_text(LEAST_SHARE)} from which they matter."
    )
    block = table(
        rows,
        column("operator", Format.NAME, lambda group: group[0][0].removeprefix("native_call_")),
        column("times", Format.COUNT, lambda group: len(group[1])),
        column("layer", Format.TEXT, lambda group: _layers_text(group[1])),
        column("ms", Format.MS, lambda group: sums(group[1]).time_ns, total=True),
        column("share", Format.SHARE, lambda group: sums(group[1]).share),
        column("reason", Format.TEXT, lambda group: group[0][1]),
        sortable=True,
    )
    why_unknown = [] if analysis.program else [Sentence(_NO_PROGRAM, Tone.DIM)]
    options = [Section("Options for them", [Bullets(_OPTIONS)])] if share > LEAST_SHARE else []
    return [Sentence(text), *options, Section("Why operators are not delegated", [block, *why_unknown])]


_DELEGATE_VALUES = "These values are in other units than nanoseconds or on another clock, and no time contains them."


def delegate_values_table(figures: Sequence[DelegateFigure]) -> TableBlock:
    """Return what delegates report in units of their own, the largest of each unit first."""
    return table(
        sorted(figures, key=lambda figure: (figure.unit, -figure.mean)),
        column("reported by the delegate", Format.NAME, lambda figure: figure.name),
        column("unit", Format.TEXT, lambda figure: figure.unit),
        column("mean", Format.RATE, lambda figure: figure.mean),
        column("times reported", Format.COUNT, lambda figure: figure.reported),
        sortable=True,
    )


def _layers_text(rows: Sequence[PortableTime]) -> str:
    return boundary_text(list(dict.fromkeys(row.module for row in rows if row.module))) if rows[0].module else ""


def _delegate_calls_section(analysis: Analysis) -> Section:
    method_of, calls = method_prefix(analysis), sorted(analysis.delegates, key=lambda row: -row.share)
    outside = sum(row.boundary_ns for row in calls if row.boundary_ns is not None)
    latency_ns = analysis.headline_ns
    took = _latency_share_text(outside, outside / latency_ns) if analysis.timed and latency_ns else NOT_KNOWN
    rows = table(
        calls[:_MOST_DELEGATES],
        column("instruction", Format.COUNT, lambda row: row.instruction),
        column(
            "delegate",
            Format.NAME,
            lambda row: f"{method_of(row)}{row.backend} {'' if row.delegate is None else row.delegate}",
        ),
        column("nodes", Format.COUNT, lambda row: row.nodes, absent=NOT_KNOWN),
        column("events", Format.COUNT, lambda row: row.events),
        column("operators ms", Format.MS, lambda row: row.operators_ns),
        column("boundary ms", Format.MS, lambda row: row.boundary_ns),
        column("share", Format.SHARE, lambda row: row.share, total=True),
        column("attribution", Format.TEXT, lambda row: row.problem or f"exact ({row.profile})"),
        sortable=True,
    )
    text = f"Entering and leaving delegates, and tracing them, took {took}."
    more = len(calls) - _MOST_DELEGATES
    rest = [Sentence(f"See analysis.json for {counted_text(more, 'shorter call')}.", Tone.DIM)] if more > 0 else []
    return Section("Delegate calls", [Sentence(text, Tone.DIM), rows, *rest])


def _layout_section(analysis: Analysis) -> Section:
    title, known = "Layout tax", attributed_share(analysis.coverage)
    if not analysis.layout:
        text = (
            f"None in the {share_text(known)} of delegate time that is attributed: no transpose or conversion was "
            "added at delegate boundaries or inside delegates."
        )
        return Section(title, [Sentence(text if known else "Unknown: no delegated operator is attributed.")])
    tax = sums(analysis.layout)
    rows_shown = [row for row in analysis.layout if row.share >= _SMALLEST][:_MOST_DELEGATES]
    rows = table(
        rows_shown,
        column("operator", Format.NAME, lambda row: row.name),
        column("between", Format.TEXT, lambda row: boundary_text(row.before)),
        column("and", Format.TEXT, lambda row: boundary_text(row.after)),
        column("added by", Format.TEXT, lambda row: row.cause),
        column("ms", Format.MS, lambda row: row.time_ns, total=True),
        column("share", Format.SHARE, lambda row: row.share),
        column("bytes", Format.SIZE, lambda row: row.bytes, absent=NOT_KNOWN),
        sortable=True,
    )
    omitted, rest = len(analysis.layout) - len(rows_shown), tax.share - sums(rows_shown).share
    hidden = [Sentence(f"{counted_text(omitted, 'shorter one')} omitted, {share_text(rest)} of the latency.", Tone.DIM)]
    text = f"Data movement and conversion that is not in the model: {_latency_share_text(tax.time_ns, tax.share)}."
    return Section(title, [Sentence(text), rows, *(hidden if omitted else [])])


_HOW_LIMITED = (
    "A ceiling is the best rate that this machine reached with the same features and threads. An operator "
    "is limited by arithmetic or memory when the ceiling accounts for at least half of its time. An operator timed "
    "in whole microseconds has an interval instead of a figure."
)


def roofline_section(analysis: Analysis) -> Section | None:
    """Return the section on how far operators are from the measured ceilings; None if none were measured."""
    roofline = analysis.roofline
    if roofline is None:
        return None
    origin_text = ceilings_text(analysis.ceilings) if analysis.ceilings else ""
    text = f"At the measured ceilings these operators would take {time_text(roofline.ceiling_ns)} instead of "
    answer = f"{time_text(roofline.ceiling_ns)} at the measured ceilings"
    bounds = table(
        roofline.bounds,
        column("limited by", Format.TEXT, lambda row: bound_text(row.bound)),
        column("operators", Format.COUNT, lambda row: row.operators),
        column("ms", Format.MS, lambda row: row.time_ns),
        column("headroom ms", Format.MS, lambda row: row.headroom_ns.low),
    )
    blocks: list[Block] = [
        Sentence(f"{text}{time_text(roofline.placed_ns)}. {origin_text}"),
        picture("operators below their ceilings", lambda: _draw_roofline(analysis)),
        Beside([bounds], [Sentence(_HOW_LIMITED, Tone.DIM)]),
        Details(
            "Operators with the most headroom, and their ceilings",
            [_headroom_table(analysis), _ceilings_table(roofline.operators)],
        ),
    ]
    return Section("Distance from this machine's limit", blocks, "roofline", "Roofline", answer, folded=True)


def _draw_roofline(analysis: Analysis) -> str | None:
    from opscope.reports.pictures.roofline import roofline_picture

    return roofline_picture(analysis)


def _headroom_table(analysis: Analysis) -> TableBlock:
    rows = by_operator(analysis.operators)
    placements = by_operator(
        placement for placement in (analysis.roofline.operators if analysis.roofline else []) if placement.headroom_ns
    )
    pairs = [(rows[key], placement) for key, placement in placements.items() if key in rows]
    pairs.sort(key=lambda pair: -(pair[1].headroom_ns.low if pair[1].headroom_ns else 0.0))
    method_of = method_prefix(analysis)
    return table(
        pairs[:_MOST_DELEGATES],
        column("operator", Format.NAME, lambda pair: f"{method_of(pair[0])}{pair[0].name}"),
        column("layer", Format.TEXT, lambda pair: layer_text(pair[0])),
        column("ms", Format.MS, lambda pair: pair[0].time_ns),
        column("limited by", Format.TEXT, lambda pair: limit_text(pair[1])),
        column(
            "ceiling",
            Format.NAME,
            lambda pair: f"{ceiling_text(pair[1])}{' (faster than it)' * pair[1].above_ceiling}",
        ),
        column("GMAC/s", Format.FIGURE, lambda pair: _interval_text(pair[1].macs_per_s, 1e-9)),
        column("GB/s", Format.FIGURE, lambda pair: _interval_text(pair[1].bytes_per_s, 1e-9)),
        column("of the ceiling", Format.FIGURE, lambda pair: _interval_text(pair[1].fraction, 100, " %")),
        column("headroom", Format.FIGURE, lambda pair: _headroom_text(pair[1].headroom_ns)),
        sortable=True,
    )


def _ceilings_table(placements: Sequence[Placement]) -> TableBlock:
    """Return the ceilings that operators are compared with, those of most operators first."""
    known = [(placement.ceiling, placement.rate) for placement in placements if placement.rate and placement.ceiling]
    return table(
        Counter(known).most_common(_MOST_DELEGATES),
        column("ceiling", Format.NAME, lambda row: row[0][0]),
        column("rate", Format.FIGURE, lambda row: _ceiling_rate_text(row[0][1])),
        column("measured with", Format.NAME, lambda row: row[0][1].measured_with),
        column("operators", Format.COUNT, lambda row: row[1]),
    )


class ModuleRow(NamedTuple):
    """Line of the module tree: the module, its label and depth."""

    module: ModuleTime
    label: str
    depth: int


def _no_layers_reason(program: ProgramInfo) -> str:
    if program.etrecord_problem is not None:
        return f"the export record (.etrecord) cannot be used: {program.etrecord_problem}"
    if program.etrecord is not None:
        return "the export record (.etrecord) names none for these operators"
    return "there is no export record (.etrecord) next to the program"


def coverage_sentence(analysis: Analysis) -> str:
    """Return how certain the layer of each delegated operator is, as shares of delegate time."""
    coverages = {row.attribution: row for row in analysis.coverage}
    if not coverages:
        return "nothing ran in a delegate"
    delegated = is_delegated(analysis)
    how = "a replay of XNNPACK's rewrites predicts every event" if delegated else "by the graph that ran"
    words = {
        Attribution.EXACT: f"is attributed exactly: {how}",
        Attribution.ALIGNED: "is aligned by kind and order: likely, not certain",
        Attribution.AMBIGUOUS: "fits several layers, which are listed",
        Attribution.NAME: "is known by name only",
    }
    subject = "delegate time" if delegated else "the operators' time"
    parts = [f"{share_text(coverages[a].share_of_delegates)} of {subject} {words[a]}" for a in words if a in coverages]
    return "; ".join(parts)


_SHORTFALLS = {
    Shortfall.PORTABLE: "portable kernel, without vectors",
    Shortfall.LITTLE_WORK: "little work per call",
    Shortfall.CHANNELS: "output channels do not fill the kernel's tile",
    Shortfall.MOVES: "gathers or scatters its elements",
    Shortfall.SHAPE: "possibly its shape, or other load on the machine",
}
_UNITS = {RateUnit.MACS: "GMAC/s", RateUnit.ELEMENTS: "billion elements/s", RateUnit.BYTES: "GB/s"}


def limit_text(placement: Placement) -> str:
    """Return what limits an operator, with the likely reason if it is below both ceilings."""
    words = bound_text(placement.bound)
    return f"{words}: {_SHORTFALLS[placement.reason]}" if placement.reason else words


def ceiling_text(placement: Placement) -> str:
    """Return the ceiling of an operator with its rate; empty if unknown."""
    if placement.rate is None or placement.ceiling is None:
        return placement.ceiling or ""
    return f"{placement.ceiling}, {_ceiling_rate_text(placement.rate)}"


def _ceiling_rate_text(rate: CeilingRate) -> str:
    return f"{rate_text(rate.per_s * 1e-9)} {_UNITS[rate.unit]}"


def _latency_share_text(time_ns: float | None, share: float) -> str:
    text = f"{share_text(share)} of the latency"
    return text if time_ns is None else f"{time_text(time_ns)}, {text}"


def module_rows(modules: Sequence[ModuleTime], most: int = _MOST_MODULES) -> tuple[list[ModuleRow], tuple[int, float]]:
    """Return the largest modules as a tree, the number of modules left out, and their self time as a share.

    A container that adds nothing of its own to its only part is written as a part of its name.
    """
    order = sorted(range(len(modules)), key=lambda number: (-modules[number].share, number))
    largest = {number for number in order[:most] if modules[number].share >= _SMALLEST}
    tree: list[ModuleRow] = []
    parents: list[ModuleTime] = []
    depths: dict[str, int] = {}
    for number, module in enumerate(modules):
        if number not in largest:
            continue
        following = modules[number + 1] if number + 1 < len(modules) else None
        if module.path and following and _adds_nothing(module, following):
            parents.append(module)
            continue
        start = parents[0] if parents else module
        above = start.path.rpartition(".")[0]
        depth = depths[module.path] = depths.get(above, -1) + 1 if module.path else 0
        label = module.path[len(above) :].lstrip(".") or "the model"
        tree.append(ModuleRow(module, plain(label, 60), depth))
        parents = []
    hidden = [module.self_share for number, module in enumerate(modules) if number not in largest]
    return tree, (len(hidden), sum(hidden))


def _adds_nothing(module: ModuleTime, following: ModuleTime) -> bool:
    is_inside = following.path.startswith(f"{module.path}.")
    return is_inside and not module.self_share and math.isclose(following.share, module.share)


def _interval_text(interval: Interval | None, scale: float, unit: str = "") -> str:
    """Return both ends of an interval, or one figure if they print alike."""
    if interval is None:
        return ""
    low = rate_text(interval.low * scale)
    if interval.high is None:
        return f"> {low}{unit}"
    return f"{range_text(low, rate_text(interval.high * scale))}{unit}"


def _headroom_text(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return range_text(time_text(interval.low), time_text(interval.high or interval.low))
