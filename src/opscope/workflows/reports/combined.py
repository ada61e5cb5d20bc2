"""One report over several bundles or runs of the Arm kit: platforms, or versions of one model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Role
from opscope.core.errors import MismatchError, NotFoundError, UsageError
from opscope.core.files import labels
from opscope.core.grouping import grouped
from opscope.core.json import to_json
from opscope.core.outputs import write_outputs
from opscope.core.tracebacks import page, tracebacks_kept
from opscope.measurements.analyses import comparison_of
from opscope.measurements.comparability import comparability_notes, mismatches
from opscope.measurements.notebook import NotebookResult, shown_as
from opscope.measurements.sides import bundle_side
from opscope.reports.combined.values import CombinedReport, Version, VersionSeries
from opscope.reports.content.content import NOT_KNOWN
from opscope.workflows.analyze.sides import is_kit
from opscope.workflows.reports.reports import REPORT_FORMATS, check_formats, content

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from opscope.bundle.manifest import Manifest, Variant
    from opscope.reports.combined.combined import BundlePart
    from opscope.reports.content.content import ReportContent
    from opscope.reports.document.blocks import Document
    from opscope.runtimes.side import Side


_MEANING = {
    "models": "their latencies answer different questions",
    "number types": "differences are not due to the platforms alone",
    "programs": "operators are matched only between bundles of the same program",
    "machines or targets": "their latencies are shown side by side and not tested against each other",
    "baselines": "speedups over different baselines answer different questions",
    "timing methods": "traced latencies are slightly longer",
}


def bundle_differences(parts: Sequence[BundlePart]) -> list[str]:
    """Return what differs between the bundles, one sentence each."""
    contents = {part.label: part.content for part in parts}
    columns: dict[str, dict[str, str | None]] = {
        "models": {label: c.manifest.model.name for label, c in contents.items()},
        "number types": {label: c.manifest.model.dtype for label, c in contents.items()},
        "programs": {label: _short_hash(c.manifest.model.sha256) for label, c in contents.items()},
        "machines or targets": {label: _target_text(c.manifest) for label, c in contents.items()},
        "baselines": {label: _switched_off_text(c.manifest) for label, c in contents.items()},
        "timing methods": {label: _tracing_text(c) for label, c in contents.items()},
    }
    differences = [note for what, values in columns.items() for note in _describe_difference(what, values)]
    return [
        *differences,
        *_find_version_differences([c.manifest for c in contents.values()], list(contents)),
        *_find_shared_traces(parts),
    ]


def _describe_difference(what: str, values: dict[str, str | None]) -> list[str]:
    """Return which bundles have which value, as at most one sentence; empty if all have the same known value."""
    groups = grouped(values, lambda label: values[label] or NOT_KNOWN)
    if len(groups) == 1 and NOT_KNOWN not in groups:
        return []
    if len(groups) == 1:
        return [f"{what} are unknown: {_MEANING[what]}"]
    text = "; ".join(f"{value}: {', '.join(labels_of_value)}" for value, labels_of_value in groups.items())
    return [f"{what} differ ({text}): {_MEANING[what]}"]


def _short_hash(sha256: str | None) -> str | None:
    return f"sha256 {sha256[:12]}" if sha256 else None


def machine_text(manifest: Manifest) -> str | None:
    """Return name, CPU and system of a bundle's machine in words; None if they are unknown."""
    environment = manifest.environment
    if environment.system is None:
        return manifest.device
    parts = (manifest.device, environment.cpu or "unknown CPU", f"{environment.system} {environment.machine}")
    return ", ".join(filter(None, parts))


def _target_text(manifest: Manifest) -> str | None:
    machine = machine_text(manifest)
    return machine and f"{machine}, {manifest.target.kind}"


def _switched_off_text(manifest: Manifest) -> str | None:
    switched_off = [variant.ablated for variant in manifest.with_role(Role.BASELINE)[:1] if variant.ablated]
    return f"{', '.join(switched_off[0])} off" if switched_off else None


def _tracing_text(content: ReportContent) -> str:
    analyses = [result.analysis for result in content.variants if result.analysis]
    if not analyses:
        return "nothing timed"
    return "without tracing" if all(analysis.traced for analysis in analyses) else "with tracing"


