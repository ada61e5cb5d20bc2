"""The kernel view of bundles, runs of the kit and logs, as sources of one form; and counting kernels.

Counting takes time, so nothing of a run with its kernels counted is a measurement.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.kernels.kernel_sources import (
    EvidenceKind,
    source_of_counter,
    source_of_log,
    source_of_registrations,
)
from opscope.analysis.kernels.kernels import KernelFilter, kernel_lines, kernel_pairs
from opscope.analysis.kernels.ladder import filter_ladder
from opscope.bundle.bundle import Bundle
from opscope.bundle.kernel_evidence import RECORD, EvidenceRun, KernelLibrary, evidence_directory, save_evidence
from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import FeatureError, NotFoundError, TraceFormatError, UsageError, did_you_mean
from opscope.core.files import head_of, sha256_of, storage_errors
from opscope.core.system.elf import read_symbols
from opscope.core.system.memory import file_bytes
from opscope.core.writing import discard_files
from opscope.experiment.engine import planned_job
from opscope.experiment.protocol import LOG, OUTPUTS, TRACE
from opscope.hosts.target_kinds import AUTO
from opscope.measurements.bundle_kernels import bundle_ladders, bundle_sources, with_variant
from opscope.measurements.results import KernelsResult
from opscope.program.kernels.symbols import IsaClass, parse_symbol
from opscope.readers.kernels import MAGIC, read_kernel_counts
from opscope.runtimes.counting.kernel_counter import COUNTS, build_counter
from opscope.workflows.analyze.sides import is_kit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.kernels.kernel_sources import KernelSource
    from opscope.analysis.kernels.ladder import VariantLadder
    from opscope.bundle.manifest import Variant
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.runtimes.counting.kernel_counter import Counter


_HEAD = 1 << 16


def kernels(
    paths: Sequence[str | Path],
    *,
    wanted: KernelFilter | None = None,
    every: bool = False,
    library: str | Path | None = None,
) -> KernelsResult:
    """Collect what is known of the kernels of some runs.

    Args:
        paths: bundles, runs of the Arm kit, files of counts, XNNPACK logs, lists of kernels; each may name a variant or
            experiment behind ``#``, which for a file says what it is of.
        wanted: which kernels and operators; None: all.
        every: kernels, too, that were looked for and found nowhere.
        library: of the XNNPACK backend that ran, to see which kernels it exports; None: as the evidence arm recorded.

    Raises:
        NotFoundError: a path, variant or experiment does not exist.
        TraceFormatError: a file is damaged, or tells nothing of kernels.
        BundleError: the evidence arm of a bundle is damaged.
    """
    choice = wanted or KernelFilter()
    read_sources, bundles, notes = _read_sources(paths)
    sources = [_with_variant_of_bundle(source, bundles) for source in read_sources]
    ladders: list[VariantLadder] = []
    exported = frozenset(exported_kernels(Path(library))) if library else None
    for bundle, label in bundles:
        variant_ladders, more = bundle_ladders(bundle, label, sources, exported)
        ladders += variant_ladders
        notes += more
    return KernelsResult(
        columns=[source.column for source in sources],
        kernels=kernel_lines(sources, choice, every=every),
        pairs=kernel_pairs(sources, choice),
        ladders=[filter_ladder(ladder, choice.dtypes, choice.operators) for ladder in ladders],
        notes=notes,
    )


def _read_sources(paths: Sequence[str | Path]) -> tuple[list[KernelSource], list[tuple[Bundle, str | None]], list[str]]:
    """Read the paths: sources in their order, bundles with the variant that was named, and notes."""
    sources: list[KernelSource] = []
    bundles: list[tuple[Bundle, str | None]] = []
    notes: list[str] = []
    for argument in paths:
        path, label = split_label(str(argument))
        if not path.is_dir():
            sources.append(file_source(path, label))
        elif is_kit(path):
            from opscope.kit.sides import kit_sources

            kernel_sources = kit_sources(path, label)
            sources += kernel_sources
            notes += [] if kernel_sources else [f"{path}: no experiment left a log or a list of kernels"]
        else:
            bundle = Bundle.open(path)
            kernel_sources = bundle_sources(bundle, label)
            sources += kernel_sources
            bundles.append((bundle, label))
            counted = any(source.column.kind in {EvidenceKind.COUNTED, EvidenceKind.NAMED} for source in kernel_sources)
            if not counted and bundle.manifest.environment.machine in {"aarch64", "arm64"}:
                notes.append(f"{path}: no kernels counted; use --count")
    return sources, bundles, notes


def _with_variant_of_bundle(source: KernelSource, bundles: Sequence[tuple[Bundle, str | None]]) -> KernelSource:
    """Return a source with role and threads of the variant it is named after, if a bundle among the paths has it."""
    variants = (bundle.manifest.variant(source.column.variant) for bundle, _ in bundles)
    variant = next((variant for variant in variants if variant), None)
    return with_variant(source, variant) if variant and source.column.role is None else source


def kernel_filter(isa: Sequence[str], dtypes: Sequence[str], operators: Sequence[str]) -> KernelFilter:
    """Build a filter of kernels from words.

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
    stated: str = AUTO.name,
    target: RunTarget | None = None,
    clock: TimeSource | None = None,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[EvidenceRun]:
    """Run every variant of a bundle once more with its kernels counted, into the evidence arm of the bundle.

    Nothing of these runs is a time, and nothing that was measured is touched.

    Args:
        path: of the bundle; ``BUNDLE#variant`` for one variant.
        stated: name of the target where the bundle ran; it must be given if it has an address, such as ``ssh:HOST``.
        target: where to run; None: where the bundle ran.
        clock: tells when; None: the machine's own.
        cache: where the counter is kept; None: the user's cache directory.
        progress: hears the name of each variant before it runs.

    Raises:
        NotFoundError: there is no such bundle or variant.
        UsageError: the bundle ran on a target with an address, and ``stated`` is another one.
        FeatureError: kernels cannot be counted on this target.
        MissingDependencyError: a compiler or the runtime is missing.
        BundleError: another run is writing there.
        StorageError: the system refused to write.
    """
    from opscope.machine.clock import SystemClock
    from opscope.workflows.measure.targets import recorded_target
    from opscope.workflows.reports.reports import rewrite_reports

    place, label = split_label(str(path))
    bundle = Bundle.open(place)
    bundle_sources(bundle, label)
    if sys.platform != "linux" and not (target or bundle.manifest.target.address):
        hint = "run opscope on a 64-bit Arm Linux machine, or in a Linux container on this one"
        raise FeatureError("kernels are counted in libraries of Linux, and this is another system", hint=hint)
    where = target or recorded_target(bundle.manifest, bundle.path, stated)
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
    """Return what a file tells: counts, a log of XNNPACK, or a list of the kit."""
    from opscope.readers.kernels import is_kernel_log, read_kernel_log

    head, variant = _read_head(path), label or path.stem
    if head.startswith(MAGIC):
        return source_of_counter(read_kernel_counts(path), variant, str(path))
    if b"kernel_name" in head.partition(b"\n")[0]:
        from opscope.kit.readers.csv import kernel_rows

        rows = kernel_rows(path)
        return source_of_registrations(
            [(r.kernel.whole, r.category, r.registrations) for r in rows], variant, str(path)
        )
    if is_kernel_log(head):
        return source_of_log(read_kernel_log(path), variant, str(path))
    hint = "give a bundle, an Arm kit run, a kernels.counts, or an XNNPACK log"
    raise TraceFormatError("it has no kernel data", where=path, hint=hint)


