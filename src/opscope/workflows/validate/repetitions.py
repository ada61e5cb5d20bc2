"""Checks of repetitions: of their traces, each read once, and of what their processes told of threads and outputs."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.bundle import validation
from opscope.bundle.bundle import MANIFEST
from opscope.bundle.manifest import Mechanism, TracingMode
from opscope.bundle.validation import Problem
from opscope.core.errors import InvariantError, OpscopeError, TraceFormatError
from opscope.core.parts import PartFailure, explained
from opscope.core.units import counted_text
from opscope.experiment.protocol import OUTPUTS
from opscope.readers.compressed import content_sha256
from opscope.readers.outputs import read_outputs, values_sha256
from opscope.readers.registry import read_trace
from opscope.runtimes.registry import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.bundle.inventory import Inventory
    from opscope.bundle.manifest import Manifest, Measurement, Repetition
    from opscope.bundle.validation import BundleCheck, Question
    from opscope.core.table import EventTable
    from opscope.core.table.segment import Segment
    from opscope.program.structure.exported import Tensor


# A runner's log rounds to a microsecond or less; the two clocks agree far better than to a thousandth.
_LATEST_NS, _CLOCKS_AGREE = 1_000, 0.999


class TraceFindings(NamedTuple):
    """What reading every trace of a bundle gave."""

    hashes: list[Problem]  # stated hashes that are not those of the files
    hashed: set[str]  # traces whose hash is the stated one
    damaged: list[Problem]  # traces that cannot be read, or hold other inferences than stated
    nesting: list[Problem]  # traces whose events contradict each other
    self_times: list[Problem]  # inferences that the self times of their events do not add up to
    calls: list[Problem]  # inferences that took longer than their caller waited
    unreadable: set[str]  # variants with a trace that cannot be read
    bugs: list[PartFailure]  # bugs of ours that keep traces from being read or looked at
    read: int  # traces that were read
    inferences: int  # in all of them


def trace_findings(manifest: Manifest, inventory: Inventory) -> TraceFindings:
    """Read every trace that can be read; a path that leads out of the bundle is not followed."""
    every = TraceFindings([], set(), [], [], [], [], set(), [], 0, 0)
    for number, repetition in enumerate(manifest.repetitions):
        if repetition.trace is None:
            continue
        if inventory.fault(repetition.trace):
            if repetition.ok:
                every.unreadable.add(repetition.variant)
            continue
        every = _as_far_as_read(every, repetition, inventory, f"repetitions[{number}]")
    return every


def _as_far_as_read(every: TraceFindings, repetition: Repetition, inventory: Inventory, at: str) -> TraceFindings:
    """With a trace, or with the bug of ours that keeps it from being looked at."""
    looked = partial(_with_trace, every, repetition, inventory, at)
    done = explained(f"the trace {repetition.trace}", looked, lambda failure: failure)
    if not isinstance(done, PartFailure):
        return done
    _note_file(every, repetition, inventory)
    every.bugs.append(done)
    if repetition.ok:
        every.unreadable.add(repetition.variant)
    return every


def _with_trace(every: TraceFindings, repetition: Repetition, inventory: Inventory, at: str) -> TraceFindings:
    name = str(repetition.trace)
    path = inventory.root / name
    try:
        trace = read_trace(path)
    except OpscopeError as error:
        _note_file(every, repetition, inventory)
        if repetition.ok:
            every.unreadable.add(repetition.variant)
            contradicts = isinstance(error, InvariantError) or isinstance(error.__cause__, InvariantError)
            kind = every.nesting if contradicts else every.damaged
            kind.append(Problem(name, "", error.problem))
        return every
    _note_hash(every, repetition, trace.content_sha256)
    if not repetition.ok:
        return every
    formats = [own for own in (runtime.trace_format for runtime in RUNTIMES) if own]
    if trace.format not in formats:
        problem = f"is of the format {trace.format}, not {' or '.join(formats)}"
        every.damaged.append(Problem(name, "", problem))
    durations = trace.table.inference_times().duration
    if len(durations) != repetition.inferences:
        message = f"holds {counted_text(len(durations), 'inference')}, {MANIFEST} states {repetition.inferences:,}"
        every.damaged.append(Problem(name, "", message))
    every.self_times.extend(Problem(name, *one) for one in _unsettled(trace.table))
    every.calls.extend(Problem(MANIFEST, *one) for one in _shorter_calls(repetition, durations.tolist(), at))
    return every._replace(read=every.read + 1, inferences=every.inferences + len(durations))


def _note_file(every: TraceFindings, repetition: Repetition, inventory: Inventory) -> None:
    """Note the hash of a trace that cannot be read."""
    name = str(repetition.trace)
    try:
        _note_hash(every, repetition, content_sha256(inventory.root / name))
    except OpscopeError:
        every.hashes.append(Problem(name, "", "cannot be inflated, so its SHA-256 differs from the recorded one"))


def _note_hash(every: TraceFindings, repetition: Repetition, sha256: str) -> None:
    if sha256 == repetition.trace_sha256:
        every.hashed.add(str(repetition.trace))
    else:
        stated = str(repetition.trace_sha256)[:12]
        every.hashes.append(
            Problem(str(repetition.trace), "", f"its SHA-256 is {sha256[:12]}…, {MANIFEST} states {stated}…")
        )


def _unsettled(table: EventTable) -> Iterator[tuple[str, str]]:
    """Inferences whose events' self times do not add up to Method::execute, or hold a negative one."""
    for trace in table.traces:
        for segment in trace:
            if len(segment.roots):
                yield from _unsettled_in(segment)


