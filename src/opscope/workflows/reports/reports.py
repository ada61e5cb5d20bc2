"""Reports of a bundle or of a run of the Arm kit, always computed from the traces."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.bundle import VARIANTS, Bundle
from opscope.core.errors import UsageError, did_you_mean
from opscope.core.json import to_json
from opscope.core.outputs import write_outputs
from opscope.measurements.analyses import agreement_of, analysis_of, comparison_of
from opscope.measurements.sides import bundle_side, compared_pairs, control_pairs
from opscope.workflows.analyze.sides import is_kit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.measurements.side import Side
    from opscope.reports.content.content import Agreement, ReportContent

KIT_REPORTS = "opscope"
"""Where the reports of a run directory of the kit go: beside its files, never over them."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}\Z")
REPORT_FORMATS = ("html", "md", "json")


def content(path: str | Path) -> ReportContent:
    """Everything that a report of a bundle, or of a run directory of the Arm kit, shows, computed from its traces.

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        NotFoundError: there is no bundle.
        TraceFormatError: the manifest or a trace is damaged.
    """
    if is_kit(Path(path)):
        from opscope.kit.sides import kit_content

        return kit_content(Path(path))
    return content_of(Bundle.open(Path(path)))


def content_of(bundle: Bundle) -> ReportContent:
    """What the reports of an open bundle show."""
    from opscope.measurements.bundle_kernels import AnalysedVariants, bundle_kernels
    from opscope.measurements.findings import findings_of
    from opscope.measurements.quality import quality_of
    from opscope.reports.content.content import ReportContent, VariantResult, foreground

    manifest = bundle.manifest
    sides = {v.name: bundle_side(bundle, v.name, None) for v in manifest.variants if manifest.completed(v.name)}
    analyses = {name: analysis_of(side) for name, side in sides.items()}
    pairs = [(sides[b], sides[c]) for b, c in compared_pairs(manifest) if b in sides and c in sides]
    emulated = manifest.target.emulated
    comparisons = [] if emulated else [comparison_of(*pair) for pair in pairs]
    controls = [(sides[b], sides[c]) for b, c in control_pairs(manifest) if b in sides and c in sides]
    agreements = [found for pair in [*pairs, *controls] if emulated and (found := _agreement(*pair))]
    switched = {} if manifest.programs else {one.candidate.label: one for one in comparisons}
    shown = foreground([VariantResult(v, analyses.get(v.name)) for v in manifest.variants])
    # What stands out is told by times, and those of an emulated CPU say nothing.
    findings, ruled_out = ([], []) if emulated else findings_of(manifest, sides, analyses, comparisons, shown)
    return ReportContent(
        manifest=manifest,
        variants=[VariantResult(variant, analyses.get(variant.name)) for variant in manifest.variants],
        comparisons=comparisons,
        findings=findings,
        ruled_out=ruled_out,
        quality=quality_of(manifest, analyses, comparisons, [found.outputs for found in agreements]),
        agreements=agreements,
        kernels=bundle_kernels(bundle, AnalysedVariants(sides, analyses, switched)),
        controls=[] if emulated else [comparison_of(*pair) for pair in controls],
    )


def _agreement(baseline: Side, candidate: Side) -> Agreement | None:
    from opscope.reports.content.content import Agreement

    found = agreement_of(baseline, candidate)
    return None if found is None else Agreement(baseline.label, candidate.label, found)


def report(
    path: str | Path,
    formats: Sequence[str] = REPORT_FORMATS,
    *,
    out: str | Path | None = None,
    title: str | None = None,
) -> list[Path]:
    """Write the reports of a bundle or of a run directory of the Arm kit, from its traces.

    Args:
        path: the bundle or the run directory.
        formats: any of ``html``, ``md`` and ``json``.
        out: directory to write to; None: the bundle itself, or ``opscope`` in the run directory of the kit.
        title: of the report; None: the model's name.

    Returns:
        The files that were written.

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        UsageError: a format is unknown.
        NotFoundError: there is no bundle.
    """
    check_formats(formats)
    place = Path(path)
    usual = place / KIT_REPORTS if is_kit(place) else place
    shown = msgspec.structs.replace(content(place), title=title or None)
    return write_reports(Path(out) if out else usual, shown, formats, follow=out is not None)


def check_formats(formats: Sequence[str]) -> None:
    """Refuse a format that no report has.

    Raises:
        UsageError: with the near ones.
    """
    for name in formats:
        if name not in REPORT_FORMATS:
            raise UsageError(f"no report format {name!r}", where="--format", hint=did_you_mean(name, REPORT_FORMATS))


def write_reports(directory: Path, shown: ReportContent, formats: Sequence[str], *, follow: bool = False) -> list[Path]:
    """Write reports of these formats into a directory; see :func:`report`.

    Args:
        directory: the bundle, or another.
        shown: the content.
        formats: as for :func:`report`.
        follow: write to where links in the directory lead, as in one that the user named; a bundle may be somebody's.
    """
    from opscope.reports.html.page import html, markdown_report

    files: dict[str, bytes] = {}
    if "json" in formats:
        files |= _json_files(shown)
    if "md" in formats:
        files["report.md"] = markdown_report(shown).encode()
    if "html" in formats:
        files["report.html"] = html(shown).encode()
    return write_outputs({directory / name: text for name, text in files.items()}, follow=follow)


def _json_files(shown: ReportContent) -> dict[str, bytes]:
    """analysis.json of the accelerated variant, and of every variant, and the comparisons; the primary one first."""
    files = {}
    if shown.shown:
        files["analysis.json"] = to_json(shown.shown)
    for result in shown.variants:
        if result.analysis:
            files[f"{VARIANTS}/{file_name(result.variant.name)}/analysis.json"] = to_json(result.analysis)
    for number, comparison in enumerate(shown.comparisons):
        sides = [file_name(side.label) for side in (comparison.candidate, comparison.baseline)]
        name = f"comparisons/{sides[0]}-against-{sides[1]}.json"
        files["comparison.json" if number == 0 else name] = to_json(comparison)
    return files


def file_name(name: str) -> str:
    """The name of a variant as part of a path; one that could lead elsewhere or is too long is replaced by its hash."""
    return name if _PLAIN_NAME.match(name) else f"variant-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
