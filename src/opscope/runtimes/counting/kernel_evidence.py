"""Running a variant once with its kernels counted. Counting takes time, so nothing of such a run is a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.kernel_evidence import RECORD, EvidenceRun, KernelLibrary, evidence_directory, save_evidence
from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import FeatureError, TraceFormatError
from opscope.core.files import discard, sha256_of, storage_errors
from opscope.core.system.elf import read_symbols
from opscope.core.system.memory import file_bytes
from opscope.experiment.engine import planned_job
from opscope.experiment.protocol import LOG, OUTPUTS, TRACE
from opscope.program.kernels.symbols import parse_symbol
from opscope.runtimes.counting.kernel_counter import COUNTS, build_counter

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Variant
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.runtimes.counting.kernel_counter import Counter

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
    hint = "profile with --target native on 64-bit Arm Linux, or with qemu-aarch64; or give a profiler recording"
    raise FeatureError(f"kernels cannot be counted on the target {kind}", hint=hint)


def counted_library(library: Path, cache: Path | None = None) -> tuple[Counter, KernelLibrary]:
    """The counter for a library, and the kernels that it exports."""
    counter = build_counter(library, cache)
    return counter, KernelLibrary(library.name, counter.sha256, exported_kernels(library))


def exported_kernels(library: Path) -> list[str]:
    """Names of kernels that a library exports."""
    symbols = read_symbols(file_bytes(library), library)
    if symbols is None:
        hint = f"name the library that ran, such as {_LIBRARY}; opscope reads symbols from 64-bit ELF files"
        raise TraceFormatError("not an ELF library", where=library, hint=hint)
    found = (parse_symbol(name) for name in sorted(symbols.functions))
    return list(dict.fromkeys(symbol.name for symbol in found if symbol))


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
        discard(directory, _LEFT)
        directory.mkdir(parents=True, exist_ok=True)
    started = clock.now().isoformat(timespec="seconds")
    job = _job(bundle, variant, counter)
    outcome = target.execute(job, directory)
    failure = outcome.failure or _lacking(directory)
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


def _job(bundle: Bundle, variant: Variant, counter: Counter) -> Job:
    planned = planned_job(bundle.manifest, bundle.path, variant, traced=True)
    calls = planned.calls if planned.inputs else ()
    return msgspec.structs.replace(planned, inferences=1, warmup=0, calls=calls, counter=str(counter.path))


def _lacking(directory: Path) -> Failure | None:
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
