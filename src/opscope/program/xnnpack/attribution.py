"""Find which nodes of an XNNPACK graph an event computed.

XNNPACK's events carry no number of a node, and the library splits, merges, drops, inserts and reorders nodes
before it runs them. So these rewrites are replayed for a few instruction sets, and a replay counts only if it
predicts every event of the call, in order. Otherwise the events are aligned with the nodes by kind, which is
less certain and reported as such.

Source of what XNNPACK calls its operators in events: ``xnn_operator_type_to_string`` of the XNNPACK (2026) in
ExecuTorch 1.5.1, and the names that its runtime puts on profiling events: operator, layout and number types in
brackets, algorithm, and ``#k`` for the k-th of that name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.program.operators.kinds import Attribution
from opscope.program.xnnpack.rewrites import replay
from opscope.program.xnnpack.subgraph import (
    BINARY,
    CONCATENATE,
    LUT,
    MEAN_SQUARED,
    PACKED_CONVERT,
    SEPARATE_ACTIVATION,
    SUM_SQUARED,
    UNARY,
    is_matrix_product,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from opscope.program.xnnpack.graph import XnnGraph, XnnNode
    from opscope.program.xnnpack.subgraph import Node, Subgraph

    Costs: TypeAlias = NDArray[np.int64]
    Lacks = Callable[[Node], bool]


_OWN = """
Abs Add Ceiling Clamp Convert Copy ELU Exp Floor LeakyReLU Log Maximum Minimum Multiply Negate PReLU Sigmoid
Softmax Square Subtract
""".split()
# Where weights are sparse and the processor has kernels for them, products of pixels run as convolutions of planes.
_SPARSE = "Convolution SPMM"
OPERATORS: dict[str, tuple[str, ...]] = {
    **{kind: (kind,) for kind in _OWN},
    "ArgMaxPooling2d": ("ArgMax Pooling",),
    "AvgPooling2d": ("Average Pooling",),
    "BankersRounding": ("Bankders Rounding", "Bankers Rounding"),
    "BatchMatrixMultiply": ("Batch Matrix Multiply",),
    CONCATENATE: ("Copy", "Concatenate"),
    "ConvTranspose2d": ("Deconvolution",),
    "Conv2d": ("Convolution", _SPARSE),
    "Cos": ("Cosine",),
    "DepthToSpace2D": ("Depth To Space",),
    "DepthwiseConv2d": ("Convolution",),
    "Div": ("Divide",),
    "EvenSplit": ("Copy",),
    "FullyConnected": ("Fully Connected", "Dynamic Fully Connected", _SPARSE),
    "Gelu": ("GELU", "ApproxGELU"),
    "GlobalAvgPooling2d": ("Mean", "Global Average Pooling"),
    "Hardswish": ("HardSwish",),
    LUT: ("Invalid Unary Op",),
    "MaxPooling2d": ("Max Pooling",),
    MEAN_SQUARED: ("Mean Squared",),
    SUM_SQUARED: ("Normalize", "Sum Squared"),
    PACKED_CONVERT: ("Convert",),
    "ReciprocalSquareRoot": ("Reciprocal Square Root",),
    "Sin": ("Sine",),
    "SpaceToDepth2D": ("Space To Depth",),
    "SquareRoot": ("Square Root",),
    "SquaredDifference": ("Squared Difference",),
    "StaticConstantPad": ("Constant Pad",),
    "StaticReduceMax": ("Reduce Max",),
    "StaticReduceMin": ("Reduce Min",),
    "StaticReshape": ("Static Reshape", "Copy"),
    "StaticResizeBilinear2D": ("Resize Bilinear",),
    "StaticSlice": ("Slice",),
    "StaticSum": ("Sum",),
    "StaticTranspose": ("Transpose",),
    "Tanh": ("TanH",),
    "Unpooling2d": ("Unpooling",),
}
"""Names that an event of a node kind may have, the current one first."""

_FORM = re.compile(r"(?P<operator>[^(#]+?)(?: \((?P<tags>[^)#]*)\).*| #\d+)?\s*\Z", re.DOTALL)
_FLOATS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


class EventName(NamedTuple):
    """The parts of an event's name."""

    operator: str  # XNNPACK's, compared without case and blanks, which changed between versions
    width: int | None  # bits of the elements that are moved; None where the name does not say
    floats: frozenset[str]  # number types that its tensors must have, by XNNPACK's names


