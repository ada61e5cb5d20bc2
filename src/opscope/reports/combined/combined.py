"""Builds what a report over several bundles shows: one line a configuration, each platform's bottleneck.

The combined report of several bundles in Markdown and HTML: templates filled with a ``CombinedReport``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.analysis.findings.finding import message_of
from opscope.analysis.findings.message import note
from opscope.analysis.operators.operators import dominant
from opscope.core import units
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
    missing,
    threads_text,
    top_operators,
)
from opscope.reports.content.places import layer_text
from opscope.reports.content.switch import switch_messages
from opscope.reports.document.blocks import verdict_text
from opscope.reports.document.html import policy, style_sheet, width_class
from opscope.reports.document.messages import sentence
from opscope.reports.document.template import environment
from opscope.reports.sections.kernel_view import kernel_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jinja2

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.reports.combined.operators import SharedOperator, SharedProgram
    from opscope.reports.combined.values import VersionSeries
    from opscope.reports.content.content import ReportContent, VariantResult
    from opscope.reports.sections.kernel_view import KernelRow


_TOP = 5
_OPERATORS = 12
_UNFOLDED = 8
"""Bundles up to which the parts on each of them are not folded."""
_SMALLEST = 0.005
_FEW = 0.001
"""Share below which the ratio of a category's two times says nothing."""


class BundlePart(NamedTuple):
    """One bundle of a combined report: a name that is unique in the report, where it is, and what its report shows."""

    label: str
    path: str
    content: ReportContent


def combine(parts: Sequence[BundlePart], series: Sequence[VersionSeries], notes: Sequence[str]) -> CombinedReport:
    """Several bundles as one report."""
    told = [(part.label, part.content) for part in parts]
    return CombinedReport([_bundle(part) for part in parts], shared_programs(told), list(series), list(notes))


def _bundle(part: BundlePart) -> CombinedBundle:
    content = part.content
    manifest, shown = content.manifest, content.shown
    split = shown if content.has_split else None
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
        categories=_categories(content) if split else [],
        bottleneck=_bottleneck(content, split) if split else None,
        shares=_shares(split) if split else None,
        findings=content.advice,
        missing=missing(content),
        limits=[sentence(told) for told in (*switch_messages(content), *limits(content))],
        device=manifest.device,
    )


def configurations(content: ReportContent) -> list[Configuration]:
    """One line for each accelerated variant; without any, for each variant."""
    chosen = [result for result in content.variants if result.variant.role in FOREGROUND]
    return [_configuration(content, result) for result in chosen or content.variants]


def _configuration(content: ReportContent, result: VariantResult) -> Configuration:
    variant, analysis = result.variant, result.analysis
    found = next((c for c in content.comparisons if _is_of(c, content, variant.name)), None)
    baseline = content.result(found.baseline.label) if found else None
    latency = analysis.latency if analysis else None
    end = found.end_to_end if found else None
    return Configuration(
        threads=variant.threads,
        variant=variant.name,
        baseline=found.baseline.label if found else None,
        off=baseline.variant.ablated if baseline else None,
        latency_ns=analysis.headline_ns if analysis else None,
        baseline_ns=end.baseline_ns if end else None,
        speedup=end.speedup if end else None,
        ci95=end.ci95 if end else None,
        verdict=end.verdict if end else None,
        processes=end.candidate_processes if end else len(latency.processes) if latency else 0,
        arm=end.arm if end else latency.source if latency else "",
    )


def _is_of(comparison: Comparison, content: ReportContent, name: str) -> bool:
    """Whether it compares this variant with a baseline."""
    baseline = content.result(comparison.baseline.label)
    return comparison.candidate.label == name and baseline is not None and baseline.variant.role is not None


def _categories(content: ReportContent) -> list[CategoryShift]:
    before = content.primary.end_to_end.baseline_ns if content.primary else 0.0
    return [
        CategoryShift(
            category=row.category,
            baseline_ns=row.baseline_ns,
            baseline_share=None if row.baseline_ns is None else row.baseline_ns / before,
            time_ns=row.time_ns,
            share=row.share,
            speedup=row.speedup,
            verdict=row.verdict,
        )
        for row in category_rows(content)
    ]


