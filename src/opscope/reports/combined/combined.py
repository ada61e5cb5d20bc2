"""Report over several bundles: one line per configuration and the bottleneck of each platform, as a document."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from opscope.analysis.findings.message import Grade, note
from opscope.analysis.operators.operators import dominant, limit_without
from opscope.core import units
from opscope.program.operators.kinds import Category
from opscope.reports.combined.values import (
    Bottleneck,
    CombinedBundle,
    CombinedReport,
    Configuration,
    OperatorGroup,
    Shares,
    shared_programs,
)
from opscope.reports.content.content import (
    FOREGROUND,
    NOT_KNOWN,
    category_rows,
    headline,
    largest_before,
    limits,
    missing_sentences,
    threads_text,
    top_operators,
)
from opscope.reports.content.places import layer_text
from opscope.reports.document.blocks import (
    Beside,
    Block,
    Bullets,
    Details,
    Document,
    Format,
    Messages,
    Section,
    Sentence,
    TableCell,
    Tone,
    column,
    table,
)
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.messages import EXPERIMENT, grade_text, sentence, unchecked_sentence
from opscope.reports.sections.first import category_table
from opscope.reports.sections.kernel_view import kernel_rows
from opscope.reports.sections.metadata import switch_messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.reports.combined.values import SharedOperator, SharedProgram, VersionSeries
    from opscope.reports.content.content import ReportContent, VariantResult
    from opscope.reports.document.blocks import TableBlock
    from opscope.reports.sections.kernel_view import KernelRow


_TOP = 5
_OPERATORS = 12
_UNFOLDED = 8
"""Most bundles whose parts are shown unfolded."""
_SMALLEST = 0.005
_FEW = 0.001
"""Share below which the ratio of a category's two times means nothing."""


class BundlePart(NamedTuple):
    """Bundle of a combined report: its name, unique in the report, its directory, and the content of its own report."""

    label: str
    path: str
    content: ReportContent


def combine(parts: Sequence[BundlePart], series: Sequence[VersionSeries], notes: Sequence[str]) -> CombinedReport:
    """Return several bundles as one report."""
    contents = [(part.label, part.content) for part in parts]
    return CombinedReport(
        [_combine_bundle(part) for part in parts], shared_programs(contents), list(series), list(notes)
    )


def _combine_bundle(part: BundlePart) -> CombinedBundle:
    content = part.content
    manifest, analysis = content.manifest, content.shown
    split = analysis if content.has_split else None
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
        shown=analysis.variant if analysis else None,
        quality=content.quality,
        categories=category_rows(content) if split else [],
        bottleneck=_find_bottleneck(content, split) if split else None,
        shares=_backend_shares(split) if split else None,
        findings=content.advice,
        unchecked=unchecked_sentence(content.findings, content.ruled_out),
        missing=missing_sentences(content),
        limits=[sentence(message) for message in (*switch_messages(content), *limits(content))],
        device=manifest.device,
    )


def configurations(content: ReportContent) -> list[Configuration]:
    """Return a line for each accelerated variant, or for each variant if none is accelerated, by method."""
    chosen = [result for result in content.variants if result.variant.role in FOREGROUND]
    return [
        configuration
        for result in chosen or content.variants
        for configuration in _configurations_of_variant(content, result)
    ]


def _configurations_of_variant(content: ReportContent, result: VariantResult) -> Iterator[Configuration]:
    variant, analysis = result.variant, result.analysis
    comparison = next(
        (
            candidate_comparison
            for candidate_comparison in content.comparisons
            if _compares_with_baseline(candidate_comparison, content, variant.name)
        ),
        None,
    )
    baseline = content.result(comparison.baseline.label) if comparison else None
    verdicts = comparison.verdicts if comparison else {}
    for method, (latency, _) in (analysis.by_method if analysis else {"": (None, None)}).items():
        end = verdicts.get(method)
        yield Configuration(
            threads=variant.threads,
            variant=variant.name,
            baseline=comparison.baseline.label if comparison else None,
            off=baseline.variant.ablated if baseline else None,
            latency_ns=analysis.headline_of(method) if analysis else None,
            baseline_ns=end.baseline_ns if end else None,
            speedup=end.speedup if end else None,
            ci95=end.ci95 if end else None,
            verdict=end.verdict if end else None,
            processes=end.candidate_processes if end else len(latency.processes) if latency else 0,
            arm=end.arm if end else latency.source if latency else "",
            method=method or None,
        )


def _compares_with_baseline(comparison: Comparison, content: ReportContent, name: str) -> bool:
    """Return whether a comparison is of this variant against a baseline."""
    baseline = content.result(comparison.baseline.label)
    return comparison.candidate.label == name and baseline is not None and baseline.variant.role is not None


