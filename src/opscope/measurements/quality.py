"""Quality of a whole experiment: of its figures, its machine and its course."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from opscope.core.parts import explained

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.compare.outputs import OutputAgreement
    from opscope.analysis.findings.message import Message, Quality
    from opscope.analysis.latency.latency import Latency, Untraced
    from opscope.analysis.quality.disturbance import VariantCalls
    from opscope.analysis.quality.quality_machine import Circumstances
    from opscope.bundle.manifest import Manifest
    from opscope.runtimes.side import Side


def quality_of(
    manifest: Manifest,
    analyses: Mapping[str, Analysis],
    comparisons: Sequence[Comparison],
    agreements: Sequence[OutputAgreement] = (),
) -> Quality | None:
    """Return how far an experiment can be trusted; None if nothing was measured."""
    from opscope.analysis.findings.message import unjudged

    if not analyses:
        return None
    return explained("the quality", lambda: _judge_experiment(manifest, analyses, comparisons, agreements), unjudged)


def _judge_experiment(
    manifest: Manifest,
    analyses: Mapping[str, Analysis],
    comparisons: Sequence[Comparison],
    agreements: Sequence[OutputAgreement],
) -> Quality:
    from opscope.analysis.findings.message import judge
    from opscope.analysis.latency.latency import Untraced
    from opscope.analysis.latency.methods import timed_by_method
    from opscope.analysis.quality.quality import evidence_of, examine_measurement
    from opscope.analysis.quality.quality_machine import examine_machine

    first = comparisons[0] if comparisons else None
    measured: dict[str, tuple[Latency, Untraced | None]] = {}
    for name, analysis in analyses.items():
        timing = Untraced(analysis.latency, analysis.tracing) if analysis.traced else None
        measured |= timed_by_method(name, analysis.traced or analysis.latency, timing, analysis.methods)
    output_agreements = [comparison.outputs for comparison in comparisons]
    compared = [outputs for outputs in (*output_agreements, *agreements) if outputs is not None]
    wrong = [outputs for outputs in compared if not outputs.agree]
    problem = next((outputs.problem for outputs in wrong), None)
    evidence = evidence_of(
        measured,
        first.verdicts if first else None,
        problem or ("" if compared else None),
        same_program=not manifest.programs,
        inputs_at_fault=any(outputs.inputs_at_fault for outputs in wrong),
    )
    disturbed = disturbance_of({name: (manifest, name) for name in analyses})
    return judge([*disturbed, *examine_measurement(evidence), *examine_machine(circumstances(manifest))])


def quality_of_sides(baseline: Side, candidate: Side, comparison: Comparison) -> Quality:
    """Return how far a comparison can be trusted, by the figures of both sides and by their machines if known."""
    from opscope.analysis.analysis import measured_latency
    from opscope.analysis.findings.message import judge
    from opscope.analysis.latency.latency import untraced_arm
    from opscope.analysis.latency.methods import method_times, timed_by_method
    from opscope.analysis.quality.quality import evidence_of, examine_measurement
    from opscope.analysis.quality.quality_machine import examine_machine

    sides = {"the baseline": baseline, "the candidate": candidate}
    measured: dict[str, tuple[Latency, Untraced | None]] = {}
    for name, side in sides.items():
        timing = untraced_arm(side.calls) if side.calls else None
        methods = method_times(side.table, [], side.calls, {})
        measured |= timed_by_method(name, measured_latency(side.table, side.path), timing, methods)
    outputs = comparison.outputs
    programs = {
        side.bundle.manifest.model_of(side.variant.name).sha256
        for side in (baseline, candidate)
        if side.bundle and side.variant
    }
    problem = (outputs.problem or "") if outputs else None
    evidence = evidence_of(
        measured,
        comparison.verdicts,
        problem,
        same_program=len(programs) < 2,  # noqa: PLR2004
        inputs_at_fault=outputs is not None and outputs.inputs_at_fault,
    )
    bundles = {side.bundle.path.resolve(): side.bundle for side in sides.values() if side.bundle}
    machine = [result for bundle in bundles.values() for result in examine_machine(circumstances(bundle.manifest))]
    variants = {
        name: (side.bundle.manifest, side.variant.name) for name, side in sides.items() if side.bundle and side.variant
    }
    return judge([*disturbance_of(variants), *examine_measurement(evidence), *machine])


def disturbance_of(variants: Mapping[str, tuple[Manifest, str]]) -> list[Message]:
    """Return what other processes took from the inferences of the headline; empty for an emulated CPU."""
    from opscope.analysis.quality.disturbance import examine_disturbance

    if any(manifest.target.emulated for manifest, _ in variants.values()):
        return []
    return examine_disturbance([_measured_calls(name, *variant) for name, variant in variants.items()])


def distrust_reason(*sides: Side) -> str | None:
    """Return why a side, or a ratio of two, cannot be trusted: rows are lost, or it was disturbed; else None."""
    from opscope.analysis.analysis import LOST_ROWS
    from opscope.analysis.quality.disturbance import withheld_reason

    for side in sides:
        for warning in side.table.warnings:
            if warning.code == LOST_ROWS:
                return f"{side.label}: {warning.message}"
    return withheld_reason(
        [
            _measured_calls(side.label, side.bundle.manifest, side.variant.name)
            for side in sides
            if side.bundle and side.variant
        ]
    )


def _measured_calls(name: str, manifest: Manifest, variant: str) -> VariantCalls:
    """Return the measured calls of the arm that the headline rests on: the untraced one, if there is one."""
    from opscope.analysis.quality.disturbance import ProcessCalls, VariantCalls
    from opscope.bundle.manifest import TracingMode

    repetitions = manifest.completed(variant, TracingMode.TIMED) or manifest.completed(variant)
    measured = [repetition.measurement for repetition in repetitions if repetition.measurement]
    first, order = manifest.plan.warmup or 0, manifest.plan.of(variant).calls
    process_calls = [
        ProcessCalls(
            wall_ns=measurement.wall_ns[first:],
            off_cpu_ns=measurement.off_cpu_ns[first:],
            usage=measurement.usage,
            methods=[order[number % len(order)] for number in range(first, len(measurement.wall_ns)) if order],
        )
        for measurement in measured
        if measurement.off_cpu_ns is not None and measurement.off_cpu_ns[first:]
    ]
    return VariantCalls(name, process_calls, unrecorded=len(repetitions) - len(process_calls))


def circumstances(manifest: Manifest) -> Circumstances:
    """Return the state of the machine during an experiment, and what became of its repetitions."""
    from opscope.analysis.quality.quality_machine import Circumstances
    from opscope.core.system.usage import stolen_share

    environment = manifest.environment
    states = [state for repetition in manifest.repetitions for state in (repetition.before, repetition.after)]
    cpus = {environment.usable_cpus, *(state.usable_cpus for state in states)} - {None}
    usable = [count for count in cpus if count is not None]
    loads = [state.load_average for state in states if state.load_average is not None]
    usages = [rep.measurement.usage for rep in manifest.repetitions if rep.measurement and rep.measurement.usage]
    clocks = [state.frequency_mhz for state in states if state.frequency_mhz is not None]
    clocks += [clock for usage in usages for clock in usage.frequency_mhz]
    heats = [state.temperature_celsius for state in states if state.temperature_celsius is not None]
    phones = [state.phone for state in states if state.phone is not None]
    statuses = [phone.thermal_status for phone in phones if phone.thermal_status is not None]
    failed = len(manifest.failures())
    measurements = [rep.measurement for rep in manifest.repetitions if rep.ok and rep.measurement]
    return Circumstances(
        known=environment.system is not None,
        usable_cpus=(min(usable), max(usable)) if usable else None,
        load=max(loads, default=None),
        clock_mhz=(min(clocks), max(clocks)) if clocks else None,
        temperature=max(heats, default=None),
        governor=environment.governor,
        virtual=environment.hypervisor,
        largest_pool=max(
            (variant.threads for variant in manifest.variants if variant.threads is not None), default=None
        ),
        planned=len(manifest.planned()),
        failed=failed,
        missing=len(manifest.pending()) - failed,
        emulated=manifest.target.emulated,
        thermal_status=max(statuses, default=None),
        limit_mhz=_lowest_clock_limit([phone.limits_mhz for phone in phones]),
        speed_limit=min((state.speed_limit for state in states if state.speed_limit is not None), default=None),
        low_power=max((state.low_power for state in states if state.low_power is not None), default=None),
        steal=stolen_share(usages),
        locked=all(lock.held for lock in manifest.locks) if manifest.locks else None,
        beside=tuple(dict.fromkeys(name for lock in manifest.locks for name in lock.beside)),
        off_cpu_recorded=bool(measurements) and all(measurement.off_cpu_ns for measurement in measurements),
    )


def _lowest_clock_limit(limits: Sequence[Sequence[float | None]]) -> tuple[float, float] | None:
    """Return the lowest and highest limit of the CPU whose limit moved most; None if none was reported."""
    limits_of_cpus = ([limit for limit in limits_of_cpu if limit] for limits_of_cpu in itertools.zip_longest(*limits))
    moved = [(min(limits_of_cpu), max(limits_of_cpu)) for limits_of_cpu in limits_of_cpus if limits_of_cpu]
    return min(moved, key=lambda ends: ends[0] / ends[1], default=None)
