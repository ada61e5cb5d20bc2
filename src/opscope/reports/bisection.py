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
from opscope.reports.document.messages import COMPARISON
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


def bisection_document(bisection: Bisection) -> Document:
    """The answer, the states in their order, the operators, and how to repeat it."""
    first, last = bisection.states[0].name, bisection.states[-1].name
    model = ", ".join(filter(None, (bisection.model, bisection.method)))
    heading = f"{model}, {bisection.runtime}: {first} to {last}"
    trust = (
        [Sentence(*quality_line(bisection.step.quality, [(COMPARISON, bisection.step.quality)]))]
        if bisection.step
        else []
    )
    return Document(
        title=heading,
        heading=heading,
        answer=_answer(bisection),
        blocks=list(_first(bisection)),
        sections=list(_sections(bisection)),
        trust=trust,
    )


def _answer(bisection: Bisection) -> str:
    if bisection.last_good is None or bisection.first_bad is None:
        return _no_change(bisection)
    between = bisection.between
    if between:
        names = ", ".join(one.name for one in between)
        ends = f"between {bisection.last_good} and {bisection.first_bad}"
        return f"slower since a {bisection.kind} {ends}: no answer for {names}"
    end = bisection.step.verdict_of(bisection.method) if bisection.step else bisection.ends
    if end.speedup is None:
        return f"{bisection.first_bad} is where it became slower; its ratio is withheld: {end.reason}"
    if end.verdict is not Verdict.SLOWER:
        text = f"slower around {bisection.first_bad}, but not shown between {bisection.last_good} and it"
        return f"{text}: {verdict_text(end.verdict)}"
    return f"{bisection.first_bad} made it slower: {_times(end.speedup, end.ci95)} the latency of {bisection.last_good}"


def _no_change(bisection: Bisection) -> str:
    end, good, bad = bisection.ends, bisection.states[0].name, bisection.states[-1].name
    if end.speedup is None:
        return f"no answer: {end.reason}"
    text = f"{bad} takes {_times(end.speedup, end.ci95)} the latency of {good}"
    if end.verdict is Verdict.NO_DIFFERENCE and end.minimum_detectable is not None:
        return f"{text}: no difference detected; cannot detect changes below {share_text(end.minimum_detectable)}"
    return f"{text}: {verdict_text(end.verdict)}"


def _times(speedup: float, ci95: tuple[float, float] | None) -> str:
    """How many times as long it takes, with the interval."""
    interval = f" {interval_text((1 / ci95[1], 1 / ci95[0]), ratio_text)}" if ci95 else ""
    return f"{ratio_text(1 / speedup)}{interval}"


def _first(bisection: Bisection) -> Iterator[Block]:
    good, bad = bisection.states[0], bisection.states[-1]
    latencies = [(one.name, bisection.latency_ns(one)) for one in (good, bad)]
    shown = [HeadlineFigure(name, time_text(latency), "") for name, latency in latencies if latency is not None]
    yield Figures(shown, facts((one.label, one.value) for one in shown))
    if bisection.step is not None:
        if not bisection.step.has_split:
            yield not_split(bisection.step)
        yield Bullets(list(_moved(bisection)))
    yield picture("latency by state", lambda: _levels(bisection))
    yield state_table(bisection)
    if bisection.notes:
        yield Messages([note(one) for one in bisection.notes])


def _levels(bisection: Bisection) -> str | None:
    from opscope.reports.pictures.levels import bisection_levels

    return bisection_levels(bisection)


def state_table(bisection: Bisection) -> TableBlock:
    """The states in their order; those that nobody needed are left out."""
    rows = [one for one in bisection.states if one.level is not StateLevel.UNTESTED or one.ratio is not None]
    counted = any(one.instructions for one in rows)
    return table(
        rows,
        column(bisection.kind, Format.NAME, lambda one: one.name),
        column("", Format.TEXT, lambda one: _level(bisection, one)),
        column("ms", Format.MS, bisection.latency_ns),
        column(f"of {bisection.states[0].name}", Format.RATIO, lambda one: one.ratio),
        column("95 % interval", Format.RATIO, lambda one: one.ci95 if one.ratio != 1.0 else None),
        column("instructions", Format.LARGE, lambda one: one.instructions) if counted else None,
        column("operators", Format.COUNT, lambda one: one.operators),
        column("outputs", Format.TEXT, _outputs),
    )


def _level(bisection: Bisection, state: BisectedState) -> TableCell:
    if bisection.first_bad is None:
        return TableCell("")
    text = "first slower" if state.name == bisection.first_bad else _LEVELS[state.level]
    return TableCell(text, tone=Tone.WORSE if state.name == bisection.first_bad else Tone.PLAIN)


def _outputs(state: BisectedState) -> str:
    if state.outputs_agree is None:
        return ""
    return "agree" if state.outputs_agree else "differ"


