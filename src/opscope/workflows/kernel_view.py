"""The kernel view of bundles, runs of the kit, logs and recordings, as sources of one form; and counting kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.analysis.kernels.kernel_sources import (
    EvidenceKind,
    counted_source,
    log_source,
    registered_source,
    sampled_source,
)
from opscope.analysis.kernels.kernels import KernelFilter, kernel_lines, kernel_pairs
from opscope.analysis.kernels.ladder import chosen
from opscope.bundle.bundle import Bundle
from opscope.core.errors import FeatureError, NotFoundError, TraceFormatError, UsageError, did_you_mean
from opscope.core.files import head_of
from opscope.measurements.bundle_kernels import bundle_ladders, bundle_sources, of_variant
from opscope.measurements.results import KernelsResult
from opscope.program.kernels.symbols import IsaClass
from opscope.readers.kernels import MAGIC, read_kernel_counts
from opscope.runtimes.counting.kernel_evidence import exported_kernels
from opscope.workflows.analyze.sides import is_kit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.kernels.kernel_sources import KernelSource
    from opscope.analysis.kernels.ladder import VariantLadder
    from opscope.bundle.kernel_evidence import EvidenceRun
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource


_HEAD = 1 << 16


def kernels(
    paths: Sequence[str | Path],
    *,
    wanted: KernelFilter | None = None,
    every: bool = False,
    library: str | Path | None = None,
) -> KernelsResult:
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
    named, bundles, notes = _found(paths)
    sources = [_labelled(source, bundles) for source in named]
    ladders: list[VariantLadder] = []
    exported = frozenset(exported_kernels(Path(library))) if library else None
    for bundle, label in bundles:
        own, more = bundle_ladders(bundle, label, sources, exported)
        ladders += own
        notes += more
    return KernelsResult(
        columns=[source.column for source in sources],
        kernels=kernel_lines(sources, choice, every=every),
        pairs=kernel_pairs(sources, choice),
        ladders=[chosen(ladder, choice.dtypes, choice.operators) for ladder in ladders],
        notes=notes,
    )


def _found(paths: Sequence[str | Path]) -> tuple[list[KernelSource], list[tuple[Bundle, str | None]], list[str]]:
    """What the paths hold: sources in their order, bundles with what is said of their variants, and notes."""
    sources: list[KernelSource] = []
    bundles: list[tuple[Bundle, str | None]] = []
    notes: list[str] = []
    for each in paths:
        path, label = split_label(str(each))
        if not path.is_dir():
            sources.append(file_source(path, label))
        elif is_kit(path):
            from opscope.kit.sides import kit_sources

            own = kit_sources(path, label)
            sources += own
            notes += [] if own else [f"{path}: no experiment left a log or a list of kernels"]
        else:
            bundle = Bundle.open(path)
            own = bundle_sources(bundle, label)
            sources += own
            bundles.append((bundle, label))
            counted = any(source.column.kind in {EvidenceKind.COUNTED, EvidenceKind.NAMED} for source in own)
            notes += [] if counted else [f"{path}: no kernels counted; use --count"]
    return sources, bundles, notes


def _labelled(source: KernelSource, bundles: Sequence[tuple[Bundle, str | None]]) -> KernelSource:
    """A source with role and threads of the variant that it is named after, where a bundle among the paths has one."""
    variants = (bundle.manifest.variant(source.column.variant) for bundle, _ in bundles)
    found = next((variant for variant in variants if variant), None)
    return of_variant(source, found) if found and source.column.role is None else source


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
            raise UsageError(f"unknown instruction set {name!r}", where="--isa", hint=did_you_mean(name, known))
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
    from opscope.machine.clock import SystemClock
    from opscope.runtimes.counting.kernel_evidence import backend_library, count_variant, counted_library
    from opscope.workflows.measure.targets import recorded_target
    from opscope.workflows.reports.reports import rewrite_reports

    place, label = split_label(str(path))
    bundle = Bundle.open(place)
    bundle_sources(bundle, label)
    where = target or recorded_target(bundle.manifest, bundle.path)
    if where.describe().kind != bundle.manifest.target.kind:
        raise FeatureError(f"the bundle ran on {bundle.manifest.target.kind}: its kernels can only be counted there")
    counted = counted_library(backend_library(where), cache)
    runs = []
    with where.reserved(), bundle.locked():
        for variant in bundle.manifest.variants:
            if label in {None, variant.name}:
                progress(variant.name)
                runs.append(count_variant(bundle, variant, where, counted, clock or SystemClock()))
    rewrite_reports(bundle)
    return runs


def split_label(path: str) -> tuple[Path, str | None]:
    """A path and the variant behind ``#``; a file whose own name has one is taken as it is."""
    place, mark, label = path.rpartition("#")
    return (Path(place), label) if mark and place and not Path(path).exists() else (Path(path), None)


def file_source(path: Path, label: str | None) -> KernelSource:
    """What a file tells: counts, a log of XNNPACK, a list of the kit, or a recording of a profiler."""
    from opscope.readers.kernels import is_kernel_log, read_kernel_log
    from opscope.readers.recordings import is_recording, read_recording

    head, variant = _head(path), label or path.stem
    if head.startswith(MAGIC):
        return counted_source(read_kernel_counts(path), variant, str(path))
    if is_recording(head):
        return sampled_source(read_recording(path), variant, str(path))
    if b"kernel_name" in head.partition(b"\n")[0]:
        from opscope.kit.readers.csv import kernel_rows

        rows = kernel_rows(path)
        return registered_source([(r.kernel.whole, r.category, r.registrations) for r in rows], variant, str(path))
    if is_kernel_log(head):
        return log_source(read_kernel_log(path), variant, str(path))
    hint = "give a bundle, an Arm kit run, a kernels.counts, an XNNPACK log, or a recording as text"
    raise TraceFormatError("it has no kernel data", where=path, hint=hint)


def _head(path: Path) -> bytes:
    try:
        return head_of(path, _HEAD)
    except OSError as error:
        raise NotFoundError(f"cannot be read: {error.strerror}", where=path) from None
