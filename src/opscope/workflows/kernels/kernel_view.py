"""The kernel view of bundles, runs of the kit, logs and recordings; and counting the kernels of a bundle's variants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.analysis import rule_evidence
from opscope.analysis.kernels.kernel_sources import EvidenceKind
from opscope.analysis.kernels.kernels import KernelFilter, KernelView, kernel_columns, kernel_lines, kernel_pairs
from opscope.analysis.kernels.ladder import LadderInputs, chosen, variant_ladder
from opscope.bundle.bundle import Bundle
from opscope.bundle.kernel_evidence import evidence_runs
from opscope.core.errors import FeatureError, OpscopeError, UsageError, did_you_mean
from opscope.measurements.analyses import analysis_of, comparison_of
from opscope.measurements.counted_calls import joined_calls
from opscope.measurements.sides import bundle_side
from opscope.program.kernels.symbols import IsaClass
from opscope.runtimes.executorch.runners.kernel_evidence import exported_kernels
from opscope.workflows.analyze.sides import is_kit
from opscope.workflows.kernels.kernel_sources import bundle_sources, file_source, kit_sources, of_variant, split_label
from opscope.workflows.reports.reports import compared_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.kernels.kernel_sources import KernelSource
    from opscope.analysis.kernels.ladder import VariantLadder
    from opscope.bundle.kernel_evidence import EvidenceRun
    from opscope.bundle.manifest import Manifest, Variant
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.measurements.side import Side


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
    known = [
        gathered.known(variant)
        for variant in manifest.variants
        if label in {None, variant.name} and variant.name in gathered.sides
    ]
    ladders = [variant_ladder(own) for own in known]
    notes += [f"{own.variant}: the calls are not given to operators: {own.problem}" for own in known if own.problem]
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

    def known(self, variant: Variant) -> LadderInputs:
        """Everything about one variant."""
        manifest, side = self.bundle.manifest, self.sides[variant.name]
        run = self.runs.get(variant.name)
        analysis = analysis_of(side)
        joined = joined_calls(self.bundle, variant.name, analysis)
        own = {source.kind: source for source in self.sources if source.variant == variant.name}
        return LadderInputs(
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
    # Kernels are asked what acceleration does to them; of two programs nothing was switched.
    compared = not (manifest.target.emulated or manifest.programs)
    comparisons = _comparisons(manifest, sides, notes) if compared else {}
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


class _Found(NamedTuple):
    """What the paths hold: sources in their order, and bundles with what is said of their variants."""

    sources: list[KernelSource]
    bundles: list[tuple[Bundle, str | None]]
    notes: list[str]


def kernels(
    paths: Sequence[str | Path],
    *,
    wanted: KernelFilter | None = None,
    every: bool = False,
    library: str | Path | None = None,
) -> KernelView:
    """What is known of the kernels of some runs.

    Args:
        paths: bundles, runs of the Arm kit, files of counts, XNNPACK logs, lists of kernels, recordings of profilers as
            text; each may name a variant or experiment behind ``#``, which for a file says what it is of.
        wanted: which kernels and operators; None: all.
        every: kernels, too, that were looked for and found nowhere.
        library: of the XNNPACK backend that ran, to see which kernels it exports; None: as the evidence arm recorded.

    Raises:
        NotFoundError: a path, variant or experiment does not exist.
        TraceFormatError: a file is damaged, or tells nothing of kernels.
        BundleError: the evidence arm of a bundle is damaged.
    """
    choice = wanted or KernelFilter()
    found = _found(paths)
    sources = [_labelled(source, found.bundles) for source in found.sources]
    ladders: list[VariantLadder] = []
    for bundle, label in found.bundles:
        own, notes = bundle_ladders(bundle, label, sources, Path(library) if library else None)
        ladders += own
        found.notes.extend(notes)
    return KernelView(
        columns=kernel_columns(sources),
        kernels=kernel_lines(sources, choice, every=every),
        pairs=kernel_pairs(sources, choice),
        ladders=[chosen(ladder, choice.dtypes, choice.operators) for ladder in ladders],
        notes=found.notes,
    )


def _found(paths: Sequence[str | Path]) -> _Found:
    found = _Found([], [], [])
    for each in paths:
        path, label = split_label(str(each))
        if not path.is_dir():
            found.sources.append(file_source(path, label))
        elif is_kit(path):
            own = kit_sources(path, label)
            found.sources.extend(own)
            found.notes.extend([] if own else [f"{path}: no experiment left a log or a list of kernels"])
        else:
            bundle = Bundle.open(path)
            own = bundle_sources(bundle, label)
            found.sources.extend(own)
            found.bundles.append((bundle, label))
            found.notes.extend([] if own else [f"{path}: no kernels were counted; --count does that"])
    return found


def _labelled(source: KernelSource, bundles: Sequence[tuple[Bundle, str | None]]) -> KernelSource:
    """A source with role and threads of the variant that it is named after, where a bundle among the paths has one."""
    variants = (bundle.manifest.variant(source.variant) for bundle, _ in bundles)
    found = next((variant for variant in variants if variant), None)
    return of_variant(source, found) if found and source.role is None else source


def kernel_filter(isa: Sequence[str], dtypes: Sequence[str], operators: Sequence[str]) -> KernelFilter:
    """Which kernels are wanted, from words.

    Args:
        isa: instruction sets, as :class:`opscope.program.kernels.symbols.IsaClass` names them.
        dtypes: families of number types, or words of kernels' names.
        operators: parts of operators' names.

    Raises:
        UsageError: an instruction set is unknown.
    """
    known = {each.value: each for each in IsaClass}
    for name in isa:
        if name not in known:
            raise UsageError(f"no instruction set {name!r}", where="--isa", hint=did_you_mean(name, known))
    return KernelFilter(tuple(known[name] for name in isa), tuple(dtypes), tuple(operators))


def count_kernels(
    path: str | Path,
    *,
    target: RunTarget | None = None,
    clock: TimeSource | None = None,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[EvidenceRun]:
    """Run every variant of a bundle once more with its kernels counted, into the evidence arm of the bundle.

    Nothing of these runs is a time, and nothing that was measured is touched.

    Args:
        path: of the bundle; ``BUNDLE#variant`` for one variant.
        target: where to run; None: where the bundle ran.
        clock: tells when; None: the machine's own.
        cache: where the counter is kept; None: the user's cache directory.
        progress: hears the name of each variant before it runs.

    Raises:
        NotFoundError: there is no such bundle or variant.
        FeatureError: kernels cannot be counted on this target.
        MissingDependencyError: a compiler or the runtime is missing.
        BundleError: another run is writing there.
        StorageError: the system refused to write.
    """
    from opscope.experiment.target import reserved
    from opscope.machine.clock import SystemClock
    from opscope.runtimes.executorch.runners.kernel_evidence import backend_library, count_variant, counted_library
    from opscope.workflows.measure.targets import recorded_target

    place, label = split_label(str(path))
    bundle = Bundle.open(place)
    bundle_sources(bundle, label)
    where = target or recorded_target(bundle.manifest.target)
    if where.describe().kind != bundle.manifest.target.kind:
        raise FeatureError(f"the bundle ran on {bundle.manifest.target.kind}: its kernels are counted there only")
    counted = counted_library(backend_library(where), cache)
    runs = []
    with reserved(where), bundle.locked():
        for variant in bundle.manifest.variants:
            if label in {None, variant.name}:
                progress(variant.name)
                runs.append(count_variant(bundle, variant, where, counted, clock or SystemClock()))
    _rewrite_reports(bundle)
    return runs


def _rewrite_reports(bundle: Bundle) -> None:
    """Write the reports that are there anew: they say which kernels ran."""
    from opscope.workflows.reports.reports import content_of, write_reports

    files = {"html": "report.html", "md": "report.md", "json": "analysis.json"}
    there = [name for name, file in files.items() if (bundle.path / file).exists()]
    if there:
        write_reports(bundle.path, content_of(bundle), there)
