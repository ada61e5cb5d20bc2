"""Bisection as a document: what made the model slower, how sure that is, which operators, and how to repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.bisection import StateLevel, find_other_changes
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
from opscope.reports.comparison import no_split_sentence
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
"""Share of the step below which an operator's change is not named."""
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
    """Return the answer, the states in their order, the operators, and how to repeat the bisection."""
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
        answer=_answer_sentence(bisection),
        blocks=list(_first_screen(bisection)),
        sections=list(_write_sections(bisection)),
        trust=trust,
    )


def _answer_sentence(bisection: Bisection) -> str:
    if bisection.last_good is None or bisection.first_bad is None:
        return _no_change_sentence(bisection)
    between = bisection.between
    if between:
        names = ", ".join(state.name for state in between)
        ends = f"between {bisection.last_good} and {bisection.first_bad}"
        return f"slower since a {bisection.kind} {ends}: no answer for {names}"
    end = bisection.step.verdict_of(bisection.method) if bisection.step else bisection.ends
    if end.speedup is None:
        return f"{bisection.first_bad} is where it became slower; its ratio is withheld: {end.reason}"
    if end.verdict is not Verdict.SLOWER:
        text = f"slower around {bisection.first_bad}, but not shown between {bisection.last_good} and it"
        return f"{text}: {verdict_text(end.verdict)}"
    times = _times_text(end.speedup, end.ci95)
    return f"{bisection.first_bad} made it slower: {times} the latency of {bisection.last_good}"


def _no_change_sentence(bisection: Bisection) -> str:
    end, good, bad = bisection.ends, bisection.states[0].name, bisection.states[-1].name
    if end.speedup is None:
        return f"no answer: {end.reason}"
    text = f"{bad} takes {_times_text(end.speedup, end.ci95)} the latency of {good}"
    if end.verdict is Verdict.NO_DIFFERENCE and end.minimum_detectable is not None:
        return f"{text}: no difference detected; cannot detect changes below {share_text(end.minimum_detectable)}"
    return f"{text}: {verdict_text(end.verdict)}"


def _times_text(speedup: float, ci95: tuple[float, float] | None) -> str:
    """Return how many times as long the slower state takes, with the interval."""
    interval = f" {interval_text((1 / ci95[1], 1 / ci95[0]), ratio_text)}" if ci95 else ""
    return f"{ratio_text(1 / speedup)}{interval}"


def _first_screen(bisection: Bisection) -> Iterator[Block]:
    good, bad = bisection.states[0], bisection.states[-1]
    latencies = [(state.name, bisection.latency_ns(state)) for state in (good, bad)]
    figures = [HeadlineFigure(name, time_text(latency), "") for name, latency in latencies if latency is not None]
    yield Figures(figures, facts((figure.label, figure.value) for figure in figures))
    if bisection.step is not None:
        if not bisection.step.has_split:
            yield no_split_sentence(bisection.step)
        yield Bullets(list(_change_sentences(bisection)))
    yield picture("latency by state", lambda: _draw_levels(bisection))
    yield state_table(bisection)
    if bisection.notes:
        yield Messages([note(text) for text in bisection.notes])


def _draw_levels(bisection: Bisection) -> str | None:
    from opscope.reports.pictures.levels import bisection_levels

    return bisection_levels(bisection)


def state_table(bisection: Bisection) -> TableBlock:
    """Return the measured states in their order."""
    rows = [state for state in bisection.states if state.level is not StateLevel.UNTESTED or state.ratio is not None]
    counted = any(state.instructions for state in rows)
    return table(
        rows,
        column(bisection.kind, Format.NAME, lambda state: state.name),
        column("", Format.TEXT, lambda state: _level_cell(bisection, state)),
        column("ms", Format.MS, bisection.latency_ns),
        column(f"of {bisection.states[0].name}", Format.RATIO, lambda state: state.ratio),
        column("95 % interval", Format.RATIO, lambda state: state.ci95 if state.ratio != 1.0 else None),
        column("instructions", Format.LARGE, lambda state: state.instructions) if counted else None,
        column("operators", Format.COUNT, lambda state: state.operators),
        column("outputs", Format.TEXT, _outputs_text),
    )


def _level_cell(bisection: Bisection, state: BisectedState) -> TableCell:
    if bisection.first_bad is None:
        return TableCell("")
    text = "first slower" if state.name == bisection.first_bad else _LEVELS[state.level]
    return TableCell(text, tone=Tone.WORSE if state.name == bisection.first_bad else Tone.PLAIN)


def _outputs_text(state: BisectedState) -> str:
    if state.outputs_agree is None:
        return ""
    return "agree" if state.outputs_agree else "differ"


