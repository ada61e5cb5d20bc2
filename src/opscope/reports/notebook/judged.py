"""Cards of what was judged or put together: a gate, a validation, a preflight, kernels, several bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.units import counted_text
from opscope.reports.bisection import bisection_document, state_table
from opscope.reports.content.content import NOT_KNOWN
from opscope.reports.document.blocks import Format, column, table
from opscope.reports.document.messages import quality_sentence, sentence
from opscope.reports.gate import comparison_text, criteria_table, gate_notes, gate_sentence
from opscope.reports.kernel_evidence import kernel_table, kernels_answer
from opscope.reports.notebook.card import MOST_ROWS, Card, more_rows
from opscope.reports.preflight import headline, partition_line, work_table
from opscope.reports.sections.operator_kernels import KIND_TEXTS
from opscope.reports.validation import actions, answer, checks_table
from opscope.reports.work import class_table, operator_table, work_document

if TYPE_CHECKING:
    from opscope.analysis.bisection import Bisection
    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.gate.gate import ComparisonEvidence
    from opscope.analysis.kernels.kernels import KernelView
    from opscope.analysis.preflight.preflight import MethodPreflight, Preflight
    from opscope.analysis.work.work import Work
    from opscope.bundle.validation import Validation
    from opscope.reports.combined.values import CombinedReport


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
    answers = "; ".join(headline(method) for method in preflight.methods)
    lines = [line for method in preflight.methods for line in _told(method)]
    return Card(preflight.path, answers, None, [work_table(method) for method in preflight.methods], lines)


def _told(method: MethodPreflight) -> list[str]:
    return [f"{method.name}: {partition_line(method)}", *map(sentence, method.findings)]


def work_card(work: Work) -> Card:
    """What the operators of a model execute: by class, and those that execute most."""
    document = work_document(work)
    return Card(work.model, document.answer, None, [class_table(work), operator_table(work)], [])


def bisection_card(found: Bisection) -> Card:
    """The states in their order."""
    document = bisection_document(found)
    return Card(found.model, document.answer, None, [state_table(found)], list(found.notes))


def combined_card(report: CombinedReport) -> Card:
    """Every bundle with its answer; its thread counts with latency and speedup."""
    grid = table(
        [(bundle, own) for bundle in report.bundles for own in bundle.configurations],
        column("bundle", Format.NAME, lambda line: line[0].label),
        column("CPU", Format.NAME, lambda line: line[0].cpu, absent=NOT_KNOWN),
        column("variant", Format.NAME, lambda line: line[1].variant),
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
