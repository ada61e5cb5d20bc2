"""Cards and charts of what was measured, judged or put together: of events, an analysis, a comparison, a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from opscope.analysis.findings.message import warning
from opscope.analysis.operators.operators import longest_first
from opscope.core.units import counted_text, interval_text, ratio_text, share_text, time_text
from opscope.program.operators.kinds import Category
from opscope.reports.bisection import bisection_document, state_table
from opscope.reports.content.content import (
    NOT_KNOWN,
    category_rows,
    closing_rows,
    headline,
    is_of_calls,
    missing,
    operator_rows,
    side_latencies,
    speedup_text,
    trust_text,
    unit_of,
)
from opscope.reports.content.places import layer_text
from opscope.reports.document.blocks import Format, TableBlock, column, table, verdict_text
from opscope.reports.document.blocks import table as made_table
from opscope.reports.document.html import COLOURS
from opscope.reports.document.messages import quality_sentence, sentence
from opscope.reports.document.text import distinct, plain
from opscope.reports.gate import comparison_text, criteria_table, gate_notes, gate_sentence
from opscope.reports.kernel_evidence import kernel_table, kernels_answer
from opscope.reports.notebook.card import MOST_ROWS, Card, more_rows
from opscope.reports.pictures.pictures import rows_of
from opscope.reports.preflight import headline as preflight_headline
from opscope.reports.preflight import partition_line, work_table
from opscope.reports.sections.first import analysed_split, category_table, operator_table
from opscope.reports.sections.latency import variants_table
from opscope.reports.sections.operator_kernels import KIND_TEXTS
from opscope.reports.sections.shift import category_changes, changes_table
from opscope.reports.validation import actions, answer, checks_table
from opscope.reports.work import class_table, work_document
from opscope.reports.work import operator_table as counted_table

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.bisection import Bisection
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.findings.message import Quality
    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.gate.gate import ComparisonEvidence
    from opscope.analysis.kernels.kernels import KernelView
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.preflight.preflight import MethodPreflight, Preflight
    from opscope.analysis.work.work import Work
    from opscope.bundle.validation import Validation
    from opscope.core.table import EventTable
    from opscope.reports.combined.values import CombinedReport
    from opscope.reports.content.content import ReportContent


_TOP = 8


def analysis_card(analysis: Analysis) -> Card:
    """Latency, categories and the longest operators of one variant or trace."""
    latency = analysis.latency
    low_high = latency.ci95_median_ns
    interval = f", 95 % interval {time_text(low_high[0])} to {time_text(low_high[1])}" if low_high else ""
    grids = [block for block in analysed_split(analysis) if isinstance(block, TableBlock)]
    answer = f"{time_text(analysis.headline_ns)} per {unit_of(analysis)}"
    if not is_of_calls(analysis):
        answer += f"; median {time_text(latency.median_ns)}{interval}"
    return Card(analysis.trace.path, answer, None, grids, _quality(analysis.quality))


def longest_operators(analysis: Analysis) -> list[Operator]:
    """Operators, the longest first, without the framework's own time."""
    return [row for row in longest_first(analysis.operators) if row.kind != "framework"]


def comparison_card(comparison: Comparison) -> Card:
    """Verdict, categories, and the operators that changed most."""
    answers, notes = [], []
    for method, result in comparison.verdicts.items():
        of = f"{plain(method, 60)}: " if method else ""
        baseline_ns, candidate_ns = side_latencies(result)
        ends = f" {interval_text(result.ci95, ratio_text)}" if result.ci95 else ""
        answers.append(f"{of}{speedup_text(result)}{ends}: {result.reason or verdict_text(result.verdict)}")
        sides = f"{comparison.candidate.label} {time_text(candidate_ns)}, {comparison.baseline.label} "
        notes.append(f"{of}{sides}{time_text(baseline_ns)}; {trust_text(result)}")
    answer, note = "; ".join(answers), "; ".join(notes)
    grids = [category_changes(comparison), changes_table(comparison)]
    where = f"{comparison.candidate.path} against {comparison.baseline.path}"
    return Card(where, answer, note, grids, [*_quality(comparison.quality), *comparison.notes])


