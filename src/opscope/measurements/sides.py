"""Sides from bundles: a variant with its program and the inputs of its calls.

The manifest has what callers of variants measured, and with it which of several runtimes is the fastest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.bundle import VARIANTS, Bundle
from opscope.bundle.manifest import Failure, FailureKind, Role, TracingMode
from opscope.core.errors import NotFoundError, RunError, UsageError, did_you_mean
from opscope.core.parts import PartFailure, explained, part
from opscope.measurements.trace_sides import mark_warmup
from opscope.runtimes.registry import runtime_of
from opscope.runtimes.side import Side, Warmup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.analysis.latency.latency import CallTimes
    from opscope.bundle.manifest import Manifest, Repetition, Variant
    from opscope.core.table import EventTable
    from opscope.program.phases import Phase
    from opscope.readers.registry import TraceRead


def bundle_side(bundle: Bundle, name: str | None, warmup: Warmup) -> Side:
    """Return the side of a bundle's variant, with its program; without a name, that of :func:`usual_variant`."""
    variant = find_variant(bundle.manifest, name, bundle.path)
    repetitions = bundle.manifest.completed(variant.name)
    if not repetitions:
        hint = "see the failures in manifest.json; --resume retries them"
        raise RunError(f"no repetition of {variant.name} succeeded", where=bundle.path, hint=hint)
    bundle.check_records(variant.name)
    traces = (
        [] if bundle.manifest.left_out.trace else [_read_trace_of(bundle, repetition) for repetition in repetitions]
    )
    return _variant_side(bundle, variant, traces, warmup)


def readable_sides(bundle: Bundle) -> tuple[Bundle, dict[str, Side]]:
    """Return the sides of all variants that have a result, by name, and the bundle as far as it can be read.

    A trace that a bug in opscope makes unreadable counts as a failed repetition, as the returned bundle's manifest
    says; a variant without any trace left has no side. If no trace at all is left, the sides are those of the untraced
    calls, which have no split.
    """
    read, sides = _readable_sides(bundle)
    bugs = [
        repetition.failure.message
        for repetition in read.manifest.failures()
        if repetition.failure and repetition.is_unread
    ]
    if sides or not bugs or read.manifest.left_out.trace:
        return read, sides
    left_out = msgspec.structs.replace(read.manifest.left_out, trace=bugs[0])
    return _readable_sides(_with_manifest(read, msgspec.structs.replace(read.manifest, left_out=left_out)))


def with_roles(bundle: Bundle, baseline: str | None, candidate: str | None) -> Bundle:
    """Return a bundle as if one variant had been planned as the baseline and one as the candidate.

    Raises:
        NotFoundError: the bundle has no variant of a name.
        UsageError: a name is missing, both are the same, or they ran with different numbers of threads.
    """
    variants = {variant.name: variant for variant in bundle.manifest.variants}
    for option, name in (("--baseline", baseline), ("--candidate", candidate)):
        if name is None:
            raise UsageError("both sides have to be named", where=option, hint=f"name one of {', '.join(variants)}")
        if name not in variants:
            raise NotFoundError(f"no variant {name}", where=bundle.path, hint=did_you_mean(name, variants))
    if baseline == candidate:
        raise UsageError("a variant cannot be compared with itself", where="--candidate", hint="name two")
    if variants[baseline or ""].threads != variants[candidate or ""].threads:
        problem = "the two variants ran with different numbers of threads"
        raise UsageError(problem, where="--candidate", hint="name two with one number of threads")
    roles = {baseline: Role.BASELINE, candidate: Role.CANDIDATE}
    chosen = [
        msgspec.structs.replace(variant, role=roles.get(variant.name, Role.INTERMEDIATE))
        for variant in variants.values()
    ]
    # The pair that was asked for comes first.
    chosen.sort(key=lambda variant: variant.name not in roles)
    return _with_manifest(bundle, msgspec.structs.replace(bundle.manifest, variants=chosen))


