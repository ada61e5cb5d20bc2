"""What differs between the bundles of a combined report, and limits what their figures say together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.bundle.manifest import Role
from opscope.core.grouping import grouped
from opscope.reports.content.content import NOT_KNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.bundle.manifest import Manifest
    from opscope.reports.combined.combined import BundlePart
    from opscope.reports.content.content import ReportContent

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
    told = {part.label: part.content for part in parts}
    columns: dict[str, dict[str, str | None]] = {
        "models": {label: c.manifest.model.name for label, c in told.items()},
        "number types": {label: c.manifest.model.dtype for label, c in told.items()},
        "programs": {label: _short(c.manifest.model.sha256) for label, c in told.items()},
        "machines or targets": {label: _place(c.manifest) for label, c in told.items()},
        "baselines": {label: _off(c.manifest) for label, c in told.items()},
        "timing methods": {label: _arms(c) for label, c in told.items()},
    }
    found = [note for what, values in columns.items() for note in _difference(what, values)]
    return [*found, *_versions([c.manifest for c in told.values()], list(told)), *_same_traces(parts)]


def _difference(what: str, values: dict[str, str | None]) -> list[str]:
    """Which bundles have which value, when they differ or one is not known; empty otherwise."""
    groups = grouped(values, lambda label: values[label] or NOT_KNOWN)
    if len(groups) == 1 and NOT_KNOWN not in groups:
        return []
    if len(groups) == 1:
        return [f"{what} are unknown: {_MEANING[what]}"]
    told = "; ".join(f"{value}: {', '.join(own)}" for value, own in groups.items())
    return [f"{what} differ ({told}): {_MEANING[what]}"]


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
    found = []
    for package in dict.fromkeys(package for m in manifests for package in m.environment.versions):
        groups: dict[str, list[str]] = {}
        for label, manifest in zip(names, manifests, strict=True):
            version = manifest.environment.versions.get(package)
            if version is not None:
                groups.setdefault(version, []).append(label)
        if len(groups) > 1:
            told = "; ".join(f"{version}: {', '.join(own)}" for version, own in groups.items())
            found.append(f"versions of {package} differ ({told}): the comparison includes software changes")
    return found


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