def _find_version_differences(manifests: Sequence[Manifest], names: Sequence[str]) -> list[str]:
    """Return a sentence for each package of which two bundles have different versions."""
    versions = []
    for package in dict.fromkeys(package for m in manifests for package in m.environment.versions):
        groups: dict[str, list[str]] = {}
        for label, manifest in zip(names, manifests, strict=True):
            version = manifest.environment.versions.get(package)
            if version is not None:
                groups.setdefault(version, []).append(label)
        if len(groups) > 1:
            text = "; ".join(
                f"{version}: {', '.join(labels_of_version)}" for version, labels_of_version in groups.items()
            )
            versions.append(f"versions of {package} differ ({text}): the comparison includes software changes")
    return versions


def _find_shared_traces(parts: Sequence[BundlePart]) -> list[str]:
    """Return a sentence for each group of bundles that hold the same traces: a copy is not a second measurement."""
    traces_by_label = {
        part.label: {r.trace_sha256 for r in part.content.manifest.repetitions if r.ok and r.trace_sha256}
        for part in parts
    }
    groups: list[tuple[list[str], set[str]]] = []
    for label, traces in traces_by_label.items():
        overlapping = [group for group in groups if group[1] & traces]
        merged = (
            [*(name for names, _ in overlapping for name in names), label],
            traces.union(*(other_traces for _, other_traces in overlapping)),
        )
        groups = [*(group for group in groups if group not in overlapping), merged]
    return [
        f"{', '.join(names[:-1])} and {names[-1]} contain the same traces: a copy is not a second measurement"
        for names, _ in groups
        if len(names) > 1
    ]


class CombinedResult(NotebookResult, CombinedReport, frozen=True):
    """Several bundles side by side, as :func:`opscope.combined` returns them."""

    def to_polars(self) -> pl.DataFrame:
        """Return a row for every bundle at each of its thread counts."""
        from opscope.reports.formats.frames import combined_frame

        return combined_frame(self)

    def _build_document(self) -> Document:
        from opscope.reports.combined.combined import combined_document

        return combined_document(self)


def version_series(parts: Sequence[BundlePart]) -> list[VersionSeries]:
    """Return series of bundles of one model on one machine at one thread count, by time, each against the first."""
    members = [(part, variant) for part in parts for variant in _select_series_variants(part)]
    groups = grouped(members, lambda member: _series_key(member[0].content.manifest, member[1]))
    series = []
    for group in groups.values():
        manifest = group[0][0].content.manifest
        if len(group) > 1:
            group.sort(key=lambda member: member[0].content.manifest.created)
            threads = group[0][1].threads
            series.append(
                VersionSeries(
                    machine_text(manifest) or NOT_KNOWN,
                    _model_text(manifest),
                    _compare_versions(group),
                    threads=threads,
                )
            )
    return series


def _select_series_variants(part: BundlePart) -> list[Variant]:
    """Return the variants that can stand in a series: accelerated, with a result, on a known machine."""
    if part.content.manifest.environment.system is None or is_kit(Path(part.path)):
        return []
    measured = [result.variant for result in part.content.variants if result.analysis is not None]
    return [variant for variant in measured if variant.role is Role.ACCELERATED]


def _model_text(manifest: Manifest) -> str:
    return " ".join(filter(None, (manifest.model.name, manifest.model.dtype)))


def _series_key(manifest: Manifest, variant: Variant) -> tuple[object, ...]:
    environment, target = manifest.environment, manifest.target
    machine = environment.system, environment.machine, environment.cpu, environment.logical_cpus
    features = frozenset(environment.features or ())
    model = manifest.model.name, manifest.model.dtype
    return (
        manifest.device,
        *machine,
        features,
        target.kind,
        target.address,
        *model,
        variant.threads,
        tuple(variant.affinity),
    )


def _compare_versions(group: Sequence[tuple[BundlePart, Variant]]) -> list[Version]:
    sides = [bundle_side(Bundle.open(Path(part.path)), variant.name, None) for part, variant in group]
    first = sides[0]
    return [
        version
        for (part, _), side in zip(group, sides, strict=True)
        for version in _compare_with_first(part, first, side)
    ]


