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
    """What differs between the bundles, one sentence each."""
    contents = {part.label: part.content for part in parts}
    columns: dict[str, dict[str, str | None]] = {
        "models": {label: c.manifest.model.name for label, c in contents.items()},
        "number types": {label: c.manifest.model.dtype for label, c in contents.items()},
        "programs": {label: _short(c.manifest.model.sha256) for label, c in contents.items()},
        "machines or targets": {label: _place(c.manifest) for label, c in contents.items()},
        "baselines": {label: _off(c.manifest) for label, c in contents.items()},
        "timing methods": {label: _arms(c) for label, c in contents.items()},
    }
    found = [note for what, values in columns.items() for note in _difference(what, values)]
    return [*found, *_versions([c.manifest for c in contents.values()], list(contents)), *_same_traces(parts)]


def _difference(what: str, values: dict[str, str | None]) -> list[str]:
    """Which bundles have which value, when they differ or one is not known; empty otherwise."""
    groups = grouped(values, lambda label: values[label] or NOT_KNOWN)
    if len(groups) == 1 and NOT_KNOWN not in groups:
        return []
    if len(groups) == 1:
        return [f"{what} are unknown: {_MEANING[what]}"]
    text = "; ".join(f"{value}: {', '.join(own)}" for value, own in groups.items())
    return [f"{what} differ ({text}): {_MEANING[what]}"]


def _short(sha256: str | None) -> str | None:
    return f"sha256 {sha256[:12]}" if sha256 else None


def machine_text(manifest: Manifest) -> str | None:
    """Name, CPU and system of a bundle's machine in words; None where they are not known."""
    environment = manifest.environment
    if environment.system is None:
        return manifest.device
    told = (manifest.device, environment.cpu or "unknown CPU", f"{environment.system} {environment.machine}")
    return ", ".join(filter(None, told))


def _place(manifest: Manifest) -> str | None:
    machine = machine_text(manifest)
    return machine and f"{machine}, {manifest.target.kind}"


def _off(manifest: Manifest) -> str | None:
    known = [variant.ablated for variant in manifest.with_role(Role.BASELINE)[:1] if variant.ablated]
    return f"{', '.join(known[0])} off" if known else None


def _arms(content: ReportContent) -> str:
    known = [result.analysis for result in content.variants if result.analysis]
    if not known:
        return "nothing timed"
    return "without tracing" if all(analysis.traced for analysis in known) else "with tracing"


def _versions(manifests: Sequence[Manifest], names: Sequence[str]) -> list[str]:
    """Software of which two bundles tell different versions."""
    versions = []
    for package in dict.fromkeys(package for m in manifests for package in m.environment.versions):
        groups: dict[str, list[str]] = {}
        for label, manifest in zip(names, manifests, strict=True):
            version = manifest.environment.versions.get(package)
            if version is not None:
                groups.setdefault(version, []).append(label)
        if len(groups) > 1:
            text = "; ".join(f"{version}: {', '.join(own)}" for version, own in groups.items())
            versions.append(f"versions of {package} differ ({text}): the comparison includes software changes")
    return versions


def _same_traces(parts: Sequence[BundlePart]) -> list[str]:
    """Bundles that hold the same traces, each group of them once: a copy is not a second measurement."""
    known = {
        part.label: {r.trace_sha256 for r in part.content.manifest.repetitions if r.ok and r.trace_sha256}
        for part in parts
    }
    groups: list[tuple[list[str], set[str]]] = []
    for label, traces in known.items():
        alike = [group for group in groups if group[1] & traces]
        merged = [*(name for names, _ in alike for name in names), label], traces.union(*(own for _, own in alike))
        groups = [*(group for group in groups if group not in alike), merged]
    return [
        f"{', '.join(names[:-1])} and {names[-1]} contain the same traces: a copy is not a second measurement"
        for names, _ in groups
        if len(names) > 1
    ]


class CombinedResult(NotebookResult, CombinedReport, frozen=True):
    """Several bundles side by side, as :func:`opscope.combined` gives them."""

    def to_polars(self) -> pl.DataFrame:
        """Every bundle at each of its thread counts in a row."""
        from opscope.reports.formats.frames import combined_frame

        return combined_frame(self)

    def _build_document(self) -> Document:
        from opscope.reports.combined.combined import combined_document

        return combined_document(self)


