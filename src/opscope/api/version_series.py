"""Bundles of one model on one machine over time, each compared with the first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.api.analyses import comparison_of
from opscope.api.bundle_differences import machine_text
from opscope.api.comparable import mismatches, surroundings
from opscope.api.sides import bundle_side, is_kit
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Role
from opscope.report.combined_values import Series, Version
from opscope.report.content import NOT_KNOWN, measured_latency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.api.sides import Side
    from opscope.bundle.manifest import Manifest, Variant
    from opscope.report.combined import Part


def version_series(parts: Sequence[Part]) -> list[Series]:
    """Bundles of one model on one machine at one thread count, in order of time, each against the first."""
    groups: dict[tuple[object, ...], list[tuple[Part, Variant]]] = {}
    for part in parts:
        for variant in _accelerated(part):
            groups.setdefault(_sameness(part.content.manifest, variant), []).append((part, variant))
    found = []
    for group in groups.values():
        manifest = group[0][0].content.manifest
        if len(group) > 1:
            group.sort(key=lambda member: member[0].content.manifest.created)
            threads = group[0][1].threads
            found.append(Series(machine_text(manifest) or NOT_KNOWN, _model(manifest), threads, _versions_of(group)))
    return found


def _accelerated(part: Part) -> list[Variant]:
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
    return (*machine, features, target.kind, target.address, *model, variant.threads, tuple(variant.affinity))


def _versions_of(group: Sequence[tuple[Part, Variant]]) -> list[Version]:
    sides = [bundle_side(Bundle.open(Path(part.path)), variant.name, None) for part, variant in group]
    first = sides[0]
    return [_version(part, first, side) for (part, _), side in zip(group, sides, strict=True)]


def _version(part: Part, first: Side, side: Side) -> Version:
    analysis = next(r.analysis for r in part.content.variants if r.variant.name == side.label)
    created = part.content.manifest.created
    latency = measured_latency(analysis).median_ns if analysis else None
    if side is first:
        return Version(part.label, side.label, created, latency)
    if {sha256 for _, sha256 in first.files} & {sha256 for _, sha256 in side.files}:
        return Version(part.label, side.label, created, latency, notes=["the same traces as the first: a copy"])
    compared = comparison_of(first, side)
    end = compared.end_to_end
    notes = [*compared.notes, *mismatches(first, side), *surroundings(first, side)]
    if end.arm == "traced":
        notes.insert(0, "compared by traced runs, since not both were timed without tracing")
    return Version(
        label=part.label,
        variant=side.label,
        created=created,
        latency_ns=latency,
        speedup=end.speedup,
        ci95=end.ci95,
        verdict=end.verdict,
        minimum_detectable=end.minimum_detectable,
        notes=[_of_series(note) for note in dict.fromkeys(notes)],
    )


def _of_series(note: str) -> str:
    """A note on two sides in the words of a series."""
    return note.replace("the baseline", "the first").replace("the candidate", "this one")
