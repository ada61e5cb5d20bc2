"""Bisection of releases or builds for the one that made a model slower: schema ``opscope.bisection/1``.

A release or a build between a good end and a bad one is a state. Each state is measured in turns
with both ends, and its level is the end that it is nearer to, on the scale of logarithms.
"""

from __future__ import annotations

import enum
import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.compare.compare import Comparison, EndToEnd
from opscope.analysis.work.gate import WorkEvidence
from opscope.core.stats.effect import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.operators.operators import Operator

BISECTION_SCHEMA = "opscope.bisection/1"
EXPLAINED = 0.5
"""Smallest part of the whole change that a step must make to be the answer, on the scale of logarithms."""
_ELSEWHERE = 0.15
"""Smallest part of the whole change that is reported when another state makes it."""


class StateLevel(str, enum.Enum):
    """End that a state is nearer to."""

    GOOD = "good"
    BAD = "bad"
    UNDECIDED = "undecided"
    """Its interval holds the middle between both ends, or its ratio is withheld."""
    FAILED = "failed"
    """It does not run the model."""
    UNTESTED = "untested"


class BisectedState(msgspec.Struct, frozen=True):
    """Release or build.

    Attributes:
        name: name of the state.
        level: end that it is nearer to.
        ratio: latency over that of the good end in the same rounds; null where it is withheld, or was not measured.
        ci95: 95 % interval of ``ratio``.
        operators: how many ran, of the traced runs; null where none are known.
        instructions: instructions of one inference, counted; null where they were not.
        outputs_agree: whether it computes what the good end computes; null where that was not compared.
        problem: why it could not be measured, as one sentence; null where nothing failed.
        wheel: name of the file that it was installed from; null for states that are no release.
        sha256: SHA-256 of that file.
        python: version of Python that ran it; null for states that are no release.
        bundle: directory of the measurement within that of the bisection; null where it was not measured.
    """

    name: str
    level: StateLevel = StateLevel.UNTESTED
    ratio: float | None = None
    ci95: tuple[float, float] | None = None
    operators: int | None = None
    instructions: int | None = None
    outputs_agree: bool | None = None
    problem: str | None = None
    wheel: str | None = None
    sha256: str | None = None
    python: str | None = None
    bundle: str | None = None


class GraphChange(msgspec.Struct, frozen=True):
    """Nodes of the model that different operators compute before and after.

    Attributes:
        name: layer or name of the first operator before.
        before: kinds of the nodes that each operator computes, before.
        after: kinds of the nodes that each operator computes, after.
    """

    name: str
    before: list[list[str]]
    after: list[list[str]]


class Bisection(msgspec.Struct, frozen=True, tag_field="schema", tag=BISECTION_SCHEMA):
    """Result of a bisection.

    Attributes:
        model: model as it was named.
        sha256: SHA-256 of the program.
        runtime: runtime that ran it, as people call it.
        machine: processor and system that it ran on.
        command: command that repeats it.
        kind: what the states are: `release` or `build`.
        by: how the step was looked for: ``time``, or ``work`` where exact counts led to it.
        states: states from the good end to the bad one.
        ends: the verdict on the bad end against the good one.
        last_good: the last state at the level of the good end, next to those that are not; null where none was found.
        first_bad: the first state at the level of the bad end.
        measured: how many states beside the ends were measured or counted to find it.
        step: comparison of these two, in turns with nothing else; null where nothing was found.
        work: exact work of both; null where it was not counted.
        graph: nodes of the model that the first bad state computes in other operators than the last good one.
        notes: what limits the answer, one sentence each.
        method: one of several that are called, which is followed: it differs most between the ends; null for all calls.
    """

    model: str
    sha256: str
    runtime: str
    machine: str
    command: str
    kind: str
    by: str
    states: list[BisectedState]
    ends: EndToEnd
    last_good: str | None
    first_bad: str | None
    measured: int
    step: Comparison | None
    work: WorkEvidence | None
    notes: list[str] = []
    graph: list[GraphChange] = []
    method: str | None = None

    @property
    def explained(self) -> float | None:
        """Part of the change between the ends that the step makes; None without a step or without its ratio."""
        return None if self.step is None else part_of_change(self.step.verdict_of(self.method), self.ends)

    def latency_ns(self, state: BisectedState) -> float | None:
        """Return the latency of a state on the scale of the good end; None if it was not measured."""
        return None if state.ratio is None else state.ratio * self.ends.baseline_ns

    @property
    def between(self) -> list[BisectedState]:
        """States between the last good and the first bad one, whose level could not be decided."""
        names = [state.name for state in self.states]
        if self.last_good is None or self.first_bad is None:
            return []
        return self.states[names.index(self.last_good) + 1 : names.index(self.first_bad)]

    @property
    def is_inconclusive(self) -> bool:
        """Return whether there is or may be a change, and no state that made it is named."""
        undecided = {Verdict.WITHHELD, Verdict.UNDECIDABLE}
        return self.ends.verdict in undecided or (self.first_bad is not None and not self.is_found)

    @property
    def is_found(self) -> bool:
        """Return whether one state is named whose step is shown to be slower and makes most of the change."""
        step = self.step
        is_slower = step is not None and step.end_to_end.verdict is Verdict.SLOWER
        return is_slower and not self.between and (self.explained or 0.0) >= EXPLAINED