def _with_manifest(bundle: Bundle, manifest: Manifest) -> Bundle:
    return Bundle(bundle.path, manifest, hashes_checked=bundle.hashes_checked)


def _readable_sides(bundle: Bundle) -> tuple[Bundle, dict[str, Side]]:
    sides: dict[str, Side] = {}
    for variant in bundle.manifest.variants:
        if bundle.manifest.completed(variant.name):
            bundle.check_records(variant.name)
        bundle, traces = _read_traces(bundle, variant)
        if bundle.manifest.completed(variant.name):
            side = part(f"the variant {variant.name}", partial(_variant_side, bundle, variant, traces, None), None)
            sides |= {} if side is None else {variant.name: side}
    return bundle, {name: side._replace(bundle=bundle) for name, side in sides.items()}


def _read_traces(bundle: Bundle, variant: Variant) -> tuple[Bundle, list[TraceRead]]:
    """Return the traces of a variant that can be read, and the bundle in which the others failed."""
    if bundle.manifest.left_out.trace:
        return bundle, []
    traces: list[TraceRead] = []
    failures: dict[int, Failure] = {}
    for repetition in bundle.manifest.completed(variant.name):
        read_result = explained(
            f"the trace {repetition.trace}", partial(_read_trace_of, bundle, repetition), lambda failure: failure
        )
        if isinstance(read_result, PartFailure):
            failures[id(repetition)] = Failure(FailureKind.BUG, read_result.unreadable)
        else:
            traces.append(read_result)
    if not failures:
        return bundle, traces
    repetitions = [
        msgspec.structs.replace(repetition, failure=failures[id(repetition)])
        if id(repetition) in failures
        else repetition
        for repetition in bundle.manifest.repetitions
    ]
    return _with_manifest(bundle, msgspec.structs.replace(bundle.manifest, repetitions=repetitions)), traces


def _variant_side(bundle: Bundle, variant: Variant, traces: Sequence[TraceRead], warmup: Warmup) -> Side:
    """Return a side of the traces of all repetitions; of the timed calls if nothing was traced."""
    from opscope.core.table import EventTable
    from opscope.core.table.calls import CALLS_FORMAT, named_by_calls
    from opscope.measurements.attribution import with_bundled_program

    repetitions, untraced = bundle.manifest.completed(variant.name), bundle.manifest.left_out.trace
    tables = (
        [_table_of_process(repetition, untraced) for repetition in repetitions]
        if untraced
        else [trace.table for trace in traces]
    )
    plan, methods = bundle.manifest.plan.of(variant.name), bundle.manifest.model_of(variant.name).methods
    planned: Warmup = "auto" if plan.warmup is None else plan.warmup
    table = mark_warmup(EventTable.concat(tables), planned if warmup is None else warmup)
    if plan.calls:
        table = named_by_calls(table, plan.calls)
    elif methods and len(methods) == 1:
        table = table.with_method(methods[0])
    files = [(repetition.trace or repetition.directory, repetition.data_sha256) for repetition in repetitions]
    path = str(bundle.path / VARIANTS / variant.name)
    warmed = max(table.warmup, default=0)
    calls, phases = calls_of(bundle.manifest, variant.name, warmed), _phases_of_calls(bundle, variant)
    form = traces[0].format if traces else CALLS_FORMAT
    side = Side(table, path, form, files, variant.name, bundle, variant, calls=calls, phases=phases)
    return side if untraced else with_bundled_program(side)


def _read_trace_of(bundle: Bundle, repetition: Repetition) -> TraceRead:
    """Return the trace of a repetition; it is hashed while it is decoded and must be the recorded one."""
    from opscope.readers.registry import read_trace

    file = str(repetition.trace)
    trace_read = read_trace(bundle.path / file)
    bundle.check_hash(file, trace_read.content_sha256, repetition.trace_sha256)
    return trace_read


