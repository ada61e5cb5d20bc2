"""Kernel evidence of the Arm kit's xnntrace experiments: a run with XNNPACK's log, nothing of it timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import DeviceError
from opscope.core.files import storage_errors
from opscope.experiment.protocol import LOG, Job
from opscope.hosts.host import ProcessSettings
from opscope.readers.kernels import read_kernel_log
from opscope.workflows.measure.experiment_bundle import build_of

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.experiment.planned import Experiment, PlannedVariant
    from opscope.experiment.target import RunTarget


class KernelEvidence(msgspec.Struct, frozen=True):
    """The log of one run.

    Attributes:
        experiment: its name.
        variant: its name.
        log: path of what the runner printed; `opscope analyze` reads it.
        kernels: number of microkernels that XNNPACK registered, by the log; 0 when the runner was built without it.
        failure: why the run failed; null when it did not.
    """

    experiment: str
    variant: str
    log: str
    kernels: int
    failure: str | None = None


def collect_evidence(experiment: Experiment, directory: Path, *, resume: bool) -> list[KernelEvidence]:
    """Run every variant once, and count the kernels of its log."""
    found = []
    for variant in experiment.variants:
        place = directory / variant.name
        kept = _found(experiment, variant, directory) if resume else None
        found.append(kept if kept and kept.kernels else _run(experiment, variant, place))
    return found


def found_evidence(experiment: Experiment, directory: Path) -> list[KernelEvidence]:
    """What earlier runs left, without those that left nothing."""
    every = [_found(experiment, variant, directory) for variant in experiment.variants]
    return [one for one in every if one is not None]


def _found(experiment: Experiment, variant: PlannedVariant, directory: Path) -> KernelEvidence | None:
    log = directory / variant.name / LOG
    if not log.is_file():
        return None
    return KernelEvidence(experiment.name, variant.name, str(log), _kernels(log))


def _run(experiment: Experiment, variant: PlannedVariant, place: Path) -> KernelEvidence:
    with storage_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    try:
        target = build_of(experiment, variant)
        with target.reserved():
            return _logged(experiment, variant, target, place)
    except DeviceError as error:
        return KernelEvidence(experiment.name, variant.name, str(place / LOG), 0, f"{error}; {error.hint}")


def _logged(experiment: Experiment, variant: PlannedVariant, target: RunTarget, place: Path) -> KernelEvidence:
    job = Job(
        program=experiment.model,
        variant=variant,
        inferences=1,
        seed=experiment.seed,
        timeout_seconds=experiment.timeout,
        traced=target.capabilities().always_traces is not False,
        process=ProcessSettings.of(experiment),
    )
    failure = target.execute(job, place).failure
    log = place / LOG
    kernels = _kernels(log) if log.is_file() else 0
    return KernelEvidence(experiment.name, variant.name, str(log), kernels, failure.message if failure else None)


def _kernels(log: Path) -> int:
    return len(read_kernel_log(log).entries)