def _unsettled_in(segment: Segment) -> Iterator[tuple[str, str]]:
    own = segment.self_time()
    inside = segment.inference >= 0
    sums = np.zeros((segment.repeats, len(segment.roots)), np.int64)
    np.add.at(sums.T, segment.inference[inside], own[:, inside].T)
    whole = segment.duration[:, segment.roots]
    wrong = (sums != whole).ravel()
    for number in np.flatnonzero(wrong).tolist():
        at = f"inference {segment.first_inference + number}"
        yield at, f"self times add up to {sums.ravel()[number]:,} ns, it took {whole.ravel()[number]:,} ns"
    if (own < 0).any():
        yield "", f"{int((own < 0).sum()):,} events are shorter than those inside them"


def _shorter_calls(repetition: Repetition, durations: Sequence[int], at: str) -> Iterator[tuple[str, str]]:
    """Calls that the caller saw end before Method::execute did."""
    calls = repetition.measurement.wall_ns if repetition.measurement else []
    if len(calls) != len(durations):
        return
    for number, (wall, inner) in enumerate(zip(calls, durations, strict=True)):
        if wall < inner * _CLOCKS_AGREE - _LATEST_NS:
            place = f"{at}.measurement.wall_ns[{number}]"
            yield place, f"the call is recorded as {wall:,} ns, Method::execute in {repetition.trace} took {inner:,}"


def trace_checks(manifest: Manifest, findings: TraceFindings) -> list[BundleCheck]:
    """The answers to traces, nesting, self times and calls."""
    if not any(repetition.trace for repetition in manifest.repetitions if repetition.ok):
        return [question.skipped("no traced repetition succeeded") for question in validation.OF_TRACES]
    bug = f"could not be checked: {'; '.join(failure.sentence for failure in findings.bugs)}" if findings.bugs else ""
    read, inferences = counted_text(findings.read, "trace"), counted_text(findings.inferences, "inference")
    every = f"{inferences} in {read}"
    answers: list[tuple[Question, list[Problem], str]] = [
        (validation.TRACES, findings.damaged, f"{read} decoded, {inferences} as stated"),
        (validation.NESTING, findings.nesting, f"no event of {read} exceeds its parent"),
        (validation.SELF_TIMES, findings.self_times, f"self times add up to Method::execute in all {every}"),
        (validation.CALLS, findings.calls, f"caller times are at least Method::execute in {every}"),
    ]
    return [
        question.skipped(bug or "no trace can be read")
        if not problems and (bug or not findings.read)
        else question.answered(problems, passed)
        for question, problems, passed in answers
    ]


def traced_variants(manifest: Manifest) -> list[str]:
    """Variants of which a traced repetition succeeded, in the order of the plan."""
    return [variant.name for variant in manifest.variants if manifest.completed(variant.name, TracingMode.TRACED)]


def thread_check(manifest: Manifest) -> BundleCheck:
    """Thread pools that were not as large as asked."""
    problems, read = [], 0
    for number, repetition in enumerate(manifest.repetitions):
        variant, measured = manifest.variant(repetition.variant), repetition.measurement
        if variant is None or measured is None or not repetition.ok or measured.threads is None:
            continue
        read += 1
        if measured.threads != variant.threads:
            at = f"repetitions[{number}].measurement.threads"
            problems.append(Problem(MANIFEST, at, f"is {measured.threads}, {variant.name} asks for {variant.threads}"))
    if not read:
        return validation.THREADS.skipped("no process reported its thread count")
    return validation.THREADS.answered(problems, f"{counted_text(read, 'thread pool')} of the requested size")


def mask_check(manifest: Manifest) -> BundleCheck:
    """Features that were not proved to be off."""
    problems, proved = [], 0
    for number, repetition in enumerate(manifest.repetitions):
        if not repetition.ok or repetition.measurement is None:
            continue
        faults = list(_mask_faults(manifest, repetition))
        problems += [Problem(MANIFEST, f"repetitions[{number}].measurement.{at}", message) for at, message in faults]
        proved += repetition.measurement.mask is not None
    if not proved and not problems:
        return validation.MASK.skipped("nothing was switched off, and no process reported a proof")
    return validation.MASK.answered(
        problems, f"{counted_text(proved, 'proof')}, each for the fields its variant clears"
    )


