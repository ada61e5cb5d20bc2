"""Graphs of two releases beside each other, levels between two ends, and what part of a change a step makes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from opscope.analysis.bisection import (
    BisectedState,
    GraphChange,
    StateLevel,
    find_other_changes,
    graph_changes,
    level_of,
    level_of_work,
    part_of_change,
)
from opscope.analysis.compare.compare import EndToEnd
from opscope.analysis.operators.operators import Operator
from opscope.core.stats.effect import Verdict
from opscope.program.operators.kinds import Attribution, Category

KINDS = ("Conv", "Relu", "Conv", "Add", "Relu")


def ran(*groups: Sequence[int]) -> list[Operator]:
    """What a release runs: each operator computes these nodes, and none for one that it added."""
    return [
        Operator(
            "main",
            number,
            0,
            f"operator {number}",
            Category.CONVOLUTION,
            "convolution",
            "portable",
            1,
            1.0,
            0.1,
            1.0,
            None,
            None,
            0.0,
            handles=tuple(group),
            module=f"layer{group[0]}" if group else None,
            attribution=Attribution.EXACT,
            computes=tuple(KINDS[one] for one in group),
        )
        for number, group in enumerate(groups)
    ]


def test_nodes_that_are_no_longer_fused_are_named() -> None:
    """By the layer of the first one; what is computed as before, and what was added, is not."""
    before, after = ran([0, 1], [2], [3, 4], []), ran([0], [1], [2], [3, 4], [])
    assert graph_changes(before, after) == [GraphChange("layer0", [["Conv", "Relu"]], [["Conv"], ["Relu"]])]
    assert graph_changes(after, before) == [GraphChange("layer0", [["Conv"], ["Relu"]], [["Conv", "Relu"]])]
    assert graph_changes(before, before) == []


def test_nodes_that_are_fused_otherwise_are_one_change() -> None:
    """A chain of overlapping groups is told once, with all that stands in it."""
    (change,) = graph_changes(ran([0], [1, 2], [3, 4]), ran([0], [1], [2, 3], [4]))
    assert change.before == [["Relu", "Conv"], ["Add", "Relu"]]
    assert change.after == [["Relu"], ["Conv", "Add"], ["Relu"]]


def test_nodes_of_one_side_alone_are_no_change_of_fusion() -> None:
    """A release that leaves a node out computes the others as before."""
    assert graph_changes(ran([0, 1], [2], [3]), ran([0, 1], [2])) == []
    assert graph_changes(ran([0, 1]), ran([0])) == []
    assert graph_changes([], ran([0])) == []


def end(speedup: float | None, low: float = 0.0, high: float = 0.0) -> EndToEnd:
    """The verdict on a state against the good end."""
    interval = None if speedup is None else (low or speedup * 0.99, high or speedup * 1.01)
    return EndToEnd(1.0, 1.0, speedup, interval, Verdict.SLOWER, 0.01, 0.001, "paired", 6, 6)


def test_a_state_belongs_to_the_end_that_it_is_nearer_to() -> None:
    """On the scale of logarithms; one whose interval holds the middle, or is withheld, belongs to none."""
    ends = end(0.25)
    assert level_of(end(0.9), ends) is StateLevel.GOOD
    assert level_of(end(0.51, 0.505, 0.52), ends) is StateLevel.GOOD
    assert level_of(end(0.49, 0.48, 0.495), ends) is StateLevel.BAD
    assert level_of(end(0.5, 0.45, 0.55), ends) is StateLevel.UNDECIDED
    assert level_of(end(None), ends) is level_of(end(0.5), end(None)) is StateLevel.UNDECIDED
    assert level_of_work(141, 100, 200) is StateLevel.GOOD
    assert level_of_work(142, 100, 200) is StateLevel.BAD


def test_further_changes_are_told_and_the_step_is_not() -> None:
    """Between states that follow each other among the measured; of those that span the step nothing is told."""
    ratios = {"a": 1.0, "b": 1.0, "c": 1.3, "d": None, "e": 2.0, "f": 2.0}
    states = [
        BisectedState(name, ratio=ratio, ci95=ratio and (ratio * 0.99, ratio * 1.01)) for name, ratio in ratios.items()
    ]
    assert find_other_changes(states, "d", "e") == [("b", "c", pytest.approx(1.3))]
    assert find_other_changes(states, "b", "c") == [("c", "e", pytest.approx(2.0 / 1.3))]
    assert find_other_changes([states[0], states[3], states[5]], "a", "d") == []


def test_the_part_of_a_step_adds_up() -> None:
    """Two steps that make the whole change make the whole of it."""
    parts = [part_of_change(end(0.5), end(0.25)), part_of_change(end(0.5), end(0.25))]
    assert parts == [pytest.approx(0.5), pytest.approx(0.5)]
    assert part_of_change(end(None), end(0.25)) is part_of_change(end(0.5), end(1.0)) is None