def _find_bottleneck(content: ReportContent, analysis: Analysis) -> Bottleneck | None:
    work = top_operators(content)
    largest = dominant(analysis.operators, analysis.copies)
    if largest is None:
        return None
    before = largest_before(content.primary)
    return Bottleneck(
        **msgspec.structs.asdict(largest),
        before=before[0] if before else None,
        before_share=before[1] if before else None,
        limit=limit_without(largest.share),
        groups=[_operator_group(row) for row in kernel_rows(content)[:_TOP]],
        operators=[
            OperatorGroup(
                name=row.operator.name,
                category=row.operator.category,
                backend=row.operator.backend,
                operators=1,
                time_ns=row.operator.time_ns,
                share=row.operator.share,
                speedup=row.change.speedup if row.change else None,
                layer=layer_text(row.operator),
            )
            for row in work[:_TOP]
        ],
    )


def _operator_group(row: KernelRow) -> OperatorGroup:
    types = f"({row.types})" if row.types else ""
    name = " ".join(filter(None, (row.operator, types, row.algorithm)))
    return OperatorGroup(name, row.category, row.backend, row.count, row.speedup, time_ns=row.time_ns, share=row.share)


def _backend_shares(analysis: Analysis) -> Shares:
    backends = {row.backend: row.share for row in analysis.backends}
    [moving] = [row for row in analysis.categories if row.category is Category.DATA_MOVEMENT]
    parts = backends.get("portable", 0.0), backends.get("framework", 0.0)
    return Shares(max(0.0, sum(backends.values()) - sum(parts)), *parts, moving.share)


def where_text(bundle: CombinedBundle) -> str:
    """Return the name, CPU and platform of a bundle's machine in words."""
    return ", ".join(filter(None, (bundle.device, bundle.cpu, bundle.platform))) or f"machine {NOT_KNOWN}"


def combined_html(report: CombinedReport) -> str:
    """Return the report as one self-contained HTML page."""
    return html_document(combined_document(report))


def combined_markdown(report: CombinedReport) -> str:
    """Return the report in Markdown."""
    return markdown_document(combined_document(report))


_EACH = (
    "Each speedup is relative to the bundle's own baseline. Latencies of different bundles are shown side by side; "
    "only versions in a series are tested against each other."
)
_SERIES = (
    "The bundles were measured one after another and are not paired: machine drift affects the difference but not "
    "the interval. Each line is a separate test. Machines are identified by CPU, system and target; bundles "
    "contain no serial number."
)
_SHARED = (
    "Share of each platform's own latency, and the operator's speedup there, sorted by difference in share. Not "
    "tested: small differences may be noise."
)


def combined_document(report: CombinedReport) -> Document:
    """Return the report as a document: a sentence per bundle, a table of all, and each bottleneck."""
    models = list(dict.fromkeys(" ".join(filter(None, (bundle.model, bundle.dtype))) for bundle in report.bundles))
    counted = f"{units.counted_text(len(report.bundles), 'bundle')} side by side"
    answers: Block = Bullets([_answer_sentence(bundle) for bundle in report.bundles])
    folded = len(report.bundles) > _UNFOLDED
    missing_of = [f"{bundle.label}: {'; '.join(bundle.missing)}" for bundle in report.bundles if bundle.missing]
    rows = [(bundle, configuration) for bundle in report.bundles for configuration in bundle.configurations]
    first: list[Block] = [
        Details("Summary of each bundle", [answers]) if folded else answers,
        Section("Comparison", [_comparison_table(rows, several=len(models) > 1), Sentence(_EACH, Tone.DIM)]),
    ]
    if missing_of:
        first.append(Section("What is missing", [Bullets(missing_of)]))
    if report.notes:
        first.append(Section("What differs between the bundles", [Messages([note(text) for text in report.notes])]))
    return Document(
        title=report.title or counted,
        heading=report.title or "",
        answer=f"{', '.join(models)}: {counted}",
        blocks=first,
        sections=[*_write_sections(report, folded=folded), _measurement_section(report, rows)],
    )


def _answer_sentence(bundle: CombinedBundle) -> str:
    most, quality = bundle.bottleneck, bundle.quality
    dominates = f"; {most.category.value} dominates, {units.share_text(most.share)}" if most else ""
    graded = f" ({EXPERIMENT} {grade_text(quality.grade)})" if quality and quality.grade is not Grade.GOOD else ""
    return f"{bundle.label} ({where_text(bundle)}): {bundle.headline}{dominates}{graded}"


_Line: TypeAlias = "tuple[CombinedBundle, Configuration]"


