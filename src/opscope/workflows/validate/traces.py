"""The check of traces: each can be read and is what the record of its repetition says."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from opscope.bundle.bundle import MANIFEST
from opscope.bundle.validation import TRACES, Problem
from opscope.core.errors import OpscopeError
from opscope.core.parts import explained, failures_heard
from opscope.core.units import counted_text
from opscope.readers.registry import read_trace

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.bundle.inventory import Inventory
    from opscope.bundle.manifest import Manifest, Repetition
    from opscope.bundle.validation import BundleCheck

_LOG_ROUNDING_NS, _CLOCK_RATIO = 1_000, 0.999
"""A runner's log rounds to a microsecond or less, and two clocks differ by far less than a thousandth."""


def trace_check(manifest: Manifest, inventory: Inventory) -> BundleCheck:
    """Read each trace of a repetition that succeeded, and compare it with the record of the repetition.

    Skipped if nothing was traced, or if a bug of opscope keeps a trace from being read and no other is at fault.
    """
    problems: list[Problem] = []
    traces = inferences = 0
    with failures_heard() as failures:
        for number, repetition in enumerate(manifest.repetitions):
            path = repetition.trace
            if path is not None and repetition.ok and not inventory.fault(path):
                traces, inferences = traces + 1, inferences + repetition.inferences
                find = partial(_find_trace_faults, number, inventory.root / path, repetition)
                problems += explained(f"the trace {path}", find, lambda _: [])
    if problems or (traces and not failures):
        passed = f"{counted_text(traces, 'trace')} decoded, {counted_text(inferences, 'inference')} as stated"
        return TRACES.answered(problems, passed)
    bugs = f"could not be checked: {'; '.join(failure.sentence for failure in failures)}"
    return TRACES.skipped(bugs if failures else "no traced repetition succeeded")


def _find_trace_faults(number: int, file: Path, repetition: Repetition) -> list[Problem]:
    """Find whether a trace can be read, holds the stated inferences, and no call ended before its inference did."""
    name = str(repetition.trace)
    try:
        durations = read_trace(file).table.inference_times().duration.tolist()
    except OpscopeError as error:
        return [Problem(name, "", error.problem)]
    if len(durations) != repetition.inferences:
        message = f"holds {counted_text(len(durations), 'inference')}, {MANIFEST} states {repetition.inferences:,}"
        return [Problem(name, "", message)]
    calls = repetition.measurement.wall_ns if repetition.measurement else []
    # The log of a foreign runner may name fewer calls than its trace holds.
    pairs = enumerate(zip(calls, durations, strict=True)) if len(calls) == len(durations) else ()
    return [
        Problem(
            MANIFEST,
            f"repetitions[{number}].measurement.wall_ns[{call}]",
            f"the call is recorded as {call_ns:,} ns, Method::execute in {name} took {execute_ns:,}",
        )
        for call, (call_ns, execute_ns) in pairs
        if call_ns < execute_ns * _CLOCK_RATIO - _LOG_ROUNDING_NS
    ]
