"""Cards of what was judged or put together: a gate, a validation, a preflight, kernels, several bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.finding import message_of
from opscope.core.units import counted_text, ratio_text, time_text
from opscope.reports.document.messages import quality_sentence, sentence
from opscope.reports.gate import gate_sentence, interval_text, limit_text, value_text
from opscope.reports.notebook.card import MOST_ROWS, Card, Grid, more_rows
from opscope.reports.preflight import group_cells, headline, partition_line
from opscope.reports.sections.operator_kernels import KIND_TEXTS, cell_text
from opscope.reports.validation import answer, in_order

if TYPE_CHECKING:
    from opscope.analysis.gate.gate import GateReport
    from opscope.analysis.kernels.kernels import KernelView
    from opscope.analysis.preflight.preflight import MethodPreflight, Preflight
    from opscope.bundle.validation import Validation
    from opscope.reports.combined.values import CombinedReport


def gate_card(report: GateReport) -> Card:
    """The decision, and every limit."""
    rows = [
        [
            limit.name,
            value_text(limit.quantity, limit.measured),
            interval_text(limit.quantity, limit.ci95),
            limit_text(limit),
            limit.outcome.value,
        ]
        for limit in report.criteria
    ]
    grid = Grid(["criterion", "measured", "95 % interval", "limit", "outcome"], rows[:MOST_ROWS])
    forced = [f"not comparable, forced: {problem}" for problem in report.mismatches]
    lines = [
        *more_rows(MOST_ROWS, len(rows)),
        *([f"next: {report.advice}"] if report.advice else []),
        *([quality_sentence(report.quality)] if report.quality else []),
        *forced,
        *report.notes,
    ]
    where = f"{report.candidate.path} against {report.baseline.path}"
    return Card(where, gate_sentence(report), None, [grid], lines)


def validation_card(validation: Validation) -> Card:
    """Whether the bundle is complete and true; the checks that failed first."""
    rows = [[check.status.value, check.name, check.message] for check in in_order(validation)]
    actions = dict.fromkeys(check.action for check in validation.failed() if check.action)
    grid = Grid(["status", "check", "what was found"], rows, texts=3)
    return Card(validation.path, answer(validation), None, [grid], [f"next: {action}" for action in actions])


def preflight_card(preflight: Preflight) -> Card:
    """Whether each method will be accelerated, and its work by category."""
    answers = "; ".join(headline(method) for method in preflight.methods)
    lines = [line for method in preflight.methods for line in _told(method)]
    return Card(preflight.path, answers, None, [_work(method) for method in preflight.methods], lines)


def _work(method: MethodPreflight) -> Grid:
    rows = [[row.category.value, *group_cells(row.delegated), *group_cells(row.portable)] for row in method.work]
    return Grid([method.name, "delegated", "MAC", "bytes", "portable", "MAC", "bytes"], rows)


def _told(method: MethodPreflight) -> list[str]:
    return [f"{method.name}: {partition_line(method)}", *(sentence(message_of(found)) for found in method.findings)]


def combined_card(report: CombinedReport) -> Card:
    """Every bundle with its answer; its thread counts with latency and speedup."""
    rows = [
        [
            *(bundle.label, bundle.cpu or "not known", own.variant),
            "" if own.threads is None else str(own.threads),
            "not measured" if own.latency_ns is None else time_text(own.latency_ns),
            "" if own.speedup is None else ratio_text(own.speedup),
        ]
        for bundle in report.bundles
        for own in bundle.configurations
    ]
    grid = Grid(["bundle", "CPU", "variant", "threads", "latency", "speedup"], rows[:MOST_ROWS], texts=3)
    answers = [f"{bundle.label}: {bundle.headline}" for bundle in report.bundles]
    where = ", ".join(bundle.path for bundle in report.bundles)
    counts = f"{counted_text(len(report.bundles), 'bundle')} side by side"
    return Card(where, counts, None, [grid], [*more_rows(MOST_ROWS, len(rows)), *answers, *report.notes])


def kernels_card(view: KernelView) -> Card:
    """The sources, and what each says of the first kernels."""
    columns = [
        [f"[{number}]", one.variant, KIND_TEXTS[one.kind], one.path, str(one.kernels)]
        for number, one in enumerate(view.columns, 1)
    ]
    rows = [[line.name, line.isa.value, *map(cell_text, line.cells)] for line in view.kernels[:MOST_ROWS]]
    sources = Grid(["", "variant", "evidence", "path", "kernels"], columns, texts=4)
    heads = ["kernel", "ISA", *(f"[{number}]" for number in range(1, len(view.columns) + 1))]
    found = f"{counted_text(len(view.kernels), 'kernel')} in {counted_text(len(view.columns), 'source')}"
    lines = [*more_rows(len(rows), len(view.kernels)), *view.notes]
    where = ", ".join(dict.fromkeys(one.path for one in view.columns)) or "no source"
    return Card(where, found, "", [sources, Grid(heads, rows, texts=2)], lines)
