"""Call trees as arrays: parents, depth, roots and self time, computed without a loop over events."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from opscope.core.errors import InvariantError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

NO_PARENT = -1
_LARGEST_SUM = float(1 << 62)
_EXACT_IN_DOUBLE = float(1 << 53)


def parents_from_levels(level: Ints, group: Ints) -> Ints:
    """Parents in a list where children precede their parent.

    The parent of an event is the next later event of the same group with a lower level. Returns the parent row or
    ``NO_PARENT``; shape (n,).
    """
    count = len(level)
    row = np.arange(count)
    parent = np.full(count, NO_PARENT, np.int64)
    for rank in np.unique(level)[1:].tolist():
        # Read from the end, the smallest row seen so far among lower levels is the next one of them.
        lower = np.where(level < rank, row, count)
        following = np.minimum.accumulate(lower[::-1])[::-1]
        rows = np.flatnonzero(level == rank)
        found = following[rows]
        inside = found < count
        inside[inside] = group[found[inside]] == group[rows[inside]]
        parent[rows[inside]] = found[inside]
    return parent


def depth_and_root(parent: Ints) -> tuple[Ints, Ints]:
    """Number of ancestors and the outermost ancestor of each event."""
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
    raise InvariantError("the parents of its events form a cycle")


def self_times(duration: Ints, parent: Ints) -> Ints:
    """Duration minus the durations of direct children; what the event spent itself."""
    if duration.size and float(np.abs(duration).max()) * duration.shape[-1] > _LARGEST_SUM:
        raise InvariantError("the durations of its events may add up to more than 2^62")
    if duration.ndim == 1 or len(duration) == 1:
        return duration - _children_of_one(duration.reshape(-1), parent).reshape(duration.shape)
    nested = np.flatnonzero(parent != NO_PARENT)
    # Children of one parent stand together after sorting, so each parent's children are one run to add up.
    order = nested[np.argsort(parent[nested], kind="stable")]
    own: Ints = duration.copy()
    if len(order):
        parents, first = np.unique(parent[order], return_index=True)
        own[..., parents] -= np.add.reduceat(duration[..., order], first, axis=-1)
    return own


def _children_of_one(duration: Ints, parent: Ints) -> Ints:
    """Sum of the direct children's durations of every event; shape (n,)."""
    nested = parent != NO_PARENT
    children = np.zeros(len(duration), np.int64)
    if float(np.abs(duration).sum(dtype=np.float64)) < _EXACT_IN_DOUBLE:
        children += np.bincount(parent[nested], duration[nested], len(duration)).astype(np.int64)
    else:
        np.add.at(children, parent[nested], duration[nested])
    return children


def sibling_positions(parent: Ints, depth: Ints) -> Ints:
    """Order of each event among those with the same parent, from 0; -1 for roots."""
    position = np.full(len(parent), -1, np.int64)
    for level in range(1, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero(depth == level)
        own = parent[rows]
        if (own[1:] < own[:-1]).any():  # siblings do not stand together: bring them together first
            order = np.argsort(own, kind="stable")
            rows, own = rows[order], own[order]
        count = np.arange(len(own))
        begins = np.concatenate([[True], own[1:] != own[:-1]])
        position[rows] = count - np.maximum.accumulate(np.where(begins, count, 0))
    return position
