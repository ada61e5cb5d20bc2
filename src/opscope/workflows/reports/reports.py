"""Reports of a bundle or of a run of the Arm kit, always computed from the traces."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.bundle import VARIANTS, Bundle, is_bundle
from opscope.core.errors import RunError, UsageError, did_you_mean
from opscope.core.json import to_json
from opscope.core.outputs import write_outputs
from opscope.core.parts import failures_heard, part
from opscope.core.tracebacks import nothing_known, page, tracebacks_kept
from opscope.measurements.analyses import (
    agreement_of,
    analysis_of,
    analysis_within,
    comparison_within,
    comparisons_of,
)
from opscope.measurements.sides import compared_pairs, control_pairs, readable_sides, with_roles
from opscope.workflows.analyze.sides import is_kit, program_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.bundle.manifest import Manifest
    from opscope.reports.content.content import Agreement, ReportContent
    from opscope.runtimes.side import Side

KIT_REPORTS = "opscope"
"""Where the reports of a run directory of the kit go: beside its files, never over them."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}\Z")
REPORT_FORMATS = ("html", "md", "json")
ONE_FILE = {".md": "md", ".html": "html"}
"""Formats of a report that is written as one file, by the end of its name."""
ANALYSIS, COMPARISON, COMPARISONS = "analysis.json", "comparison.json", "comparisons"
MARKDOWN, HTML = "report.md", "report.html"


def content(
    path: str | Path,
    *,
    program: str | Path | None = None,
    compared: tuple[str | None, str | None] | None = None,
) -> ReportContent:
    """Compute from its traces what a report of a bundle, or of a run directory of the Arm kit, shows.

    Args:
        path: of it.
        program: the .pte that a run of the kit ran; None: where the kit recorded it. A bundle has its own.
        compared: names of the baseline and the candidate, among the variants of a bundle or the experiments of a run
            of the kit; None: as it was planned.

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        NotFoundError: there is no bundle.
        TraceFormatError: the manifest or a trace is damaged.
    """
    if is_kit(Path(path)):
        from opscope.kit.sides import kit_content

        return _collect_failures(lambda: kit_content(Path(path), compared, program_files(program, None)))
    if program:
        raise UsageError("it applies to an Arm kit run; a bundle has its own", where="--program", hint="omit --program")
    bundle = Bundle.open(Path(path))
    return content_of(with_roles(bundle, *compared) if compared else bundle)


def content_of(bundle: Bundle) -> ReportContent:
    """Return what the reports of an open bundle show, and what of it a bug in opscope leaves unknown."""
    return _collect_failures(lambda: _make_content(bundle))


def _collect_failures(make_content: Callable[[], ReportContent]) -> ReportContent:
    from opscope.analysis.findings.message import part_warning

    with failures_heard() as failures:
        report_content = make_content()
    return msgspec.structs.replace(report_content, failed=list(map(part_warning, failures)))


