"""Reports of a bundle, always computed from its traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.api.analyses import analysis_of, comparison_of
from opscope.api.sides import bundle_side
from opscope.bundle.bundle import VARIANTS, Bundle
from opscope.bundle.files import write_atomically
from opscope.bundle.manifest import Manifest, Role
from opscope.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.report.content import ReportContent

REPORT_FORMATS = ("html", "md", "json")


def content(path: str | Path) -> ReportContent:
    """Everything that a report of a bundle shows, computed from its traces.

    Raises:
        NotFoundError: there is no bundle.
        TraceFormatError: the manifest or a trace is damaged.
    """
    return content_of(Bundle.open(Path(path)))


def content_of(bundle: Bundle) -> ReportContent:
    """What the reports of an open bundle show."""
    from opscope.analyze.rules import examine_comparison
    from opscope.report.content import ReportContent, VariantResult, merge_findings

    manifest = bundle.manifest
    sides = {v.name: bundle_side(bundle, v.name, None) for v in manifest.variants if manifest.completed(v.name)}
    analyses = {name: analysis_of(side) for name, side in sides.items()}
    comparisons = [comparison_of(sides[b], sides[c]) for b, c in _pairs(manifest) if b in sides and c in sides]
    shown = next((analyses[v.name] for v in manifest.with_role(Role.ACCELERATED) if v.name in analyses), None)
    groups = [(shown.findings, shown.ruled_out)] if shown else []
    groups += [examine_comparison(comparison) for comparison in comparisons[:1]]
    return ReportContent(
        manifest=manifest,
        variants=[VariantResult(variant, analyses.get(variant.name)) for variant in manifest.variants],
        comparisons=comparisons,
        findings=merge_findings([findings for findings, _ in groups]),
        ruled_out=[item for _, ruled_out in groups for item in ruled_out],
    )


def _pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Baseline and candidate of every comparison: at each thread count, everything against the baseline."""
    pairs = []
    for baseline in manifest.with_role(Role.BASELINE):
        others = [v for v in manifest.variants if v.threads == baseline.threads and v.role is not Role.BASELINE]
        pairs += [(baseline.name, v.name) for v in sorted(others, key=lambda v: v.role is not Role.ACCELERATED)]
    return pairs


def report(path: str | Path, formats: Sequence[str] = ("html", "md", "json")) -> list[Path]:
    """Write the reports of a bundle into it, from its traces.

    Args:
        path: the bundle.
        formats: any of ``html``, ``md`` and ``json``.

    Returns:
        The files that were written.

    Raises:
        UsageError: a format is unknown.
        NotFoundError: there is no bundle.
    """
    _check_formats(formats)
    bundle = Bundle.open(Path(path))
    return write_reports(bundle, content_of(bundle), formats)


def _check_formats(formats: Sequence[str]) -> None:
    for name in formats:
        if name not in REPORT_FORMATS:
            raise UsageError(f"no report format {name!r}", where="--format", hint=did_you_mean(name, REPORT_FORMATS))


def write_reports(bundle: Bundle, shown: ReportContent, formats: Sequence[str]) -> list[Path]:
    """Write reports of these formats into a bundle; see :func:`report`."""
    from opscope.report.page import html, markdown_report

    files: dict[str, bytes] = {}
    if "json" in formats:
        files |= _json_files(shown)
    if "md" in formats:
        files["report.md"] = markdown_report(shown).encode()
    if "html" in formats:
        files["report.html"] = html(shown).encode()
    for name, text in files.items():
        write_atomically(bundle.path / name, text)
    return [bundle.path / name for name in files]


def _json_files(shown: ReportContent) -> dict[str, bytes]:
    """analysis.json of the accelerated variant, and of every variant, and the comparisons; the primary one first."""
    files = {}
    if shown.shown:
        files["analysis.json"] = to_json(shown.shown)
    for result in shown.variants:
        if result.analysis:
            files[f"{VARIANTS}/{result.variant.name}/analysis.json"] = to_json(result.analysis)
    for number, comparison in enumerate(shown.comparisons):
        name = f"comparisons/{comparison.candidate.label}-against-{comparison.baseline.label}.json"
        files["comparison.json" if number == 0 else name] = to_json(comparison)
    return files


def to_json(value: msgspec.Struct) -> bytes:
    """A result as indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