def content_card(content: ReportContent, path: Path) -> Card:
    """What `opscope profile` prints: the answer, the variants, the categories, the operators, the findings."""
    answer = headline(content)
    rows, closing = operator_rows(content), closing_rows(content, copies=True)
    operators = operator_table(rows, closing)
    split = [category_table(category_rows(content)), operators]
    grids = [variants_table(content, brief=True), *(split if content.has_split else [])]
    lines = [
        *_quality(content.quality),
        *(finding.title for finding in content.advice),
        *missing(content),
        f"report: {path / 'report.html'}",
    ]
    return Card(str(path), answer.text, answer.trust, grids, lines)


def events_card(table: EventTable, path: str) -> Card:
    """How much a trace holds, and its first inferences."""
    inferences = table.inference_times()
    counts = ((table.events, "event"), (len(inferences.duration), "inference"), (table.processes, "trace file"))
    shown = (
        own[:MOST_ROWS].tolist()
        for own in (inferences.process, inferences.inference, inferences.warmup, inferences.duration)
    )
    note = f"the first {MOST_ROWS} inferences" if len(inferences.duration) > MOST_ROWS else "its inferences"
    grid = made_table(
        list(zip(*shown, strict=True)),
        column("file", Format.TEXT, lambda row: str(row[0])),
        column("inference", Format.TEXT, lambda row: str(row[1])),
        column("counts as", Format.TEXT, lambda row: "warm-up" if row[2] else "measured"),
        column(f"duration {table.clock.value}", Format.FIGURE, lambda row: f"{row[3]:,}"),
    )
    answer = ", ".join(counted_text(count, noun) for count, noun in counts)
    lines = [sentence(warning(each)) for each in table.warnings]
    return Card(path, answer, f"{note}; .to_polars() has every event", [grid], lines)


def _quality(quality: Quality | None) -> list[str]:
    """How far it can be trusted, which belongs to every figure that is passed on."""
    return [quality_sentence(quality)] if quality else []


_NAME = 38
_WIDTH = 440
_TOOLTIPS = ("operator:N", "layer:N", "category:N", "backend:N", "ms:Q", "share:N")


def operator_bars(analysis: Analysis, most: int) -> alt.Chart:
    """The longest operators as bars in milliseconds per inference, the longest first, coloured by category.

    The framework's own time has no bars.

    ``analysis``: of one variant or trace; ``most``: bars at most; the title says what they leave out.
    """
    work = longest_operators(analysis)
    shown = work[:most]
    labels = distinct(_label(row) for row in shown)
    rows = [_row(label, row) for label, row in zip(labels, shown, strict=True)]
    used = {row["category"] for row in rows}
    domain = [category.value for category in Category if category.value in used]
    scale = alt.Scale(domain=domain, range=[COLOURS[Category(name)] for name in domain])
    share = share_text(sum(row.share for row in shown))
    title = f"{len(shown)} of {counted_text(len(work), 'operator')}, {share} of the latency"
    chart: alt.Chart = (
        alt.Chart(rows_of(rows), title=title)
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="ms per inference"),
            y=alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(labelLimit=300)),
            color=alt.Color("category:N", scale=scale, title=None, legend=alt.Legend(orient="top")),
            tooltip=list(_TOOLTIPS),
        )
        .properties(width=_WIDTH)
    )
    return chart


def _label(row: Operator) -> str:
    return plain(layer_text(row) or row.name, _NAME)


def _row(label: str, row: Operator) -> dict[str, Any]:
    return {
        "label": label,
        "operator": plain(row.name),
        "layer": plain(layer_text(row)),
        "category": row.category.value,
        "backend": plain(row.backend),
        "ms": row.shown_ns / 1e6,
        "share": share_text(row.share),
    }


