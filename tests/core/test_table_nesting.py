"""Call trees as arrays: who encloses whom, how deep, in which order, and what each event spent itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.core.errors import InvariantError
from opscope.core.table.nesting import NO_PARENT, depth_and_root, parents_from_levels, self_times, sibling_positions

BLOCKS = st.lists(st.lists(st.integers(0, 4), max_size=30), max_size=6)


def positions(parent):
    """Positions among siblings, with the depths that the same parents give."""
    return sibling_positions(parent, depth_and_root(parent)[0])


def ints(text: str) -> np.ndarray:
    """Numbers separated by blanks."""
    return np.array(text.split(), np.int64)


def parents(levels: str, blocks: str | None = None) -> list[int]:
    """Parents of events with these levels, all in one block unless blocks are given."""
    level = ints(levels)
    return parents_from_levels(level, ints(blocks) if blocks else np.zeros_like(level)).tolist()


def parents_by_stack(levels: list[int], blocks: list[int]) -> list[int]:
    """The same with a stack: an event adopts all pending ones of its block that are further in."""
    parent = [NO_PARENT] * len(levels)
    pending: list[int] = []
    for row, (level, block) in enumerate(zip(levels, blocks, strict=True)):
        if pending and blocks[pending[-1]] != block:
            pending.clear()
        while pending and levels[pending[-1]] > level:
            parent[pending.pop()] = row
        pending.append(row)
    return parent


@st.composite
def trees(draw: st.DrawFn) -> np.ndarray:
    """Parents of a random forest in which children precede their parent."""
    count = draw(st.integers(0, 40))
    return np.array([draw(st.sampled_from([NO_PARENT, *range(row + 1, count)])) for row in range(count)], np.int64)


def test_an_event_belongs_to_the_next_event_that_is_further_out():
    """Leaves 0 and 1 lie in call 2, leaf 3 in call 4, both calls in inference 5."""
    assert parents("2 2 1 2 1 0") == [2, 2, 5, 4, 5, -1]


def test_levels_may_be_skipped():
    """A leaf without a call lies in the inference directly."""
    assert parents("2 0") == [1, -1]


def test_events_of_one_level_are_siblings():
    """Equal levels never enclose each other."""
    assert parents("0 0 0") == [-1, -1, -1]
    assert parents("1 1 1 0") == [3, 3, 3, -1]


def test_events_after_the_outermost_one_have_no_parent():
    """What follows the inference in its block was not enclosed by it."""
    assert parents("1 0 1 2") == [1, -1, -1, -1]


def test_a_parent_is_never_found_in_another_block():
    """Leaf 0 ends its block without a call; the call in the next block is not its parent."""
    assert parents("2 1 0", blocks="0 1 1") == [-1, 2, -1]


def test_no_events_have_no_parents():
    """An empty list stays empty."""
    assert parents("") == []


@settings(deadline=None)
@given(BLOCKS)
def test_parents_are_those_that_a_stack_finds(blocks):
    """The vectorised search agrees with the obvious loop."""
    levels = [level for block in blocks for level in block]
    numbers = [number for number, block in enumerate(blocks) for _ in block]
    found = parents_from_levels(np.array(levels, np.int64), np.array(numbers, np.int64))
    assert found.tolist() == parents_by_stack(levels, numbers)


@settings(deadline=None)
@given(BLOCKS)
def test_blocks_do_not_see_each_other(blocks):
    """Parents of several blocks are those of each block alone, shifted to its first row."""
    numbers = [number for number, block in enumerate(blocks) for _ in block]
    levels = [level for block in blocks for level in block]
    alone, first = [], 0
    for block in blocks:
        found = parents_from_levels(np.array(block, np.int64), np.zeros(len(block), np.int64))
        alone += np.where(found >= 0, found + first, NO_PARENT).tolist()
        first += len(block)
    assert parents_from_levels(np.array(levels, np.int64), np.array(numbers, np.int64)).tolist() == alone


def test_depth_counts_ancestors_and_root_is_the_outermost():
    """Leaf 0 lies in 1, which lies in 2; 3 stands alone."""
    depth, root = depth_and_root(ints("1 2 -1 -1"))
    assert depth.tolist() == [2, 1, 0, 0]
    assert root.tolist() == [2, 2, 2, 3]


def test_depth_of_parents_that_precede_their_children():
    """Formats that list the parent first have the same depths."""
    depth, root = depth_and_root(ints("-1 0 1"))
    assert depth.tolist() == [0, 1, 2]
    assert root.tolist() == [0, 0, 0]


@pytest.mark.parametrize("parent", ["0", "1 0", "1 2 0", "-1 2 1 0"])
def test_parents_in_a_circle_are_refused(parent):
    """A circle has no root, so it is an error and not a loop."""
    with pytest.raises(InvariantError, match="cycle"):
        depth_and_root(ints(parent))


@settings(deadline=None)
@given(trees())
def test_an_event_is_one_deeper_than_its_parent(parent):
    """Depth and root follow from the parent's."""
    depth, root = depth_and_root(parent)
    for row, above in enumerate(parent.tolist()):
        expected = (0, row) if above == NO_PARENT else (depth[above] + 1, root[above])
        assert (depth[row], root[row]) == expected


