"""The parts of a report that need the program: layers, source lines, delegates, the layout tax, the roofline."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.operators.delegates import attributed_share
from opscope.analysis.operators.operators import sums
from opscope.analysis.roofline.operator_ceiling import RateUnit, Shortfall
from opscope.core.grouping import grouped
from opscope.core.table.places import by_operator
from opscope.core.units import range_text, rate_text, share_text, time_text
from opscope.program.ceilings.ceilings import Origin
from opscope.program.operators.kinds import Attribution
from opscope.reports.content.content import NOT_KNOWN
from opscope.reports.document.text import plain
from opscope.runtimes.registry import runtime_of_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis, ProgramInfo
    from opscope.analysis.operators.delegates import DelegateTime, LayoutTime, PortableTime
    from opscope.analysis.operators.modules import ModuleTime, SourceTime
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.roofline.operator_ceiling import Bound, CeilingRate, Interval, Placement
    from opscope.analysis.roofline.roofline import BoundTime
    from opscope.program.ceilings.ceilings import Ceilings, Drift, DriftCheck


def ceilings_text(ceilings: Ceilings) -> str:
    """One or more sentences for a report."""
    text = _reused(ceilings, ceilings.drift) if ceilings.origin is Origin.CACHE else _measured(ceilings)
    why = ceilings.disturbance()
    disturbed = [f"They may be too low: {why}."] if why else []
    return " ".join([text, *disturbed, *(f"Note: {plain(note)}." for note in ceilings.notes)])


def _measured(ceilings: Ceilings) -> str:
    when = f", on {_moment(ceilings.measured_at)}" if ceilings.measured_at else ""
    text = f"Ceilings were measured after these runs{when}."
    failed = [check for check in ceilings.drift.checks if not check.agrees] if ceilings.drift else []
    if not ceilings.drift or not failed:
        return text
    reasons = ", ".join(f"{plain(check.ceiling)} {_share(check)}" for check in failed)
    return f"{text} Those of {_moment(ceilings.drift.kept_since)} no longer held: {reasons} of the kept rate."


def _reused(ceilings: Ceilings, drift: Drift | None) -> str:
    text = f"Ceilings were measured for an earlier run on this machine, on {_moment(ceilings.measured_at or '')}."
    if drift is None:
        return text
    ratios = sorted(check.ratio for check in drift.checks if check.ratio is not None)
    tolerances = sorted(check.tolerance for check in drift.checks)
    figures = f"{len(ratios)} of them reached {_range(ratios)} of their kept rates (tolerance {_range(tolerances)})"
    return f"{text} A probe of {drift.seconds:.1f} s after these runs agrees: {figures}."


def _range(values: list[float]) -> str:
    return f"{range_text(f'{values[0] * 100:.0f}', f'{values[-1] * 100:.0f}')} %"


def _share(check: DriftCheck) -> str:
    return "no rate" if check.ratio is None else f"{check.ratio * 100:.0f} %"


def _moment(text: str) -> str:
    """A moment of ISO 8601 in UTC, to the minute; as it stands where it is none."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return plain(text)


_MOST_MODULES = 40
_SMALLEST = 0.001
_MOST_DELEGATES = 20
_MOST_NAMES = 3


class ModuleRow(NamedTuple):
    """A line of the module tree: the module, its name and depth there, and the length of its bars in percent."""

    module: ModuleTime
    label: str
    depth: int
    self_width: float
    below_width: float


class RooflineRow(NamedTuple):
    """A line of the roofline table: an operator under its ceiling."""

    operator: Operator
    placement: Placement
    layer: str
    bound: str
    ceiling: str
    gmacs: str
    gbytes: str
    fraction: str
    headroom: str


class CeilingRow(NamedTuple):
    """A ceiling that operators are compared with: its rate, what it was measured with, and how many operators."""

    name: str
    rate: str
    measured_with: str
    operators: int


class PortableRow(NamedTuple):
    """Operators of one name that were left out for one reason: how many, in which layers, and their time together."""

    name: str
    layers: str
    times: int
    time_ns: float | None
    share: float
    reason: str


class ProgramSections(NamedTuple):
    """What a report shows of the program."""

    modules: list[ModuleRow]  # the module tree without its smallest parts
    hidden_modules: tuple[int, float]  # how many parts are left out, and their own time together
    sources: list[SourceTime]  # lines of code, longest first
    delegates: list[DelegateTime]  # calls of delegates, longest first
    hidden_delegates: int  # how many calls are left out
    boundary: str  # time of delegate calls outside of their operators, in words
    layout: list[LayoutTime]  # the layout tax
    hidden_layout: tuple[int, float]  # how many of its operators are left out, and their time together
    layout_total: str  # of the whole tax, in words
    layout_known: str  # what the tax rests on, in words; empty when it is nothing
    portable: list[PortableRow]  # operators that no delegate took, by name and reason
    roofline_rows: list[RooflineRow]  # operators with most headroom
    ceiling_rows: list[CeilingRow]  # the ceilings that operators are compared with
    bounds: list[BoundTime]  # time by what limits it
    ceilings: str  # where the ceilings come from, in sentences; empty without any
    coverage: str  # how sure the attribution is, in one sentence
    no_layers: str  # why modules and lines are not known, where they are not


