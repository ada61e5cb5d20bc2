"""Experiments from a file: every model on every target becomes a bundle; and files to begin with."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.bundle import Bundle, check_free, is_bundle
from opscope.bundle.manifest import ConfigRequest, Role
from opscope.core.errors import (
    BundleError,
    BusyError,
    DeviceError,
    FeatureError,
    NotFoundError,
    OpscopeError,
    UsageError,
    did_you_mean,
)
from opscope.core.writing import write_new as create
from opscope.experiment.config import decode_config, template
from opscope.experiment.config_rules import read_opscope_config
from opscope.experiment.planned import PlannedComparison
from opscope.experiment.target_names import kind_named
from opscope.hosts.process import limit_questions
from opscope.kit.config import is_kit_config, read_kit_config
from opscope.workflows.analyze.sides import is_kit
from opscope.workflows.measure.experiments import Means, attempt, experiment_target, failed
from opscope.workflows.measure.machine import temporary_cache
from opscope.workflows.measure.parallel.side_by_side import in_turn, lanes, side_by_side
from opscope.workflows.measure.program_inputs import program_source
from opscope.workflows.measure.run_report import (
    Attempt,
    ExperimentResult,
    RunReport,
    collect_evidence,
    found_evidence,
    with_comparisons,
)
from opscope.workflows.measure.targets import on_phone
from opscope.workflows.measure.variants import check_threads, variants_of
from opscope.workflows.reports.reports import REPORT_FORMATS, content, content_of, report, write_reports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.planned import Experiment, Experiments


__all__ = ["template", "write_new"]


def select_experiments(experiments: Experiments, only: Sequence[str]) -> Experiments:
    """Return the part of a file that some names of experiments, devices or variants select; all of it without names.

    Raises:
        UsageError: a name is in no experiment.
    """
    if not only:
        return experiments
    known = {name for experiment in experiments.experiments for name in _selectable_names(experiment)}
    # The file of a model, and so an experiment, may have a comma in its name.
    chosen = {name.strip() for text in only for name in ([text] if text in known else text.split(",")) if name.strip()}
    for name in sorted(chosen):
        if name not in known:
            problem = f"no experiment, device or variant {name!r} in {experiments.file}"
            raise UsageError(problem, where="--only", hint=did_you_mean(name, known))
    parts = [part for experiment in experiments.experiments if (part := _select_part(experiment, chosen))]
    pairs = tuple(pair for pair in experiments.comparisons if _has_both(pair, parts))
    return msgspec.structs.replace(experiments, experiments=tuple(parts), comparisons=pairs)


def _selectable_names(experiment: Experiment) -> set[str]:
    variants = {name for variant in experiment.variants for name in (variant.name, variant.group)}
    return {experiment.name, *variants, *([experiment.device] if experiment.device else [])}


def _select_part(experiment: Experiment, chosen: set[str]) -> Experiment | None:
    if {experiment.name, experiment.device} & chosen:
        return experiment
    variants = tuple(v for v in experiment.variants if {v.name, v.group} & chosen)
    model = next((variant.model for variant in variants if variant.model), experiment.model)
    return msgspec.structs.replace(experiment, variants=variants, model=model) if variants else None


def _has_both(pair: PlannedComparison, experiments: list[Experiment]) -> bool:
    variants = {(experiment.name, variant.name) for experiment in experiments for variant in experiment.variants}
    return {pair.baseline, pair.candidate} <= variants


def run(  # noqa: PLR0913 - the one call a notebook makes; all but the first are by name
    config: str | Path,
    *,
    only: Sequence[str] = (),
    analysis_only: bool = False,
    resume: bool = False,
    out: str | Path | None = None,
    target: str | None = None,
    oversubscribe: bool = False,
    baseline: str | None = None,
    candidate: str | None = None,
    means: Means | None = None,
) -> RunReport:
    """Run the experiments of a file, each into a bundle with its reports.

    Args:
        config: TOML or JSON of ours, or the Arm kit's JSON.
        only: names of experiments, devices or variants; empty for all.
        analysis_only: run nothing; write the reports of the bundles that are there anew.
        resume: finish bundles that are there; without it they must not be.
        out: directory of the bundles; None: as the file says.
        target: Android device for experiments with runners or of the target adb; None: as the file says.
        oversubscribe: allow more threads than a target has usable CPUs, whatever the file says.
        baseline: name of the variant that others are compared with, whatever the file says; with ``candidate``.
        candidate: name of the variant that is compared with it.
        means: None: this machine's clock and targets, and nobody watching.

    Raises:
        UsageError: the file or a name is wrong, or a target is not available; nothing has run then.
        ClusterError: the scheduler cannot be reached or was lost; what came from its workers before is kept.
        BundleError: a bundle is there already.
        StorageError: the disk is full; what was measured is kept.
        OpscopeError: of the kind that fits, before anything has run. Later ones stand in the result.
    """
    chosen, file = means or Means(), Path(config)
    complete = read_experiments(file)
    experiments = select_experiments(
        _with_roles(complete, baseline, candidate) if baseline or candidate else complete, only
    )
    experiments = _with_command_line(
        experiments, complete, ConfigRequest(str(file), target=target, scheduler=chosen.scheduler)
    )
    if out is not None:
        experiments = msgspec.structs.replace(experiments, out=Path(out))
    experiments = on_phone(experiments, target) if target else experiments
    experiments = _allow_oversubscription(experiments) if oversubscribe else experiments
    if analysis_only:
        return _report_existing(experiments)
    if chosen.scheduler is not None:
        from opscope.workflows.measure.parallel.remote_experiments import run_on_workers

        return run_on_workers(experiments, chosen.scheduler, chosen, resume=resume)
    _check_experiments(experiments, chosen, resume=resume)
    notes = [*experiments.notes, *filter(None, [temporary_cache()])]
    results = _run_experiments(experiments, [e for e in experiments.experiments if not e.evidence], chosen, notes)
    evidence = [
        evidence_run
        for e in experiments.experiments
        if e.evidence
        for evidence_run in collect_evidence(e, experiments.out / e.name, resume=resume)
    ]
    return RunReport(str(config), with_comparisons(experiments, results, notes), evidence, notes)


def _with_roles(experiments: Experiments, baseline: str | None, candidate: str | None) -> Experiments:
    """Make one variant the baseline and one the candidate, at each of their thread counts; nothing else is compared.

    Raises:
        UsageError: one of the names is missing, or no variant has it.
    """
    variants = [(experiment, variant) for experiment in experiments.experiments for variant in experiment.variants]
    groups = dict.fromkeys(variant.group for _, variant in variants)
    for option, name in (("--baseline", baseline), ("--candidate", candidate)):
        if name not in groups:
            problem = f"no variant {name} in the file" if name else "both sides have to be named"
            hint = f"name one of {', '.join(groups)}" if groups else "it applies to files that list variants"
            raise UsageError(problem, where=option, hint=hint)
    if baseline == candidate:
        raise UsageError("a variant cannot be compared with itself", where="--candidate", hint="name two")
    sides = {baseline: Role.BASELINE, candidate: Role.CANDIDATE}
    changed = tuple(
        msgspec.structs.replace(
            experiment,
            variants=tuple(
                msgspec.structs.replace(variant, role=sides.get(variant.group, Role.INTERMEDIATE))
                for variant in experiment.variants
            ),
        )
        for experiment in experiments.experiments
    )
    comparisons = tuple(
        PlannedComparison((off.name, before.name), (on.name, after.name))
        for off, before in variants
        for on, after in variants
        if (before.group, after.group) == (baseline, candidate) and before.threads == after.threads
    )
    return msgspec.structs.replace(experiments, experiments=changed, comparisons=comparisons)


def _run_experiments(
    all_experiments: Experiments, experiments: Sequence[Experiment], means: Means, notes: list[str]
) -> list[ExperimentResult]:
    """Run experiments, those of several devices side by side; return results in the order of the file."""

    def not_begun(experiment: Experiment, error: OpscopeError) -> Attempt:
        return failed(all_experiments, experiment, error)

    rows = lanes(experiments, means.given)
    if len(rows) > 1:
        tried = side_by_side(
            rows,
            lambda e: experiment_target(e, all_experiments.out / e.name, means),
            lambda e, target: attempt(all_experiments, e, means, target),
            not_begun,
        )
    else:
        tried = in_turn(experiments, lambda e: attempt(all_experiments, e, means), not_begun)
    attempts = {}
    with contextlib.closing(tried):
        for attempt_result in tried:
            attempts[attempt_result.result.name] = attempt_result
            means.finished(attempt_result.result, len(experiments) - len(attempts))
    for experiment in experiments:
        notes += attempts[experiment.name].notes
    return [attempts[experiment.name].result for experiment in experiments]


def _with_command_line(experiments: Experiments, complete: Experiments, request: ConfigRequest) -> Experiments:
    """Return the experiments, each with the names that make `opscope run` run it alone."""
    replace = msgspec.structs.replace
    variant_counts = {experiment.name: len(experiment.variants) for experiment in complete.experiments}
    changed = []
    for experiment in experiments.experiments:
        if len(experiment.variants) != variant_counts[experiment.name]:
            only = [variant.name for variant in experiment.variants]
        else:
            only = [experiment.name] if len(variant_counts) > 1 else []
        changed.append(replace(experiment, config=replace(request, only=only)))
    return replace(experiments, experiments=tuple(changed))


def _allow_oversubscription(experiments: Experiments) -> Experiments:
    """Return the experiments with permission to start more threads than there are usable CPUs."""
    replace = msgspec.structs.replace
    changed = tuple(replace(e, oversubscribe=True) for e in experiments.experiments)
    return replace(experiments, experiments=changed)


def _report_existing(experiments: Experiments) -> RunReport:
    """Write the reports of existing bundles again, or of what the kit itself left in their place."""
    timed = [experiment for experiment in experiments.experiments if not experiment.evidence]
    with_bundle = [experiment for experiment in timed if is_bundle(experiments.out / experiment.name)]
    if not with_bundle and is_kit(experiments.out):
        report(experiments.out)
        experiment_results = [ExperimentResult(experiments.out.name, str(experiments.out), content(experiments.out))]
        return RunReport(str(experiments.file), experiment_results, [], list(experiments.notes))
    if timed and not with_bundle:
        hint = "run it first, or name the directory with --out"
        raise NotFoundError("no experiment of the file has a bundle", where=experiments.out, hint=hint)
    notes = [
        *experiments.notes,
        *(f"{e.name}: there is no bundle in {experiments.out}" for e in timed if e not in with_bundle),
    ]
    results = []
    for experiment in with_bundle:
        bundle = Bundle.open(experiments.out / experiment.name)
        bundle_content = content_of(bundle)
        write_reports(bundle.path, bundle_content, REPORT_FORMATS)
        results.append(ExperimentResult(experiment.name, str(bundle.path), bundle_content))
    evidence = [
        evidence_run
        for e in experiments.experiments
        if e.evidence
        for evidence_run in found_evidence(e, experiments.out / e.name)
    ]
    return RunReport(str(experiments.file), with_comparisons(experiments, results, notes), evidence, notes)


def _check_experiments(experiments: Experiments, means: Means, *, resume: bool) -> None:
    """Refuse what can be known to fail before the first process runs.

    Of several devices, one that cannot be used does not stop the others: its own experiment reports it.
    """
    several = len({experiment.target for experiment in experiments.experiments}) > 1
    for experiment in experiments.experiments:
        if experiment.needs_worker:
            hint = (
                f"give its target: [devices.{experiment.device}] and below it, for example, "
                'target = "ssh:HOST"; or name the scheduler whose workers own it: --scheduler ADDRESS'
            )
            problem = f"no target given for the device {experiment.device}"
            raise UsageError(problem, where=f"{experiments.file}: devices", hint=hint)
        path = experiments.out / experiment.name
        if not resume or not (experiment.evidence or is_bundle(path)):
            check_free(path)
        for planned in experiment.all_models:
            program_source(*planned, experiment.models)
        if experiment.device is not None and kind_named(experiment.target).remote:
            continue  # it is asked when it is its turn
        try:
            with limit_questions(experiment.timeout):
                target = experiment_target(experiment, path, means)
        except UsageError as error:
            raise UsageError(error.problem, where=f"{experiments.file}: target", hint=error.hint) from error
        later = (BusyError,) if means.lock != "fail" else ()  # the experiment waits for it, or runs beside
        ignored = contextlib.suppress(*(_OF_ONE_DEVICE if several else ()), *later)
        with ignored, limit_questions(experiment.timeout), target.reserved():
            variants, _ = variants_of(experiment, target)
            if not is_bundle(path) and any((variant.threads or 1) > 1 for variant in variants):
                check_threads(variants, target.environment(), oversubscribe=experiment.oversubscribe)


_OF_ONE_DEVICE = (DeviceError, FeatureError)


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet.

    Raises:
        BundleError: it exists.
    """
    if not create(path, text.encode()):
        raise BundleError("it already exists", where=path, hint="choose another --out")


def read_experiments(file: Path) -> Experiments:
    """Read the experiments that a file asks for."""
    raw = decode_config(file, hint="write one with `opscope init --out FILE`")
    return read_kit_config(raw, file) if is_kit_config(raw) else read_opscope_config(raw, file)
