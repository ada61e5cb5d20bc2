"""What a bundle tells of its kernels: what its evidence arm counted, and the ladders of its variants."""

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
    """What the evidence arm of a bundle tells, and of variants that it does not count, their traces or logs.

    Runs that failed tell nothing. ``analyses`` are those of its variants, where they are known already.
    """
    if label is not None and bundle.manifest.variant(label) is None:
        hint = did_you_mean(label, (variant.name for variant in bundle.manifest.variants))
        raise NotFoundError(f"the bundle has no variant {label!r}", where=bundle.path, hint=hint)
    runs = evidence_runs(bundle)
    wanted = [variant for variant in bundle.manifest.variants if label in {None, variant.name}]
    found = [
        (one, _counted(bundle, runs, one.name) or _named(bundle, one.name, analyses) or printed_log(bundle, one.name))
        for one in wanted
    ]
    return [of_variant(source, variant) for variant, source in found if source is not None]


def _counted(bundle: Bundle, runs: Mapping[str, EvidenceRun], name: str) -> KernelSource | None:
    run = runs.get(name)
    if run is None or not run.counts:
        return None
    path = evidence_directory(bundle, name) / run.counts
    return source_of_counter(read_kernel_counts(path), name, str(path.relative_to(bundle.path)))


def _named(bundle: Bundle, name: str, analyses: Mapping[str, Analysis] | None) -> KernelSource | None:
    """What the traces of a variant tell, where its runtime names kernels."""
    manifest, variant = bundle.manifest, bundle.manifest.variant(name)
    traced = [one.trace for one in manifest.completed(name) if one.trace]
    runtime = runtime_of(bundle.path / manifest.model_of(name).program, variant.runtime if variant else None)
    if not traced or not runtime.names_kernels or (analyses is not None and name not in analyses):
        return None
    known = analyses[name] if analyses is not None else analysis_of(bundle_side(bundle, name, None))
    return source_of_trace(known.operators, name, str(traced[0]))


def of_variant(source: KernelSource, variant: Variant) -> KernelSource:
    """A source with the role and the threads of a variant."""
    role = variant.role.value if variant.role else None
    return source._replace(column=msgspec.structs.replace(source.column, role=role, threads=variant.threads))


class AnalysedVariants(NamedTuple):
    """The variants of a bundle that have a result, and how they compare."""

    sides: Mapping[str, Side]  # by name
    analyses: Mapping[str, Analysis]  # of each, by name
    comparisons: Mapping[str, Comparison]  # with the baseline of the same number of threads, by the candidate's name


def bundle_kernels(bundle: Bundle, known: AnalysedVariants) -> KernelView:
    """What a report of a bundle shows of kernels; evidence that cannot be used is said in a note."""
    try:
        return _view(bundle, known, bundle_sources(bundle, None, known.analyses), evidence_runs(bundle), [])
    except OpscopeError as error:
        return _view(bundle, known, [], {}, [f"the counted kernels cannot be used: {error.problem}"])


def _view(
    bundle: Bundle,
    known: AnalysedVariants,
    sources: Sequence[KernelSource],
    runs: Mapping[str, EvidenceRun],
    notes: list[str],
) -> KernelView:
    every = KernelFilter()
    ladders = _ladders(bundle, known, runs, sources)
    return KernelView(
        columns=[source.column for source in sources],
        kernels=kernel_lines(sources, every),
        pairs=kernel_pairs(sources, every),
        ladders=ladders,
        notes=[*notes, *_attribution_problems(ladders)],
    )


