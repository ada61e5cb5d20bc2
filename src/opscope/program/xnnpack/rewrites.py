"""Replay what XNNPACK does to a graph before it runs: nodes are fused, split, dropped and inserted.

Each function is one pass of ``xnn_subgraph_optimize`` in ``src/subgraph.c`` of XNNPACK (2026), in the order in
which :func:`replay` calls them; the last one is ``FallbackToFp32`` in ``src/subgraph/rewrites/cvt_to_fp32.cc``.
The passes follow the library step by step, also where that looks arbitrary, since the order of events depends
on it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.program.xnnpack.graph import Padding
from opscope.program.xnnpack.subgraph import (
    BINARY,
    CONCATENATE,
    LUT,
    MEAN_SQUARED,
    PACKED_CONVERT,
    SUM_SQUARED,
    UNARY,
    UNBOUNDED,
    Node,
    Subgraph,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.program.xnnpack.graph import XnnGraph
    from opscope.program.xnnpack.subgraph import Value

    Lacks = Callable[[Node], bool]

_CLAMPS_ITSELF = frozenset("AvgPooling2d Conv2d ConvTranspose2d DepthwiseConv2d FullyConnected MaxPooling2d".split())
_MOVES = frozenset({"StaticReshape", "StaticTranspose", CONCATENATE, "Copy", "StaticSlice", "StaticConstantPad"})
_PRODUCTS = frozenset({"FullyConnected", "BatchMatrixMultiply"})
_OF_SQUARES = {"GlobalAvgPooling2d": MEAN_SQUARED, "StaticSum": SUM_SQUARED}
"""Kinds of means and sums, and the kinds that compute those of squares."""
_IMAGE = 4
_LONGEST_TABLE = 10  # XNN_MAX_UNARY_FUSION_NODES
_BYTE = 8
_MOST_ROUNDS = 100  # the library has no limit; a damaged graph must not hold up its reader


def replay(graph: XnnGraph, lacks_half: Lacks | None = None) -> Subgraph:
    """Return the graph that runs, its nodes in the order in which they run."""
    work = Subgraph.of(graph)
    work.clean()
    fuse_pads_and_copies(work)
    fuse_tables(work)
    simplify(work)
    requantise_right_sides(work)
    inline_packing(work)
    types = {value.dtype for value in work.values.values()}
    if lacks_half and "fp16" in types:
        widen(work, "fp16", lacks_half)
    if "bf16" in types:
        widen(work, "bf16", lambda _: True)
    work.nodes = [node for node in work.nodes if node.alive]
    return work


def fuse_pads_and_copies(work: Subgraph) -> None:
    """Let convolutions pad by themselves, and producers or consumers do without a copy in between."""
    for name, value in list(work.values.items()):
        if value.consumers != 1 or value.producer is None or value.first_consumer is None:
            continue
        first, second = work.nodes[value.producer], work.nodes[value.first_consumer]
        if not (first.alive and second.alive):
            continue
        if _can_pad_itself(first, second, value):
            second.inputs[0] = first.inputs[0]
            _inherit_reader(work, first.inputs[0], value)
            second.absorb(first)
        elif not value.external:
            _fuse_copy(work, name, first, second)


def _can_pad_itself(pad: Node, convolution: Node, value: Value) -> bool:
    """Return whether a convolution can pad by itself, which needs zeros around the image only."""
    if pad.kind != "StaticConstantPad" or convolution.kind not in {"Conv2d", "DepthwiseConv2d"}:
        return False
    border = pad.origin.attributes if pad.origin else None
    if not isinstance(border, Padding) or len(value.dims) != _IMAGE:
        return False
    both = [*border.pre_paddings[::3], *border.post_paddings[::3]]
    zero = 0 if value.dtype == "fp32" else value.zero_point if value.dtype in {"qint8", "quint8"} else None
    return len(border.pre_paddings) == _IMAGE and not any(both) and border.padding_value == zero


def _inherit_reader(work: Subgraph, name: int, gone: Value) -> None:
    """Let the consumer of a removed value read another value."""
    value = work.values[name]
    if value.first_consumer == gone.producer:
        value.first_consumer = gone.first_consumer


def _fuse_copy(work: Subgraph, name: int, first: Node, second: Node) -> None:
    value = work.values[name]
    if second.kind == "Copy" and _unused_between(work, second.outputs[0], value):
        first.write_instead(name, second.outputs[0])
        work.values[second.outputs[0]].producer = value.producer
        first.sources = [*first.sources, *second.sources]
        second.alive = False
    elif first.kind == "Copy" and _unused_between(work, first.inputs[0], value):
        second.read_instead(name, first.inputs[0])
        _inherit_reader(work, first.inputs[0], value)
        second.absorb(first)


def _unused_between(work: Subgraph, name: int, value: Value) -> bool:
    """Return whether no node between a value's producer and its consumer uses another value."""
    assert value.producer is not None  # noqa: S101 - the caller has looked
    between = work.nodes[value.producer + 1 : value.first_consumer]
    return not any(name in (*node.inputs, *node.outputs) for node in between)


