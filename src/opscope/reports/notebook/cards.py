"""Cards of what was measured: events, an analysis, a comparison, a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import warning
from opscope.core.units import counted_text, milliseconds, milliseconds_if_known, ratio_text, share_text, time_text
from opscope.reports.content.content import (
    category_rows,
    closing_rows,
    closing_rows_of,
    headline,
    is_of_calls,
    missing,
    side_latencies,
    speedup_text,
    top_operators,
    trust_text,
    unit_of,
    variant_latencies,
)
from opscope.reports.content.places import layer_text
from opscope.reports.document.blocks import verdict_text
from opscope.reports.document.messages import quality_sentence, sentence
from opscope.reports.notebook.card import MOST_ROWS, Card, Grid
from opscope.reports.sections.shift import closing_changes, matched_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.findings.quality import Quality
    from opscope.analysis.operators.operators import Operator
    from opscope.core.table import EventTable
    from opscope.reports.content.content import ReportContent

_TOP = 8


def analysis_card(analysis: Analysis) -> Card:
    """Latency, categories and the longest operators of one variant or trace."""
    latency = analysis.latency
    low_high = latency.ci95_median_ns
    interval = f", 95 % interval {time_text(low_high[0])} to {time_text(low_high[1])}" if low_high else ""
    categories = [
        [c.category.value, milliseconds_if_known(c.time_ns), share_text(c.share)] for c in analysis.categories
    ]
    closing = closing_rows_of(analysis, copies=False)
    categories += [[row.name, milliseconds_if_known(row.time_ns), share_text(row.share)] for row in closing]
    grids = [Grid(["category", "ms", "share"], categories), _operators(longest_operators(analysis))]
    answer = f"{time_text(analysis.headline_ns)} per {unit_of(analysis)}"
    if not is_of_calls(analysis):
        answer += f"; median {time_text(latency.median_ns)}{interval}"
    return Card(analysis.trace.path, answer, None, grids, _quality(analysis.quality))


def longest_operators(analysis: Analysis) -> list[Operator]:
    """Operators, the longest first, without the framework's own time."""
    return sorted((o for o in analysis.operators if o.kind != "framework"), key=lambda o: -o.shown_ns)


def comparison_card(comparison: Comparison) -> Card:
    """Verdict, categories, and the operators that changed most."""
    result = comparison.end_to_end
    baseline_ns, candidate_ns = side_latencies(result)
    ends = f" [{', '.join(map(ratio_text, result.ci95))}]" if result.ci95 else ""
    answer = f"{speedup_text(result)}{ends}: {result.reason or verdict_text(result.verdict)}"
    sides = f"{comparison.candidate.label} {time_text(candidate_ns)}, {comparison.baseline.label} "
    grids = [_category_changes(comparison), _changes(comparison)]
    note = f"{sides}{time_text(baseline_ns)}; {trust_text(comparison)}"
    where = f"{comparison.candidate.path} against {comparison.baseline.path}"
    return Card(where, answer, note, grids, [*_quality(comparison.quality), *comparison.notes])


def content_card(content: ReportContent, path: Path) -> Card:
    """What `opscope profile` prints: the answer, the variants, the categories, the operators, the findings."""
    answer = headline(content)
    variants = [
        [one.variant.name, milliseconds(one.latency.median_ns), milliseconds(one.latency.p90_ns)]
        if one.latency
        else [one.variant.name, one.arm, ""]
        for one in variant_latencies(content)
    ]
    categories = [
        [
            row.category.value,
            milliseconds_if_known(row.time_ns),
            share_text(row.share),
            ratio_text(row.speedup) if row.speedup else "",
        ]
        for row in category_rows(content)
    ]
    closing = closing_rows(content, copies=False)
    categories += [[row.name, milliseconds_if_known(row.time_ns), share_text(row.share), ""] for row in closing]
    grids = [
        Grid(["variant", "median ms", "p90 ms"], variants),
        Grid(["category", "ms", "share", "speedup"], categories),
        _operators([row.operator for row in top_operators(content)]),
    ]
    lines = [
        *_quality(content.quality),
        *(finding.title for finding in content.advice),
        *missing(content),
        f"report: {path / 'report.html'}",
    ]
    return Card(str(path), answer.text, answer.trust, grids, lines)


def events_card(table: EventTable, path: str) -> Card:
    """How much a trace holds, and its first inferences."""
    found = table.inference_times()
    counts = ((table.events, "event"), (len(found.duration), "inference"), (table.processes, "trace file"))
    shown = (own[:MOST_ROWS].tolist() for own in (found.process, found.inference, found.warmup, found.duration))
    rows = [
        [str(process), str(inference), "warm-up" if warmup else "measured", f"{duration:,}"]
        for process, inference, warmup, duration in zip(*shown, strict=True)
    ]
    note = f"the first {MOST_ROWS} inferences" if len(found.duration) > MOST_ROWS else "its inferences"
    grid = Grid(["file", "inference", "counts as", f"duration {table.clock.value}"], rows, texts=3)
    answer = ", ".join(counted_text(count, noun) for count, noun in counts)
    lines = [sentence(warning(each)) for each in table.warnings]
    return Card(path, answer, f"{note}; .to_polars() has every event", [grid], lines)


def _quality(quality: Quality | None) -> list[str]:
    """How far it can be trusted, which belongs to every figure that is passed on."""
    return [quality_sentence(quality)] if quality else []


def _operators(rows: Sequence[Operator]) -> Grid:
    cells = [
        [o.name, layer_text(o), o.category.value, o.backend, milliseconds_if_known(o.time_ns), share_text(o.share)]
        for o in rows[:_TOP]
    ]
    return Grid(["operator", "layer", "category", "backend", "ms", "share"], cells, texts=4)


def _category_changes(comparison: Comparison) -> Grid:
    rows = [
        [
            change.category.value,
            verdict_text(change.verdict),
            milliseconds(change.baseline_ns or 0.0),
            milliseconds(change.candidate_ns or 0.0),
            milliseconds(change.saved_ns),
        ]
        for change in comparison.categories
    ]
    rows += [
        [last.name, "", *map(milliseconds, (last.baseline_ns, last.candidate_ns, last.saved_ns))]
        for last in closing_changes(comparison, copies=False)
    ]
    return Grid(["category", "verdict", "baseline ms", "ms", "saved ms"], rows, texts=2)


def _changes(comparison: Comparison) -> Grid:
    longest = sorted(comparison.operators, key=lambda change: -abs(change.saved_ns))[:_TOP]
    rows = [
        [
            change.name,
            change.module or "",
            verdict_text(change.verdict) if change.is_judged else matched_text(change),
            *("" if side is None else milliseconds(side) for side in (change.baseline_ns, change.candidate_ns)),
            milliseconds(change.saved_ns),
        ]
        for change in longest
    ]
    return Grid(["operator", "layer", "verdict", "baseline ms", "ms", "saved ms"], rows, texts=3)
