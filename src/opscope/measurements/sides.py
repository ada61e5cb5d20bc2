"""Sides from traces and from bundles: there a variant, with its program and what its runs were called with.

What the callers of variants saw is told by the manifest, and by that which of several runtimes is the fastest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.bundle import VARIANTS, Bundle
from opscope.bundle.manifest import Failure, FailureKind, Role, TracingMode
from opscope.core.errors import NotFoundError, RunError, UsageError, did_you_mean
from opscope.core.parts import PartFailure, explained, part
from opscope.measurements.trace_sides import marked
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
    """The side that a variant of a bundle is, with its program; None names the one of :func:`usual_variant`."""
    variant = find_variant(bundle.manifest, name, bundle.path)
    repetitions = bundle.manifest.completed(variant.name)
    if not repetitions:
        hint = "see the failures in manifest.json; --resume retries them"
        raise RunError(f"no repetition of {variant.name} succeeded", where=bundle.path, hint=hint)
    bundle.check_records(variant.name)
    traces = [] if bundle.manifest.left_out.trace else [_trace(bundle, repetition) for repetition in repetitions]
    return _side(bundle, variant, traces, warmup)


def readable_sides(bundle: Bundle) -> tuple[Bundle, dict[str, Side]]:
    """The sides of all variants that have a result, by name, and the bundle as far as it can be read.

    A trace that a bug of ours keeps from being read is that of a failed repetition, as the manifest of the bundle that
    is given back says; a variant of which nothing is left has no side. Where that is so of all traces, the sides are
    those of the untraced calls, which have no split.
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
        bundle, traces = _readable(bundle, variant)
        if bundle.manifest.completed(variant.name):
            side = part(f"the variant {variant.name}", partial(_side, bundle, variant, traces, None), None)
            sides |= {} if side is None else {variant.name: side}
    return bundle, {name: side._replace(bundle=bundle) for name, side in sides.items()}


def _readable(bundle: Bundle, variant: Variant) -> tuple[Bundle, list[TraceRead]]:
    """The traces of a variant that can be read, and the bundle in which the others failed."""
    if bundle.manifest.left_out.trace:
        return bundle, []
    traces: list[TraceRead] = []
    failures: dict[int, Failure] = {}
    for repetition in bundle.manifest.completed(variant.name):
        found = explained(f"the trace {repetition.trace}", partial(_trace, bundle, repetition), lambda own: own)
        if isinstance(found, PartFailure):
            failures[id(repetition)] = Failure(FailureKind.BUG, found.unreadable)
        else:
            traces.append(found)
    if not failures:
        return bundle, traces
    repetitions = [
        msgspec.structs.replace(own, failure=failures[id(own)]) if id(own) in failures else own
        for own in bundle.manifest.repetitions
    ]
    return _with_manifest(bundle, msgspec.structs.replace(bundle.manifest, repetitions=repetitions)), traces


def _side(bundle: Bundle, variant: Variant, traces: Sequence[TraceRead], warmup: Warmup) -> Side:
    """A side of the traces of all its repetitions; of none, where nothing was traced."""
    from opscope.core.table import EventTable
    from opscope.core.table.calls import CALLS_FORMAT, named_by_calls
    from opscope.measurements.attribution import with_bundled_program

    repetitions, untraced = bundle.manifest.completed(variant.name), bundle.manifest.left_out.trace
    tables = [_of_calls(one, untraced) for one in repetitions] if untraced else [trace.table for trace in traces]
    plan, methods = bundle.manifest.plan.of(variant.name), bundle.manifest.model_of(variant.name).methods
    planned: Warmup = "auto" if plan.warmup is None else plan.warmup
    table = marked(EventTable.concat(tables), planned if warmup is None else warmup)
    if plan.calls:
        table = named_by_calls(table, plan.calls)
    elif methods and len(methods) == 1:
        table = table.with_method(methods[0])
    files = [(repetition.trace or repetition.directory, repetition.data_sha256) for repetition in repetitions]
    path = str(bundle.path / VARIANTS / variant.name)
    warmed = max(table.warmup, default=0)
    calls, phases = calls_of(bundle.manifest, variant.name, warmed), _phases(bundle, variant)
    form = traces[0].format if traces else CALLS_FORMAT
    side = Side(table, path, form, files, variant.name, bundle, variant, calls=calls, phases=phases)
    return side if untraced else with_bundled_program(side)


def _trace(bundle: Bundle, repetition: Repetition) -> TraceRead:
    """The trace of a repetition, which is the one that the repetition left; hashed while it is decoded."""
    from opscope.readers.registry import read_trace

    file = str(repetition.trace)
    trace_read = read_trace(bundle.path / file)
    bundle.check_hash(file, trace_read.content_sha256, repetition.trace_sha256)
    return trace_read


def _of_calls(repetition: Repetition, reason: str) -> EventTable:
    """The calls of a process that was not traced, each of them whole."""
    from opscope.core.table import TraceWarning
    from opscope.core.table.calls import table_of_calls

    measured = repetition.measurement
    warning = TraceWarning("no_trace", f"no split into operators: {reason}", "profile with that version")
    return table_of_calls(measured.wall_ns if measured else [], measured.load_ns if measured else None, warning)


def _phases(bundle: Bundle, variant: Variant) -> dict[str, Phase]:
    """What calls of the methods that were called do for a language model."""
    plan, model = bundle.manifest.plan.of(variant.name), bundle.manifest.model_of(variant.name)
    called = plan.calls or model.methods or []
    return {method: phase for method, phase in model.phases.items() if method in called}