_SPARSE_END = re.compile(r"\) SPMM(?: #\d+)?\s*\Z")


def is_sparse_product(name: str) -> bool:
    """Return whether an event is of a kernel for sparse weights, by its recorded name."""
    return _SPARSE_END.search(name) is not None


@lru_cache(maxsize=4096)
def event_name(name: str) -> EventName:
    """Parse a recorded name; of a name in an unknown form everything is the operator."""
    form = _FORM.match(name)
    if form is None:
        return EventName(folded(name), None, frozenset())
    tags = [tag.strip() for tag in (form["tags"] or "").split(",")]
    widths = [int(tag[1:]) for tag in tags if re.fullmatch(r"X\d{1,3}", tag)]
    floats = {_FLOATS[part] for tag in tags for part in tag.removeprefix("P").split("_") if part in _FLOATS}
    operator = _SPARSE if is_sparse_product(name) else form["operator"]
    return EventName(folded(operator), widths[0] if widths else None, frozenset(floats))


def folded(operator: str) -> str:
    """Return an operator's name without case and blanks."""
    return "".join(operator.split()).casefold()


_FOLDED = {kind: frozenset(map(folded, names)) for kind, names in OPERATORS.items()}


def can_be(kind: str, operator: str) -> bool:
    """Return whether an event of this folded operator can come from a node of this kind."""
    return operator in _FOLDED.get(kind, ())


_NEVER = 1 << 40
_MOST_CELLS = 4_000_000
_DROPPED = frozenset("Clamp Convert StaticReshape Copy StaticConstantPad StaticTranspose".split())
_DROP, _MISS, _EXTRA, _WRONG_WIDTH, _TABLE = 2, 6, 8, 3, 2
_CLAMP, _CONVERT, _TABLE_NAME = folded("Clamp"), folded("Convert"), folded("Invalid Unary Op")


def align(graph: XnnGraph, events: Sequence[EventName]) -> tuple[list[tuple[int, ...]], str | None]:
    """Align events with nodes at the least total cost.

    Returns the nodes that each event may belong to, ascending, over all alignments of least cost, and what does not
    fit.
    """
    costs = _Costs.of(graph, events)
    # Least cost of the nodes and events from a place on; shape (nodes + 1, events + 1)
    turned = _Costs(costs.pair[::-1, ::-1], costs.drop[::-1], costs.extra[::-1, ::-1])
    ahead, behind = _prefix_costs(costs), _prefix_costs(turned)[::-1, ::-1]
    best = int(ahead[-1, -1])
    pairs = _is_on_best_path(ahead[:-1, :-1] + costs.pair + behind[1:, 1:], best)
    extras = _is_on_best_path(ahead[:, :-1] + costs.extra + behind[:, 1:], best)
    drops = _is_on_best_path(ahead[:-1, :] + costs.drop[:, None] + behind[1:, :], best)
    candidates = [_candidate_nodes(pairs[:, event], extras[:, event]) for event in range(len(events))]
    return candidates, _find_doubt(graph, costs, drops, extras)


class _Costs(NamedTuple):
    """Costs of the steps of an alignment."""

    pair: Costs  # of giving an event to a node; shape (nodes, events)
    drop: Costs  # of leaving a node without an event; shape (nodes,)
    extra: Costs  # of an event behind so many nodes that belongs to the last of them; shape (nodes + 1, events)

    @classmethod
    def of(cls, graph: XnnGraph, events: Sequence[EventName]) -> _Costs:
        bits = {value.id: value.dtype.bits for value in graph.values}
        pair = np.array([[_pair_cost(node, event, bits) for event in events] for node in graph.nodes], np.int64)
        drop = np.array([_DROP if node.kind in _DROPPED else _MISS for node in graph.nodes], np.int64)
        extra = np.full((len(graph.nodes) + 1, len(events)), _EXTRA, np.int64)
        clamps = np.array([event.operator == _CLAMP for event in events], bool)
        bounded = np.array([False, *(_is_bounded(node) for node in graph.nodes)], bool)
        extra[np.ix_(bounded, clamps)] = 0
        return cls(pair.reshape(len(graph.nodes), len(events)), drop, extra)