def _table_of_process(repetition: Repetition, reason: str) -> EventTable:
    """Return the calls of a process that was not traced, each as a whole."""
    from opscope.core.table import TraceWarning
    from opscope.core.table.calls import table_of_calls

    measured = repetition.measurement
    warning = TraceWarning("no_trace", f"no split into operators: {reason}", "profile with that version")
    return table_of_calls(measured.wall_ns if measured else [], measured.load_ns if measured else None, warning)


def _phases_of_calls(bundle: Bundle, variant: Variant) -> dict[str, Phase]:
    """Return what calls of the called methods do for a language model, by method."""
    plan, model = bundle.manifest.plan.of(variant.name), bundle.manifest.model_of(variant.name)
    methods = plan.calls or model.methods or []
    return {method: phase for method, phase in model.phases.items() if method in methods}


def usual_variant(manifest: Manifest) -> Variant:
    """Return the variant that is meant without a name: the accelerated one, of two programs the candidate."""
    candidates = manifest.with_role(Role.CANDIDATE) if manifest.programs else []
    return (manifest.with_role(Role.ACCELERATED) or candidates or manifest.variants)[0]


def find_variant(manifest: Manifest, name: str | None, where: str | Path) -> Variant:
    """Return the variant of a name; without a name, that of :func:`usual_variant`.

    Raises NotFoundError, which names the bundle, if it has no variant of this name.
    """
    if name is None:
        return usual_variant(manifest)
    variant = manifest.variant(name)
    if variant is None:
        hint = did_you_mean(name, (variant.name for variant in manifest.variants))
        reason = manifest.left_out.switch
        why = f": acceleration was not switched off in it ({reason})" if reason else ""
        raise NotFoundError(f"the bundle has no variant {name!r}{why}", where=where, hint=hint)
    return variant


def compared_pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Return baseline and candidate of every comparison.

    At each thread count everything is compared with the baseline. A baseline that has others of its own program is only
    for these; of several programs, those that run in the same way are then compared with the first one. Of several
    runtimes the fastest is the candidate of everything else, and the first pair is that with the baseline.
    """
    if fastest := rank_variants(manifest):
        first = {baseline.name for baseline in manifest.with_role(Role.BASELINE)}
        return [(name, fastest[0]) for name in sorted(fastest[1:], key=lambda name: name not in first)]
    pairs = []
    for baseline in manifest.with_role(Role.BASELINE):
        candidates = _candidates_of(manifest, baseline)
        pairs += [
            (baseline.name, variant.name)
            for variant in sorted(candidates, key=lambda variant: variant.role is not Role.ACCELERATED)
        ]
    known = {frozenset(pair) for pair in pairs}
    return [*pairs, *(pair for pair in _pairs_across_programs(manifest) if frozenset(pair) not in known)]


def _candidates_of(manifest: Manifest, baseline: Variant) -> list[Variant]:
    """Return the variants that are compared with a baseline."""
    at_same_threads = [variant for variant in manifest.variants if variant.threads == baseline.threads]
    comparable = [variant for variant in at_same_threads if variant.role not in {Role.BASELINE, Role.CONTROL}]
    names = {variant.name for variant in manifest.beside(baseline.name)}
    return [variant for variant in comparable if variant.name in names] or comparable


def _pairs_across_programs(manifest: Manifest) -> list[tuple[str, str]]:
    """Return variants of the first program paired with those of other programs that run in the same way."""
    if not manifest.programs:
        return []
    first = {_run_conditions(variant): variant.name for variant in reversed(manifest.beside(manifest.variants[0].name))}
    names = {variant.name for variant in manifest.beside(manifest.variants[0].name)}
    of_other_programs = [
        variant for variant in manifest.variants if variant.name not in names and variant.role is not Role.CONTROL
    ]
    return [
        (first[_run_conditions(variant)], variant.name)
        for variant in of_other_programs
        if _run_conditions(variant) in first
    ]


def _run_conditions(variant: Variant) -> tuple[object, ...]:
    """Return how a variant runs, whatever its program: features off, threads, CPUs, and without a delegate or not."""
    return tuple(variant.ablated or []), variant.threads, tuple(variant.affinity), variant.delegate == "none"


def control_pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Return variants without and with the mechanism that switches features, all features on, by thread count."""
    pairs = []
    for control in manifest.with_role(Role.CONTROL):
        variants = manifest.beside(control.name)
        switched = [
            variant
            for variant in variants
            if variant.threads == control.threads and variant.switch and not variant.cleared
        ]
        pairs += [(control.name, variant.name) for variant in switched[:1]]
    return pairs


