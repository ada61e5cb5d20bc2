"""Kinds of calls in one trace: each kind becomes a method of its own, so that no figure averages two kinds.

A file tells kinds apart by bundled inputs or by the names of its blocks. Where it does not, calls of two or three
clearly different lengths that take turns are told apart, as prompts and tokens of a language model are.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opscope.core.table import TraceWarning
from opscope.core.units import counted_text
from opscope.program.phases import population_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.core.table import EventTable
    from opscope.core.table.segment import Segment

    Floats = NDArray[np.float64]

_LENGTHS = {2: ("short", "long"), 3: ("short", "middle", "long")}
_GAP = 1.5
"""Ratio of two neighbouring durations from which calls count as different lengths."""
_WITHIN = 1.3
"""Largest ratio of 90th to 10th percentile for calls of one length."""
_FEWEST_CALLS, _FEWEST_TURNS = 3, 3
_MOST_KINDS = 16
_ANONYMOUS_BLOCKS = {"", "Default", "Execute"}


class _CallKinds(NamedTuple):
    """Kind of every inference."""

    labels: list[list[str]]  # one list for each process, in the order of its inferences
    told_by: str  # what tells them apart, in words


def with_populations(table: EventTable) -> EventTable:
    """Return a table whose calls of different kinds are different methods; the table itself where there is one kind.

    A trace of several methods is left as it is.
    """
    methods = table.inference_times().method
    if len(set(methods.codes.tolist())) != 1:
        return table
    kinds = _kinds_by_bundled_input(table) or _kinds_by_block(table) or _kinds_by_length(table)
    if kinds is None:
        return table
    method = methods.texts[methods.codes[0]] if methods.codes[0] >= 0 else None
    names = [[population_name(method, label) for label in labels] for labels in kinds.labels]
    several = len({name for labels in names for name in labels})
    warning = TraceWarning(
        "populations",
        f"{counted_text(several, 'kind')} of calls, distinguished by {kinds.told_by}, have figures of their own",
        "use the figures of each; the latency over all calls mixes them",
    )
    return table.with_inference_methods(names).with_warnings(warning)


def _kinds_by_bundled_input(table: EventTable) -> _CallKinds | None:
    numbers = [_values_of_inferences(trace, "bundled_input") for trace in table.traces]
    known = {number for process in numbers for number in process}
    if len(known) < 2 or len(known) > _MOST_KINDS or -1 in known:  # noqa: PLR2004 - one input is one kind
        return None
    return _CallKinds([[f"bundled input {number}" for number in process] for process in numbers], "their bundled input")


def _kinds_by_block(table: EventTable) -> _CallKinds | None:
    names = [[name or "" for name in _values_of_inferences(trace, "block")] for trace in table.traces]
    calls = Counter(name for process in names for name in process)
    if not 1 < len(calls) <= _MOST_KINDS or calls.keys() & _ANONYMOUS_BLOCKS or min(calls.values()) < _FEWEST_CALLS:
        return None
    shapes = all(name.startswith("input ") for name in calls)  # as the reader of ONNX Runtime's profiles names them
    return _CallKinds(names, "the shapes of their inputs" if shapes else "the names of their blocks")


def _values_of_inferences(trace: Sequence[Segment], column: str) -> list[Any]:
    """Return a column's value at each inference of a process, in order."""
    return [
        segment.columns[column][root]
        for segment in trace
        for _ in range(segment.repeats)
        for root in segment.roots.tolist()
    ]


def _kinds_by_length(table: EventTable) -> _CallKinds | None:
    """Distinguish calls whose durations have a clear gap, if calls of both sides take turns.

    A call that was interrupted is also long, but only one of its operators is: so the time without the longest operator
    must have the gap as well. None if there is no such gap.
    """
    inferences = table.inference_times()
    durations = inferences.duration.astype(np.float64)
    if len(durations) < 2 * _FEWEST_CALLS or durations.min() <= 0:
        return None
    ordered = np.sort(durations)
    gaps = np.flatnonzero(ordered[1:] / ordered[:-1] > _GAP)
    if len(gaps) + 1 not in _LENGTHS:
        return None
    kind = np.searchsorted(ordered[gaps], durations, side="left")
    without_longest = np.concatenate([_without_longest(trace) for trace in table.traces])
    clusters = [kind == number for number in range(len(gaps) + 1)]
    if any(cluster.sum() < _FEWEST_CALLS or not _is_one_length(durations[cluster]) for cluster in clusters):
        return None
    typical = [float(np.median(without_longest[cluster])) for cluster in clusters]
    if any(long <= _GAP * short for short, long in pairwise(typical)):
        return None
    by_process = [kind[inferences.process == process].tolist() for process in range(table.processes)]
    if max(len(list(groupby(process))) - 1 for process in by_process) < _FEWEST_TURNS:
        return None
    labels = [[_LENGTHS[len(clusters)][number] for number in process] for process in by_process]
    return _CallKinds(labels, "a clear gap between their durations")


def _is_one_length(durations: Floats) -> bool:
    low, high = np.percentile(durations, (10, 90))
    return bool(high <= _WITHIN * low)


def _without_longest(trace: Sequence[Segment]) -> Floats:
    """Return the time of the operators of each inference without its longest operator, in ns."""
    parts = []
    for segment in trace:
        work = segment.is_leaf & (segment.inference >= 0)
        times, number = segment.self_time()[:, work].T, segment.inference[work]
        total = np.zeros((len(segment.roots), segment.repeats), np.int64)
        longest = np.zeros_like(total)
        np.add.at(total, number, times)
        np.maximum.at(longest, number, times)
        parts.append((total - longest).T.ravel())
    return np.concatenate(parts).astype(np.float64)