def gate_card(decision: Decision[ComparisonEvidence]) -> Card:
    """The decision, and every limit."""
    text, sides = comparison_text(decision), decision.evidence
    grid = criteria_table(decision.criteria, text)
    lines = [
        *more_rows(MOST_ROWS, len(grid.rows)),
        *([f"next: {decision.advice}"] if decision.advice else []),
        *([quality_sentence(decision.quality)] if decision.quality else []),
        *gate_notes(decision, text),
    ]
    where = f"{sides.candidate.path} against {sides.baseline.path}"
    return Card(where, gate_sentence(decision, text), None, [grid], lines)


def validation_card(validation: Validation) -> Card:
    """Whether the bundle is complete and true; the checks that failed first."""
    lines = [f"next: {action}" for action in actions(validation)]
    return Card(validation.path, answer(validation), None, [checks_table(validation)], lines)


def preflight_card(preflight: Preflight) -> Card:
    """Whether each method will be accelerated, and its work by category."""
    answers = "; ".join(preflight_headline(method) for method in preflight.methods)
    lines = [line for method in preflight.methods for line in _method_lines(method)]
    return Card(preflight.path, answers, None, [work_table(method) for method in preflight.methods], lines)


def _method_lines(method: MethodPreflight) -> list[str]:
    return [f"{method.name}: {partition_line(method)}", *map(sentence, method.findings)]


def work_card(work: Work) -> Card:
    """What the operators of a model execute: by class, and those that execute most."""
    document = work_document(work)
    return Card(work.model, document.answer, None, [class_table(work), counted_table(work)], [])


def bisection_card(bisection: Bisection) -> Card:
    """The states in their order."""
    document = bisection_document(bisection)
    return Card(bisection.model, document.answer, None, [state_table(bisection)], list(bisection.notes))


def combined_card(report: CombinedReport) -> Card:
    """Every bundle with its answer; its thread counts with latency and speedup."""
    rows = [(bundle, configuration) for bundle in report.bundles for configuration in bundle.configurations]
    grid = table(
        rows,
        column("bundle", Format.NAME, lambda line: line[0].label),
        column("CPU", Format.NAME, lambda line: line[0].cpu, absent=NOT_KNOWN),
        column("variant", Format.NAME, lambda line: line[1].variant),
        column("method", Format.NAME, lambda line: line[1].method) if any(one.method for _, one in rows) else None,
        column("threads", Format.COUNT, lambda line: line[1].threads),
        column("latency", Format.TIME, lambda line: line[1].latency_ns, absent="not measured"),
        column("speedup", Format.RATIO, lambda line: line[1].speedup),
    )
    answers = [f"{bundle.label}: {bundle.headline}" for bundle in report.bundles]
    where = ", ".join(bundle.path for bundle in report.bundles)
    counts = f"{counted_text(len(report.bundles), 'bundle')} side by side"
    return Card(where, counts, None, [grid], [*more_rows(MOST_ROWS, len(grid.rows)), *answers, *report.notes])


def kernels_card(view: KernelView) -> Card:
    """The sources, and what each says of the first kernels."""
    sources = table(
        list(enumerate(view.columns, 1)),
        column("", Format.TEXT, lambda row: f"[{row[0]}]"),
        column("variant", Format.NAME, lambda row: row[1].variant),
        column("evidence", Format.TEXT, lambda row: KIND_TEXTS[row[1].kind]),
        column("path", Format.NAME, lambda row: row[1].path),
        column("kernels", Format.COUNT, lambda row: row[1].kernels),
    )
    lines = [*more_rows(MOST_ROWS, len(view.kernels)), *view.notes]
    where = ", ".join(dict.fromkeys(one.path for one in view.columns)) or "no source"
    return Card(where, kernels_answer(view), "", [sources, kernel_table(view)], lines)