def _mask_faults(manifest: Manifest, repetition: Repetition) -> Iterator[tuple[str, str]]:
    variant = manifest.variant(repetition.variant)
    mask = repetition.measurement.mask if repetition.measurement else None
    if variant is None:
        return
    asked = variant.cleared
    if mask is None:
        if asked:
            yield "mask", f"no proof that {', '.join(asked)} were off"
        return
    if mask.cleared != asked:
        done, wanted = (", ".join(fields) or "nothing" for fields in (mask.cleared, asked))
        yield "mask.cleared", f"proves {done}, {repetition.variant} clears {wanted}"
    if mask.backend_loaded_before:
        yield "mask.backend_loaded_before", "the backend read the features before they were cleared"
    if not mask.same_symbol:
        yield "mask.same_symbol", "the cleared copy of the features is not the one the backend reads"
    wanted = variant.switch or Mechanism.CPUINFO
    if mask.mechanism is not wanted:
        yield "mask.mechanism", f"is {mask.mechanism.value}, {repetition.variant} is switched by {wanted.value}"
    if mask.masked is not None and bool(mask.masked) != bool(mask.cleared):
        yield "mask.masked", f"is {mask.masked:,} where {counted_text(len(mask.cleared), 'field')} are off"


def output_check(manifest: Manifest, inventory: Inventory) -> BundleCheck:
    """Outputs that differ between repetitions of a variant, or are not those whose hash is stated.

    Inputs are compared too: all repetitions have the same, since they are made of the plan's seed, but for variants
    whose program calls others than the plan.
    """
    done = [(n, r, r.measurement) for n, r in enumerate(manifest.repetitions) if r.ok and r.measurement]
    facts = [fact for number, repetition, measured in done for fact in _facts(number, repetition, measured, manifest)]
    problems = [
        *_unusual(facts),
        *(p for _, repetition, measured in done for p in _saved(repetition, measured, inventory)),
    ]
    hashed = sum(measured.output_sha256 is not None for _, _, measured in done)
    if not hashed and not problems:
        return validation.OUTPUTS.skipped("no process hashed its outputs")
    return validation.OUTPUTS.answered(problems, f"outputs of {hashed} repetitions match their variants")


class _Fact(NamedTuple):
    """What must be the same in all repetitions of a group."""

    group: tuple[str, str]
    at: str
    value: str


def _facts(number: int, repetition: Repetition, measured: Measurement, manifest: Manifest) -> Iterator[_Fact]:
    at = f"repetitions[{number}].measurement"
    given = repetition.variant if repetition.variant in manifest.plan.inputs_of else "the bundle"
    yield _Fact(("inputs", given), f"{at}.inputs", _tensors(measured.inputs))
    yield _Fact(("outputs", repetition.variant), f"{at}.outputs", _tensors(measured.outputs))
    if measured.output_sha256 is not None:
        yield _Fact(("hash", repetition.variant), f"{at}.output_sha256", f"{measured.output_sha256[:12]}…")


def _tensors(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{tensor.dtype} {tensor.shape}" for tensor in tensors) or "nothing"


def _unusual(facts: Sequence[_Fact]) -> Iterator[Problem]:
    """What differs from most of its group."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    for fact in facts:
        groups.setdefault(fact.group, Counter())[fact.value] += 1
    for fact in facts:
        usual = groups[fact.group].most_common(1)[0][0]
        if fact.value != usual:
            message = f"is {fact.value}, most repetitions of {fact.group[1]} have {usual}"
            yield Problem(MANIFEST, fact.at, message)


def _saved(repetition: Repetition, measured: Measurement, inventory: Inventory) -> Iterator[Problem]:
    """What is wrong with the saved outputs of a repetition."""
    name, stated = f"{repetition.directory}/{OUTPUTS}", measured.output_sha256
    if stated is None or inventory.fault(name):
        return
    try:
        shapes, digest = _read(inventory, name)
    except TraceFormatError as error:
        yield Problem(name, "", error.problem)
        return
    if digest != stated:
        yield Problem(name, "", f"its values have the SHA-256 {digest[:12]}…, {MANIFEST} states {stated[:12]}…")
    if shapes != [tensor.shape for tensor in measured.outputs]:
        yield Problem(name, "", f"has the shapes {shapes}, {MANIFEST} states {_tensors(measured.outputs)}")


def _read(inventory: Inventory, name: str) -> tuple[list[list[int]], str]:
    """Shapes of the saved outputs, and the hash of all values as processes compute it."""
    arrays = read_outputs(inventory.root / name) or []
    return [list(array.shape) for array in arrays], values_sha256(arrays)


def output_files(manifest: Manifest) -> Iterator[str]:
    """Paths of the outputs that the first of several processes with the same left; foreign runners may keep none."""
    if manifest.environment.runs_build:
        return
    hashed = [
        repetition for repetition in manifest.repetitions if repetition.ok and repetition.output_sha256 is not None
    ]
    first = {(repetition.variant, repetition.output_sha256): repetition.directory for repetition in reversed(hashed)}
    yield from (f"{directory}/{OUTPUTS}" for directory in reversed(first.values()))
