"""The engine of `opscope profile` and `opscope run`: one experiment becomes its bundle, measured and reported."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from opscope.bundle.bundle import SAMPLES, VARIANTS, Bundle, is_bundle
from opscope.bundle.manifest import FailureKind, SampleRun
from opscope.core.errors import (
    InterruptedRunError,
    OpscopeError,
    RunError,
    StorageError,
    with_hint,
)
from opscope.core.parts import part
from opscope.core.system.stages import enter, heard_by
from opscope.core.system.stop import pause
from opscope.core.tracebacks import tracebacks_kept
from opscope.core.units import counted_text
from opscope.core.writing import write_atomically
from opscope.experiment.config_words import rename_options
from opscope.experiment.engine import Rest, ignore_progress, planned_job, run_experiment
from opscope.experiment.inputs import LABELS, by_position, labelled_inputs, order_inputs, stack_outputs
from opscope.experiment.protocol import OUTPUTS
from opscope.hosts.lock import LOCK_SECONDS, LockRequest
from opscope.hosts.process import limit_questions
from opscope.hosts.target_kinds import AUTO
from opscope.machine.clock import SystemClock
from opscope.measurements.results import Profiled
from opscope.program.structure.dtypes import axes_between
from opscope.readers.outputs import read_arrays
from opscope.readers.registry import read_trace
from opscope.workflows.measure.ceilings import measure_ceilings
from opscope.workflows.measure.experiment_bundle import check_request, grow, new_bundle, old_bundle, remember, target_of
from opscope.workflows.measure.program_inputs import drawn_integers, input_names
from opscope.workflows.measure.run_report import Attempt, ExperimentResult
from opscope.workflows.measure.targets import recorded_target
from opscope.workflows.measure.variants import keep_control
from opscope.workflows.reports.reports import (
    REPORT_FORMATS,
    check_reported,
    content_of,
    write_reports,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opscope.analysis.compare.compare import EndToEnd
    from opscope.bundle.manifest import LockRecord, Plan, Repetition, Variant
    from opscope.bundle.settings import ExperimentSettings
    from opscope.core.system.stages import StageProgress
    from opscope.experiment.engine import Progress
    from opscope.experiment.inputs import LabelledInputs
    from opscope.experiment.planned import Experiment, Experiments
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import RunTarget
    from opscope.experiment.tensors import Array
    from opscope.hosts.lock import LockMode, MachineHold
    from opscope.machine.clock import TimeSource
    from opscope.reports.content.content import ReportContent

INPUTS = "inputs.npz"


def run_samples(bundle: Bundle, experiment: Experiment, target: RunTarget, notify: Callable[[str], None]) -> None:
    """Run all labelled inputs once with every variant that has results and lacks their outputs.

    That a variant cannot is no failure of the run: the reason stands in the manifest.
    """
    path, values = Path(experiment.inputs) if experiment.inputs else None, bundle.manifest.plan.values
    samples = labelled_inputs(path, read_arrays(path)) if path is not None else None
    if path is None or samples is None or values is None:
        return
    timed = read_arrays(bundle.path / values)
    names = input_names(bundle.path / bundle.manifest.model.program, bundle.manifest.plan.calls)
    run = SampleRun(str(path), len(samples.labels), _inputs_sha256(path, samples, timed, names))
    earlier = bundle.manifest.samples
    if earlier is not None and earlier.inputs_sha256 == run.inputs_sha256:
        run = msgspec.structs.replace(earlier, failures={})
    wanted = [variant for variant in bundle.manifest.variants if _lacks_outputs(bundle, variant, run)]
    if not wanted:
        return
    count = counted_text(run.count, "labelled input")
    notify(f"running {count} with {counted_text(len(wanted), 'variant')}, untimed")
    bundle.state_samples(run)
    for variant in wanted:
        _run_samples(bundle, variant, samples, target.of(variant.name), _iterate_inputs(path, samples, timed, names))


def _lacks_outputs(bundle: Bundle, variant: Variant, samples: SampleRun) -> bool:
    there = (bundle.path / VARIANTS / variant.name / SAMPLES).exists()
    return bool(bundle.manifest.completed(variant.name)) and not (there and variant.name in samples.outputs_sha256)


def _iterate_inputs(
    path: Path, samples: LabelledInputs, timed: dict[str, Array], names: Sequence[str]
) -> Iterator[dict[str, Array]]:
    """Yield the tensors of every input; what the file does not give is as in the timed runs."""
    for number in range(len(samples.labels)):
        asked_inputs = order_inputs(by_position(path, samples.sample(number)), names)
        given_arrays = {f"arr_{position}": wish.wish for position, wish in enumerate(asked_inputs) if wish is not None}
        yield timed | {name: wish for name, wish in given_arrays.items() if isinstance(wish, np.ndarray)}


def _inputs_sha256(path: Path, samples: LabelledInputs, timed: dict[str, Array], names: Sequence[str]) -> str:
    """Return the hash of what the program is given: types, sizes and values of all tensors of every input."""
    digest = hashlib.sha256()
    for values in _iterate_inputs(path, samples, timed, names):
        for name, array in sorted(values.items()):
            digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _run_samples(
    bundle: Bundle, variant: Variant, samples: LabelledInputs, target: RunTarget, values: Iterator[dict[str, Array]]
) -> None:
    """Run every input with one variant, and keep the outputs, or why there are none."""
    job = planned_job(bundle.manifest, bundle.path, variant, traced=False)
    job = msgspec.structs.replace(job, inferences=len(job.calls) or 1, warmup=0)
    stated = bundle.manifest.samples
    assert stated is not None  # noqa: S101 - stated before the first variant
    try:
        laid_out = _order_axes(bundle.manifest.plan, variant, values)
        outputs = stack_outputs([_run_input(job, target, number, tensors) for number, tensors in enumerate(laid_out)])
    except RunError as error:
        failures = stated.failures | {variant.name: error.problem}
        bundle.state_samples(msgspec.structs.replace(stated, failures=failures))
    except ValueError:
        failures = stated.failures | {variant.name: "its output sizes depend on the input"}
        bundle.state_samples(msgspec.structs.replace(stated, failures=failures))
    else:
        buffer = io.BytesIO()
        named: dict[str, Any] = {f"output_{number}": array for number, array in enumerate(outputs)}
        named[LABELS] = samples.labels
        np.savez_compressed(buffer, **named)
        bundle.save_samples(variant.name, buffer.getvalue(), stated)


def _order_axes(plan: Plan, variant: Variant, values: Iterator[dict[str, Array]]) -> Iterator[dict[str, Array]]:
    """Yield the tensors in the order of axes that the program of a variant declares.

    Raises:
        RunError: the variant's inputs are not those of the plan.
    """
    variant_inputs = plan.inputs_of.get(variant.name)
    if variant_inputs is not None and variant_inputs.unlike:
        raise RunError(variant_inputs.unlike)
    orders: dict[str, tuple[int, ...]] = {}
    for number, (planned, own_input) in enumerate(
        zip(plan.inputs, variant_inputs.inputs if variant_inputs else (), strict=False)
    ):
        axes = axes_between(planned.shape or (), own_input.shape or ())
        if axes:
            orders[f"arr_{number}"] = axes
    for tensors in values:
        yield {name: np.transpose(array, orders.get(name, range(array.ndim))) for name, array in tensors.items()}


def _run_input(job: Job, target: RunTarget, number: int, values: dict[str, Array]) -> list[Any]:
    """Return the outputs of a process that is given one input.

    Raises:
        RunError: the process failed; a StorageError if the disk is full.
    """
    with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
        work_directory = Path(directory)
        arrays: dict[str, Any] = dict(values)
        np.savez(work_directory / INPUTS, **arrays)
        work = work_directory / "run"
        work.mkdir()
        outcome = target.execute(msgspec.structs.replace(job, values=str(work_directory / INPUTS)), work)
        if outcome.failure is not None:
            kind = StorageError if outcome.failure.kind is FailureKind.STORAGE else RunError
            raise kind(f"input {number}: {outcome.failure.message}")
        return list(read_arrays(work / OUTPUTS).values())


def _ignore_notice(text: str) -> None:
    """A notice that nobody hears."""


def _ignore_result(result: ExperimentResult, left: int) -> None:
    """A result that nobody waits for."""


_ANALYSING = threading.Lock()
"""Experiments side by side analyse one after the other: they would only take the processor from each other."""


class Means(NamedTuple):
    """The means of a run besides its file; tests give others."""

    progress: Progress = ignore_progress  # hears of every repetition
    # where to run instead of where the file says; None: as it says. Runners are always those of the file.
    target: RunTarget | None = None
    clock: TimeSource = SystemClock()  # the machine's unless given
    sleep: Callable[[float], None] = pause  # how time between processes is spent
    # address of a Dask scheduler, whose workers run the experiments; None: this machine does
    scheduler: str | None = None
    lock: LockMode = "wait"  # what to do when another run measures on the machine
    notify: Callable[[str], None] = _ignore_notice  # hears what is to be known while a run goes on, as sentences
    devices: Mapping[str, RunTarget] = {}  # where to run instead, by the names that the file gives its devices
    # gives what hears of the repetitions of an experiment, by its name; None: ``progress`` hears of all
    progress_of: Callable[[str], Progress] | None = None
    # gives what hears of the stages of an experiment, by its name; None: who hears of them in this thread
    stages_of: Callable[[str], StageProgress | None] | None = None
    # hears of every experiment of a file that is done, or failed, as soon as it is, and how many are left
    finished: Callable[[ExperimentResult, int], None] = _ignore_result
    # how long a device may be without the worker that owns it, once nothing else is running: one that died may come
    # back
    worker_seconds: float = 60.0
    keep_going: bool = False  # run all processes although the first ones of two variants failed alike
    # longest wait for a machine on which another run measures, in seconds; None: as usual
    lock_limit: float | None = None

    def lock_request(self, device: str | None = None) -> LockRequest:
        """Return how the machine is to be held; a device with a name is waited for until it is free, and had alone."""
        usual = LOCK_SECONDS if device is None else math.inf
        seconds = usual if self.lock_limit is None else self.lock_limit
        return LockRequest(self.lock, seconds, self.notify, sleep=pause, alone=device is not None)

    def given(self, experiment: Experiment) -> RunTarget | None:
        """Return where an experiment runs instead of where it says; None if it runs where it says."""
        return self.devices.get(experiment.device or "", self.target)


CONFIG = "config"
"""The file that asked for a bundle is kept in it under this name."""


def attempt(experiments: Experiments, experiment: Experiment, means: Means, target: RunTarget | None = None) -> Attempt:
    """Run one experiment of a file; an error ends it and not the others."""
    experiment_means = (
        means if means.progress_of is None else means._replace(progress=means.progress_of(experiment.name))
    )
    listener = means.stages_of(experiment.name) if means.stages_of else None
    try:
        with heard_by(listener), limit_questions(experiment.timeout):
            profiled = _run_experiment(experiments, experiment, experiment_means, target)
    except (StorageError, InterruptedRunError):
        raise
    except OpscopeError as error:
        return failed(experiments, experiment, error)
    result = ExperimentResult(experiment.name, str(experiments.out / experiment.name), profiled.content)
    return Attempt(result, notes=[f"{experiment.name}: {note}" for note in profiled.notes])


def failed(experiments: Experiments, experiment: Experiment, error: OpscopeError) -> Attempt:
    """Return the attempt of an experiment that an error ended, with the error in the words of its file."""
    path, text = str(experiments.out / experiment.name), rename_options(with_hint(error))
    return Attempt(ExperimentResult(experiment.name, path, error=text, exit_code=error.exit_code), error)


def _run_experiment(
    experiments: Experiments, experiment: Experiment, means: Means, target: RunTarget | None
) -> Profiled:
    path = experiments.out / experiment.name
    if not is_bundle(path):
        check_request(path, experiment, means.given(experiment))
    target = target or experiment_target(experiment, path, means)
    with target.reserved(means.lock_request(experiment.device)) as hold:
        begun = old_bundle(path, experiment, target) if is_bundle(path) else None
        bundle, target = (begun, target) if begun else new_bundle(path, experiment, target, means.clock)
        write_atomically(path / f"{CONFIG}{experiments.file.suffix}", experiments.file.read_bytes(), follow=False)
        return measure(bundle, experiment, target, means, hold)


def experiment_target(experiment: Experiment, path: Path, means: Means) -> RunTarget:
    """Return where an experiment runs; one on ``auto`` is finished where it began, whatever that stands for by now."""
    target = means.given(experiment)
    is_resumed = experiment.target == AUTO.name and target is None and is_bundle(path)
    given = recorded_target(Bundle.open(path).manifest, path, experiment.target) if is_resumed else target
    return target_of(experiment, given=given)


def measure(
    bundle: Bundle, experiment: Experiment, target: RunTarget, means: Means, hold: MachineHold | None = None
) -> Profiled:
    """Run what a bundle lacks, measure the ceilings of its machine, and write its reports."""
    with tracebacks_kept(bundle.path):
        return _measure_and_report(bundle, experiment, target, means, hold)


def _measure_and_report(
    bundle: Bundle, experiment: Experiment, target: RunTarget, means: Means, hold: MachineHold | None
) -> Profiled:
    target = target_of(experiment, bundle.path / bundle.manifest.model.program, target)
    rest = Rest(experiment, target, means.sleep)
    with bundle.locked():
        remember(bundle, experiment)
        with _lock_recorded(bundle, hold):
            _run_rounds(bundle, experiment, target, means, rest)
            if experiment.ceilings is not False and any(repetition.ok for repetition in bundle.manifest.repetitions):
                anew = experiment.ceilings is True
                part("ceilings", lambda: measure_ceilings(bundle, target, means.clock, anew=anew), None)
            part("labelled inputs", lambda: run_samples(bundle, experiment, target, means.notify), None)
    with _ANALYSING:
        content, files = _write_reports_of(bundle, target)
    left_out = bundle.manifest.left_out
    notes = [*([left_out.runner] if left_out.runner else []), *_without_effect(experiment, content, rest)]
    notes += _lock_notes(bundle.manifest.locks[-1:])
    notes += _drawn_notes(bundle)
    return Profiled(bundle.path, content, files, notes)


def _write_reports_of(bundle: Bundle, target: RunTarget) -> tuple[ReportContent, list[Path]]:
    """Analyse a bundle's traces and write its reports; return the content and the files.

    Raises:
        RunError: nothing could be measured.
    """
    enter("analysing")
    content = content_of(bundle)
    keep_control(target, bundle.manifest, content.controls)
    if content.shown is None:
        if content.bugs:
            write_reports(bundle.path, content, REPORT_FORMATS)
            check_reported(content, bundle.path, bundle.path)
        failures = bundle.manifest.failures()
        reason = failures[0].failure.message if failures and failures[0].failure else "no repetition succeeded"
        hint = "see the logs next to the manifest; `opscope doctor` checks this machine"
        skipped = len(bundle.manifest.pending()) - len(failures)
        if skipped > 0:
            hint = (
                f"{hint}; skipped {skipped} more {'process' if skipped == 1 else 'processes'}, --keep-going tries them"
            )
        raise RunError(f"nothing could be measured: {reason}", where=bundle.path, hint=hint)
    enter("writing reports")
    return content, write_reports(bundle.path, content, REPORT_FORMATS)


@contextlib.contextmanager
def _lock_recorded(bundle: Bundle, hold: MachineHold | None) -> Iterator[None]:
    """Record how the machine is held, again at the end, since others may have come meanwhile."""
    if hold is None:
        yield
        return
    bundle.record_lock(hold.record())
    try:
        yield
    finally:
        bundle.record_lock(hold.record(), again=True)


def _drawn_notes(bundle: Bundle) -> Iterator[str]:
    """Yield that integer inputs were drawn, and how to give others."""
    drawn = drawn_integers(bundle.path / bundle.manifest.model.program, bundle.manifest.plan)
    if drawn:
        text = "integer inputs were drawn at random from 0 and 1, because the model gives no range"
        yield f"{text}: {'; '.join(drawn)}; --input 'TYPE[SIZE,...]=random(LOW,HIGH)' gives one"
    plan = bundle.manifest.plan
    if plan.guesses:
        yield f"missing sizes and integers were guessed, and the latency is for these values: {', '.join(plan.guesses)}"
    if plan.refused_guesses:
        refused = ", ".join(plan.refused_guesses)
        yield f"the first guess {refused} gave outputs that are not finite; give real values with --input"


def _lock_notes(locks: Sequence[LockRecord]) -> Iterator[str]:
    """Yield what is to be known of how the machine was held, one sentence each."""
    for lock in locks:
        if lock.beside:
            yield f"measured at the same time as {'; '.join(lock.beside)}: figures may be wrong, measure again alone"
        if lock.problem:
            yield f"could not lock out other runs: {lock.problem}"


def _run_rounds(bundle: Bundle, settings: ExperimentSettings, target: RunTarget, means: Means, rest: Rest) -> None:
    """Run the planned rounds, then more of them until there are enough."""

    def heard(done: int, total: int, repetition: Repetition | None) -> None:
        means.progress(done, total, repetition)
        if repetition is not None and done < total:
            rest.take()

    if bundle.manifest.plan.rounds < settings.rounds:
        grow(bundle, settings.rounds)
    while True:
        run_experiment(bundle, target, means.clock, complete_inferences, heard, keep_going=means.keep_going)
        wanted = _rounds_wanted(bundle, settings)
        if wanted == bundle.manifest.plan.rounds:
            return
        grow(bundle, wanted)
        rest.take()


def complete_inferences(path: Path) -> int:
    """Return the number of complete inferences in a trace."""
    return len(read_trace(path).table.inference_times().duration)


def _rounds_wanted(bundle: Bundle, settings: ExperimentSettings) -> int:
    """Return the rounds that a bundle should have: half as many more while it is not enough, up to the limit."""
    manifest = bundle.manifest
    planned = manifest.plan.rounds
    more = min(settings.most_rounds, planned + max(1, planned // 2))
    if more <= planned or not all(manifest.completed(variant.name) for variant in manifest.variants):
        return planned
    enter("analysing")
    with _ANALYSING:
        return planned if _has_enough(content_of(bundle), settings) else more


def _has_enough(content: ReportContent, settings: ExperimentSettings) -> bool:
    """Return whether every variant was measured long enough, and every interval is narrow enough."""
    analyses = [result.analysis for result in content.variants if result.analysis]
    if any(sum(result.latency.samples_ns) < settings.min_seconds * 1e9 for result in analyses):
        return False
    if settings.until is None:
        return True
    return all(
        _interval_width(end) <= settings.until for result in content.comparisons for end in result.verdicts.values()
    )


def _interval_width(end_to_end: EndToEnd) -> float:
    """Return the width of the speedup's interval, relative to the speedup; infinite if there is no interval."""
    if end_to_end.ci95 is None or end_to_end.speedup is None:
        return float("inf")
    return (end_to_end.ci95[1] - end_to_end.ci95[0]) / end_to_end.speedup


def _without_effect(settings: ExperimentSettings, content: ReportContent, rest: Rest) -> Iterator[str]:
    """Yield what was asked for and had no effect, one sentence each."""
    if rest.unreadable:
        yield "this machine reports no temperature, so max_temperature has no effect"
    if settings.until is not None and not content.comparisons:
        yield "nothing is compared with a baseline, so until has no effect"