def program_sections(analysis: Analysis) -> ProgramSections | None:
    """What the program tells of an analysis; None without one."""
    if analysis.program is None:
        return None
    modules = module_rows(analysis.modules)
    delegates = sorted(analysis.delegates, key=lambda row: -row.share)
    outside = [row.boundary_ns for row in delegates if row.boundary_ns is not None]
    whole, known = analysis.headline_ns, attributed_share(analysis.coverage)
    tax, tax_share = sums(analysis.layout)
    layout = [row for row in analysis.layout if row.share >= _SMALLEST][:_MOST_DELEGATES]
    return ProgramSections(
        modules=modules.rows,
        hidden_modules=modules.hidden,
        sources=analysis.sources[:_MOST_DELEGATES],
        delegates=delegates[:_MOST_DELEGATES],
        hidden_delegates=max(0, len(delegates) - _MOST_DELEGATES),
        boundary=_of_latency(sum(outside), sum(outside) / whole) if analysis.timed and whole else NOT_KNOWN,
        layout=layout,
        hidden_layout=(len(analysis.layout) - len(layout), tax_share - sums(layout)[1]),
        layout_total=_of_latency(tax, tax_share),
        layout_known=f"as far as {share_text(known)} of delegate time is attributed" if known else "",
        portable=_portable_rows(analysis.portable),
        roofline_rows=_roofline_rows(analysis),
        ceiling_rows=ceiling_rows(analysis.roofline.operators) if analysis.roofline else [],
        bounds=analysis.roofline.bounds if analysis.roofline else [],
        ceilings=ceilings_text(analysis.ceilings) if analysis.ceilings else "",
        coverage=coverage_sentence(analysis),
        no_layers=_no_layers(analysis.program),
    )


def _no_layers(program: ProgramInfo) -> str:
    if program.etrecord_problem is not None:
        return f"the export record (.etrecord) cannot be used: {program.etrecord_problem}"
    if program.etrecord is not None:
        return "the export record (.etrecord) names none for these operators"
    return "there is no export record (.etrecord) beside the program"


def is_delegated(analysis: Analysis) -> bool:
    """Whether the operators of a trace are events of delegates, and not nodes of a graph that a session ran."""
    runtime = runtime_of_format(analysis.trace.format)
    return runtime is None or runtime.has_delegates


def coverage_sentence(analysis: Analysis) -> str:
    """How sure it is which layer each operator of a delegate is."""
    found = {row.attribution: row for row in analysis.coverage}
    if not found:
        return "nothing ran in a delegate"
    delegated = is_delegated(analysis)
    how = "a replay of XNNPACK's rewrites predicts every event" if delegated else "by the graph that ran"
    words = {
        Attribution.EXACT: f"is attributed exactly: {how}",
        Attribution.ALIGNED: "is aligned by kind and order: likely, not certain",
        Attribution.AMBIGUOUS: "fits several layers, which are listed",
        Attribution.NAME: "is known by name only",
    }
    of = "delegate time" if delegated else "the operators' time"
    parts = [f"{share_text(found[a].share_of_delegates)} of {of} {words[a]}" for a in words if a in found]
    return "; ".join(parts)


def layer_text(operator: Operator) -> str:
    """The layer that an operator belongs to, in a few words; empty when nothing is known."""
    if operator.change is not None:
        return f"between {boundary_text(operator.change.before)} and {boundary_text(operator.change.after)}"
    if operator.candidates:
        return f"one of {', '.join(operator.candidates[:_MOST_NAMES])}"
    if operator.module:
        return operator.module
    return (operator.aten or "").removesuffix(".default")


def boundary_text(names: Sequence[str]) -> str:
    """The layers on one side of a change of layout."""
    if not names:
        return "unknown"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def source_text(source: str) -> str:
    """A source line without the directories of the machine that exported the model."""
    path, _, line = source.rpartition(":")
    return f"{PurePosixPath(path).name}:{line}"


_BOUNDS = {
    "compute": "compute",
    "memory": "memory",
    "overhead": "overhead",
    "inefficient": "below both ceilings",
    "unresolved": "too short to tell",
}


_SHORTFALLS = {
    Shortfall.PORTABLE: "portable kernel, without vectors",
    Shortfall.LITTLE_WORK: "little work in each call",
    Shortfall.CHANNELS: "output channels do not fill the kernel's tile",
    Shortfall.MOVES: "gathers or scatters its elements",
    Shortfall.SHAPE: "perhaps its shape, or other work on the machine",
}
_UNITS = {RateUnit.MACS: "GMAC/s", RateUnit.ELEMENTS: "billion elements/s", RateUnit.BYTES: "GB/s"}