def _bottleneck(content: ReportContent, shown: Analysis) -> Bottleneck | None:
    work = top_operators(content)
    largest = dominant(shown.operators, shown.copies)
    if largest is None:
        return None
    before = _before(content.primary)
    return Bottleneck(
        category=largest.category,
        share=largest.share,
        time_ns=largest.time_ns,
        before=before[0] if before else None,
        before_share=before[1] if before else None,
        limit=1 / (1 - largest.share) if largest.share < 1 else None,
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
    """The category that takes most on the baseline, framework left out, and its share."""
    if comparison is None or not comparison.kinds:
        return None
    times = dict.fromkeys(Category, 0.0)
    for change in comparison.kinds:
        if change.kind != FRAMEWORK.kind:
            times[change.category] += change.baseline_ns or 0.0
    times[Category.DATA_MOVEMENT] += comparison.baseline.copies_ns
    category = max(times, key=lambda one: times[one])
    return category, times[category] / comparison.baseline.headline_ns


def _shares(shown: Analysis) -> Shares:
    backends = {row.backend: row.share for row in shown.backends}
    [moving] = [row for row in shown.categories if row.category is Category.DATA_MOVEMENT]
    parts = backends.get("portable", 0.0), backends.get("framework", 0.0)
    return Shares(max(0.0, sum(backends.values()) - sum(parts)), *parts, moving.share)


def where_text(bundle: CombinedBundle) -> str:
    """Name, CPU and platform of a bundle's machine in words."""
    return ", ".join(filter(None, (bundle.device, bundle.cpu, bundle.platform))) or f"machine {NOT_KNOWN}"


def combined_html(report: CombinedReport) -> str:
    """The report as one HTML page that needs nothing else."""
    style = style_sheet("combined.css")
    template = _environment().get_template("combined.html.j2")
    return template.render(_values(report), style=style, policy=policy(style))


def combined_markdown(report: CombinedReport) -> str:
    """The report in Markdown."""
    return _environment().get_template("combined.md.j2").render(_values(report))


def _values(report: CombinedReport) -> dict[str, Any]:
    models = list(dict.fromkeys(" ".join(filter(None, (b.model, b.dtype))) for b in report.bundles))
    return {
        "report": report,
        "models": models,
        "rows": [(bundle, row) for bundle in report.bundles for row in bundle.configurations],
        "folded": len(report.bundles) > _UNFOLDED,
        "shared": [(program, _differing(program)) for program in report.programs],
    }


def _differing(program: SharedProgram) -> list[SharedOperator]:
    """The operators whose shares differ most between the platforms; those of equal shares are left to the JSON."""
    return [one for one in program.operators[:_OPERATORS] if one.spread >= _SMALLEST]


def _environment() -> jinja2.Environment:
    return environment(
        {
            "message": message_of,
            "note": note,
            "ms": units.milliseconds_if_known,
            "ms_or_blank": units.milliseconds_or_blank,
            "share": lambda value: units.share_text(value) if value is not None else "",
            "ratio": lambda value: units.ratio_text(value) if value is not None else "",
            "interval": _interval,
            "verdict": lambda value: verdict_text(value) if value is not None else "",
            "off": _off,
            "threads": threads_text,
            "where": where_text,
            "faster": lambda row: units.ratio_text(row.speedup) if row.speedup and (row.share or 0.0) >= _FEW else "",
            "known": lambda value: value if value not in {None, ""} else NOT_KNOWN,
            "width": width_class,
        }
    )


def _interval(value: tuple[float, float] | None) -> str:
    return "no interval" if value is None else f"{units.ratio_text(value[0])} to {units.ratio_text(value[1])}"


def _off(row: Configuration) -> str:
    """What the baseline of a configuration lacks, in words."""
    if row.baseline is None:
        return "no baseline"
    return NOT_KNOWN if row.off is None else f"{', '.join(row.off) or 'nothing'} off"