def usual_variant(manifest: Manifest) -> Variant:
    """The variant that is meant where none is named: the accelerated one, of two programs the candidate."""
    candidates = manifest.with_role(Role.CANDIDATE) if manifest.programs else []
    return (manifest.with_role(Role.ACCELERATED) or candidates or manifest.variants)[0]


def find_variant(manifest: Manifest, name: str | None, where: str | Path) -> Variant:
    """Return the variant of a name; None: the one that is meant where none is named.

    Raises NotFoundError, which names the bundle, where it has no such variant.
    """
    if name is None:
        return usual_variant(manifest)
    found = manifest.variant(name)
    if found is None:
        hint = did_you_mean(name, (variant.name for variant in manifest.variants))
        reason = manifest.left_out.switch
        why = f": acceleration was not switched off in it ({reason})" if reason else ""
        raise NotFoundError(f"the bundle has no variant {name!r}{why}", where=where, hint=hint)
    return found


def compared_pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Baseline and candidate of every comparison.

    At each thread count it is everything against the baseline. A baseline that has others of its own program is for
    these; of several programs, those that run in the same way are then compared with the first one. Of several runtimes
    the fastest is the candidate of everything else, and the first pair is that with the baseline.
    """
    if fastest := fastest_first(manifest):
        first = {one.name for one in manifest.with_role(Role.BASELINE)}
        return [(name, fastest[0]) for name in sorted(fastest[1:], key=lambda name: name not in first)]
    pairs = []
    for baseline in manifest.with_role(Role.BASELINE):
        others = _beside(manifest, baseline)
        pairs += [(baseline.name, v.name) for v in sorted(others, key=lambda v: v.role is not Role.ACCELERATED)]
    known = {frozenset(pair) for pair in pairs}
    return [*pairs, *(pair for pair in _across(manifest) if frozenset(pair) not in known)]


def _beside(manifest: Manifest, baseline: Variant) -> list[Variant]:
    """What a baseline is the baseline of."""
    beside = [v for v in manifest.variants if v.threads == baseline.threads]
    others = [v for v in beside if v.role not in {Role.BASELINE, Role.CONTROL}]
    own = {v.name for v in manifest.beside(baseline.name)}
    return [v for v in others if v.name in own] or others


def _across(manifest: Manifest) -> list[tuple[str, str]]:
    """Variants of other programs with those of the first that run in the same way."""
    if not manifest.programs:
        return []
    first = {_way(v): v.name for v in reversed(manifest.beside(manifest.variants[0].name))}
    own = {v.name for v in manifest.beside(manifest.variants[0].name)}
    others = [v for v in manifest.variants if v.name not in own and v.role is not Role.CONTROL]
    return [(first[_way(v)], v.name) for v in others if _way(v) in first]


def _way(variant: Variant) -> tuple[object, ...]:
    """How a variant runs, whatever its program; without a delegate is told from with one."""
    return tuple(variant.ablated or []), variant.threads, tuple(variant.affinity), variant.delegate == "none"


def control_pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Variants without and with the mechanism that switches features, both with all of them, at each thread count."""
    pairs = []
    for control in manifest.with_role(Role.CONTROL):
        variants = manifest.beside(control.name)
        beside = [v for v in variants if v.threads == control.threads and v.switch and not v.cleared]
        pairs += [(control.name, variant.name) for variant in beside[:1]]
    return pairs


_FEWEST = 3
"""Of two variants the one is compared with the other, whichever is faster."""


def calls_of(manifest: Manifest, variant: str, warmup: int) -> CallTimes | None:
    """Calls of a variant, without tracing too; None when nothing was timed without it."""
    from opscope.analysis.latency.latency import CallTimes

    walls = {
        arm: {r.round: r.measurement for r in manifest.completed(variant, arm) if r.measurement} for arm in TracingMode
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


def fastest_first(manifest: Manifest) -> list[str]:
    """Variants by latency, where three or more run a network in several runtimes; else empty.

    It is the question of such an experiment which of them is the fastest, so all others are compared with that one.
    Where features are switched off, thread counts differ, several methods are called or nothing was timed without
    tracing, it is another question.
    """
    done = [one for one in manifest.variants if one.role is not Role.CONTROL and manifest.completed(one.name)]
    if any(len(set(manifest.plan.of(one.name).calls)) > 1 for one in done):
        return []  # one may be first in a prompt and another one in a token
    ways = {(tuple(one.ablated or ()), one.threads, tuple(one.affinity)) for one in done}
    alike = len(ways) == 1 and not manifest.switches and all(one.role is not Role.ACCELERATED for one in done)
    if len(done) < _FEWEST or not alike or manifest.target.emulated or len(set(runtimes_of(manifest, done))) == 1:
        return []
    levels = {one.name: _level(manifest, one.name) for one in done}
    known = {name: level for name, level in levels.items() if level is not None}
    return sorted(known, key=lambda name: known[name]) if len(known) == len(done) else []


def runtimes_of(manifest: Manifest, variants: list[Variant]) -> list[str]:
    """Names of the runtimes of variants, each as often as it is there."""
    return [one.runtime or runtime_of(manifest.model_of(one.name).program).name for one in variants]


def _level(manifest: Manifest, variant: str) -> float | None:
    """The latency of a variant's headline; None where no untraced call of it is known to be behind the warm-up."""
    from opscope.core.stats.hierarchy import typical

    warmup = manifest.plan.of(variant).warmup
    calls = None if warmup is None else calls_of(manifest, variant, warmup)
    rounds = sorted(calls.settled()) if calls else []
    return typical(calls.durations(rounds)) if calls and rounds else None