def version_series(parts: Sequence[BundlePart]) -> list[VersionSeries]:
    """Bundles of one model on one machine at one thread count, in order of time, each against the first."""
    members = [(part, variant) for part in parts for variant in _accelerated(part)]
    groups = grouped(members, lambda member: _sameness(member[0].content.manifest, member[1]))
    series = []
    for group in groups.values():
        manifest = group[0][0].content.manifest
        if len(group) > 1:
            group.sort(key=lambda member: member[0].content.manifest.created)
            threads = group[0][1].threads
            series.append(
                VersionSeries(
                    machine_text(manifest) or NOT_KNOWN, _model(manifest), _versions_of(group), threads=threads
                )
            )
    return series


def _accelerated(part: BundlePart) -> list[Variant]:
    """Variants that can stand in a series: of a known machine, with a result."""
    if part.content.manifest.environment.system is None or is_kit(Path(part.path)):
        return []
    done = [result.variant for result in part.content.variants if result.analysis is not None]
    return [variant for variant in done if variant.role is Role.ACCELERATED]


def _model(manifest: Manifest) -> str:
    return " ".join(filter(None, (manifest.model.name, manifest.model.dtype)))


def _sameness(manifest: Manifest, variant: Variant) -> tuple[object, ...]:
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


def _versions_of(group: Sequence[tuple[BundlePart, Variant]]) -> list[Version]:
    sides = [bundle_side(Bundle.open(Path(part.path)), variant.name, None) for part, variant in group]
    first = sides[0]
    return [one for (part, _), side in zip(group, sides, strict=True) for one in _compared(part, first, side)]


def _compared(part: BundlePart, first: Side, side: Side) -> list[Version]:
    """A bundle against the first, several methods one by one."""
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
    compared = comparison_of(first, side)
    end = compared.end_to_end
    notes = [*compared.notes, *mismatches(first, side), *comparability_notes(first, side)]
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
            notes=[_of_series(note) for note in dict.fromkeys(notes)],
            method=method or None,
        )
        for method, time in times.items()
        for end in (compared.verdicts.get(method),)
    ]


def _of_series(note: str) -> str:
    """A note on two sides in the words of a series."""
    return note.replace("the baseline", "the first").replace("the candidate", "this one")


COMBINED = "combined"
"""Names of the files without their endings; they never stand in the way of a bundle's own reports."""


def combined(paths: Sequence[str | Path], *, compared: tuple[str | None, str | None] | None = None) -> CombinedResult:
    """Several bundles, or runs of the Arm kit, side by side, computed from their traces.

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

    places = _checked([Path(path) for path in paths])
    parts = [
        BundlePart(label, str(path), content(path, compared=compared))
        for label, path in zip(labels(places), places, strict=True)
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
        return _written(msgspec.structs.replace(report, title=title or None), Path(out), formats)


def _written(report: CombinedResult, out: Path, formats: Sequence[str]) -> list[Path]:
    from opscope.reports.combined.combined import combined_html, combined_markdown

    files: dict[str, bytes] = {}
    if "json" in formats:
        files[f"{COMBINED}.json"] = to_json(report)
    if "md" in formats:
        files[f"{COMBINED}.md"] = page(f"{COMBINED}.md", lambda: combined_markdown(report))
    if "html" in formats:
        files[f"{COMBINED}.html"] = page(f"{COMBINED}.html", lambda: combined_html(report))
    return write_outputs({out / name: text for name, text in files.items()})


def _checked(places: list[Path]) -> list[Path]:
    if len(places) < 2:  # noqa: PLR2004 - one is not a combination
        raise UsageError("a combined report needs at least two bundles", hint="give several directories")
    seen: set[Path] = set()
    for place in places:
        if not place.is_dir():
            problem = "not a directory" if place.exists() else "no such directory"
            raise NotFoundError(problem, where=place, hint="give bundles, or run directories of the Arm kit")
        if place.resolve() in seen:
            raise UsageError("given twice", where=place, hint="give every bundle once")
        seen.add(place.resolve())
    return places