_FEWEST = 3
"""Fewest variants for which the fastest is searched; of two, one is compared with the other."""


def calls_of(manifest: Manifest, variant: str, warmup: int) -> CallTimes | None:
    """Return the calls of a variant, also those without tracing; None if nothing was timed without tracing."""
    from opscope.analysis.latency.latency import CallTimes

    walls = {
        arm: {
            repetition.round: repetition.measurement
            for repetition in manifest.completed(variant, arm)
            if repetition.measurement
        }
        for arm in TracingMode
    }
    if not walls[TracingMode.TIMED]:
        return None
    return CallTimes(
        untraced={number: measurement.wall_ns for number, measurement in walls[TracingMode.TIMED].items()},
        traced={number: measurement.wall_ns for number, measurement in walls[TracingMode.TRACED].items()},
        warmup=warmup,
        load_ns={
            number: measurement.load_ns
            for number, measurement in walls[TracingMode.TIMED].items()
            if measurement.load_ns is not None
        },
        order=tuple(manifest.plan.of(variant).calls),
        rounds=tuple(repetition.round for repetition in manifest.completed(variant)),
        off_cpu={
            number: measurement.off_cpu_ns
            for number, measurement in walls[TracingMode.TIMED].items()
            if measurement.off_cpu_ns is not None
        },
        traced_off_cpu={
            number: measurement.off_cpu_ns
            for number, measurement in walls[TracingMode.TRACED].items()
            if measurement.off_cpu_ns is not None
        },
    )


def rank_variants(manifest: Manifest) -> list[str]:
    """Return variants by latency if three or more run a network in several runtimes; else empty.

    Such an experiment asks which of them is the fastest, so all others are compared with that one. It asks something
    else if features are switched off, thread counts differ, several methods are called, or nothing was timed without
    tracing.
    """
    completed = [
        variant
        for variant in manifest.variants
        if variant.role is not Role.CONTROL and manifest.completed(variant.name)
    ]
    if any(len(set(manifest.plan.of(variant.name).calls)) > 1 for variant in completed):
        return []  # one may be first in a prompt and another one in a token
    ways = {(tuple(variant.ablated or ()), variant.threads, tuple(variant.affinity)) for variant in completed}
    alike = (
        len(ways) == 1 and not manifest.switches and all(variant.role is not Role.ACCELERATED for variant in completed)
    )
    if (
        len(completed) < _FEWEST
        or not alike
        or manifest.target.emulated
        or len(set(runtimes_of(manifest, completed))) == 1
    ):
        return []
    levels = {variant.name: _headline_latency(manifest, variant.name) for variant in completed}
    known = {name: level for name, level in levels.items() if level is not None}
    return sorted(known, key=lambda name: known[name]) if len(known) == len(completed) else []


def runtimes_of(manifest: Manifest, variants: list[Variant]) -> list[str]:
    """Return the runtimes' names of variants, in their order."""
    return [variant.runtime or runtime_of(manifest.model_of(variant.name).program).name for variant in variants]


def _headline_latency(manifest: Manifest, variant: str) -> float | None:
    """Return the latency of a variant's headline; None if no untraced call after the warm-up is known."""
    from opscope.core.stats.hierarchy import typical

    warmup = manifest.plan.of(variant).warmup
    calls = None if warmup is None else calls_of(manifest, variant, warmup)
    rounds = sorted(calls.settled()) if calls else []
    return typical(calls.durations(rounds)) if calls and rounds else None