def _make_content(bundle: Bundle) -> ReportContent:
    from opscope.analysis.compare.choice import corrected_for_choice
    from opscope.measurements.bundle_kernels import AnalysedVariants, bundle_kernels
    from opscope.measurements.bundle_work import kept_work
    from opscope.measurements.findings import findings_of
    from opscope.measurements.quality import quality_of
    from opscope.measurements.sides import rank_variants
    from opscope.reports.content.content import ReportContent, VariantResult, foreground

    bundle, sides = readable_sides(bundle)
    manifest = bundle.manifest
    readable = {name: analysis for name, side in sides.items() if (analysis := _analyze_side(name, side)) is not None}
    analyses = {name: analysis_within(bundle, analysis) for name, analysis in readable.items()}
    sides = {name: sides[name] for name in analyses}
    pairs = [(sides[b], sides[c]) for b, c in compared_pairs(manifest) if b in sides and c in sides]
    emulated = manifest.target.emulated
    not_compared: list[str] = []
    compared = [] if emulated else comparisons_of(pairs, not_compared)
    comparisons = [comparison_within(bundle, comparison) for comparison in compared]
    if fastest := rank_variants(manifest):
        comparisons = corrected_for_choice(comparisons, len(fastest))
    controls = [(sides[b], sides[c]) for b, c in control_pairs(manifest) if b in sides and c in sides]
    emulated_pairs = [*pairs, *controls] if emulated else []
    agreements = [agreement for pair in emulated_pairs if (agreement := _compare_side_outputs(*pair))]
    switched = {} if manifest.programs else {comparison.candidate.label: comparison for comparison in comparisons}
    foreground_analysis = foreground([VariantResult(v, analyses.get(v.name)) for v in manifest.variants], fastest)
    # What stands out is told by times, and those of an emulated CPU say nothing.
    findings, ruled_out = (
        ([], []) if emulated else findings_of(manifest, sides, analyses, comparisons, foreground_analysis)
    )
    analysed = AnalysedVariants(sides, analyses, switched)
    return ReportContent(
        manifest=manifest,
        variants=[VariantResult(variant, analyses.get(variant.name)) for variant in manifest.variants],
        comparisons=comparisons,
        findings=findings,
        ruled_out=ruled_out,
        quality=quality_of(manifest, analyses, comparisons, [agreement.outputs for agreement in agreements]),
        agreements=agreements,
        kernels=part("kernels", lambda: bundle_kernels(bundle, analysed), None),
        controls=[]
        if emulated
        else [comparison_within(bundle, comparison) for comparison in comparisons_of(controls, not_compared)],
        not_compared=not_compared,
        fastest=fastest,
        work=None
        if foreground_analysis is None
        else part("exact work", lambda: kept_work(bundle, foreground_analysis.variant or ""), None),
    )


def _analyze_side(name: str, side: Side) -> Analysis | None:
    return part(f"the analysis of {name}", lambda: analysis_of(side), None)


def _compare_side_outputs(baseline: Side, candidate: Side) -> Agreement | None:
    from opscope.reports.content.content import Agreement

    with contextlib.suppress(RunError):  # without a common round nothing tells whether they agree
        agreement = part("the agreement of outputs", lambda: agreement_of(baseline, candidate), None)
        return None if agreement is None else Agreement(baseline.label, candidate.label, agreement)
    return None


def report(
    path: str | Path,
    formats: Sequence[str] = REPORT_FORMATS,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    program: str | Path | None = None,
    compared: tuple[str | None, str | None] | None = None,
) -> list[Path]:
    """Write the reports of a bundle or of a run directory of the Arm kit, from its traces.

    Args:
        path: the bundle or the run directory.
        formats: any of ``html``, ``md`` and ``json``.
        out: directory to write to, or the one file, ``FILE.md`` or ``FILE.html``; None: the bundle itself, or
            ``opscope`` in the run directory of the kit.
        title: of the report; None: the model's name.
        program: the .pte that a run of the kit ran; see :func:`content`.
        compared: names of baseline and candidate; see :func:`content`. Of a bundle they need ``out``: its own reports
            are those of its plan.

    Returns:
        The files that were written.

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        UsageError: a format is unknown, or what a run of the kit needs is named for a bundle.
        NotFoundError: there is no bundle, or no experiment of a name.
        InternalError: a bug in opscope leaves nothing to report.
    """
    check_formats(formats)
    source = Path(path)
    single_file = Path(out) if out is not None and Path(out).suffix in ONE_FILE and not Path(out).is_dir() else None
    if single_file and ONE_FILE[single_file.suffix] not in formats:
        raise UsageError(
            f"{single_file.name} is not {' or '.join(formats)}", where="--format", hint="omit it for one file"
        )
    if compared and out is None and not is_kit(source):
        hint = "write it elsewhere with --out DIR"
        raise UsageError("the reports in a bundle are those of its plan", where="--baseline", hint=hint)
    directory = single_file.parent if single_file else Path(out) if out else report_directory(source)
    with tracebacks_kept(directory):
        shown = msgspec.structs.replace(content(source, program=program, compared=compared), title=title or None)
        if single_file:
            (text,) = report_files(shown, [ONE_FILE[single_file.suffix]]).values()
            files = write_outputs({single_file: text}, follow=True)
        else:
            files = write_reports(directory, shown, formats, follow=out is not None)
        check_reported(shown, source, directory)
        return files