def _pair_cost(node: XnnNode, event: EventName, bits: dict[int, int | None]) -> int:
    if event.operator == _TABLE_NAME:
        return _TABLE if node.kind in UNARY else _NEVER
    if not any(can_be(kind, event.operator) for kind in possible_kinds(node)):
        return _NEVER
    widths = {bits.get(value) for value in node.outputs}
    return 0 if event.width is None or event.width in widths else _WRONG_WIDTH


def possible_kinds(node: XnnNode) -> list[str]:
    """Return the kinds that a node may become by definition alone."""
    if node.kind.startswith("Concatenate"):
        return ["Concatenate"]
    if is_matrix_product(node):
        return ["FullyConnected"]
    if node.kind == "Multiply" and len(set(node.inputs)) == 1:
        return ["Multiply", "Square"]
    return [node.kind, "Clamp"] if node.kind in {"Minimum", "Maximum"} else [node.kind]


def _is_bounded(node: XnnNode) -> bool:
    """Return whether the node's activation runs as a separate operator."""
    bounds = (node.output_min, node.output_max)
    bounded = any(bound is not None and abs(bound) != float("inf") for bound in bounds)
    return bounded and node.kind in SEPARATE_ACTIVATION


def _prefix_costs(costs: _Costs) -> Costs:
    """Return the least cost of aligning the first nodes and events; shape (nodes + 1, events + 1)."""
    nodes, events = costs.pair.shape
    least_cost = np.full((nodes + 1, events + 1), _NEVER, np.int64)
    least_cost[0, 0] = 0
    for node in range(nodes + 1):
        row = least_cost[node]
        if node:
            row[:] = np.minimum(row, least_cost[node - 1] + costs.drop[node - 1])
            row[1:] = np.minimum(row[1:], least_cost[node - 1, :-1] + costs.pair[node - 1])
        passed = np.concatenate([[0], np.cumsum(costs.extra[node])])
        row[:] = np.minimum.accumulate(row - passed) + passed
    return least_cost


def _is_on_best_path(cost: Costs, best: int) -> NDArray[np.bool_]:
    is_best: NDArray[np.bool_] = cost == best
    return is_best