def _comparison_table(rows: Sequence[_Line], *, several: bool) -> TableBlock:
    return table(
        rows,
        column("bundle", Format.NAME, lambda line: line[0].label),
        column("platform", Format.TEXT, lambda line: line[0].platform or NOT_KNOWN),
        column("CPU", Format.NAME, lambda line: line[0].cpu or NOT_KNOWN),
        column("target", Format.TEXT, lambda line: line[0].target),
        column("model", Format.NAME, lambda line: " ".join(filter(None, (line[0].model, line[0].dtype))))
        if several
        else None,
        column("threads", Format.COUNT, lambda line: line[1].threads, absent=NOT_KNOWN),
        column("variant", Format.NAME, lambda line: line[1].variant),
        column("method", Format.NAME, lambda line: line[1].method)
        if any(configuration.method for _, configuration in rows)
        else None,
        column("ms", Format.MS, lambda line: line[1].latency_ns, absent="not measured"),
        column("baseline ms", Format.MS, lambda line: line[1].baseline_ns),
        column("speedup", Format.RATIO, lambda line: line[1].speedup),
        column("95 % interval", Format.RATIO, _interval_of),
        column("verdict", Format.VERDICT, lambda line: line[1].verdict),
        column(
            f"quality of the {EXPERIMENT}",
            Format.TEXT,
            lambda line: grade_text(line[0].quality.grade) if line[0].quality else NOT_KNOWN,
        ),
    )


def _interval_of(line: _Line) -> tuple[float, float] | str | None:
    return None if line[1].speedup is None else line[1].ci95 or "no interval"


def _write_sections(report: CombinedReport, *, folded: bool) -> Iterator[Section]:
    if report.series:
        parts = [block for series in report.series for block in _series_blocks(series)]
        yield Section("Versions over time", [*parts, Sentence(_SERIES, Tone.DIM)], "versions", "Versions")
    parts = [_bundle_block(bundle, folded=folded) for bundle in report.bundles if bundle.shown]
    yield Section(
        "Bottleneck of each platform", [_bottlenecks_table(report.bundles), *parts], "bottlenecks", "Bottlenecks"
    )
    if report.programs:
        parts = [block for program in report.programs for block in _shared_program_blocks(program)]
        yield Section("Layers that differ most across platforms", parts, "layers", "Layers")


def _series_blocks(series: VersionSeries) -> Iterator[Block]:
    yield Sentence(f"{series.model} on {series.machine}, {threads_text(series.threads)}; each compared with the first.")
    first = series.versions[0].label
    yield table(
        series.versions,
        column("bundle", Format.NAME, lambda version: version.label),
        column("measured", Format.TEXT, lambda version: version.created),
        column("variant", Format.NAME, lambda version: version.variant),
        column("method", Format.NAME, lambda version: version.method)
        if any(version.method for version in series.versions)
        else None,
        column("median ms", Format.MS, lambda version: version.latency_ns),
        column(
            "speedup over the first",
            Format.RATIO,
            lambda version: "first" if version.label == first else version.speedup,
        ),
        column(
            "95 % interval",
            Format.RATIO,
            lambda version: None if version.speedup is None else version.ci95 or "no interval",
        ),
        column("verdict", Format.VERDICT, lambda version: version.verdict),
        column("minimum detectable change", Format.SHARE, lambda version: version.minimum_detectable),
    )
    yield Bullets(
        list(
            dict.fromkeys(
                f"{version.label}: {'; '.join(version.notes)}" for version in series.versions if version.notes
            )
        )
    )


def _bottlenecks_table(bundles: Sequence[CombinedBundle]) -> TableBlock:
    return table(
        bundles,
        column("bundle", Format.NAME, lambda bundle: bundle.label),
        column("largest before", Format.TEXT, _before_text),
        column(
            "largest after",
            Format.TEXT,
            lambda bundle: bundle.bottleneck.category.value if bundle.bottleneck else NOT_KNOWN,
        ),
        column("share", Format.SHARE, lambda bundle: bundle.bottleneck.share if bundle.bottleneck else None),
        column("ms", Format.MS, lambda bundle: bundle.bottleneck.time_ns if bundle.bottleneck else None),
        column("limit if removed", Format.RATIO, lambda bundle: bundle.bottleneck.limit if bundle.bottleneck else None),
        column("portable", Format.SHARE, lambda bundle: bundle.shares.portable if bundle.shares else None),
        column("data movement", Format.SHARE, lambda bundle: bundle.shares.data_movement if bundle.shares else None),
        column("framework", Format.SHARE, lambda bundle: bundle.shares.framework if bundle.shares else None),
    )


def _before_text(bundle: CombinedBundle) -> str:
    bottleneck = bundle.bottleneck
    if bottleneck is None or bottleneck.before is None:
        return ""
    return f"{bottleneck.before.value}, {units.share_text(bottleneck.before_share or 0.0)}"