class SearchResult(NamedTuple):
    """States between which the change is."""

    last_good: int
    first_bad: int
    tried: int  # states that were measured, beside the ends


def max_measured_states(count: int) -> int:
    """Return how many states are measured at most, given the number of states with both ends."""
    return math.floor(math.log2(max(1, count - 2))) + 1 if count > 2 else 0  # noqa: PLR2004 - both ends


def search(count: int, level: Callable[[int], StateLevel]) -> SearchResult:
    """Search for the change by halving; a state without an answer is replaced by the one nearest to the middle."""
    low, high, tried = 0, count - 1, 0
    unknown: set[int] = set()
    while tried < max_measured_states(count):
        candidates = [state for state in range(low + 1, high) if state not in unknown]
        if not candidates:
            break
        middle = min(candidates, key=lambda state: abs(2 * state - low - high))
        answer = level(middle)
        tried += answer is not StateLevel.FAILED
        if answer is StateLevel.GOOD:
            low = middle
        elif answer is StateLevel.BAD:
            high = middle
        else:
            unknown.add(middle)
    return SearchResult(low, high, tried)


def level_of(state: EndToEnd, ends: EndToEnd) -> StateLevel:
    """Return to which end a state is nearer; both verdicts compare with the good end in the same rounds."""
    if state.speedup is None or state.ci95 is None or ends.speedup is None:
        return StateLevel.UNDECIDED
    middle = math.sqrt(ends.speedup)
    low, high = state.ci95
    if low > middle:
        return StateLevel.GOOD
    return StateLevel.BAD if high < middle else StateLevel.UNDECIDED


def level_of_work(counted: int, good: int, bad: int) -> StateLevel:
    """Return to which end a state is nearer, by exact counts of instructions."""
    return StateLevel.GOOD if counted * counted < good * bad else StateLevel.BAD


def part_of_change(step: EndToEnd, ends: EndToEnd) -> float | None:
    """Return the part of the change between the ends that a step makes, on the scale of logarithms; None if unknown."""
    if step.speedup is None or ends.speedup is None or math.isclose(ends.speedup, 1.0):
        return None
    return math.log(step.speedup) / math.log(ends.speedup)


def graph_changes(before: Sequence[Operator], after: Sequence[Operator]) -> list[GraphChange]:
    """Return groups of nodes that both sides compute with different operators, such as fused on one side only.

    ``handles`` of an operator are the numbers of its nodes; a node that only one side computes belongs to no group.
    """
    sides = [
        {frozenset(operator.handles): operator for operator in operators if operator.handles}
        for operators in (before, after)
    ]
    both = frozenset().union(*sides[0]) & frozenset().union(*sides[1])
    changed = [
        [
            (nodes, operator)
            for nodes, operator in operators_by_nodes.items()
            if nodes <= both and nodes not in other_side
        ]
        for operators_by_nodes, other_side in (sides, sides[::-1])
    ]
    changes, seen = [], set[frozenset[int]]()
    for nodes, operator in changed[0]:
        if nodes in seen:
            continue
        group, grown = nodes, frozenset[int]()
        while group != grown:
            grown = group
            group = group.union(*(other_nodes for other_nodes, _ in (*changed[0], *changed[1]) if other_nodes & group))
        groups = [
            [list(operator.computes) for other_nodes, operator in side if other_nodes <= group] for side in changed
        ]
        seen |= {other_nodes for other_nodes, _ in changed[0] if other_nodes <= group}
        changes.append(GraphChange(operator.module or operator.name, groups[0], groups[1]))
    return changes


def find_other_changes(states: Sequence[BisectedState], last_good: str, first_bad: str) -> list[tuple[str, str, float]]:
    """Find further changes: consecutive measured states, and how many times as slow the second one is.

    Only changes beyond both intervals that make a part of the whole change worth reporting.
    """
    known = [state for state in states if state.ratio is not None and state.ci95 is not None]
    whole_change = abs(math.log(known[-1].ratio or 1.0)) if known else 0.0
    names = [state.name for state in states]
    good, bad = names.index(last_good), names.index(first_bad)
    changes = []
    for before, after in pairwise(known):
        over = names.index(before.name) <= good and names.index(after.name) >= bad  # the step itself is in it
        if over or not (before.ratio and after.ratio):
            continue
        ratio = after.ratio / before.ratio
        apart = before.ci95 and after.ci95 and (after.ci95[0] > before.ci95[1] or after.ci95[1] < before.ci95[0])
        if apart and abs(math.log(ratio)) > _ELSEWHERE * whole_change:
            changes.append((before.name, after.name, ratio))
    return changes