def fuse_tables(work: Subgraph) -> None:
    """Replace chains of functions of one 8-bit number by one lookup in a table."""
    for node in work.nodes:
        source = _find_argument(work, node, set()) if node.alive else None
        if source is None or work.values[source].bits != _BYTE:
            continue
        chain = _find_chain(work, node)
        while len(chain) > 1 and work.values[chain[-1].outputs[0]].bits != _BYTE:
            chain.pop()
        if len(chain) > 1:
            last = chain[-1]
            for fused in reversed(chain[:-1]):
                last.absorb(fused)
            last.kind, last.inputs = LUT, [source]


def _find_chain(work: Subgraph, node: Node) -> list[Node]:
    """Return a node and its successors as long as all of them are functions of one number."""
    chain, seen = [node], {*node.inputs, *node.outputs}
    while len(chain) < _LONGEST_TABLE:
        value = work.values[chain[-1].outputs[0]]
        if value.consumers != 1 or value.first_consumer is None:
            break
        following = work.nodes[value.first_consumer]
        if not following.alive or _find_argument(work, following, seen) is None:
            break
        chain.append(following)
        seen.update(following.inputs, following.outputs)
    return chain


def _find_argument(work: Subgraph, node: Node, chain: set[int]) -> int | None:
    """Return the one value that an elementwise node depends on; None if it depends on several.

    The other input is a number, or both come from the same chain.
    """
    if node.kind in UNARY:
        return node.inputs[0]
    if node.kind not in BINARY:
        return None
    first, second = node.inputs
    for number, argument in ((first, second), (second, first)):
        if _is_number(work.values[number]) and not work.values[argument].constant:
            return argument
    return first if {first, second} <= chain else None


def _is_number(value: Value) -> bool:
    return value.constant and not value.external_input and value.producer is None and value.elements == 1


def simplify(work: Subgraph) -> None:
    """Simplify nodes until nothing changes."""
    for _ in range(_MOST_ROUNDS):
        changed = False
        for number in range(len(work.nodes)):
            node = work.nodes[number]
            if node.alive:
                _propagate_static_shape(work, node)
                changed |= _simplify_node(work, number, node)
        if not changed:
            return
        work.clean()


def _propagate_static_shape(work: Subgraph, node: Node) -> None:
    if node.kind in UNARY | BINARY and all(work.values[name].static_shape for name in node.inputs):
        work.values[node.outputs[0]].static_shape = True


def _simplify_node(work: Subgraph, number: int, node: Node) -> bool:
    """Simplify a node by one step; return whether anything changed."""
    if node.kind == "Multiply" and node.inputs[0] == node.inputs[1]:
        node.kind, node.inputs = "Square", node.inputs[:1]
        return True
    if node.kind in {"Minimum", "Maximum"}:
        return _limit_to_clamp(work, node)
    if node.kind == "Clamp":
        return _merge_clamp(work, node)
    if node.kind in _OF_SQUARES:
        return _reduce_squares(work, node)
    if node.kind == "StaticReshape":
        return _merge_reshape(work, number, node)
    return _fold_transpose(work, node) if node.kind in _PRODUCTS else False


def _limit_to_clamp(work: Subgraph, node: Node) -> bool:
    """Turn a minimum or maximum with one number into a clamp; which number it is does not matter here."""
    first, second = (work.values[name] for name in node.inputs)
    scalar = [value.constant and value.elements == 1 for value in (first, second)]
    if not any(scalar):
        return False
    argument, limit = (0, second) if scalar[1] else (1, first)
    if len(limit.dims) > len(work.values[node.inputs[argument]].dims):
        return False
    node.bounds = (-math.inf, 0.0) if node.kind == "Minimum" else (0.0, math.inf)
    node.kind, node.inputs = "Clamp", [node.inputs[argument]]
    return True