def _bundle_block(bundle: CombinedBundle, *, folded: bool) -> Block:
    name = f"{bundle.label} ({bundle.shown})"
    split: list[Block] = (
        [category_table(bundle.categories)]
        if bundle.categories
        else [Sentence("No split into operators and categories.")]
    )
    split += (
        [_groups_table(bundle.bottleneck.groups), _longest_operators_table(bundle.bottleneck.operators)]
        if bundle.bottleneck
        else []
    )
    findings = Messages(bundle.findings) if bundle.findings else Sentence("" if bundle.unchecked else "No findings.")
    columns = Beside(split, [findings, Sentence(bundle.unchecked)])
    return (
        Details(f"{name}: categories, longest operators and findings", [columns])
        if folded
        else Section(name, [columns])
    )


def _groups_table(rows: Sequence[OperatorGroup]) -> TableBlock:
    return table(
        rows,
        column("operators of one kind", Format.NAME, lambda row: TableCell(row.name, category=row.category)),
        column("backend", Format.NAME, lambda row: row.backend),
        column("operators", Format.COUNT, lambda row: row.operators),
        column("ms", Format.MS, lambda row: row.time_ns),
        column("share", Format.SHARE, lambda row: row.share),
        column("speedup", Format.RATIO, lambda row: row.speedup),
    )


def _longest_operators_table(rows: Sequence[OperatorGroup]) -> TableBlock:
    return table(
        rows,
        column("longest operators", Format.NAME, _layer_and_name),
        column("backend", Format.NAME, lambda row: row.backend),
        column("ms", Format.MS, lambda row: row.time_ns),
        column("share", Format.SHARE, lambda row: row.share),
        column("speedup", Format.RATIO, lambda row: row.speedup),
    )


def _layer_and_name(row: OperatorGroup) -> TableCell:
    return TableCell(row.layer or row.name, row.name if row.layer else "", row.category)


def _shared_program_blocks(program: SharedProgram) -> Iterator[Block]:
    absent = f"; {program.unmatched} are not on every platform" if program.unmatched else ""
    counted = f"{units.counted_text(len(program.operators), 'operator')} matched by their place in the program{absent}."
    yield Sentence(f"{program.model}, sha256 {program.sha256[:12]}: {counted}")
    rows = _select_differing_operators(program)
    if not rows:
        yield Sentence("No operator's share differs by 0.5 % of the latency or more.")
        return
    yield table(
        rows,
        column("layer", Format.TEXT, lambda operator: TableCell(operator.layer, category=operator.category)),
        column("operator", Format.NAME, lambda operator: next(name for name in operator.names if name is not None)),
        *(
            column(label, Format.SHARE, partial(_share_on, number), absent="absent")
            for number, label in enumerate(program.bundles)
        ),
    )
    yield Sentence(_SHARED, Tone.DIM)


def _share_on(number: int, operator: SharedOperator) -> TableCell:
    speedup = operator.speedups[number]
    return TableCell(operator.shares[number], "" if speedup is None else units.ratio_text(speedup))


def _measurement_section(report: CombinedReport, rows: Sequence[_Line]) -> Section:
    limits_of = [f"{bundle.label}: {line}" for bundle in report.bundles for line in bundle.limits]
    how = table(
        rows,
        column("bundle", Format.NAME, lambda line: line[0].label),
        column("directory", Format.TEXT, lambda line: line[0].path),
        column("measured", Format.TEXT, lambda line: line[0].created),
        column("baseline", Format.TEXT, lambda line: _baseline_off_text(line[1])),
        column("timed", Format.TEXT, lambda line: line[1].arm or NOT_KNOWN),
        column("processes", Format.COUNT, lambda line: line[1].processes),
        column("software", Format.TEXT, lambda line: _software_text(line[0])),
        column("what limits its quality", Format.TEXT, lambda line: _concerns_text(line[0])),
    )
    limits_told = Details("What limits each bundle's figures", [Bullets(limits_of)])
    return Section("How each was measured", [how, limits_told], "measured", "Measured")


def _software_text(bundle: CombinedBundle) -> str:
    return ", ".join(f"{name} {version}" for name, version in bundle.versions.items()) or NOT_KNOWN


def _concerns_text(bundle: CombinedBundle) -> str:
    return "; ".join(reason.title for reason in bundle.quality.reasons) if bundle.quality else ""


def _select_differing_operators(program: SharedProgram) -> list[SharedOperator]:
    """Select the operators whose shares differ most between platforms; the JSON has all."""
    return [operator for operator in program.operators[:_OPERATORS] if operator.spread >= _SMALLEST]


def _baseline_off_text(row: Configuration) -> str:
    """Return what is off in the baseline of a configuration, in words."""
    if row.baseline is None:
        return "no baseline"
    return NOT_KNOWN if row.off is None else f"{', '.join(row.off) or 'nothing'} off"