def bundle_ladders(
    bundle: Bundle, label: str | None, sources: Sequence[KernelSource], exported: frozenset[str] | None
) -> tuple[list[VariantLadder], list[str]]:
    """The ladders of a bundle's variants, and what could not be had, one sentence each."""
    manifest = bundle.manifest
    sides = {v.name: bundle_side(bundle, v.name, None) for v in manifest.variants if manifest.completed(v.name)}
    notes: list[str] = []
    analyses = {name: analysis_of(side) for name, side in sides.items() if label in {None, name}}
    known = AnalysedVariants(sides, analyses, _comparisons(manifest, sides, notes))
    ladders = _ladders(bundle, known, evidence_runs(bundle), sources, exported, label)
    notes += _attribution_problems(ladders)
    notes += [f"{v.name}: no traced repetition succeeded" for v in manifest.variants if v.name not in sides]
    return ladders, notes


def _ladders(
    bundle: Bundle,
    known: AnalysedVariants,
    runs: Mapping[str, EvidenceRun],
    sources: Sequence[KernelSource],
    exported: frozenset[str] | None = None,
    label: str | None = None,
) -> list[VariantLadder]:
    """Of the variants that have a result, in their order; ``exported``: kernels of a library that is named."""
    wanted = [v for v in bundle.manifest.variants if label in {None, v.name} and v.name in known.analyses]
    return [
        variant_ladder(one.name, one.threads, _inputs(bundle, known, runs.get(one.name), sources, exported, one))
        for one in wanted
    ]


def _attribution_problems(ladders: Sequence[VariantLadder]) -> list[str]:
    return [
        f"{ladder.variant}: calls are not attributed to operators: {ladder.problem}"
        for ladder in ladders
        if ladder.problem
    ]


def _inputs(
    bundle: Bundle,
    known: AnalysedVariants,
    run: EvidenceRun | None,
    sources: Sequence[KernelSource],
    exported: frozenset[str] | None,
    variant: Variant,
) -> LadderInputs:
    """Everything about one variant."""
    manifest, side = bundle.manifest, known.sides[variant.name]
    analysis = known.analyses[variant.name]
    joined = joined_calls(bundle, variant.name, analysis) if run else None
    own = {own.column.kind: own for own in sources if own.column.variant == variant.name}
    return LadderInputs(
        operators=analysis.operators,
        sme=rule_evidence(side.table, analysis, side.known).sme,
        machine=manifest.environment.machine,
        features=_features(manifest, variant),
        emulated=manifest.target.emulated,
        switched=_switched(manifest, variant),
        exported=frozenset(run.library.kernels) if exported is None and run else exported,
        calls={} if isinstance(joined, str) else joined,
        problem=joined if isinstance(joined, str) else None,
        counted=own.get(EvidenceKind.COUNTED),
        named=EvidenceKind.NAMED in own,
        registered=own.get(EvidenceKind.REGISTERED),
        comparison=known.comparisons.get(variant.name),
    )


def _comparisons(manifest: Manifest, sides: Mapping[str, Side], notes: list[str]) -> dict[str, Comparison]:
    """Every variant against the baseline of the same number of threads, where acceleration was switched."""
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


def _features(manifest: Manifest, variant: Variant) -> frozenset[str] | None:
    """Feature groups that a variant had; None where that is not known."""
    features = manifest.environment.features
    return None if features is None or variant.ablated is None else frozenset(features) - frozenset(variant.ablated)


def _switched(manifest: Manifest, variant: Variant) -> tuple[str, ...]:
    """Groups that are off in some other variant and on in this one, in the order of the manifest; empty for none."""
    own = variant.ablated or []
    return tuple(dict.fromkeys(name for v in manifest.variants for name in v.ablated or [] if name not in own))


def printed_log(bundle: Bundle, variant: str) -> KernelSource | None:
    """The kernels that the first process of a variant printed; None where it listed none.

    A library that was built with XNNPACK's log level 4 lists them in every process, others in none.
    """
    places = (bundle.left_file(repetition, LOG) for repetition in bundle.manifest.completed(variant))
    path = next(filter(None, places), None)
    log = read_kernel_log(path) if path else None
    return source_of_log(log, variant, str(path.relative_to(bundle.path))) if path and log and log.entries else None