def test_self_time_is_what_the_direct_children_leave():
    """Of 100, the call (2) takes 70, of which its leaves take 20 and 30; the grandchildren are not counted twice."""
    assert self_times(ints("20 30 70 100"), ints("2 2 3 -1")).tolist() == [20, 30, 20, 30]


def test_self_time_of_a_leaf_is_its_duration():
    """Without children everything is the event's own."""
    assert self_times(ints("5 0"), ints("-1 -1")).tolist() == [5, 0]


def test_self_time_is_negative_where_children_take_longer():
    """The contradiction is left visible for the invariants to refuse."""
    assert self_times(ints("8 7 10"), ints("2 2 -1")).tolist() == [8, 7, -5]


@settings(deadline=None)
@given(trees(), st.randoms(use_true_random=False))
def test_self_times_of_a_tree_add_up_to_its_root(parent, random):
    """Whatever the durations are, every one is counted once."""
    duration = np.array([random.randint(0, 1000) for _ in parent], np.int64)
    _, root = depth_and_root(parent)
    own = self_times(duration, parent)
    for row in np.flatnonzero(parent == NO_PARENT).tolist():
        assert own[root == row].sum() == duration[row]


@settings(deadline=None)
@given(trees(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(parent, random):
    """Depths and self times of shuffled rows are the shuffled depths and self times."""
    count = len(parent)
    order = np.array(random.sample(range(count), count), np.int64)
    place = np.argsort(order)
    shuffled = np.where(parent[order] == NO_PARENT, NO_PARENT, place[parent[order]])
    duration = np.arange(count) * 7 + 1
    assert depth_and_root(shuffled)[0].tolist() == depth_and_root(parent)[0][order].tolist()
    assert self_times(duration[order], shuffled).tolist() == self_times(duration, parent)[order].tolist()


def test_positions_count_the_events_of_one_parent():
    """Children of 2 and of 5 are counted apart, in their order in the list; the root has no position."""
    assert positions(ints("2 2 5 4 5 -1")).tolist() == [0, 1, 0, 0, 1, -1]


def test_roots_have_no_position():
    """Several roots are not siblings of each other."""
    assert positions(ints("-1 -1")).tolist() == [-1, -1]


@settings(deadline=None)
@given(trees())
def test_positions_number_siblings_without_gaps(parent):
    """The positions under one parent are 0, 1, 2 in the order of rows."""
    position = positions(parent)
    for above in set(parent.tolist()) - {NO_PARENT}:
        siblings = position[parent == above]
        assert siblings.tolist() == list(range(len(siblings)))
