"""Kernels of a bundle: what its evidence arm counted, and the ladders of its variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.analysis import rule_evidence
from opscope.analysis.kernels.kernel_sources import EvidenceKind, source_of_counter, source_of_log, source_of_trace
from opscope.analysis.kernels.kernels import KernelFilter, KernelView, kernel_lines, kernel_pairs
from opscope.analysis.kernels.ladder import LadderInputs, variant_ladder
from opscope.bundle.kernel_evidence import evidence_directory, evidence_runs
from opscope.core.errors import NotFoundError, OpscopeError, did_you_mean
from opscope.experiment.protocol import LOG
from opscope.measurements.analyses import analysis_of, comparison_of
from opscope.measurements.counted_calls import joined_calls
from opscope.measurements.sides import bundle_side, compared_pairs
from opscope.readers.kernels import read_kernel_counts, read_kernel_log
from opscope.runtimes.registry import runtime_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.kernels.kernel_sources import KernelSource
    from opscope.analysis.kernels.ladder import VariantLadder
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.kernel_evidence import EvidenceRun
    from opscope.bundle.manifest import Manifest, Variant
    from opscope.runtimes.side import Side


def bundle_sources(
    bundle: Bundle, label: str | None, analyses: Mapping[str, Analysis] | None = None
) -> list[KernelSource]:
    """Return what the evidence arm of a bundle counted; for other variants, their traces or logs.

    Runs that failed are left out. ``analyses``: analyses of the bundle's variants, if they are known already.
    """
    if label is not None and bundle.manifest.variant(label) is None:
        hint = did_you_mean(label, (variant.name for variant in bundle.manifest.variants))
        raise NotFoundError(f"the bundle has no variant {label!r}", where=bundle.path, hint=hint)
    runs = evidence_runs(bundle)
    variants = [variant for variant in bundle.manifest.variants if label in {None, variant.name}]
    sources = [
        (
            variant,
            _counted_source(bundle, runs, variant.name)
            or _named_source(bundle, variant.name, analyses)
            or printed_log(bundle, variant.name),
        )
        for variant in variants
    ]
    return [with_variant(source, variant) for variant, source in sources if source is not None]


def _counted_source(bundle: Bundle, runs: Mapping[str, EvidenceRun], name: str) -> KernelSource | None:
    run = runs.get(name)
    if run is None or not run.counts:
        return None
    path = evidence_directory(bundle, name) / run.counts
    return source_of_counter(read_kernel_counts(path), name, str(path.relative_to(bundle.path)))


def _named_source(bundle: Bundle, name: str, analyses: Mapping[str, Analysis] | None) -> KernelSource | None:
    """Return the kernels that the traces of a variant name; None if its runtime names none."""
    manifest, variant = bundle.manifest, bundle.manifest.variant(name)
    traced = [repetition.trace for repetition in manifest.completed(name) if repetition.trace]
    runtime = runtime_of(bundle.path / manifest.model_of(name).program, variant.runtime if variant else None)
    if not traced or not runtime.names_kernels or (analyses is not None and name not in analyses):
        return None
    known = analyses[name] if analyses is not None else analysis_of(bundle_side(bundle, name, None))
    return source_of_trace(known.operators, name, str(traced[0]))


def with_variant(source: KernelSource, variant: Variant) -> KernelSource:
    """Return a source with the role and the threads of a variant."""
    role = variant.role.value if variant.role else None
    return source._replace(column=msgspec.structs.replace(source.column, role=role, threads=variant.threads))


class AnalysedVariants(NamedTuple):
    """Variants of a bundle that have a result, and how they compare."""

    sides: Mapping[str, Side]  # sides by name
    analyses: Mapping[str, Analysis]  # analyses of each, by name
    comparisons: Mapping[str, Comparison]  # with the baseline of the same number of threads, by the candidate's name


def bundle_kernels(bundle: Bundle, known: AnalysedVariants) -> KernelView:
    """Return what a report of a bundle shows of kernels; a note says which evidence cannot be used."""
    try:
        return _kernel_view(bundle, known, bundle_sources(bundle, None, known.analyses), evidence_runs(bundle), [])
    except OpscopeError as error:
        return _kernel_view(bundle, known, [], {}, [f"the counted kernels cannot be used: {error.problem}"])


def _kernel_view(
    bundle: Bundle,
    known: AnalysedVariants,
    sources: Sequence[KernelSource],
    runs: Mapping[str, EvidenceRun],
    notes: list[str],
) -> KernelView:
    no_filter = KernelFilter()
    ladders = _variant_ladders(bundle, known, runs, sources)
    return KernelView(
        columns=[source.column for source in sources],
        kernels=kernel_lines(sources, no_filter),
        pairs=kernel_pairs(sources, no_filter),
        ladders=ladders,
        notes=[*notes, *_attribution_problems(ladders)],
    )


def bundle_ladders(
    bundle: Bundle, label: str | None, sources: Sequence[KernelSource], exported: frozenset[str] | None
) -> tuple[list[VariantLadder], list[str]]:
    """Return the ladders of a bundle's variants, and what could not be had, one sentence each."""
    manifest = bundle.manifest
    sides = {
        variant.name: bundle_side(bundle, variant.name, None)
        for variant in manifest.variants
        if manifest.completed(variant.name)
    }
    notes: list[str] = []
    analyses = {name: analysis_of(side) for name, side in sides.items() if label in {None, name}}
    known = AnalysedVariants(sides, analyses, _compare_variants(manifest, sides, notes))
    ladders = _variant_ladders(bundle, known, evidence_runs(bundle), sources, exported, label)
    notes += _attribution_problems(ladders)
    notes += [
        f"{variant.name}: no traced repetition succeeded" for variant in manifest.variants if variant.name not in sides
    ]
    return ladders, notes


