"""Checks of a bundle's traces: each is read once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.bundle import validation
from opscope.bundle.bundle import MANIFEST
from opscope.bundle.manifest import TracingMode
from opscope.bundle.validation import Problem
from opscope.core.errors import InvariantError, OpscopeError
from opscope.core.parts import PartFailure, explained
from opscope.core.units import counted_text
from opscope.readers.compressed import content_sha256
from opscope.readers.registry import read_trace
from opscope.runtimes.registry import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.bundle.inventory import Inventory
    from opscope.bundle.manifest import Manifest, Repetition
    from opscope.bundle.validation import BundleCheck, Question
    from opscope.core.table import EventTable
    from opscope.core.table.segment import Segment

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


def trace_findings(manifest: Manifest, found: Inventory) -> TraceFindings:
    """Read every trace that can be read; a path that leads out of the bundle is not followed."""
    every = TraceFindings([], set(), [], [], [], [], set(), [], 0, 0)
    for number, repetition in enumerate(manifest.repetitions):
        if repetition.trace is None:
            continue
        if found.fault(repetition.trace):
            if repetition.ok:
                every.unreadable.add(repetition.variant)
            continue
        every = _as_far_as_read(every, repetition, found, f"repetitions[{number}]")
    return every


def _as_far_as_read(every: TraceFindings, repetition: Repetition, found: Inventory, at: str) -> TraceFindings:
    """With a trace, or with the bug of ours that keeps it from being looked at."""
    looked = partial(_with_trace, every, repetition, found, at)
    done = explained(f"the trace {repetition.trace}", looked, lambda failure: failure)
    if not isinstance(done, PartFailure):
        return done
    _note_file(every, repetition, found)
    every.bugs.append(done)
    if repetition.ok:
        every.unreadable.add(repetition.variant)
    return every


def _with_trace(every: TraceFindings, repetition: Repetition, found: Inventory, at: str) -> TraceFindings:
    name = str(repetition.trace)
    path = found.root / name
    try:
        trace = read_trace(path)
    except OpscopeError as error:
        _note_file(every, repetition, found)
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


def _note_file(every: TraceFindings, repetition: Repetition, found: Inventory) -> None:
    """Note the hash of a trace that cannot be read."""
    name = str(repetition.trace)
    try:
        _note_hash(every, repetition, content_sha256(found.root / name))
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