def _candidate_nodes(paired: NDArray[np.bool_], extra: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the nodes that an event may belong to; an extra event belongs to the node before it."""
    before = {max(0, number - 1) for number in np.flatnonzero(extra).tolist()}
    return tuple(sorted(before.union(np.flatnonzero(paired).tolist())))


def _find_doubt(graph: XnnGraph, costs: _Costs, drops: NDArray[np.bool_], extras: NDArray[np.bool_]) -> str | None:
    missing = [node.kind for node, dropped in zip(graph.nodes, np.any(drops, axis=1), strict=True) if dropped]
    computing = [kind for kind in missing if kind not in _DROPPED]
    if computing:
        return f"{computing[0]} has no event"
    if (extras & (costs.extra > 0)).any():
        return "an event has no node"
    return None


_LARGEST = 20_000  # nodes; real delegates have hundreds


class EventNodes(msgspec.Struct, frozen=True):
    """Nodes that one event computed."""

    nodes: tuple[int, ...]  # numbers of the payload's nodes, ascending; empty when they are not known
    main: int | None  # the node that the work is in; None when it is not known
    attribution: Attribution  # how that is known
    candidates: tuple[int, ...] = ()  # the nodes that it may be, when there are several
    inserted: bool = False  # XNNPACK added the operator; `nodes` tells for which nodes
    activation: bool = False  # it is only the activation of `main`, which runs as an operator of its own


class DelegateMatch(msgspec.Struct, frozen=True):
    """The events of one call and what they computed."""

    events: tuple[EventNodes, ...]  # one for each event, in order
    profile: str | None  # the instruction set whose replay foretold every event; None when there is none
    problem: str | None  # why the match is not exact; None when it is
    foreign: bool = False  # what ran cannot have come from this payload: it is of another program


class PredictedEvent(msgspec.Struct, frozen=True):
    """An event that XNNPACK will record."""

    operator: str  # its name without number types
    nodes: tuple[int, ...]  # numbers of the payload's nodes that it computes, ascending
    main: int  # the node that the work is in
    inserted: bool  # XNNPACK adds it
    activation: bool  # it is only the activation of `main`, which runs as an operator of its own


def match_events(graph: XnnGraph, names: Sequence[str], *, rewrites: bool = True) -> DelegateMatch:
    """Attribute the events of one call of a delegate: by replay if possible, else by alignment."""
    problem = _find_unreadable(graph)
    if problem:
        return _no_match(names, problem)
    if rewrites:
        for profile, lacks in _instruction_set_profiles(graph, names):
            work = replay(graph, lacks)
            if _predicts_all(work, names):
                return DelegateMatch(tuple(_exact_match(graph, node) for node in work.nodes), profile, None)
    return _match_by_alignment(
        graph, names, "no replay of XNNPACK's rewrites predicts these events" if rewrites else "no replay"
    )


def predict_events(graph: XnnGraph) -> tuple[PredictedEvent, ...]:
    """Return the events that XNNPACK records if it has kernels for every number type; empty for unreadable payloads."""
    if _find_unreadable(graph):
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
    """Return the node that the work is in: the last one that computes, else the last that bounds or moves."""
    return max(set(nodes), key=lambda number: (_WEIGHT.get(graph.nodes[number].kind, 3), number))


_WEIGHT = {"Convert": 0, "Copy": 0, "StaticReshape": 0, "StaticConstantPad": 1, "StaticTranspose": 1, "Clamp": 2}


def _find_unreadable(graph: XnnGraph) -> str | None:
    """Return why a graph cannot be followed; None if it can."""
    if graph.unknown_values or any(node.kind not in _KNOWN for node in graph.nodes):
        return "the payload has node or value kinds newer than this opscope"
    known = graph.by_id()
    if any(name not in known for node in graph.nodes for name in (*node.inputs, *node.outputs)):
        return "a node refers to a missing value"
    if any(len(node.inputs) < _LEAST_INPUTS.get(node.kind, 1) or not node.outputs for node in graph.nodes):
        return "a node has too few inputs or outputs"
    return f"the payload has more than {_LARGEST:,} nodes" if len(graph.nodes) > _LARGEST else None


_KNOWN = {*OPERATORS, "ScaledDotProductAttention", *(f"Concatenate{count}" for count in range(2, 6))}
_PRODUCTS = frozenset("FullyConnected BatchMatrixMultiply Conv2d ConvTranspose2d DepthwiseConv2d".split())
_LEAST_INPUTS = dict.fromkeys(BINARY | _PRODUCTS, 2)


def _instruction_set_profiles(graph: XnnGraph, names: Sequence[str]) -> Iterator[tuple[str, Lacks | None]]:
    """Yield profiles of instruction sets, the likely ones first; only graphs with half precision differ.

    Source: ``GetOpActionFp16`` in ``src/subgraph/rewrites/cvt_to_fp32.cc`` of XNNPACK (2026), and the conditions in
    ``src/configs``. Products that quantise their left side themselves need packed kernels of half precision.
    """
    if not any(value.dtype.name == "fp16" for value in graph.values):
        yield "native", None
        return
    for profile, kinds in _HALF.items():
        yield profile, _lacks_kinds(kinds, packed=True)
    yield "fp16 on Arm with SME2", _lacks_kinds(_NEVER_HALF, packed=False)
    yield "no fp16", lambda node: node.kind not in _ALWAYS_HALF
    seen = [event_name(name) for name in names]
    single = frozenset(kind for kind in OPERATORS if _only_single(kind, seen))
    yield f"no fp16 for {', '.join(sorted(single))}", _lacks_kinds(single, packed=True)


def _lacks_kinds(kinds: frozenset[str], *, packed: bool) -> Lacks:
    return lambda node: node.kind in kinds or (packed and node.packed)


_NEVER_HALF = frozenset({MEAN_SQUARED, SUM_SQUARED})
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
_ADDED = {
    folded(name) for name in ("Clamp", "Convert", "Copy", "Mean Squared", "Normalize", "Invalid Unary Op", "Pack LH")
}
_CLAMPS = frozenset({"Clamp", "Minimum", "Maximum"})


def _only_single(kind: str, seen: Sequence[EventName]) -> bool:
    """Return whether every event of a kind states that it ran in fp32."""
    floats = [name.floats for name in seen if can_be(kind, name.operator)]
    return bool(floats) and all(types == {"fp32"} for types in floats)


def _predicts_all(work: Subgraph, names: Sequence[str]) -> bool:
    if len(work.nodes) != len(names):
        return False
    return all(_can_come_from(work, node, event_name(name)) for node, name in zip(work.nodes, names, strict=True))


def _can_come_from(work: Subgraph, node: Node, name: EventName) -> bool:
    """Return whether an event can come from a node, by operator and number types."""
    if not can_be(node.kind, name.operator):
        return False
    types = {work.values[value].dtype for value in (*node.inputs, *node.outputs)}
    return name.width in {None, work.values[node.outputs[0]].bits} and name.floats <= types


def _exact_match(graph: XnnGraph, node: Node) -> EventNodes:
    nodes = tuple(sorted(set(node.sources)))
    return EventNodes(nodes, main_node(graph, nodes), Attribution.EXACT, (), node.inserted, node.activation)


def _match_by_alignment(graph: XnnGraph, names: Sequence[str], problem: str) -> DelegateMatch:
    events = [event_name(name) for name in names]
    strange = _find_inexplicable(graph, events)
    if strange:
        return _no_match(names, f"{problem}, and {strange}", foreign=True)
    if (len(graph.nodes) + 1) * (len(events) + 1) > _MOST_CELLS:
        return _no_match(names, f"{problem}, and there are too many events to align")
    candidates, doubt = align(graph, events)
    if doubt:
        return _no_match(names, f"{problem}, and events do not match the nodes: {doubt}")
    rows = zip(candidates, events, strict=True)
    return DelegateMatch(tuple(_aligned_event(graph, numbers, event) for numbers, event in rows), None, problem)


def _find_inexplicable(graph: XnnGraph, events: Sequence[EventName]) -> str | None:
    """Return the first difference that no rewrite can explain; None if there is none.

    Convolutions and products are never added or joined, and other kinds never invented.
    """
    products = sum(1 for node in graph.nodes if node.kind in _PRODUCTS)
    if products != sum(1 for event in events if event.operator in _PRODUCT_NAMES):
        return "the number of convolutions and matrix products differs"
    kinds = {kind for node in graph.nodes for kind in possible_kinds(node)}
    known = {folded(name) for kind in kinds for name in OPERATORS.get(kind, ())} | _ADDED
    invented = next((event.operator for event in events if event.operator not in known), None)
    return None if invented is None else f"no node can be {invented!r}"


def _aligned_event(graph: XnnGraph, numbers: tuple[int, ...], name: EventName) -> EventNodes:
    if len(numbers) == 1:
        limits = name.operator == folded("Clamp") and graph.nodes[numbers[0]].kind not in _CLAMPS
        return EventNodes(numbers, numbers[0], Attribution.ALIGNED, activation=limits)
    return EventNodes((), None, Attribution.AMBIGUOUS, numbers)


def _no_match(names: Sequence[str], problem: str, *, foreign: bool = False) -> DelegateMatch:
    return DelegateMatch((EventNodes((), None, Attribution.NAME),) * len(names), None, problem, foreign)