def _variant_ladders(
    bundle: Bundle,
    known: AnalysedVariants,
    runs: Mapping[str, EvidenceRun],
    sources: Sequence[KernelSource],
    exported: frozenset[str] | None = None,
    label: str | None = None,
) -> list[VariantLadder]:
    """Return the ladders of the variants that have a result, in order; ``exported``: a named library's kernels."""
    variants = [
        variant
        for variant in bundle.manifest.variants
        if label in {None, variant.name} and variant.name in known.analyses
    ]
    return [
        variant_ladder(
            variant.name,
            variant.threads,
            _ladder_inputs(bundle, known, runs.get(variant.name), sources, exported, variant),
        )
        for variant in variants
    ]


def _attribution_problems(ladders: Sequence[VariantLadder]) -> list[str]:
    return [
        f"{ladder.variant}: calls are not attributed to operators: {ladder.problem}"
        for ladder in ladders
        if ladder.problem
    ]


def _ladder_inputs(
    bundle: Bundle,
    known: AnalysedVariants,
    run: EvidenceRun | None,
    sources: Sequence[KernelSource],
    exported: frozenset[str] | None,
    variant: Variant,
) -> LadderInputs:
    """Collect what is known of one variant."""
    manifest, side = bundle.manifest, known.sides[variant.name]
    analysis = known.analyses[variant.name]
    joined = joined_calls(bundle, variant.name, analysis) if run else None
    sources_by_kind = {source.column.kind: source for source in sources if source.column.variant == variant.name}
    return LadderInputs(
        operators=analysis.operators,
        sme=rule_evidence(side.table, analysis, side.known).sme,
        machine=manifest.environment.machine,
        features=_features_on(manifest, variant),
        emulated=manifest.target.emulated,
        switched=_groups_off_elsewhere(manifest, variant),
        exported=frozenset(run.library.kernels) if exported is None and run else exported,
        calls={} if isinstance(joined, str) else joined,
        problem=joined if isinstance(joined, str) else None,
        counted=sources_by_kind.get(EvidenceKind.COUNTED),
        named=EvidenceKind.NAMED in sources_by_kind,
        registered=sources_by_kind.get(EvidenceKind.REGISTERED),
        comparison=known.comparisons.get(variant.name),
    )


def _compare_variants(manifest: Manifest, sides: Mapping[str, Side], notes: list[str]) -> dict[str, Comparison]:
    """Compare every variant with the baseline of its thread count, if acceleration was switched."""
    # Kernels are asked what acceleration does to them; of two programs nothing was switched.
    if manifest.target.emulated or manifest.programs:
        return {}
    comparisons = {}
    for baseline, candidate in compared_pairs(manifest):
        if baseline in sides and candidate in sides:
            try:
                comparisons[candidate] = comparison_of(sides[baseline], sides[candidate])
            except OpscopeError as error:
                notes.append(f"{candidate} is not compared with {baseline}: {error}")
    return comparisons


def _features_on(manifest: Manifest, variant: Variant) -> frozenset[str] | None:
    """Return the feature groups that a variant had; None if unknown."""
    features = manifest.environment.features
    return None if features is None or variant.ablated is None else frozenset(features) - frozenset(variant.ablated)


def _groups_off_elsewhere(manifest: Manifest, variant: Variant) -> tuple[str, ...]:
    """Return the groups that are off in another variant and on in this one, in manifest order."""
    off_here = variant.ablated or []
    return tuple(
        dict.fromkeys(
            name
            for variant_elsewhere in manifest.variants
            for name in variant_elsewhere.ablated or []
            if name not in off_here
        )
    )


def printed_log(bundle: Bundle, variant: str) -> KernelSource | None:
    """Return the kernels that the first process of a variant printed; None if it listed none.

    A library that was built with XNNPACK's log level 4 lists them in every process, others in none.
    """
    files = (bundle.left_file(repetition, LOG) for repetition in bundle.manifest.completed(variant))
    path = next(filter(None, files), None)
    log = read_kernel_log(path) if path else None
    return source_of_log(log, variant, str(path.relative_to(bundle.path))) if path and log and log.entries else None
