"""Engine: runs what a plan still lacks, and records every repetition as soon as it ends.

Every round runs every variant once, in an order drawn anew. Between processes it cools down for a fixed time, or waits
until the machine is cool enough, where that can be told.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

from opscope.bundle.bundle import EXCHANGED_FILES
from opscope.bundle.manifest import Conditions, Failure, FailureKind, Measurement, Repetition, Status, TracingMode
from opscope.core.errors import BundleError, DeviceError, RunError, StorageError, TraceFormatError
from opscope.core.files import sha256_of
from opscope.core.parts import PartFailure, explained
from opscope.core.units import counted_text
from opscope.experiment.protocol import OUTPUTS, Job
from opscope.hosts.host import ProcessSettings
from opscope.readers.compressed import keep_compressed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Manifest, PlanSlot, Variant
    from opscope.bundle.settings import ExperimentSettings
    from opscope.experiment.target import JobOutcome, RunTarget
    from opscope.machine.clock import TimeSource


_STEP_SECONDS = 2.0
_LONGEST_WAIT_SECONDS = 900.0
_HINT = "finish with --resume once it has cooled, or raise max_temperature"


class TraceCheck(Protocol):
    """Reader of a trace that counts the complete inferences in it."""

    def __call__(self, path: Path) -> int:
        """Return the number of complete inferences."""


class Progress(Protocol):
    """Listener for how far a run is."""

    def __call__(self, done: int, total: int, repetition: Repetition | None) -> None:
        """Report progress before the first repetition and after each one."""


def ignore_progress(done: int, total: int, repetition: Repetition | None) -> None:
    """Ignore the progress of a run that nobody watches."""


def run_experiment(  # noqa: PLR0913 - where, by which clock and check, who hears, and which part of the plan
    bundle: Bundle,
    target: RunTarget,
    clock: TimeSource,
    check: TraceCheck,
    progress: Progress,
    *,
    keep_going: bool = False,
    slots: Sequence[PlanSlot] | None = None,
) -> None:
    """Run pending repetitions of a bundle, in the order of its plan: those of the given slots, or all of them.

    A failed repetition is recorded and the others go on, unless nothing succeeded before two variants, or the only one
    in two processes, failed alike: then the rest would fail alike too, and is not run. A variant that has hung in two
    processes and never succeeded is not run again: each one costs its whole time limit. When the run is interrupted,
    the disk is full, or a device is lost for good, the bundle says that it is incomplete; what was finished stays.
    """
    pending = bundle.manifest.pending() if slots is None else slots
    first_new = len(bundle.manifest.repetitions)
    half_written = bundle.temporary_files()
    bundle.set_status(Status.RUNNING)
    progress(0, len(pending), None)
    status, lost = Status.INCOMPLETE, 0
    try:
        for number, slot in enumerate(pending, 1):
            if not keep_going and _has_hung(bundle.manifest.repetitions, first_new, slot.variant):
                continue
            repetition = _run_repetition(bundle, target, clock, check, slot)
            bundle.record(repetition)
            _keep_outputs_once(bundle, repetition)
            progress(number, len(pending), repetition)
            failure = repetition.failure
            if failure and failure.kind is FailureKind.STORAGE:
                hint = "free some space and finish with --resume; what was measured is kept"
                raise StorageError(failure.message, where=bundle.path / repetition.directory, hint=hint)
            lost = lost + 1 if repetition.failure and repetition.failure.kind is FailureKind.DEVICE else 0
            # One repetition that the device failed may be an accident, a second one right after it is none.
            if repetition.failure and lost >= _TWICE:
                raise DeviceError(repetition.failure.message, where=bundle.path, hint=_FINISH)
            if not keep_going and _has_failed_alike(bundle.manifest, first_new):
                break
        bundle.discard_scratch(half_written)
        status = Status.INCOMPLETE if bundle.manifest.failures() else Status.COMPLETE
    finally:
        bundle.set_status(status)


def _has_failed_alike(manifest: Manifest, first_new: int) -> bool:
    """Return whether nothing succeeded, and the first two variants failed in the same way since then."""
    if any(repetition.ok for repetition in manifest.repetitions):
        return False
    first: dict[str, Failure] = {}
    is_single_variant = len(manifest.variants) == 1
    for number, repetition in enumerate(manifest.repetitions[first_new:]):
        assert repetition.failure is not None  # noqa: S101 - one that is not ok has one
        first.setdefault(f"{number}" if is_single_variant else repetition.variant, repetition.failure)
    failures = list(first.values())
    return len(failures) > 1 and failures[0].kind is failures[1].kind and failures[0].message == failures[1].message


def _has_hung(repetitions: Sequence[Repetition], first: int, variant: str) -> bool:
    """Return whether a variant never succeeded, and met its time limit in two processes from number ``first`` on."""
    if any(repetition.ok for repetition in repetitions if repetition.variant == variant):
        return False
    failures = [repetition.failure for repetition in repetitions[first:] if repetition.variant == variant]
    timeouts = [failure for failure in failures if failure and failure.kind is FailureKind.TIMEOUT]
    return len(timeouts) >= _TWICE


_TWICE = 2
_FINISH = "what was measured is kept; fix the device, and finish with --resume"


def _conditions_before(target: RunTarget, bundle: Bundle) -> Conditions:
    """Return the state before a repetition; there is none without a device to run it."""
    try:
        return target.conditions()
    except DeviceError as error:
        raise DeviceError(error.problem, where=error.where, hint=f"{_FINISH} (bundle: {bundle.path})") from error


def _conditions_after(target: RunTarget) -> Conditions:
    """Return the state after a repetition; unknown if the device was lost meanwhile."""
    try:
        return target.conditions()
    except DeviceError:
        return Conditions(None, None, None)


def _run_repetition(
    bundle: Bundle, target: RunTarget, clock: TimeSource, check: TraceCheck, slot: PlanSlot
) -> Repetition:
    variant = bundle.manifest.variant(slot.variant)
    assert variant is not None  # noqa: S101 - the plan names variants of its own manifest
    directory, attempt = bundle.attempt_directory(slot)
    before, started, began = _conditions_before(target, bundle), clock.now(), clock.monotonic()
    job = planned_job(bundle.manifest, bundle.path, variant, traced=slot.arm is TracingMode.TRACED)
    run_target = target.of(variant.name)
    outcome = run_target.execute(job, directory)
    seconds = clock.monotonic() - began
    trace = directory / run_target.capabilities().trace
    inferences, failure = _judge_outcome(outcome, job, lambda: _read_or_explain(check, trace, bundle.relative(trace)))
    sha256 = sha256_of(trace) if trace.exists() else None
    if failure and failure.kind is FailureKind.STORAGE:
        trace.unlink(missing_ok=True)  # half a trace is of no use, and the manifest needs its space
    elif failure is None and sha256 is not None:
        trace = _compress_trace(trace)
    return Repetition(
        variant=slot.variant,
        round=slot.round,
        attempt=attempt,
        started=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        directory=bundle.relative(directory),
        trace=bundle.relative(trace) if trace.exists() else None,
        trace_sha256=sha256 if trace.exists() else None,
        inferences=inferences,
        before=before,
        after=_conditions_after(target),
        measurement=outcome.measurement,
        failure=failure,
        arm=slot.arm,
        files_sha256=_hash_other_files(directory, trace) if failure is None else {},
    )


def _compress_trace(trace: Path) -> Path:
    """Compress a trace that was read; keep it as it is if the disk has no room for both."""
    try:
        return keep_compressed(trace)
    except StorageError:
        return trace


def _keep_outputs_once(bundle: Bundle, repetition: Repetition) -> None:
    """Remove outputs that equal those of an earlier process of the variant; the hash says which they equal."""
    if not repetition.ok:
        return
    first = next(iter(bundle.manifest.with_same_outputs(repetition)), repetition)
    first_path, path = (bundle.path / owner.directory / OUTPUTS for owner in (first, repetition))
    if first_path != path and first_path.is_file() and path.is_file() and sha256_of(first_path) == sha256_of(path):
        path.unlink()


def _hash_other_files(directory: Path, trace: Path) -> dict[str, str]:
    """Return hashes of the files that a process left beside its trace, except outputs, whose values are hashed."""
    apart = {trace.name, OUTPUTS, *EXCHANGED_FILES}
    files = (path for path in sorted(directory.iterdir()) if path.name not in apart)
    return {path.name: sha256_of(path) for path in files if path.is_file() and not path.is_symlink()}


def planned_job(manifest: Manifest, bundle_path: Path, variant: Variant, *, traced: bool) -> Job:
    """Return one repetition of a variant as a job, by the plan of the bundle in a directory."""
    plan, model = manifest.plan.of(variant.name), manifest.model_of(variant.name)
    if None in {plan.warmup, plan.runs, plan.seed, plan.timeout_seconds, variant.threads}:
        raise BundleError("its manifest lacks a part of the plan", where=bundle_path, hint="profile into a new --out")
    return Job(
        program=str(bundle_path / model.program),
        variant=manifest.as_run(variant),
        inferences=(plan.warmup or 0) + (plan.runs or 0),
        seed=plan.seed or 0,
        timeout_seconds=plan.timeout_seconds or 0.0,
        traced=traced,
        calls=tuple(plan.calls),
        inputs=tuple(plan.inputs),
        values=str(bundle_path / plan.values) if plan.values else None,
        data=str(bundle_path / model.data) if model.data else None,
        warmup=plan.warmup or 0,
        process=ProcessSettings.of(manifest.settings),
    )


def _read_or_explain(check: TraceCheck, trace: Path, name: str) -> int | PartFailure:
    """Return the number of complete inferences of a trace, or the bug in opscope that prevents reading it."""
    return explained(f"the trace {name}", lambda: check(trace), lambda failure: failure)


def _judge_outcome(outcome: JobOutcome, job: Job, read: Callable[[], int | PartFailure]) -> tuple[int, Failure | None]:
    """Return the complete inferences of a repetition, and why it does not count; None if it does."""
    if outcome.failure or outcome.measurement is None:
        return 0, outcome.failure or Failure(FailureKind.EXIT, "no result")
    if not job.traced:
        calls = len(outcome.measurement.wall_ns)
        return calls, _request_mismatch(outcome.measurement, job, calls)
    try:
        inferences = read()
    except TraceFormatError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return 0, Failure(FailureKind.TRACE, f"{error.problem}{hint}")
    except StorageError as error:
        return 0, Failure(FailureKind.TRACE, f"no trace was written: {error.problem}")
    if isinstance(inferences, PartFailure):
        return 0, Failure(FailureKind.BUG, inferences.unreadable)
    return inferences, _request_mismatch(outcome.measurement, job, inferences)


def _request_mismatch(measurement: Measurement, job: Job, inferences: int) -> Failure | None:
    if inferences != job.inferences:
        subject = "the trace holds" if job.traced else "the process timed"
        return Failure(FailureKind.TRACE, f"{subject} {inferences} of {counted_text(job.inferences, 'inference')}")
    if job.threads and measurement.threads not in {None, job.threads}:
        return Failure(
            FailureKind.EXIT, f"the runtime used {counted_text(measurement.threads, 'thread')}, requested {job.threads}"
        )
    cleared = measurement.mask.cleared if measurement.mask else []
    if cleared != (job.clear or []):
        return Failure(FailureKind.MASK, f"the runtime cleared {cleared}, requested {job.clear}")
    if measurement.mask and job.variant.switch not in {None, measurement.mask.mechanism}:
        used, requested = measurement.mask.mechanism.value, job.variant.switch.value
        return Failure(FailureKind.MASK, f"features were switched off with {used}, requested {requested}")
    return None


def interleave_rounds(variants: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """Return, for every round, the variants in the order in which they run.

    Drift of the machine then affects all variants alike. Exchanging two equal variants within a round changes nothing,
    which the permutation test of a comparison rests on.
    """
    generator = random.Random(seed)  # noqa: S311 - an order to be repeated, not a secret
    return [generator.sample(list(variants), len(variants)) for _ in range(rounds)]


class Rest:
    """Pauses between processes as an experiment requests them."""

    def __init__(self, settings: ExperimentSettings, target: RunTarget, sleep: Callable[[float], None]) -> None:
        self._cooldown, self._hottest = settings.cooldown_seconds, settings.max_temperature
        self._target, self._sleep = target, sleep
        self.unreadable = self._hottest is not None and target.conditions().temperature_celsius is None

    def take(self) -> None:
        """Pause once, until the machine is cool enough."""
        if self._cooldown:
            self._sleep(self._cooldown)
        waited = 0.0
        while self._is_too_hot():
            if waited >= _LONGEST_WAIT_SECONDS:
                raise RunError(f"still above {self._hottest:g} °C after {waited:.0f} s", hint=_HINT)
            self._sleep(_STEP_SECONDS)
            waited += _STEP_SECONDS

    def _is_too_hot(self) -> bool:
        if self._hottest is None or self.unreadable:
            return False
        now = self._target.conditions().temperature_celsius
        return now is not None and now > self._hottest