def _read_head(path: Path) -> bytes:
    try:
        return head_of(path, _HEAD)
    except OSError as error:
        raise NotFoundError(f"cannot be read: {error.strerror}", where=path) from None


_LIBRARY = "libexecutorch_backend_xnnpack.so"
"""As an example: the one of ExecuTorch's wheels."""
_SECONDS = 600.0
_LEFT = (RECORD, COUNTS, TRACE, OUTPUTS, LOG)
"""What a run may leave in its directory."""


def backend_library(target: RunTarget) -> Path:
    """The library on this machine whose kernels a target calls."""
    backend = target.capabilities().backend
    if backend is not None:
        return backend()
    kind = target.describe().kind
    hint = "profile with --target native on 64-bit Arm Linux, or with qemu-aarch64"
    raise FeatureError(f"kernels cannot be counted on the target {kind}", hint=hint)


def counted_library(library: Path, cache: Path | None = None) -> tuple[Counter, KernelLibrary]:
    """Return the counter for a library, and the kernels that it exports."""
    counter = build_counter(library, cache)
    return counter, KernelLibrary(library.name, counter.sha256, exported_kernels(library))


def exported_kernels(library: Path) -> list[str]:
    """Return the names of kernels that a library exports."""
    symbols = read_symbols(file_bytes(library), library)
    if symbols is None:
        hint = f"name the library that ran, such as {_LIBRARY}; opscope reads symbols from 64-bit ELF files"
        raise TraceFormatError("not an ELF library", where=library, hint=hint)
    symbols_by_name = (parse_symbol(name) for name in sorted(symbols.functions))
    return list(dict.fromkeys(symbol.name for symbol in symbols_by_name if symbol))


def count_variant(
    bundle: Bundle, variant: Variant, target: RunTarget, counted: tuple[Counter, KernelLibrary], clock: TimeSource
) -> EvidenceRun:
    """Run a variant once, keep what it leaves in the bundle's evidence arm, and replace what was there of it.

    ``counted`` is what :func:`counted_library` gives. A crash or a refusal is recorded, never raised.
    """
    counter, library = counted
    directory = evidence_directory(bundle, variant.name)
    bundle.state_hash("evidence_sha256", variant.name, None)
    with storage_errors(directory):
        discard_files(directory, _LEFT)
        directory.mkdir(parents=True, exist_ok=True)
    started = clock.now().isoformat(timespec="seconds")
    job = _evidence_job(bundle, variant, counter)
    outcome = target.execute(job, directory)
    failure = outcome.failure or _find_missing_output(directory)
    run = EvidenceRun(
        variant=variant.name,
        started=started,
        target=target.describe(),
        inferences=job.inferences,
        library=library,
        output_sha256=outcome.measurement.output_sha256 if outcome.measurement else None,
        failure=failure,
    )
    run = run if failure else _with_files(run, directory)
    save_evidence(bundle, run)
    return run


def _evidence_job(bundle: Bundle, variant: Variant, counter: Counter) -> Job:
    planned = planned_job(bundle.manifest, bundle.path, variant, traced=True)
    calls = planned.calls if planned.inputs else ()
    return msgspec.structs.replace(planned, inferences=1, warmup=0, calls=calls, counter=str(counter.path))


def _find_missing_output(directory: Path) -> Failure | None:
    missing = next((name for name in (COUNTS, TRACE) if not (directory / name).exists()), None)
    return Failure(FailureKind.OUTPUT, f"the process left no {missing}: nothing was counted") if missing else None


def _with_files(run: EvidenceRun, directory: Path) -> EvidenceRun:
    return msgspec.structs.replace(
        run,
        counts=COUNTS,
        counts_sha256=sha256_of(directory / COUNTS),
        trace=TRACE,
        trace_sha256=sha256_of(directory / TRACE),
    )