def _merge_clamp(work: Subgraph, node: Node) -> bool:
    value = work.values[node.inputs[0]]
    before = work.producer(node.inputs[0])
    if value.consumers <= 1 and before and before.kind in _CLAMPS_ITSELF | {"Clamp"}:
        before.outputs[0] = node.outputs[0]
        before.sources = list(dict.fromkeys([*before.sources, *node.sources]))
        before.bounds = max(before.bounds[0], node.bounds[0]), min(before.bounds[1], node.bounds[1])
        node.alive = False
        return True
    if node.bounds != UNBOUNDED:
        return False
    if _bypass_node(work, node.inputs[0], node.outputs[0]):
        node.alive = False
    else:
        node.kind = "Copy"
    return True


def _reduce_squares(work: Subgraph, node: Node) -> bool:
    before = work.producer(node.inputs[0])
    if work.values[node.inputs[0]].dtype not in {"fp16", "fp32"} or before is None or before.kind != "Square":
        return False
    node.kind, node.inputs = _OF_SQUARES[node.kind], list(before.inputs)
    node.sources = [*before.sources, *node.sources]
    return True


def _merge_reshape(work: Subgraph, number: int, node: Node) -> bool:
    shape = node.origin.attributes if node.origin else None
    if not isinstance(shape, tuple) or 0 in shape:
        return False
    output = work.values[node.outputs[0]]
    output.static_shape, output.dims = True, shape
    merged = _join_reshapes(work, number, node)
    value = work.values[node.inputs[0]]
    if not value.static_shape or value.consumers > 1 or output.external_output:
        return merged
    if value.constant:
        value.dims = shape
    elif value.dims != shape:
        return merged
    changed = _bypass_node(work, node.inputs[0], node.outputs[0])
    node.alive = False
    readers = (
        candidate for candidate in work.nodes if candidate.alive and {*node.inputs, *node.outputs} & {*candidate.inputs}
    )
    reader = next(readers, None) or work.producer(node.outputs[0])
    if reader:
        reader.sources = [*reader.sources, *node.sources]
    return changed or merged


def _join_reshapes(work: Subgraph, number: int, node: Node) -> bool:
    before = work.producer(node.inputs[0])
    if before is None or before.kind != "StaticReshape" or work.values[node.inputs[0]].consumers != 1:
        return False
    replaced = work.values[node.inputs[0]].producer
    node.inputs[0] = before.inputs[0]
    source = work.values[node.inputs[0]]
    source.first_consumer = number if source.first_consumer == replaced else source.first_consumer
    node.absorb(before)
    return True


def _fold_transpose(work: Subgraph, node: Node) -> bool:
    """Turn a transpose of the last two dimensions of the right side into a flag of the product."""
    name = node.inputs[1]
    before = work.producer(name)
    if before is None or before.kind != "StaticTranspose" or work.values[name].consumers != 1:
        return False
    turned = before.origin.attributes if before.origin else None
    if not isinstance(turned, tuple) or not _swaps_rows_and_columns(turned):
        return False
    node.inputs[1] = before.inputs[0]
    node.sources = [*node.sources, *before.sources]
    return True


def _swaps_rows_and_columns(perm: tuple[int, ...]) -> bool:
    rank = len(perm)
    return rank > 1 and perm == (*range(rank - 2), rank - 1, rank - 2)


def _bypass_node(work: Subgraph, source: int, target: int) -> bool:
    """Let the readers of one value read another, or its producer write it; return whether anything changed."""
    value, output = work.values[source], work.values[target]
    changed = False
    if output.external_output:
        if value.external_output or value.producer is None:
            return False
        work.nodes[value.producer].write_instead(source, target)
        output.producer = value.producer
        value, source, target, changed = output, target, source, True
    value.consumers, value.first_consumer = value.consumers - 1, None
    for number, node in enumerate(work.nodes):
        if node.alive and node.read_instead(target, source):
            value.consumers, changed = value.consumers + 1, True
        if node.alive and source in node.inputs and value.first_consumer is None:
            value.first_consumer = number
    return changed