def bundles_in(path: str | Path) -> list[Path]:
    """List the bundles that a path means: itself, or those in the output directory of `opscope run`, by name.

    A path that is neither, nor a run directory of the Arm kit, is returned as it is.
    """
    directory = Path(path)
    if is_bundle(directory) or is_kit(directory) or not directory.is_dir():
        return [directory]
    return sorted(child for child in directory.iterdir() if is_bundle(child)) or [directory]


def report_directory(directory: Path) -> Path:
    """Return where the reports of a bundle, or of a run directory of the kit, are written by default."""
    return directory / KIT_REPORTS if is_kit(directory) else directory


def check_reported(shown: ReportContent, source: Path, directory: Path) -> None:
    """Raise InternalError if bugs in opscope left nothing to report."""
    if shown.shown is None and (bugs := shown.bugs):
        raise nothing_known(bugs[0], source, directory)


def check_formats(formats: Sequence[str]) -> None:
    """Refuse a format that no report has."""
    for name in formats:
        if name not in REPORT_FORMATS:
            raise UsageError(f"unknown format {name!r}", where="--format", hint=did_you_mean(name, REPORT_FORMATS))


def write_reports(directory: Path, shown: ReportContent, formats: Sequence[str], *, follow: bool = False) -> list[Path]:
    """Write reports of these formats into a directory; see :func:`report`."""
    files = report_files(shown, formats)
    return write_outputs({directory / name: text for name, text in files.items()}, follow=follow)


def rewrite_reports(bundle: Bundle) -> None:
    """Write the existing reports of a bundle again, after something was added to it."""
    files = {"html": HTML, "md": MARKDOWN, "json": ANALYSIS}
    existing = [name for name, file in files.items() if (bundle.path / file).exists()]
    if existing:
        write_reports(bundle.path, content_of(bundle), existing)


def report_files(shown: ReportContent, formats: Sequence[str] = REPORT_FORMATS) -> dict[str, bytes]:
    """Return the content of every report of these formats, by its path below the directory of reports."""
    from opscope.reports.report import html_report, markdown_report

    files: dict[str, bytes] = {}
    if "json" in formats:
        files |= _json_files(shown)
    if "md" in formats:
        files[MARKDOWN] = page(MARKDOWN, lambda: markdown_report(shown))
    if "html" in formats:
        files[HTML] = page(HTML, lambda: html_report(shown))
    return files


def _json_files(shown: ReportContent) -> dict[str, bytes]:
    """Return the analysis of every variant and the comparisons as JSON, by their paths.

    The analysis of the foreground variant stands beside the report.
    """
    files = {ANALYSIS: to_json(shown.shown)} if shown.shown else {}
    front = foreground_variant(shown.manifest)
    for result in shown.variants:
        if result.analysis and result.variant.name != front:
            files[analysis_file(result.variant.name)] = to_json(result.analysis)
    names = comparison_files(
        [(comparison.baseline.label, comparison.candidate.label) for comparison in shown.comparisons]
    )
    return files | {name: to_json(comparison) for name, comparison in zip(names, shown.comparisons, strict=True)}


def foreground_variant(manifest: Manifest) -> str | None:
    """Return the variant whose analysis stands beside the reports; None if no variant has a result."""
    from opscope.measurements.sides import rank_variants
    from opscope.reports.content.content import FOREGROUND

    if fastest := rank_variants(manifest):
        return fastest[0]
    completed = [variant for variant in manifest.variants if manifest.completed(variant.name)]
    by_role = [variant.name for role in FOREGROUND for variant in completed if variant.role is role]
    return next(iter(by_role or [variant.name for variant in completed]), None)


def analysis_file(variant: str) -> str:
    """Return the path of the analysis of any other variant."""
    return f"{VARIANTS}/{file_name(variant)}/{ANALYSIS}"


def comparison_files(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the paths of the comparisons of pairs of baseline and candidate; the first pair is the primary one."""
    secondary = [
        f"{COMPARISONS}/{file_name(candidate)}-against-{file_name(baseline)}.json" for baseline, candidate in pairs[1:]
    ]
    return [COMPARISON, *secondary] if pairs else []


def file_name(name: str) -> str:
    """Return the name of a variant as part of a path; one that could lead elsewhere or is too long becomes a hash."""
    return name if _PLAIN_NAME.match(name) else f"variant-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
