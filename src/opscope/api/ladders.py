"""Evidence ladders of the variants of a bundle: what was counted, sampled and timed, brought together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analyze.analysis import rule_evidence
from opscope.analyze.kernel_sources import EvidenceKind
from opscope.analyze.ladder import variant_ladder
from opscope.analyze.rungs import Known
from opscope.api.analyses import analysis_of, comparison_of
from opscope.api.counted_calls import joined_calls
from opscope.api.reports import compared_pairs
from opscope.api.sides import bundle_side
from opscope.bundle.kernel_evidence import evidence_runs
from opscope.errors import OpscopeError
from opscope.run.kernel_evidence import exported_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opscope.analyze.compare import Comparison
    from opscope.analyze.kernel_sources import KernelSource
    from opscope.analyze.ladder import VariantLadder
    from opscope.api.sides import Side
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.kernel_evidence import EvidenceRun
    from opscope.bundle.manifest import Manifest, Variant


def bundle_ladders(
    bundle: Bundle, label: str | None, sources: Sequence[KernelSource], library: Path | None
) -> tuple[list[VariantLadder], list[str]]:
    """The ladders of a bundle's variants, and what could not be had, one sentence each.

    Args:
        bundle: to look into.
        label: the variant; None: all of them.
        sources: what is known of kernels, by the names of variants.
        library: that ran; None: as the evidence arm recorded.

    Raises:
        TraceFormatError: a trace or a file of counts is damaged.
        BundleError: a record of the evidence arm is damaged.
    """
    manifest = bundle.manifest
    gathered, notes = _gathered(bundle, sources, library)
    ladders = [
        variant_ladder(gathered.known(variant))
        for variant in manifest.variants
        if label in {None, variant.name} and variant.name in gathered.sides
    ]
    notes += [f"{v.name}: no traced repetition succeeded" for v in manifest.variants if v.name not in gathered.sides]
    return ladders, notes


class _Gathered(NamedTuple):
    """What is there of a bundle.

    Attributes:
        bundle: the bundle.
        sides: of every variant that has a result, by name.
        comparisons: with the baseline of the same number of threads, by the candidate's name.
        runs: of the evidence arm, by variant.
        sources: what is known of kernels.
        exported: kernels of the library that was named; None when none was.
    """

    bundle: Bundle
    sides: Mapping[str, Side]
    comparisons: Mapping[str, Comparison]
    runs: Mapping[str, EvidenceRun]
    sources: Sequence[KernelSource]
    exported: frozenset[str] | None

    def known(self, variant: Variant) -> Known:
        """Everything about one variant."""
        manifest, side = self.bundle.manifest, self.sides[variant.name]
        run = self.runs.get(variant.name)
        analysis = analysis_of(side)
        joined = joined_calls(self.bundle, variant.name, analysis)
        own = {source.kind: source for source in self.sources if source.variant == variant.name}
        return Known(
            variant=variant.name,
            threads=variant.threads,
            operators=analysis.operators,
            sme=rule_evidence(side.table, analysis, side.known).sme,
            machine=manifest.environment.machine,
            features=_features(manifest, variant),
            emulated=manifest.target.emulated,
            switched=_switched(manifest, variant),
            exported=frozenset(run.library.kernels) if self.exported is None and run else self.exported,
            calls=joined.operators if joined else None,
            problem=joined.problem if joined else None,
            counted=own.get(EvidenceKind.COUNTED),
            sampled=own.get(EvidenceKind.SAMPLED),
            registered=own.get(EvidenceKind.REGISTERED),
            comparison=self.comparisons.get(variant.name),
        )


def _gathered(bundle: Bundle, sources: Sequence[KernelSource], library: Path | None) -> tuple[_Gathered, list[str]]:
    manifest = bundle.manifest
    sides = {v.name: bundle_side(bundle, v.name, None) for v in manifest.variants if manifest.completed(v.name)}
    notes: list[str] = []
    comparisons = {} if manifest.target.emulated else _comparisons(manifest, sides, notes)
    exported = frozenset(exported_kernels(library)) if library else None
    return _Gathered(bundle, sides, comparisons, evidence_runs(bundle), sources, exported), notes


def _comparisons(manifest: Manifest, sides: Mapping[str, Side], notes: list[str]) -> dict[str, Comparison]:
    """Every variant against the baseline of the same number of threads."""
    found = {}
    for baseline, candidate in compared_pairs(manifest):
        if baseline in sides and candidate in sides:
            try:
                found[candidate] = comparison_of(sides[baseline], sides[candidate])
            except OpscopeError as error:
                notes.append(f"{candidate} is not compared with {baseline}: {error}")
    return found


def _features(manifest: Manifest, variant: Variant) -> frozenset[str] | None:
    """Feature groups that a variant had; None where that is not known."""
    features = manifest.environment.features
    return None if features is None or variant.ablated is None else frozenset(features) - frozenset(variant.ablated)


def _switched(manifest: Manifest, variant: Variant) -> tuple[str, ...]:
    """Groups that are off in some other variant and on in this one, in the order of the manifest; empty for none."""
    own = variant.ablated or []
    return tuple(dict.fromkeys(name for v in manifest.variants for name in v.ablated or [] if name not in own))