def _change_sentences(bisection: Bisection) -> Iterator[str]:
    """Yield which operators make up the step, how many do not, and how the state was found."""
    step = bisection.step
    assert step is not None  # noqa: S101 - the caller has checked it
    changes = [change for change in step.operators if change.kind != FRAMEWORK.kind]
    step_ns = step.candidate.headline_ns - step.baseline.headline_ns
    large = [
        change for change in sorted(changes, key=lambda change: change.saved_ns) if _is_large_change(change, step_ns)
    ]
    yield from (_operator_change_text(change, bisection) for change in large[:_MOST])
    rest = [change for change in changes if change not in large[:_MOST]]
    unchanged = sum(change.is_judged and change.verdict not in _CHANGED for change in rest)
    if unchanged:
        yield f"{counted_text(unchanged, 'operator')}: no change shown"
    if len(rest) > unchanged:
        yield f"{counted_text(len(rest) - unchanged, 'more operator')} changed, each by less"
    yield from map(_graph_change_text, bisection.graph[:_MOST])
    if len(bisection.graph) > _MOST:
        yield f"{counted_text(len(bisection.graph) - _MOST, 'more group')} of nodes in other operators than before"
    if bisection.work is not None:
        more = bisection.work.candidate.instructions / (bisection.work.baseline.instructions or 1) - 1
        same = f"; {counted_text(bisection.work.equal, 'operator')} unchanged" if bisection.work.equal else ""
        text = "as many instructions" if not bisection.work.changed else f"{signed_share_text(more)} instructions"
        yield f"Exact work: {text}{same} ({bisection.work.processor})"
    if len(bisection.states) > 2:  # noqa: PLR2004 - more than both ends
        yield f"Found by {_BY[bisection.by]}: {bisection.measured} of {len(bisection.states) - 2} between the ends"


def _graph_change_text(change: GraphChange) -> str:
    """Return which nodes are fused differently than before."""
    sides = [", ".join(" + ".join(group) for group in side) for side in (change.before, change.after)]
    if len(change.before) < len(change.after):
        text = "fused before, not fused now"
    elif len(change.before) > len(change.after):
        text = "fused now, not fused before"
    else:
        text = "fused otherwise"
    return f"{change.name}: {text} ({sides[0]}; now {sides[1]})"


def _is_large_change(change: OperatorChange, step_ns: float) -> bool:
    """Return whether an operator makes up enough of the step to be named."""
    judged = change.verdict in _CHANGED or not change.is_judged
    return judged and abs(change.saved_ns) > _LEAST * abs(step_ns)


def _operator_change_text(operator: OperatorChange, bisection: Bisection) -> str:
    """Return what became of an operator: its time, graph, kernel and work."""
    name = operator.module or operator.name
    if operator.baseline_ns is None:
        text = f"new, {time_text(operator.candidate_ns or 0.0)}"
    elif operator.candidate_ns is None:
        text = f"gone, {time_text(operator.baseline_ns)} before"
    else:
        more = signed_share_text(operator.candidate_ns / operator.baseline_ns - 1) if operator.baseline_ns else ""
        text = f"{more} ({time_text(operator.baseline_ns)} to {time_text(operator.candidate_ns)})"
    parts = [text]
    if operator.baseline_name and operator.candidate_name and operator.baseline_name != operator.candidate_name:
        parts.append(f"{operator.baseline_name} before, {operator.candidate_name} now")
    work = next((change for change in (bisection.work.changed if bisection.work else ()) if change.label == name), None)
    if work is not None:
        parts.append(_work_change_text(work))
    return f"{name} [{operator.kind}]: {'; '.join(parts)}"


def _work_change_text(work: WorkChange) -> str:
    if work.baseline is None or work.candidate is None:
        return "counted on one side only"
    more = signed_share_text(work.candidate / work.baseline - 1) if work.baseline else ""
    return f"{more} instructions ({count_text(work.baseline)} to {count_text(work.candidate)})"


def _write_sections(bisection: Bisection) -> Iterator[Section]:
    if bisection.step is not None and bisection.step.has_split:
        yield Section("Operators that changed", [changes_table(bisection.step)], "operators", "Operators")
        yield Section(
            "Where the change comes from", shift_blocks(bisection.step, has_sentences=True), "change", "Change"
        )
    if (
        bisection.last_good
        and bisection.first_bad
        and (other_changes := find_other_changes(bisection.states, bisection.last_good, bisection.first_bad))
    ):
        rows = table(
            other_changes,
            column("from", Format.TEXT, lambda row: row[0]),
            column("to", Format.TEXT, lambda row: row[1]),
            column("ratio", Format.RATIO, lambda row: row[2]),
        )
        yield Section("Other changes on the way", [rows], "others", "Others")
    yield Section("To repeat it", list(_repeat_blocks(bisection)), "repeat", "Repeat")


def _repeat_blocks(bisection: Bisection) -> Iterator[Block]:
    yield Code(bisection.command)
    yield facts([("machine", bisection.machine), ("model", f"SHA-256 {bisection.sha256}")])
    wheels = [state for state in bisection.states if state.wheel]
    if wheels:
        yield table(
            wheels,
            column(bisection.kind, Format.NAME, lambda state: state.name),
            column("Python", Format.TEXT, lambda state: state.python),
            column("wheel", Format.TEXT, lambda state: state.wheel),
            column("SHA-256", Format.TEXT, lambda state: state.sha256),
        )