def _compare_with_first(part: BundlePart, first: Side, side: Side) -> list[Version]:
    """Compare a bundle with the first one; return a version for each method."""
    analysis = next(r.analysis for r in part.content.variants if r.variant.name == side.label)
    created = part.content.manifest.created
    times = {method: analysis.headline_of(method) for method in analysis.by_method} if analysis else {"": None}
    copied = {sha256 for _, sha256 in first.files} & {sha256 for _, sha256 in side.files}
    if side is first or copied:
        notes = [] if side is first else ["the same traces as the first: a copy"]
        return [
            Version(part.label, side.label, created, time, notes=notes, method=method or None)
            for method, time in times.items()
        ]
    comparison = comparison_of(first, side)
    end = comparison.end_to_end
    notes = [*comparison.notes, *mismatches(first, side), *comparability_notes(first, side)]
    if end.arm == "traced":
        notes.insert(0, "compared by traced runs, because not both have untraced timings")
    return [
        Version(
            label=part.label,
            variant=side.label,
            created=created,
            latency_ns=time,
            speedup=end.speedup if end else None,
            ci95=end.ci95 if end else None,
            verdict=end.verdict if end else None,
            minimum_detectable=end.minimum_detectable if end else None,
            notes=[_reword_for_series(note) for note in dict.fromkeys(notes)],
            method=method or None,
        )
        for method, time in times.items()
        for end in (comparison.verdicts.get(method),)
    ]


def _reword_for_series(note: str) -> str:
    """Return a note on two sides in the words of a series."""
    return note.replace("the baseline", "the first").replace("the candidate", "this one")


COMBINED = "combined"
"""Names of the files without their endings; they never stand in the way of a bundle's own reports."""


def combined(paths: Sequence[str | Path], *, compared: tuple[str | None, str | None] | None = None) -> CombinedResult:
    """Compute several bundles, or runs of the Arm kit, side by side from their traces.

    Args:
        paths: two or more directories.
        compared: names of baseline and candidate in each of them; None: as each was planned.

    Raises:
        UsageError: there are fewer than two, or one is given twice.
        NotFoundError: a directory is not a bundle.
        MismatchError: one ran on an emulated CPU.
        TraceFormatError: a manifest or a trace is damaged.
    """
    from opscope.analysis.quality.quality_machine import EMULATED, ON_THE_DEVICE
    from opscope.reports.combined.combined import BundlePart, combine

    directories = _check_directories([Path(path) for path in paths])
    parts = [
        BundlePart(label, str(path), content(path, compared=compared))
        for label, path in zip(labels(directories), directories, strict=True)
    ]
    for part in parts:
        if part.content.manifest.target.emulated:
            raise MismatchError(EMULATED, where=part.path, hint=ON_THE_DEVICE)
    return shown_as(CombinedResult, combine(parts, version_series(parts), bundle_differences(parts)))


def combined_report(
    paths: Sequence[str | Path],
    out: str | Path,
    formats: Sequence[str] = REPORT_FORMATS,
    *,
    title: str | None = None,
    compared: tuple[str | None, str | None] | None = None,
) -> list[Path]:
    """Write the combined report of several bundles; see :func:`combined`.

    Args:
        paths: two or more directories.
        out: directory to write to.
        formats: any of ``html``, ``md`` and ``json``.
        title: of the report; None: the models' names.
        compared: names of baseline and candidate in each of them; None: as each was planned.

    Returns:
        The files that were written.

    Raises:
        UsageError: a format is unknown, there are fewer than two bundles, or one is given twice.
    """
    check_formats(formats)
    with tracebacks_kept(Path(out)):
        report = combined(paths, compared=compared)
        return _write_combined(msgspec.structs.replace(report, title=title or None), Path(out), formats)


def _write_combined(report: CombinedResult, out: Path, formats: Sequence[str]) -> list[Path]:
    from opscope.reports.combined.combined import combined_html, combined_markdown

    files: dict[str, bytes] = {}
    if "json" in formats:
        files[f"{COMBINED}.json"] = to_json(report)
    if "md" in formats:
        files[f"{COMBINED}.md"] = page(f"{COMBINED}.md", lambda: combined_markdown(report))
    if "html" in formats:
        files[f"{COMBINED}.html"] = page(f"{COMBINED}.html", lambda: combined_html(report))
    return write_outputs({out / name: text for name, text in files.items()})


def _check_directories(directories: list[Path]) -> list[Path]:
    if len(directories) < 2:  # noqa: PLR2004 - one is not a combination
        raise UsageError("a combined report needs at least two bundles", hint="give several directories")
    seen: set[Path] = set()
    for directory in directories:
        if not directory.is_dir():
            problem = "not a directory" if directory.exists() else "no such directory"
            raise NotFoundError(problem, where=directory, hint="give bundles, or run directories of the Arm kit")
        if directory.resolve() in seen:
            raise UsageError("given twice", where=directory, hint="give every bundle once")
        seen.add(directory.resolve())
    return directories
