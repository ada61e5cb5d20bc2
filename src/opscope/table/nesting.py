"""Call trees as arrays: parents, depth, roots and self time, computed without a loop over events."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from opscope.errors import InvariantError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

NO_PARENT = -1
_LARGEST_SUM = float(1 << 62)


def parents_from_levels(level: Ints, group: Ints) -> Ints:
    """Parents in a list where children precede their parent.

    The parent of an event is the next later event of the same group with a lower level. This is the problem of all
    nearest smaller values; every event follows its candidate's candidate until that one is low enough, so the number
    of passes is logarithmic in the longest run of siblings.

    Args:
        level: rank of each event in the hierarchy, 0 outermost; shape (n,).
        group: block of each event, equal within a block and contiguous; shape (n,).

    Returns:
        Row of the parent or ``NO_PARENT``; shape (n,).
    """
    count = len(level)
    # One sentinel past the end, lower than everything, stops every search; so does the first event of another group.
    levels = np.append(level, np.iinfo(np.int64).min)
    groups = np.append(group, -1)
    candidate = np.append(np.arange(1, count + 1), count)
    active = np.arange(count)
    while len(active):
        target = candidate[active]
        undecided = (levels[target] >= levels[active]) & (groups[target] == groups[active])
        active = active[undecided]
        candidate[active] = candidate[candidate[active]]
    found = candidate[:count]
    inside = (found < count) & (groups[found] == group)
    return np.where(inside, found, NO_PARENT)


def depth_and_root(parent: Ints) -> tuple[Ints, Ints]:
    """Number of ancestors and the outermost ancestor of each event.

    Raises:
        InvariantError: the parents form a circle.
    """
    count = len(parent)
    depth = np.zeros(count, np.int64)
    root = np.arange(count)
    active = np.flatnonzero(parent != NO_PARENT)
    for _ in range(count + 1):
        if not len(active):
            return depth, root
        depth[active] += 1
        root[active] = parent[root[active]]
        active = active[parent[root[active]] != NO_PARENT]
    raise InvariantError("the parents of its events form a circle")


def self_times(duration: Ints, parent: Ints) -> Ints:
    """Duration minus the durations of direct children; what the event spent itself.

    Raises:
        InvariantError: the durations are so large that their sum is no 64-bit number.
    """
    children = np.zeros(len(duration), np.int64)
    nested = parent != NO_PARENT
    if np.abs(duration.astype(np.float64)).sum() > _LARGEST_SUM:
        raise InvariantError("the durations of its events add up to more than 2^62")
    np.add.at(children, parent[nested], duration[nested])
    return duration - children


def sibling_positions(parent: Ints) -> Ints:
    """Order of each event among those with the same parent, from 0; -1 for roots."""
    order = np.argsort(parent, kind="stable")
    ordered = parent[order]
    first = np.searchsorted(ordered, ordered, side="left")
    position = np.empty(len(parent), np.int64)
    position[order] = np.arange(len(parent)) - first
    position[parent == NO_PARENT] = -1
    return position