def requantise_right_sides(work: Subgraph) -> None:
    """Let a product with a dequantised right side read its 8-bit numbers, with one scale a channel."""
    work.analyse()
    added = False
    for node in list(work.nodes):
        before = work.producer(node.inputs[1]) if node.kind == "BatchMatrixMultiply" and node.alive else None
        if before is not None and _can_requantise(work, node, before):
            channels = work.new_value(work.values[before.inputs[0]], "qcint8")
            convert = Node(PACKED_CONVERT, list(before.inputs), [channels], list(before.sources), inserted=True)
            work.nodes.append(convert)
            node.inputs[1] = channels
            added = True
    if added:
        work.clean()


def _can_requantise(work: Subgraph, node: Node, before: Node) -> bool:
    left_value, right_value, output_value = (work.values[name] for name in (*node.inputs[:2], node.outputs[0]))
    stored = work.values[before.inputs[0]]
    floating = {left_value.dtype, right_value.dtype, output_value.dtype} == {"fp32"}
    quantised = before.kind == "Convert" and stored.dtype == "qint8" and stored.zero_point == 0
    return floating and quantised and right_value.consumers == 1 and min(len(stored.dims), len(left_value.dims)) > 1


def inline_packing(work: Subgraph) -> None:
    """Let products quantise their left side while they pack it."""
    packed = False
    for node in work.nodes:
        value = work.values[node.inputs[0]] if node.inputs else None
        before = work.producer(node.inputs[0]) if value and node.alive and node.kind in _PRODUCTS else None
        if value and before and value.dtype == "qdint8" and before.kind == PACKED_CONVERT:
            node.inputs[0], node.packed = before.inputs[0], True
            node.sources = [*before.sources, *node.sources]
            value.consumers -= 1
            before.alive = before.alive and value.consumers > 0
            packed = True
    if packed:
        work.clean()


def widen(work: Subgraph, dtype: str, lacks: Lacks) -> None:
    """Run nodes without a kernel of a 16-bit type in fp32, with conversions where that begins and ends."""
    work.analyse()
    wide: dict[int, int] = {}
    changed = False
    for node in list(work.nodes):
        values = [work.values[name] for name in (*node.inputs, *node.outputs)]
        if not any(value.dtype == dtype or value.widened for value in values):
            continue
        types = values[0].dtype, values[-1].dtype
        if node.kind == "Convert" and (types[0] == types[1] or dtype in types):
            changed |= types[0] == types[1] and _drop_convert(work, node)
        elif _must_widen(work, node, lacks):
            changed |= _widen_outputs(work, node, dtype)
            changed |= _widen_inputs(work, node, dtype, wide)
    if changed:
        work.clean()


def _must_widen(work: Subgraph, node: Node, lacks: Lacks) -> bool:
    if node.kind not in _MOVES and lacks(node):
        return True
    return any(work.values[name].widened and work.values[name].dtype == "fp32" for name in node.inputs)


def _drop_convert(work: Subgraph, node: Node) -> bool:
    """Remove a conversion of a type to itself; return whether that can be done."""
    source, target = node.inputs[0], node.outputs[0]
    before = work.producer(source)
    if not work.values[target].external_output:
        keep, gone = source, target
    elif not work.values[source].external_input and before is not None:
        before.write_instead(source, target)
        keep, gone = target, source
    else:
        return False
    for reader in work.nodes:
        if reader is not node:
            reader.read_instead(gone, keep)
    node.alive = False
    return True


def _widen_outputs(work: Subgraph, node: Node, dtype: str) -> bool:
    changed = False
    for position, name in enumerate(list(node.outputs)):
        value = work.values[name]
        if value.dtype != dtype:
            continue
        changed = True
        if not value.external:
            value.dtype, value.widened = "fp32", True
            continue
        wide_value = work.new_value(value, "fp32")
        work.values[wide_value].widened = True
        node.outputs[position] = wide_value
        for reader in work.nodes:
            reader.read_instead(name, wide_value)
        work.nodes.append(Node("Convert", [wide_value], [name], list(node.sources), inserted=True))
    return changed


def _widen_inputs(work: Subgraph, node: Node, dtype: str, wide: dict[int, int]) -> bool:
    changed = False
    for position, name in enumerate(list(node.inputs)):
        value = work.values[name]
        if value.dtype != dtype:
            continue
        if name not in wide:
            wide[name] = work.new_value(value, "fp32")
            work.values[wide[name]].constant = value.constant
            if not value.constant:
                work.nodes.append(Node("Convert", [name], [wide[name]], list(node.sources), inserted=True))
        node.inputs[position] = wide[name]
        changed = True
    return changed
