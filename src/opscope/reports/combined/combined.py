"""Builds what a report over several bundles shows: one line a configuration, each platform's bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.reports.combined.operators import shared_programs
from opscope.reports.combined.values import (
    Bottleneck,
    CategoryShift,
    CombinedBundle,
    CombinedReport,
    Configuration,
    OperatorGroup,
    Shares,
    TopOperator,
)
from opscope.reports.content.content import (
    FOREGROUND,
    NOT_KNOWN,
    category_rows,
    headline,
    limits,
    measured_latency,
    missing,
    top_operators,
)
from opscope.reports.content.messages import sentence
from opscope.reports.sections.kernel_view import kernel_rows
from opscope.reports.sections.program import layer_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.reports.combined.values import VersionSeries
    from opscope.reports.content.content import ReportContent, VariantResult
    from opscope.reports.sections.kernel_view import KernelRow

_TOP = 5


class BundlePart(NamedTuple):
    """One bundle of a combined report: a name that is unique in the report, where it is, and what its report shows."""

    label: str
    path: str
    content: ReportContent


def combine(parts: Sequence[BundlePart], series: Sequence[VersionSeries], notes: Sequence[str]) -> CombinedReport:
    """Several bundles as one report.

    Args:
        parts: the bundles.
        series: those of them that are versions of each other.
        notes: what differs between them.
    """
    told = [(part.label, part.content) for part in parts]
    return CombinedReport([_bundle(part) for part in parts], shared_programs(told), list(series), list(notes))


def _bundle(part: BundlePart) -> CombinedBundle:
    content = part.content
    manifest, shown = content.manifest, content.shown
    environment = manifest.environment
    platform = " ".join(filter(None, (environment.system, environment.machine)))
    return CombinedBundle(
        label=part.label,
        path=part.path,
        headline=headline(content).text,
        model=manifest.model.name,
        dtype=manifest.model.dtype,
        sha256=manifest.model.sha256,
        created=manifest.created,
        platform=platform or None,
        cpu=environment.cpu,
        target=manifest.target.kind,
        versions=manifest.environment.versions,
        configurations=configurations(content),
        shown=shown.variant if shown else None,
        quality=content.quality,
        categories=_categories(content),
        bottleneck=_bottleneck(content, shown) if shown else None,
        shares=_shares(shown) if shown else None,
        findings=content.findings,
        missing=missing(content),
        limits=[sentence(told) for told in limits(content)],
    )


def configurations(content: ReportContent) -> list[Configuration]:
    """One line for each accelerated variant; without any, for each variant."""
    chosen = [result for result in content.variants if result.variant.role in FOREGROUND]
    return [_configuration(content, result) for result in chosen or content.variants]


def _configuration(content: ReportContent, result: VariantResult) -> Configuration:
    variant, analysis = result.variant, result.analysis
    found = next((c for c in content.comparisons if _is_of(c, content, variant.name)), None)
    baseline = content.result(found.baseline.label) if found else None
    latency = measured_latency(analysis) if analysis else None
    end = found.end_to_end if found else None
    return Configuration(
        threads=variant.threads,
        variant=variant.name,
        baseline=found.baseline.label if found else None,
        off=baseline.variant.ablated if baseline else None,
        latency_ns=end.candidate_ns if end else latency.median_ns if latency else None,
        baseline_ns=end.baseline_ns if end else None,
        speedup=end.speedup if end else None,
        ci95=end.ci95 if end else None,
        verdict=end.verdict if end else None,
        processes=end.candidate_processes if end else len(latency.processes) if latency else 0,
        arm=end.arm if end else _arm(analysis),
    )


def _is_of(comparison: Comparison, content: ReportContent, name: str) -> bool:
    """Whether it compares this variant with a baseline."""
    baseline = content.result(comparison.baseline.label)
    return comparison.candidate.label == name and baseline is not None and baseline.variant.role is not None


def _arm(analysis: Analysis | None) -> str:
    if analysis is None:
        return ""
    return "untraced" if analysis.untraced else "traced"


def _categories(content: ReportContent) -> list[CategoryShift]:
    total = content.primary.baseline.mean_ns if content.primary else 0.0
    return [
        CategoryShift(
            category=row.category,
            baseline_ns=row.baseline_ns,
            baseline_share=row.baseline_ns / total if row.baseline_ns is not None and total else None,
            time_ns=row.time_ns,
            share=row.share,
            speedup=row.speedup,
            verdict=row.verdict,
        )
        for row in category_rows(content)
    ]


def _bottleneck(content: ReportContent, shown: Analysis) -> Bottleneck | None:
    work = top_operators(content)
    if not work:
        return None
    times = {
        category: sum(r.operator.time_ns for r in work if r.operator.category is category) for category in Category
    }
    category = max(times, key=lambda one: times[one])
    rest = shown.latency.mean_ns - times[category]
    before = _before(content.primary)
    return Bottleneck(
        category=category,
        share=times[category] / shown.latency.mean_ns,
        time_ns=times[category],
        before=before[0] if before else None,
        before_share=before[1] if before else None,
        limit=shown.latency.mean_ns / rest if rest > 0 else None,
        groups=[_group(row) for row in kernel_rows(content)[:_TOP]],
        operators=[
            TopOperator(
                name=row.operator.name,
                layer=layer_text(row.operator),
                category=row.operator.category,
                backend=row.operator.backend,
                time_ns=row.operator.time_ns,
                share=row.operator.share,
                speedup=row.change.speedup if row.change else None,
            )
            for row in work[:_TOP]
        ],
    )


def _group(row: KernelRow) -> OperatorGroup:
    types = f"({row.types})" if row.types else ""
    name = " ".join(filter(None, (row.operator, types, row.algorithm)))
    return OperatorGroup(name, row.category, row.backend, row.count, row.time_ns, row.share, row.speedup)


def _before(comparison: Comparison | None) -> tuple[Category, float] | None:
    """The category that takes most on the baseline, without the framework's time, and its share."""
    if comparison is None or not comparison.baseline.mean_ns:
        return None
    times = dict.fromkeys(Category, 0.0)
    for change in comparison.kinds:
        if change.kind != FRAMEWORK.kind:
            times[change.category] += change.baseline_ns
    category = max(times, key=lambda one: times[one])
    return category, times[category] / comparison.baseline.mean_ns


def _shares(shown: Analysis) -> Shares:
    backends = {row.backend: row.share for row in shown.backends}
    portable, framework = backends.get("portable", 0.0), backends.get("framework", 0.0)
    moving = sum(row.share for row in shown.categories if row.category is Category.DATA_MOVEMENT)
    return Shares(max(0.0, 1 - portable - framework), portable, framework, moving)


def where_text(bundle: CombinedBundle) -> str:
    """CPU and platform of a bundle in words."""
    return ", ".join(filter(None, (bundle.cpu, bundle.platform))) or f"machine {NOT_KNOWN}"