def limit_text(placement: Placement) -> str:
    """What limits an operator, with the likely reason where it is below both ceilings."""
    words = bound_text(placement.bound)
    return f"{words}: {_SHORTFALLS[placement.reason]}" if placement.reason else words


def ceiling_text(placement: Placement) -> str:
    """The ceiling of an operator with its rate; empty where none is known."""
    if placement.rate is None or placement.ceiling is None:
        return placement.ceiling or ""
    return f"{placement.ceiling}, {_ceiling_rate(placement.rate)}"


def _ceiling_rate(rate: CeilingRate) -> str:
    return f"{rate_text(rate.per_s * 1e-9)} {_UNITS[rate.unit]}"


def ceiling_rows(placements: Sequence[Placement]) -> list[CeilingRow]:
    """The ceilings that operators are compared with, those of most operators first."""
    known = [one for one in placements if one.rate and one.ceiling]
    rows = [
        CeilingRow(name or "", _ceiling_rate(rate), rate.measured_with, len(own))
        for (name, rate), own in grouped(known, lambda one: (one.ceiling, one.rate)).items()
        if rate
    ]
    return sorted(rows, key=lambda row: -row.operators)[:_MOST_DELEGATES]


def bound_text(bound: Bound | None) -> str:
    """What limits an operator, in words."""
    return "not known" if bound is None else _BOUNDS[bound.value]


def _of_latency(time_ns: float | None, share: float) -> str:
    told = f"{share_text(share)} of the latency"
    return told if time_ns is None else f"{time_text(time_ns)}, {told}"


class ModuleRows(NamedTuple):
    """Lines of the module tree; how many modules are left out, and their own time together."""

    rows: list[ModuleRow]
    hidden: tuple[int, float]


def module_rows(modules: Sequence[ModuleTime], most: int = _MOST_MODULES) -> ModuleRows:
    """The largest modules as a tree.

    A container that adds nothing of its own to its only part is written as a part of its name.
    """
    order = sorted(range(len(modules)), key=lambda number: (-modules[number].share, number))
    largest = {number for number in order[:most] if modules[number].share >= _SMALLEST}
    shown: list[ModuleRow] = []
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
        shown.append(_module_row(module, module.path[len(above) :].lstrip(".") or "the model", depth))
        parents = []
    hidden = [module.self_share for number, module in enumerate(modules) if number not in largest]
    return ModuleRows(shown, (len(hidden), sum(hidden)))


def _adds_nothing(module: ModuleTime, following: ModuleTime) -> bool:
    inside = following.path.startswith(f"{module.path}.")
    return inside and not module.self_share and math.isclose(following.share, module.share)


def _module_row(module: ModuleTime, label: str, depth: int) -> ModuleRow:
    share, own = module.share, module.self_share
    return ModuleRow(module, plain(label, 60), depth, round(own * 100, 2), round((share - own) * 100, 2))


def _portable_rows(rows: Sequence[PortableTime]) -> list[PortableRow]:
    found = [
        PortableRow(
            name=name.removeprefix("native_call_"),
            layers=boundary_text(list(dict.fromkeys(row.module for row in own if row.module))) if own[0].module else "",
            times=len(own),
            time_ns=sums(own)[0],
            share=sums(own)[1],
            reason=reason,
        )
        for (name, reason), own in grouped(rows, _name_and_reason).items()
    ]
    return sorted(found, key=lambda row: -row.share)[:_MOST_DELEGATES]


def _name_and_reason(row: PortableTime) -> tuple[str, str]:
    why = row.reason or "not known: all known rules are met"
    return row.name, f"{why} ({row.evidence})" if row.evidence else why


def _roofline_rows(analysis: Analysis) -> list[RooflineRow]:
    if analysis.roofline is None:
        return []
    rows = by_operator(analysis.operators)
    placed = by_operator(one for one in analysis.roofline.operators if one.headroom_ns)
    pairs = [(rows[key], one) for key, one in placed.items() if key in rows]
    pairs.sort(key=lambda pair: -(pair[1].headroom_ns.low if pair[1].headroom_ns else 0.0))
    return [_roofline_row(*pair) for pair in pairs[:_MOST_DELEGATES]]


def _roofline_row(operator: Operator, placement: Placement) -> RooflineRow:
    return RooflineRow(
        operator=operator,
        placement=placement,
        layer=layer_text(operator),
        bound=limit_text(placement),
        ceiling=ceiling_text(placement),
        gmacs=_interval_text(placement.macs_per_s, 1e-9),
        gbytes=_interval_text(placement.bytes_per_s, 1e-9),
        fraction=_interval_text(placement.fraction, 100, " %"),
        headroom=_headroom_text(placement.headroom_ns),
    )


def _interval_text(interval: Interval | None, scale: float, unit: str = "") -> str:
    """Both ends of an interval, one figure where they print alike."""
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
