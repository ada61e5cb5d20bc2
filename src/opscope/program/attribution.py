"""Which nodes of an XNNPACK graph an event computed.

XNNPACK's events carry no number of a node, and the library splits, merges, drops, inserts and reorders nodes before it
runs them. So what it does is replayed for a few instruction sets, and a replay counts only when it foretells every
event of the call, in order. Else the events are aligned with the nodes by kind, which says less and says so.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from opscope.program.alignment import TooLargeError, align, possible_kinds
from opscope.program.xnn_events import OPERATORS, can_be, event_name, folded
from opscope.program.xnn_rewrites import replay
from opscope.program.xnn_subgraph import MEAN_SQUARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opscope.program.xnn_events import EventName
    from opscope.program.xnn_graph import XnnGraph
    from opscope.program.xnn_subgraph import Node, Subgraph

    Lacks = Callable[[Node], bool]

_LARGEST = 20_000  # nodes; real delegates have hundreds


class Attribution(str, enum.Enum):
    """How it is known what an operator is.

    ``exact``: a replay of XNNPACK's rewrites foretold every event of the call. ``aligned``: events and nodes fit
    together in one way by kind and order. ``ambiguous``: they fit in several ways. ``name``: the recorded name is all
    there is.
    """

    EXACT = "exact"
    ALIGNED = "aligned"
    AMBIGUOUS = "ambiguous"
    NAME = "name"


class EventNodes(msgspec.Struct, frozen=True):
    """What one event computed.

    Attributes:
        nodes: numbers of the payload's nodes, ascending; empty when they are not known.
        main: the node that the work is in; None when it is not known.
        attribution: how that is known.
        candidates: the nodes that it may be, when there are several.
        inserted: XNNPACK added the operator; ``nodes`` tells for which nodes.
        activation: it is only the activation of ``main``, which runs as an operator of its own.
    """

    nodes: tuple[int, ...]
    main: int | None
    attribution: Attribution
    candidates: tuple[int, ...] = ()
    inserted: bool = False
    activation: bool = False


class DelegateMatch(msgspec.Struct, frozen=True):
    """The events of one call and what they computed.

    Attributes:
        events: one for each event, in order.
        profile: the instruction set whose replay foretold every event; None when there is none.
        problem: why the match is not exact; None when it is.
        foreign: what ran cannot have come from this payload: it is of another program.
    """

    events: tuple[EventNodes, ...]
    profile: str | None
    problem: str | None
    foreign: bool = False


class PredictedEvent(msgspec.Struct, frozen=True):
    """An event that XNNPACK will record.

    Attributes:
        operator: its name without number types.
        nodes: numbers of the payload's nodes that it computes, ascending.
        main: the node that the work is in.
        inserted: XNNPACK adds it.
        activation: it is only the activation of ``main``, which runs as an operator of its own.
    """

    operator: str
    nodes: tuple[int, ...]
    main: int
    inserted: bool
    activation: bool


def match_events(graph: XnnGraph, names: Sequence[str], *, rewrites: bool = True) -> DelegateMatch:
    """Attribute the events of one call of a delegate.

    Args:
        graph: what the delegate computes.
        names: of the events, as recorded, in the order in which they ran.
        rewrites: False leaves out the replay, to see what alignment alone can tell.
    """
    problem = _unreadable(graph)
    if problem:
        return _unknown(names, problem)
    if rewrites:
        for profile, lacks in _profiles(graph, names):
            work = replay(graph, lacks)
            if _foretells(work, names):
                return DelegateMatch(tuple(_exact(graph, node) for node in work.nodes), profile, None)
    return _aligned(graph, names, "no replay of XNNPACK's rewrites foretells these events" if rewrites else "no replay")


def predict_events(graph: XnnGraph) -> tuple[PredictedEvent, ...]:
    """The events that XNNPACK records where it has a kernel for every number type; empty for unreadable payloads."""
    if _unreadable(graph):
        return ()
    return tuple(
        PredictedEvent(
            operator=OPERATORS[node.kind][0] if node.kind in OPERATORS else node.kind,
            nodes=tuple(sorted(set(node.sources))),
            main=main_node(graph, node.sources),
            inserted=node.inserted,
            activation=node.activation,
        )
        for node in replay(graph).nodes
    )


def main_node(graph: XnnGraph, nodes: Sequence[int]) -> int:
    """The node that the work is in: the last one that computes, or the last that bounds or moves."""
    return max(set(nodes), key=lambda number: (_WEIGHT.get(graph.nodes[number].kind, 3), number))


_WEIGHT = {"Convert": 0, "Copy": 0, "StaticReshape": 0, "StaticConstantPad": 1, "StaticTranspose": 1, "Clamp": 2}


def _unreadable(graph: XnnGraph) -> str | None:
    """Why a graph cannot be followed."""
    if graph.unknown_values or any(node.kind not in _KNOWN for node in graph.nodes):
        return "the payload has nodes or values of a kind newer than this version of opscope"
    known = graph.by_id()
    if any(name not in known for node in graph.nodes for name in (*node.inputs, *node.outputs)):
        return "a node names a value that the payload does not have"
    if any(len(node.inputs) < _LEAST_INPUTS.get(node.kind, 1) or not node.outputs for node in graph.nodes):
        return "a node has too few inputs or outputs"
    return f"the payload has more than {_LARGEST:,} nodes" if len(graph.nodes) > _LARGEST else None


_KNOWN = {*OPERATORS, "ScaledDotProductAttention", *(f"Concatenate{count}" for count in range(2, 6))}
_TWO = "Add Div Minimum Maximum Multiply Subtract PReLU FullyConnected BatchMatrixMultiply Conv2d".split()
_LEAST_INPUTS = dict.fromkeys([*_TWO, "DepthwiseConv2d", "ConvTranspose2d"], 2)


def _profiles(graph: XnnGraph, names: Sequence[str]) -> Iterator[tuple[str, Lacks | None]]:
    """What instruction sets lack, the likely ones first; only graphs with half precision differ.

    Source: ``GetOpActionFp16`` in ``src/subgraph/rewrites/cvt_to_fp32.cc`` of XNNPACK (2026), and the conditions in
    ``src/configs``. Products that quantise their left side themselves need packed kernels of half precision.
    """
    if not any(value.dtype.name == "fp16" for value in graph.values):
        yield "native", None
        return
    for profile, kinds in _HALF.items():
        yield profile, _lacking(kinds, packed=True)
    yield "fp16 on Arm with SME2", _lacking(_NEVER_HALF, packed=False)
    yield "no fp16", lambda node: node.kind not in _ALWAYS_HALF
    seen = [event_name(name) for name in names]
    single = frozenset(kind for kind in OPERATORS if _only_single(kind, seen))
    yield f"no fp16 for {', '.join(sorted(single))}", _lacking(single, packed=True)


def _lacking(kinds: frozenset[str], *, packed: bool) -> Lacks:
    return lambda node: node.kind in kinds or (packed and node.packed)


_PRODUCTS = frozenset("FullyConnected BatchMatrixMultiply Conv2d ConvTranspose2d DepthwiseConv2d".split())
_NEVER_HALF = frozenset({MEAN_SQUARED})
_ALWAYS_HALF = frozenset({"Sin", "Cos"})
_X86 = _NEVER_HALF | {"StaticResizeBilinear2D"}
_WITHOUT_AVX2 = _X86.union("ELU Sigmoid Softmax FullyConnected BatchMatrixMultiply ConvTranspose2d Conv2d".split())
_HALF = {
    "fp16 on x86": _X86,
    "fp16 on Arm": _NEVER_HALF,
    "fp16 on x86 without AVX2": _WITHOUT_AVX2,
    "fp16 on x86 without AVX2 and FMA3": _WITHOUT_AVX2 | {"DepthwiseConv2d"},
}
"""Kinds of nodes that run in fp32, by what the CPU has."""
_PRODUCT_NAMES = {folded(name) for kind in _PRODUCTS for name in OPERATORS[kind]}
_ADDED = {folded(name) for name in ("Clamp", "Convert", "Copy", "Mean Squared", "Invalid Unary Op", "Pack LH")}
_CLAMPS = frozenset({"Clamp", "Minimum", "Maximum"})


def _only_single(kind: str, seen: Sequence[EventName]) -> bool:
    """Whether every event of a kind says that it ran in fp32."""
    floats = [name.floats for name in seen if can_be(kind, name.operator)]
    return bool(floats) and all(types == {"fp32"} for types in floats)


def _foretells(work: Subgraph, names: Sequence[str]) -> bool:
    if len(work.nodes) != len(names):
        return False
    return all(_fits(work, node, event_name(name)) for node, name in zip(work.nodes, names, strict=True))


def _fits(work: Subgraph, node: Node, name: EventName) -> bool:
    """Whether an event can come from a node: by its operator, and by the types of what the node reads and writes."""
    if not can_be(node.kind, name.operator):
        return False
    types = {work.values[value].dtype for value in (*node.inputs, *node.outputs)}
    return name.width in {None, work.values[node.outputs[0]].bits} and name.floats <= types


def _exact(graph: XnnGraph, node: Node) -> EventNodes:
    nodes = tuple(sorted(set(node.sources)))
    return EventNodes(nodes, main_node(graph, nodes), Attribution.EXACT, (), node.inserted, node.activation)


def _aligned(graph: XnnGraph, names: Sequence[str], problem: str) -> DelegateMatch:
    events = [event_name(name) for name in names]
    strange = _strange(graph, events)
    if strange:
        return _unknown(names, f"{problem}, and {strange}", foreign=True)
    try:
        alignment = align(graph, events)
    except TooLargeError:
        return _unknown(names, f"{problem}, and there are too many events to align")
    if alignment.doubt:
        return _unknown(names, f"{problem}, and events do not fit the nodes: {alignment.doubt}")
    rows = zip(alignment.candidates, events, strict=True)
    return DelegateMatch(tuple(_candidate(graph, found, event) for found, event in rows), None, problem)


def _strange(graph: XnnGraph, events: Sequence[EventName]) -> str | None:
    """What no rewrite can explain: convolutions and products are never added or joined, others never invented."""
    products = sum(1 for node in graph.nodes if node.kind in _PRODUCTS)
    if products != sum(1 for event in events if event.operator in _PRODUCT_NAMES):
        return "there is another number of convolutions and matrix products"
    kinds = {kind for node in graph.nodes for kind in possible_kinds(node)}
    known = {folded(name) for kind in kinds for name in OPERATORS.get(kind, ())} | _ADDED
    invented = next((event.operator for event in events if event.operator not in known), None)
    return None if invented is None else f"no node can have been {invented!r}"


def _candidate(graph: XnnGraph, found: tuple[int, ...], name: EventName) -> EventNodes:
    if len(found) == 1:
        limits = name.operator == folded("Clamp") and graph.nodes[found[0]].kind not in _CLAMPS
        return EventNodes(found, found[0], Attribution.ALIGNED, activation=limits)
    return EventNodes((), None, Attribution.AMBIGUOUS, found)


def _unknown(names: Sequence[str], problem: str, *, foreign: bool = False) -> DelegateMatch:
    return DelegateMatch((EventNodes((), None, Attribution.NAME),) * len(names), None, problem, foreign)
