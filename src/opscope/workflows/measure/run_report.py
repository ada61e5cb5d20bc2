"""What became of the experiments of a file, kernel evidence of the Arm kit's xnntrace experiments among it.

These run with XNNPACK's log, and nothing of them is timed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.compare.compare import Comparison
from opscope.bundle.bundle import Bundle
from opscope.core.errors import DeviceError, MismatchError, RunError
from opscope.core.files import storage_errors
from opscope.core.json import to_json
from opscope.core.outputs import write_outputs
from opscope.experiment.protocol import LOG, Job
from opscope.hosts.host import ProcessSettings
from opscope.hosts.process import limit_questions
from opscope.measurements.analyses import comparison_of, comparison_within
from opscope.measurements.sides import bundle_side
from opscope.readers.kernels import read_kernel_log
from opscope.reports.content.content import ReportContent
from opscope.workflows.measure.experiment_bundle import build_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.errors import OpscopeError
    from opscope.experiment.planned import Experiment, Experiments, PlannedComparison, PlannedVariant
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
    evidences = []
    for variant in experiment.variants:
        place = directory / variant.name
        kept = _find_log(experiment, variant, directory) if resume else None
        evidences.append(kept if kept and kept.kernels else _run_for_log(experiment, variant, place))
    return evidences


def found_evidence(experiment: Experiment, directory: Path) -> list[KernelEvidence]:
    """Return the kernel logs that earlier runs left; a variant without a log has none."""
    by_variant = [_find_log(experiment, variant, directory) for variant in experiment.variants]
    return [evidence for evidence in by_variant if evidence is not None]


def _find_log(experiment: Experiment, variant: PlannedVariant, directory: Path) -> KernelEvidence | None:
    log = directory / variant.name / LOG
    if not log.is_file():
        return None
    return KernelEvidence(experiment.name, variant.name, str(log), _count_kernels(log))


def _run_for_log(experiment: Experiment, variant: PlannedVariant, directory: Path) -> KernelEvidence:
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    try:
        target = build_of(experiment, variant)
        with limit_questions(experiment.timeout), target.reserved():
            return _run_and_read_log(experiment, variant, target, directory)
    except DeviceError as error:
        return KernelEvidence(experiment.name, variant.name, str(directory / LOG), 0, f"{error}; {error.hint}")


def _run_and_read_log(
    experiment: Experiment, variant: PlannedVariant, target: RunTarget, directory: Path
) -> KernelEvidence:
    job = Job(
        program=experiment.model,
        variant=variant,
        inferences=1,
        seed=experiment.seed,
        timeout_seconds=experiment.timeout,
        traced=target.capabilities().always_traces is not False,
        process=ProcessSettings.of(experiment),
    )
    failure = target.execute(job, directory).failure
    log = directory / LOG
    kernels = _count_kernels(log) if log.is_file() else 0
    return KernelEvidence(experiment.name, variant.name, str(log), kernels, failure.message if failure else None)


def _count_kernels(log: Path) -> int:
    return len(read_kernel_log(log).entries)


class ExperimentResult(msgspec.Struct, frozen=True):
    """What became of one experiment.

    Attributes:
        name: of the experiment.
        path: of its bundle.
        content: what its report shows; null when it failed.
        comparisons: those that the file asks for and the report does not have.
        error: why it failed; null when it did not.
        exit_code: of that error.
    """

    name: str
    path: str
    content: ReportContent | None = None
    comparisons: list[Comparison] = []
    error: str | None = None
    exit_code: int | None = None


class Attempt(NamedTuple):
    """What became of an experiment that was tried."""

    result: ExperimentResult
    error: OpscopeError | None = None  # that ended it; None where none did
    notes: Sequence[str] = ()  # what is to be known of it, one sentence each


class RunReport(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.run/2"):
    """What became of the experiments of a file.

    Attributes:
        config: the file.
        experiments: in its order.
        evidence: kernel lists of the Arm kit's xnntrace experiments.
        notes: what in the file has no effect, and what could not be had here; one sentence each.
    """

    config: str
    experiments: list[ExperimentResult]
    evidence: list[KernelEvidence]
    notes: list[str]


def with_comparisons(
    experiments: Experiments, results: list[ExperimentResult], notes: list[str]
) -> list[ExperimentResult]:
    """Return results with the comparisons that the file asks for beyond those with a thread count's baseline."""
    experiment_results = {result.name: result for result in results if result.content is not None}
    for pair in experiments.comparisons:
        sides = [experiment_results.get(name) for name, _ in (pair.baseline, pair.candidate)]
        baseline, candidate = sides
        if baseline is None or candidate is None or _has_comparison(pair, candidate):
            continue
        try:
            more = _compare_across_experiments(pair, baseline, candidate)
        except (MismatchError, RunError) as error:
            notes.append(f"{pair.candidate[1]} is not compared with {pair.baseline[1]}: {error}")
            continue
        experiment_results[candidate.name] = msgspec.structs.replace(
            candidate, comparisons=[*candidate.comparisons, more]
        )
    return [experiment_results.get(result.name, result) for result in results]


def _has_comparison(pair: PlannedComparison, result: ExperimentResult) -> bool:
    """Return whether the report of the candidate's experiment has a comparison already."""
    if pair.baseline[0] != pair.candidate[0] or result.content is None:
        return False
    names = (pair.baseline[1], pair.candidate[1])
    return any(
        (comparison.baseline.label, comparison.candidate.label) == names for comparison in result.content.comparisons
    )


def _compare_across_experiments(
    pair: PlannedComparison, baseline: ExperimentResult, candidate: ExperimentResult
) -> Comparison:
    """Compare two variants, and keep the comparison in the candidate's bundle."""
    path = Path(candidate.path)
    left, right = Bundle.open(Path(baseline.path)), Bundle.open(path)
    sides = bundle_side(left, pair.baseline[1], None), bundle_side(right, pair.candidate[1], None)
    comparison = comparison_within(right, comparison_of(*sides))
    name = f"comparisons/{pair.candidate[1]}-against-{pair.baseline[1]}.json"
    write_outputs({path / name: to_json(comparison)}, follow=False)
    return comparison
