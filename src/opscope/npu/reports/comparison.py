"""Two sides of AI Engine traces on a terminal, and what the decision of a gate over them says."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from opscope.analysis.findings.message import note
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, interval_text, rate_text, ratio_text, share_text
from opscope.npu.analysis.compare import PER_CALL, PER_ITERATION
from opscope.reports.document.blocks import (
    Document,
    Figures,
    Format,
    HeadlineFigure,
    Messages,
    Section,
    Sentence,
    Tone,
    column,
    facts,
    table,
    verdict_text,
    words_table,
)
from opscope.reports.gate import GateText, measured_text, slowdown_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.npu.analysis.compare import FigureChange, TilesComparison, TilesEvidence, TilesSide
    from opscope.reports.document.blocks import TableBlock

HEAD = ("figure", "baseline", "candidate", "change", "95 % interval", "verdict")
"""Columns of a table of figures."""


def tiles_comparison_document(comparison: TilesComparison) -> Document:
    """Return both sides, the verdict, and every figure of both."""
    figures = [row for row in shown_figures(comparison) if row is not comparison.overall]
    title = f"{comparison.candidate.label} against {comparison.baseline.label}"
    return Document(
        title=title,
        heading=title,
        answer=comparison_sentence(comparison),
        blocks=[
            Figures(list(_headline_figures(comparison)), facts(_side_facts(comparison))),
            figures_table(figures),
            *(Sentence(line, Tone.DIM) for line in _stalls_line(comparison.stall_cycles)),
            Messages([note(comparison_note) for comparison_note in comparison.notes]),
        ],
        sections=[],
    )


def _side_facts(comparison: TilesComparison) -> Iterator[tuple[str, str]]:
    for name, side, value in _both_sides(comparison, comparison.overall):
        yield name, f"{value_text(value, 'cycles')} cycles  {side.label}, {counted_text(side.traces, 'trace')}"


def _headline_figures(comparison: TilesComparison) -> Iterator[HeadlineFigure]:
    change = comparison.overall
    for name, side, value in reversed(_both_sides(comparison, change)):
        traces = counted_text(side.traces, "trace")
        yield HeadlineFigure(name, f"{value_text(value, 'cycles')} cycles", f"{change.name}; {side.label}, {traces}")
    interval = interval_text(change.ci95, ratio_text) if change.ci95 else "no interval"
    yield HeadlineFigure("speedup", _ratio_text(change), interval)


def _ratio_text(figure: FigureChange) -> str:
    return "unknown" if figure.ratio is None else ratio_text(figure.ratio)


def figures_table(figures: Iterable[FigureChange]) -> TableBlock:
    """Return the figures of both sides, with their differences, and the verdict in words."""
    formats = (Format.NAME, *[Format.FIGURE] * (len(HEAD) - 2), Format.TEXT)
    cells = list(map(figure_cells, figures))
    return table(cells, *(column(head, formats[at], itemgetter(at)) for at, head in enumerate(HEAD)))


def _both_sides(
    comparison: TilesComparison | TilesEvidence, figure: FigureChange
) -> list[tuple[str, TilesSide, float | None]]:
    return [("baseline", comparison.baseline, figure.baseline), ("candidate", comparison.candidate, figure.candidate)]


def comparison_sentence(comparison: TilesComparison) -> str:
    """Return the verdict with its ratio, interval, and the figures that it rests on."""
    change = comparison.overall
    interval = interval_text(change.ci95, ratio_text) if change.ci95 else "no interval"
    words = verdict_text(change.verdict)
    if change.verdict is Verdict.UNDECIDABLE:
        words = f"{words}: too few traces"
    elif change.verdict is Verdict.NO_DIFFERENCE and change.minimum_detectable is not None:
        words = f"{words}; minimum detectable change: {share_text(change.minimum_detectable)}"
    else:
        words = f"candidate {words}"
    return f"speedup {_ratio_text(change)} {interval} by {change.name}: {words}"


def value_text(value: float | None, unit: str) -> str:
    """Return a figure in its unit."""
    if value is None:
        return "-"
    return rate_text(value) if unit == "MAC/cycle" else f"{value:,.0f}"


def shown_figures(comparison: TilesComparison) -> list[FigureChange]:
    """Return the figures in the order in which they are shown."""
    period = [comparison.period] if comparison.period and comparison.period.name != comparison.overall.name else []
    return [*period, *comparison.kinds, *comparison.stall_cycles, *comparison.rates]


def figure_cells(row: FigureChange) -> tuple[str, str, str, str, str, str]:
    """Change of stalls in cycles, else as a ratio."""
    values = value_text(row.baseline, row.unit), value_text(row.candidate, row.unit)
    words = {"cycles": ratio_text, "MAC/cycle": ratio_text}.get(row.unit, _signed_text)
    differs = row.change if row.ratio is None else row.ratio
    change = "-" if differs is None else words(differs)
    interval = "" if row.ci95 is None else interval_text(row.ci95, words)
    verdict = "none detected" if row.verdict is Verdict.NO_DIFFERENCE else verdict_text(row.verdict)
    return (row.name, *values, change, interval, verdict)


def _stalls_line(stalls: Sequence[FigureChange]) -> list[str]:
    counted = {
        PER_ITERATION: "Stall cycles per iteration, start to start; lower is better.",
        PER_CALL: "Stall cycles per multiplying call; lower is better.",
    }
    return [counted[unit] for unit in dict.fromkeys(row.unit for row in stalls) if unit in counted]


def _signed_text(cycles: float) -> str:
    return f"{round(cycles) + 0:+,d}"


def tiles_text(decision: Decision[TilesEvidence]) -> GateText:
    """Say a decision over AI Engine traces; there is no time in it, since cycles are none."""
    evidence, first = decision.evidence, decision.criteria[0]
    figures = f"{measured_text(first)} by {first.name}"
    both = _both_sides(evidence, evidence.figure)
    rows = [(name, side.path, value_text(value, "cycles"), str(side.traces)) for name, side, value in both]
    return GateText(
        answer=slowdown_answer(decision, "the candidate"),
        sentence=f"slowdown {figures}, threshold {share_text(first.limit)}",
        subject=evidence.candidate.label,
        sections=lambda most: _worse_sections(evidence.slower[:most]),
        sides=words_table(("side", "path", evidence.figure.name, "traces"), rows, texts=2),
        properties={
            "baseline": evidence.baseline.path,
            "candidate": evidence.candidate.path,
            "threshold": f"{first.limit:g}",
            "slowdown": "not known" if first.measured is None else f"{first.measured:.6g}",
            "baseline_cycles": f"{evidence.figure.baseline or 0:.6g}",
            "candidate_cycles": f"{evidence.figure.candidate or 0:.6g}",
        },
    )


def _worse_sections(slower: Sequence[FigureChange]) -> list[Section]:
    if not slower:
        return []
    text = " ".join(_stalls_line(slower))
    return [Section("Regressions", [figures_table(slower), Sentence(text, Tone.DIM)])]