def _moved(bisection: Bisection) -> Iterator[str]:
    """Operators that make the step, and how many do not."""
    step = bisection.step
    assert step is not None  # noqa: S101 - asked for where there is one
    changes = [one for one in step.operators if one.kind != FRAMEWORK.kind]
    whole = step.candidate.headline_ns - step.baseline.headline_ns
    named = [one for one in sorted(changes, key=lambda one: one.saved_ns) if _matters(one, whole)]
    yield from (_operator(one, bisection) for one in named[:_MOST])
    rest = [one for one in changes if one not in named[:_MOST]]
    unchanged = sum(one.is_judged and one.verdict not in _CHANGED for one in rest)
    if unchanged:
        yield f"{counted_text(unchanged, 'operator')}: no change shown"
    if len(rest) > unchanged:
        yield f"{counted_text(len(rest) - unchanged, 'more operator')} changed, each by less"
    yield from map(_graph, bisection.graph[:_MOST])
    if len(bisection.graph) > _MOST:
        yield f"{counted_text(len(bisection.graph) - _MOST, 'more group')} of nodes in other operators than before"
    if bisection.work is not None:
        more = bisection.work.candidate.instructions / (bisection.work.baseline.instructions or 1) - 1
        same = f"; {counted_text(bisection.work.equal, 'operator')} unchanged" if bisection.work.equal else ""
        text = "as many instructions" if not bisection.work.changed else f"{signed_share_text(more)} instructions"
        yield f"Exact work: {text}{same} ({bisection.work.processor})"
    if len(bisection.states) > 2:  # noqa: PLR2004 - more than both ends
        yield f"Found by {_BY[bisection.by]}: {bisection.measured} of {len(bisection.states) - 2} between the ends"


def _graph(one: GraphChange) -> str:
    """Which nodes are fused otherwise than before."""
    sides = [", ".join(" + ".join(group) for group in side) for side in (one.before, one.after)]
    if len(one.before) < len(one.after):
        text = "fused before, not fused now"
    elif len(one.before) > len(one.after):
        text = "fused now, not fused before"
    else:
        text = "fused otherwise"
    return f"{one.name}: {text} ({sides[0]}; now {sides[1]})"


def _matters(one: OperatorChange, whole: float) -> bool:
    """Whether an operator makes a part of the step that is worth a line."""
    judged = one.verdict in _CHANGED or not one.is_judged
    return judged and abs(one.saved_ns) > _LEAST * abs(whole)


def _operator(one: OperatorChange, bisection: Bisection) -> str:
    """What became of an operator: time, graph, kernel, work."""
    name = one.module or one.name
    if one.baseline_ns is None:
        text = f"new, {time_text(one.candidate_ns or 0.0)}"
    elif one.candidate_ns is None:
        text = f"gone, {time_text(one.baseline_ns)} before"
    else:
        more = signed_share_text(one.candidate_ns / one.baseline_ns - 1) if one.baseline_ns else ""
        text = f"{more} ({time_text(one.baseline_ns)} to {time_text(one.candidate_ns)})"
    parts = [text]
    if one.baseline_name and one.candidate_name and one.baseline_name != one.candidate_name:
        parts.append(f"{one.baseline_name} before, {one.candidate_name} now")
    work = next((change for change in (bisection.work.changed if bisection.work else ()) if change.label == name), None)
    if work is not None:
        parts.append(_counted(work))
    return f"{name} [{one.kind}]: {'; '.join(parts)}"


def _counted(work: WorkChange) -> str:
    if work.baseline is None or work.candidate is None:
        return "counted on one side only"
    more = signed_share_text(work.candidate / work.baseline - 1) if work.baseline else ""
    return f"{more} instructions ({count_text(work.baseline)} to {count_text(work.candidate)})"


def _sections(bisection: Bisection) -> Iterator[Section]:
    if bisection.step is not None and bisection.step.has_split:
        yield Section("Operators that changed", [changes_table(bisection.step)], "operators", "Operators")
        yield Section("Where the change comes from", shift_blocks(bisection.step, told=True), "change", "Change")
    if (
        bisection.last_good
        and bisection.first_bad
        and (others := elsewhere(bisection.states, bisection.last_good, bisection.first_bad))
    ):
        rows = table(
            others,
            column("from", Format.TEXT, lambda row: row[0]),
            column("to", Format.TEXT, lambda row: row[1]),
            column("ratio", Format.RATIO, lambda row: row[2]),
        )
        yield Section("Other changes on the way", [rows], "others", "Others")
    yield Section("To repeat it", list(_repeat(bisection)), "repeat", "Repeat")


def _repeat(bisection: Bisection) -> Iterator[Block]:
    yield Code(bisection.command)
    yield facts([("machine", bisection.machine), ("model", f"SHA-256 {bisection.sha256}")])
    wheels = [one for one in bisection.states if one.wheel]
    if wheels:
        yield table(
            wheels,
            column(bisection.kind, Format.NAME, lambda one: one.name),
            column("Python", Format.TEXT, lambda one: one.python),
            column("wheel", Format.TEXT, lambda one: one.wheel),
            column("SHA-256", Format.TEXT, lambda one: one.sha256),
        )
