"""A bisection as a document: what made the model slower, how sure that is, which operators, and how to repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.bisection import StateLevel, elsewhere
from opscope.analysis.findings.message import note
from opscope.core.stats.effect import Verdict
from opscope.core.units import (
    count_text,
    counted_text,
    interval_text,
    ratio_text,
    share_text,
    signed_share_text,
    time_text,
)
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.reports.comparison import not_split
from opscope.reports.document.blocks import (
    Block,
    Bullets,
    Code,
    Document,
    Figures,
    Format,
    HeadlineFigure,
    Messages,
    Section,
    Sentence,
    TableCell,
    Tone,
    column,
    facts,
    table,
    verdict_text,
)
from opscope.reports.document.template import picture
from opscope.reports.report import quality_line
from opscope.reports.sections.shift import changes_table, shift_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analysis.bisection import BisectedState, Bisection, GraphChange
    from opscope.analysis.compare.compare import OperatorChange
    from opscope.analysis.work.gate import WorkChange
    from opscope.reports.document.blocks import TableBlock

_MOST = 8
_LEAST = 0.02
"""Operators whose change is less than this part of the step are not named."""
_CHANGED = {Verdict.SLOWER, Verdict.FASTER}
_BY = {"time": "time, interleaved with both ends", "work": "exact work"}
_LEVELS = {
    StateLevel.GOOD: "good",
    StateLevel.BAD: "bad",
    StateLevel.UNDECIDED: "inconclusive",
    StateLevel.FAILED: "failed",
    StateLevel.UNTESTED: "",
}


def bisection_document(found: Bisection) -> Document:
    """The answer, the states in their order, the operators, and how to repeat it."""
    first, last = found.states[0].name, found.states[-1].name
    heading = f"{found.model}, {found.runtime}: {first} to {last}"
    trust = [Sentence(*quality_line(found.step.quality))] if found.step else []
    return Document(
        title=heading,
        heading=heading,
        answer=_answer(found),
        blocks=list(_first(found)),
        sections=list(_sections(found)),
        trust=trust,
    )


def _answer(found: Bisection) -> str:
    if found.last_good is None or found.first_bad is None:
        return _no_change(found)
    between = found.between
    if between:
        names = ", ".join(one.name for one in between)
        return f"slower since a {found.kind} between {found.last_good} and {found.first_bad}: no answer for {names}"
    end = found.step.end_to_end if found.step else found.ends
    if end.speedup is None:
        return f"{found.first_bad} is where it became slower; its ratio is withheld: {end.reason}"
    if end.verdict is not Verdict.SLOWER:
        told = f"slower around {found.first_bad}, but not shown between {found.last_good} and it"
        return f"{told}: {verdict_text(end.verdict)}"
    return f"{found.first_bad} made it slower: {_times(end.speedup, end.ci95)} the latency of {found.last_good}"


def _no_change(found: Bisection) -> str:
    end, good, bad = found.ends, found.states[0].name, found.states[-1].name
    if end.speedup is None:
        return f"no answer: {end.reason}"
    told = f"{bad} takes {_times(end.speedup, end.ci95)} the latency of {good}"
    if end.verdict is Verdict.NO_DIFFERENCE and end.minimum_detectable is not None:
        return f"{told}: no difference detected; cannot detect changes below {share_text(end.minimum_detectable)}"
    return f"{told}: {verdict_text(end.verdict)}"


def _times(speedup: float, ci95: tuple[float, float] | None) -> str:
    """How many times as long it takes, with the interval."""
    interval = f" {interval_text((1 / ci95[1], 1 / ci95[0]), ratio_text)}" if ci95 else ""
    return f"{ratio_text(1 / speedup)}{interval}"


def _first(found: Bisection) -> Iterator[Block]:
    good, bad = found.states[0], found.states[-1]
    latencies = [(one.name, found.latency_ns(one)) for one in (good, bad)]
    shown = [HeadlineFigure(name, time_text(latency), "") for name, latency in latencies if latency is not None]
    yield Figures(shown, facts((one.label, one.value) for one in shown))
    if found.step is not None:
        if not found.step.has_split:
            yield not_split(found.step)
        yield Bullets(list(_moved(found)))
    yield picture("latency by state", lambda: _levels(found))
    yield state_table(found)
    if found.notes:
        yield Messages([note(one) for one in found.notes])


def _levels(found: Bisection) -> str | None:
    from opscope.reports.pictures.levels import bisection_levels

    return bisection_levels(found)


def state_table(found: Bisection) -> TableBlock:
    """The states in their order; those that nobody needed are left out."""
    rows = [one for one in found.states if one.level is not StateLevel.UNTESTED or one.ratio is not None]
    counted = any(one.instructions for one in rows)
    return table(
        rows,
        column(found.kind, Format.NAME, lambda one: one.name),
        column("", Format.TEXT, lambda one: _level(found, one)),
        column("ms", Format.MS, found.latency_ns),
        column(f"of {found.states[0].name}", Format.RATIO, lambda one: one.ratio),
        column("95 % interval", Format.RATIO, lambda one: one.ci95 if one.ratio != 1.0 else None),
        column("instructions", Format.LARGE, lambda one: one.instructions) if counted else None,
        column("operators", Format.COUNT, lambda one: one.operators),
        column("outputs", Format.TEXT, _outputs),
    )


def _level(found: Bisection, state: BisectedState) -> TableCell:
    if found.first_bad is None:
        return TableCell("")
    told = "first slower" if state.name == found.first_bad else _LEVELS[state.level]
    return TableCell(told, tone=Tone.WORSE if state.name == found.first_bad else Tone.PLAIN)


def _outputs(state: BisectedState) -> str:
    if state.outputs_agree is None:
        return ""
    return "agree" if state.outputs_agree else "differ"


def _moved(found: Bisection) -> Iterator[str]:
    """Operators that make the step, and how many do not."""
    step = found.step
    assert step is not None  # noqa: S101 - asked for where there is one
    own = [one for one in step.operators if one.kind != FRAMEWORK.kind]
    whole = step.candidate.headline_ns - step.baseline.headline_ns
    named = [one for one in sorted(own, key=lambda one: one.saved_ns) if _matters(one, whole)]
    yield from (_operator(one, found) for one in named[:_MOST])
    rest = [one for one in own if one not in named[:_MOST]]
    unchanged = sum(one.is_judged and one.verdict not in _CHANGED for one in rest)
    if unchanged:
        yield f"{counted_text(unchanged, 'operator')}: no change shown"
    if len(rest) > unchanged:
        yield f"{counted_text(len(rest) - unchanged, 'more operator')} changed, each by less"
    yield from map(_graph, found.graph[:_MOST])
    if len(found.graph) > _MOST:
        yield f"{counted_text(len(found.graph) - _MOST, 'more group')} of nodes in other operators than before"
    if found.work is not None:
        more = found.work.candidate.instructions / (found.work.baseline.instructions or 1) - 1
        same = f"; {counted_text(found.work.equal, 'operator')} unchanged" if found.work.equal else ""
        told = "as many instructions" if not found.work.changed else f"{signed_share_text(more)} instructions"
        yield f"Exact work: {told}{same} ({found.work.processor})"
    if len(found.states) > 2:  # noqa: PLR2004 - more than both ends
        yield f"Found by {_BY[found.by]}: {found.measured} of {len(found.states) - 2} between the ends"


def _graph(one: GraphChange) -> str:
    """Which nodes are fused otherwise than before."""
    sides = [", ".join(" + ".join(group) for group in side) for side in (one.before, one.after)]
    if len(one.before) < len(one.after):
        told = "fused before, not fused now"
    elif len(one.before) > len(one.after):
        told = "fused now, not fused before"
    else:
        told = "fused otherwise"
    return f"{one.name}: {told} ({sides[0]}; now {sides[1]})"


def _matters(one: OperatorChange, whole: float) -> bool:
    """Whether an operator makes a part of the step that is worth a line."""
    judged = one.verdict in _CHANGED or not one.is_judged
    return judged and abs(one.saved_ns) > _LEAST * abs(whole)


def _operator(one: OperatorChange, found: Bisection) -> str:
    """What became of an operator: time, graph, kernel, work."""
    name = one.module or one.name
    if one.baseline_ns is None:
        told = f"new, {time_text(one.candidate_ns or 0.0)}"
    elif one.candidate_ns is None:
        told = f"gone, {time_text(one.baseline_ns)} before"
    else:
        more = signed_share_text(one.candidate_ns / one.baseline_ns - 1) if one.baseline_ns else ""
        told = f"{more} ({time_text(one.baseline_ns)} to {time_text(one.candidate_ns)})"
    parts = [told]
    if one.baseline_name and one.candidate_name and one.baseline_name != one.candidate_name:
        parts.append(f"{one.baseline_name} before, {one.candidate_name} now")
    work = next((own for own in (found.work.changed if found.work else ()) if own.label == name), None)
    if work is not None:
        parts.append(_counted(work))
    return f"{name} [{one.kind}]: {'; '.join(parts)}"


def _counted(work: WorkChange) -> str:
    if work.baseline is None or work.candidate is None:
        return "counted on one side only"
    more = signed_share_text(work.candidate / work.baseline - 1) if work.baseline else ""
    return f"{more} instructions ({count_text(work.baseline)} to {count_text(work.candidate)})"


def _sections(found: Bisection) -> Iterator[Section]:
    if found.step is not None and found.step.has_split:
        yield Section("Operators that changed", [changes_table(found.step)], "operators", "Operators")
        yield Section("Where the change comes from", shift_blocks(found.step, told=True), "change", "Change")
    if found.last_good and found.first_bad and (others := elsewhere(found.states, found.last_good, found.first_bad)):
        rows = table(
            others,
            column("from", Format.TEXT, lambda row: row[0]),
            column("to", Format.TEXT, lambda row: row[1]),
            column("ratio", Format.RATIO, lambda row: row[2]),
        )
        yield Section("Other changes on the way", [rows], "others", "Others")
    yield Section("To repeat it", list(_repeat(found)), "repeat", "Repeat")


def _repeat(found: Bisection) -> Iterator[Block]:
    yield Code(found.command)
    yield facts([("machine", found.machine), ("model", f"SHA-256 {found.sha256}")])
    wheels = [one for one in found.states if one.wheel]
    if wheels:
        yield table(
            wheels,
            column(found.kind, Format.NAME, lambda one: one.name),
            column("Python", Format.TEXT, lambda one: one.python),
            column("wheel", Format.TEXT, lambda one: one.wheel),
            column("SHA-256", Format.TEXT, lambda one: one.sha256),
        )
