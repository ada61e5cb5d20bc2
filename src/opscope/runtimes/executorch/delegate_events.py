"""Classify what delegates report inside their calls: times on the clock of the call, how they nest, and other values.

XNNPACK reports operators one after the other. Others report spans that lie in each other (Vulkan, VGF,
Ethos-U), times of another clock, or values that are no nanoseconds at all: QNN reports microseconds, cycles,
counts and bytes, and puts the unit behind the name (``backends/qualcomm/runtime/backends/QnnProfiler.cpp`` of
ExecuTorch 1.5.1).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.core.table import Coded
    from opscope.core.table.nesting import Ints

    Mask = NDArray[np.bool_]

NANOSECONDS, CYCLES = "ns", "cycles"
_UNIT = re.compile(r" \((us|cycles|count|counts|bytes)\)\Z")
_WITHOUT_UNIT = re.compile(r"(Accelerator|QNN|RPC|Number of HVX|Num times yield|Time for )|.*[: ]OpId_\d+\Z")
"""Rows of QNN whose unit the profiler did not know; its operators are counted in cycles."""


class DelegateRows(NamedTuple):
    """Rows of a block of events, the rows of delegates among them."""

    name: Coded  # names, shape (rows,)
    start: Ints  # in ns, shape (rows,)
    duration: Ints  # in ns, shape (rows,)
    parent: Ints  # row of the enclosing event, -1 for the outermost
    in_call: Mask  # rows that lie directly in a call of a delegate


class SettledRows(NamedTuple):
    """Positions of the rows of delegates in the tree."""

    parent: Ints  # row of the enclosing event, which may be another row of the delegate
    units: dict[int, str]  # unit of each row that is no time of its call's clock, by row; such rows leave the tree
    measured: Mask  # rows whose start lies in their call, on its clock


def unit_of(name: str) -> str | None:
    """Return the unit of a value that is not in nanoseconds, by the name of its row; None for a time."""
    suffix = _UNIT.search(name)
    if suffix:
        return suffix[1].replace("counts", "count")
    return CYCLES if _WITHOUT_UNIT.match(name) else None


def settle_delegate_rows(rows: DelegateRows) -> SettledRows:
    """Put every row of a delegate into the span that encloses it, and find the rows that cannot be in the split.

    A row leaves the tree if it is not in nanoseconds, if it does not lie in its call while the call is too short
    for it, if it ends before it starts, or if it overlaps another row without lying in it. The call itself is kept.
    """
    units = np.array([unit_of(text) is not None for text in (*rows.name.texts, "")], bool)[rows.name.codes]
    settled = SettledRows(rows.parent.copy(), {}, np.zeros(len(rows.start), bool))
    members = np.flatnonzero(rows.in_call)
    calls = rows.parent[members]
    for call in np.unique(calls[_is_irregular(rows, members, units)]).tolist():
        first, last = np.searchsorted(calls, (call, call + 1))  # rows precede their call, so calls are in order
        _settle_call(rows, call, members[first:last].tolist(), settled)
    return settled


def _is_irregular(rows: DelegateRows, members: Ints, units: Mask) -> Mask:
    """Mark rows that are not plain durations one behind the other, or are in a call that is too short for them."""
    start, end, call = rows.start[members], rows.start[members] + rows.duration[members], rows.parent[members]
    irregular = units[members] | (rows.duration[members] < 0)
    irregular[1:] |= (call[1:] == call[:-1]) & (start[1:] < end[:-1])
    spent = np.bincount(call, rows.duration[members], len(rows.start))
    irregular |= (spent > rows.duration)[call]
    return irregular


def _settle_call(rows: DelegateRows, call: int, members: Sequence[int], settled: SettledRows) -> None:
    """Write into ``settled`` where the rows of one call belong."""
    first, last = int(rows.start[call]), int(rows.start[call] + rows.duration[call])
    times: list[int] = []
    for row in members:
        name = rows.name[row] or ""
        unit = unit_of(name)
        if unit is None and rows.duration[row] >= 0:
            times.append(row)
        else:
            settled.units[row] = unit or NANOSECONDS
    in_interval, elsewhere = list[int](), list[int]()
    for row in times:
        is_inside = first <= rows.start[row] and rows.start[row] + rows.duration[row] <= last
        (in_interval if is_inside else elsewhere).append(row)
    if in_interval or sum(int(rows.duration[row]) for row in elsewhere) > last - first:
        settled.units.update(dict.fromkeys(elsewhere, NANOSECONDS))
    settled.measured[in_interval] = True
    _nest_rows(rows, call, in_interval, settled)


def _nest_rows(rows: DelegateRows, call: int, in_interval: Sequence[int], settled: SettledRows) -> None:
    """Put rows into each other by their intervals; of two equal intervals the later row encloses the earlier one."""
    open_rows: list[int] = []
    for row in sorted(in_interval, key=lambda row: (rows.start[row], -rows.duration[row], -row)):
        start, end = rows.start[row], rows.start[row] + rows.duration[row]
        while open_rows and rows.start[open_rows[-1]] + rows.duration[open_rows[-1]] <= start:
            open_rows.pop()
        if open_rows and end > rows.start[open_rows[-1]] + rows.duration[open_rows[-1]]:
            settled.units[row] = NANOSECONDS
            continue
        settled.parent[row] = open_rows[-1] if open_rows else call
        open_rows.append(row)
