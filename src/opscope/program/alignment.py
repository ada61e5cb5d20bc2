"""Aligning events with nodes by kind and order alone, where no replay tells what ran.

Both sequences are in order, so each event belongs to one node and no two pairs cross. Among all such alignments those
of least cost count: nodes that only move or bound may stay without an event, a bounded node may have a Clamp behind it.
Anything else that does not fit is a doubt, and then nothing is claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.program.xnn_events import can_be, folded
from opscope.program.xnn_subgraph import UNARY, is_matrix_product

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from opscope.program.xnn_events import EventName
    from opscope.program.xnn_graph import XnnGraph, XnnNode

    Costs: TypeAlias = NDArray[np.int64]

_NEVER = 1 << 40
_MOST_CELLS = 4_000_000
_DROPPED = frozenset("Clamp Convert StaticReshape Copy StaticConstantPad StaticTranspose".split())
_DROP, _MISS, _EXTRA, _WRONG_WIDTH, _TABLE = 2, 6, 8, 3, 2
_CLAMP, _CONVERT, _TABLE_NAME = folded("Clamp"), folded("Convert"), folded("Invalid Unary Op")


class TooLargeError(Exception):
    """There are more pairs of events and nodes than can be compared."""


class Alignment(NamedTuple):
    """The nodes that each event may belong to, over all alignments of least cost, and what speaks against all of them.

    Attributes:
        candidates: for each event, numbers of nodes, ascending.
        doubt: what does not fit; None when everything fits.
    """

    candidates: list[tuple[int, ...]]
    doubt: str | None


def align(graph: XnnGraph, events: Sequence[EventName]) -> Alignment:
    """Align the events of a call with the nodes of its graph.

    Raises:
        TooLargeError: there are too many of both.
    """
    if (len(graph.nodes) + 1) * (len(events) + 1) > _MOST_CELLS:
        raise TooLargeError
    costs = _Costs.of(graph, events)
    ahead, behind = _ahead(costs), _behind(costs)
    best = int(ahead[-1, -1])
    pairs = _on_best(ahead[:-1, :-1] + costs.pair + behind[1:, 1:], best)
    extras = _on_best(ahead[:, :-1] + costs.extra + behind[:, 1:], best)
    drops = _on_best(ahead[:-1, :] + costs.drop[:, None] + behind[1:, :], best)
    candidates = [_candidates(pairs[:, event], extras[:, event]) for event in range(len(events))]
    return Alignment(candidates, _doubt(graph, costs, drops, extras))


class _Costs(NamedTuple):
    """What each step costs.

    Attributes:
        pair: of giving an event to a node; shape (nodes, events).
        drop: of leaving a node without an event; shape (nodes,).
        extra: of an event behind so many nodes that belongs to the last of them; shape (nodes + 1, events).
    """

    pair: Costs
    drop: Costs
    extra: Costs

    @classmethod
    def of(cls, graph: XnnGraph, events: Sequence[EventName]) -> _Costs:
        bits = {value.id: value.dtype.bits for value in graph.values}
        pair = np.array([[_pair(node, event, bits) for event in events] for node in graph.nodes], np.int64)
        drop = np.array([_DROP if node.kind in _DROPPED else _MISS for node in graph.nodes], np.int64)
        extra = np.full((len(graph.nodes) + 1, len(events)), _EXTRA, np.int64)
        clamps = np.array([event.operator == _CLAMP for event in events], bool)
        bounded = np.array([False, *(_is_bounded(node) for node in graph.nodes)], bool)
        extra[np.ix_(bounded, clamps)] = 0
        return cls(pair.reshape(len(graph.nodes), len(events)), drop, extra)


def _pair(node: XnnNode, event: EventName, bits: dict[int, int | None]) -> int:
    if event.operator == _TABLE_NAME:
        return _TABLE if node.kind in UNARY else _NEVER
    if not any(can_be(kind, event.operator) for kind in possible_kinds(node)):
        return _NEVER
    widths = {bits.get(value) for value in node.outputs}
    return 0 if event.width is None or event.width in widths else _WRONG_WIDTH


def possible_kinds(node: XnnNode) -> list[str]:
    """Kinds that a node may become by definition alone."""
    if node.kind.startswith("Concatenate"):
        return ["Concatenate"]
    if is_matrix_product(node):
        return ["FullyConnected"]
    if node.kind == "Multiply" and len(set(node.inputs)) == 1:
        return ["Multiply", "Square"]
    return [node.kind, "Clamp"] if node.kind in {"Minimum", "Maximum"} else [node.kind]


def _is_bounded(node: XnnNode) -> bool:
    """Whether the node's activation is an operator of its own."""
    separate = node.kind in {"Add", "Subtract", "Multiply", "Div", "GlobalAvgPooling2d"}
    bounds = (node.output_min, node.output_max)
    return separate and any(bound is not None and abs(bound) != float("inf") for bound in bounds)


def _ahead(costs: _Costs) -> Costs:
    """Least cost of the first nodes and events; shape (nodes + 1, events + 1)."""
    nodes, events = costs.pair.shape
    found = np.full((nodes + 1, events + 1), _NEVER, np.int64)
    found[0, 0] = 0
    for node in range(nodes + 1):
        row = found[node]
        if node:
            row[:] = np.minimum(row, found[node - 1] + costs.drop[node - 1])
            row[1:] = np.minimum(row[1:], found[node - 1, :-1] + costs.pair[node - 1])
        _run_along(row, costs.extra[node])
    return found


def _behind(costs: _Costs) -> Costs:
    """Least cost of the nodes and events from a place on; shape (nodes + 1, events + 1)."""
    turned = _Costs(costs.pair[::-1, ::-1], costs.drop[::-1], costs.extra[::-1, ::-1])
    return _ahead(turned)[::-1, ::-1]


def _run_along(row: Costs, extra: Costs) -> None:
    """Let events follow one another within a row, each at its extra cost."""
    passed = np.concatenate([[0], np.cumsum(extra)])
    row[:] = np.minimum.accumulate(row - passed) + passed


def _on_best(cost: Costs, best: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = cost == best
    return found


def _candidates(paired: NDArray[np.bool_], extra: NDArray[np.bool_]) -> tuple[int, ...]:
    """Nodes that an event may belong to; one that is extra belongs to the node before it."""
    before = {max(0, number - 1) for number in np.flatnonzero(extra).tolist()}
    return tuple(sorted(before.union(np.flatnonzero(paired).tolist())))


def _doubt(graph: XnnGraph, costs: _Costs, drops: NDArray[np.bool_], extras: NDArray[np.bool_]) -> str | None:
    missing = [node.kind for node, dropped in zip(graph.nodes, np.any(drops, axis=1), strict=True) if dropped]
    computing = [kind for kind in missing if kind not in _DROPPED]
    if computing:
        return f"{computing[0]} has no event"
    if (extras & (costs.extra > 0)).any():
        return "an event has no node"
    return None
