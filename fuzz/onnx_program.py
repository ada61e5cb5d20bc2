"""ONNX programs as nodes, for fuzzing: every operator whose work is counted, and what a session of the program leaves.

What is changed: operators, attributes, shapes, which tensors are stored, which are left out, and graphs within nodes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from fuzz.structure import Structure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    Attribute: TypeAlias = int | float | str | tuple[int, ...]
    Change: TypeAlias = Callable[[Random, "Node"], "Node"]

_MICROSOFT = "com.microsoft"
_FLOAT = 1
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_INTEGER, _TEXT, _INTEGERS, _GRAPH = 2, 3, 7, 5
"""Types of attributes: ``AttributeProto.AttributeType`` of onnx.proto."""
_MOST_NODES, _MOST_DIMENSIONS = 40, 70
_SIZES = (0, 1, 2, 3, 4, 7, 64, 1 << 20, 1 << 31, (1 << 62) - 1, 1 << 63)
_NUMBERS = (*_SIZES, -1, -2, 0.0, -0.5, float("nan"), float("inf"))
_TEXTS = ("", "->", ",", "ab,bc->ac", "...a,a", "ab,b", "aa,a", "a" * 60 + ",b", "\u00e4,b")


@dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        name: of it, and what its tensors are called after.
        op: its type.
        read: shapes of its inputs; None for one that is left out.
        made: shape of its output.
        stored: places of inputs that are stored.
        attributes: of it.
        domain: that defines it.
        follows: whether its first input is what the node before it made.
        inner: nodes of a graph that it runs.
    """

    name: str
    op: str
    read: tuple[tuple[int, ...] | None, ...]
    made: tuple[int, ...]
    stored: frozenset[int] = frozenset({1})
    attributes: tuple[tuple[str, Attribute], ...] = ()
    domain: str = ""
    follows: bool = False
    inner: tuple[Node, ...] = field(default=())


Nodes: TypeAlias = tuple[Node, ...]
_IMAGE, _FILTER = (1, 4, 8, 8), (6, 4, 3, 3)
_ROWS, _WIDE = (2, 5, 12), (2, 4, 5, 16)
_ANY = frozenset[int]()


def nodes() -> Nodes:
    """One node of each kind whose work is counted in its own way, a condition, and what is no product."""
    inner = (Node("inner", "MatMul", ((3, 4), (4, 5)), (3, 5)), Node("after", "Relu", ((3, 5),), (3, 5), follows=True))
    heads = (("num_heads", 4),)
    packed = Node("packed", "Attention", (_ROWS, (12, 36), (36,)), _ROWS, attributes=heads, domain=_MICROSOFT)
    equation = (("equation", "bsd,de->bse"),)
    split = (("q_num_heads", 4), ("kv_num_heads", 2))
    quantised = (_IMAGE, (), (), _FILTER, (), (), (), ())
    few = Node("few", "MatMulNBits", ((3, 32), (8, 1, 16), (8,)), (3, 8), domain=_MICROSOFT)
    return (
        Node("conv", "Conv", (_IMAGE, _FILTER, (6,)), (1, 6, 8, 8), attributes=(("strides", (1, 1)), ("group", 1))),
        Node("act", "Relu", ((1, 6, 8, 8),), (1, 6, 8, 8), follows=True),
        Node("deep", "Conv", ((1, 6, 8, 8), (6, 1, 3, 3)), (1, 6, 8, 8), attributes=(("group", 6),), follows=True),
        Node("free", "Conv", (_IMAGE, _FILTER), (1, 6, 8, 8), _ANY),
        Node("whole", "QLinearConv", quantised, (1, 6, 8, 8), frozenset({3})),
        Node("back", "ConvTranspose", (_IMAGE, (4, 6, 3, 3)), (1, 6, 10, 10)),
        Node("gemm", "Gemm", ((4, 3), (4, 5), (5,)), (3, 5), attributes=(("transA", 1), ("alpha", 0.5))),
        Node("product", "MatMul", (_ROWS, (12, 7)), (2, 5, 7)),
        Node("sum", "Einsum", (_ROWS, (12, 7)), (2, 5, 7), attributes=equation),
        Node("lstm", "LSTM", ((5, 2, 3), (1, 32, 3), (1, 32, 8)), (5, 1, 2, 8), frozenset({1, 2})),
        Node("heads", "Attention", (_WIDE, (2, 4, 9, 16), (2, 4, 9, 16)), _WIDE, _ANY),
        Node("side", "Attention", (_ROWS, (2, 9, 6), (2, 9, 6)), _ROWS, _ANY, split),
        Node("joined", "MultiHeadAttention", (_ROWS, _ROWS, _ROWS), _ROWS, _ANY, heads, _MICROSOFT),
        packed,
        replace(few, attributes=(("N", 8), ("K", 32), ("bits", 4))),
        Node("cond", "If", ((),), (3, 5), _ANY, inner=inner),
        Node("laid", "Transpose", ((3, 5),), (5, 3), attributes=(("perm", (1, 0)),), follows=True),
        Node("total", "Add", ((5, 3), (3,)), (5, 3), follows=True),
    )


def onnx(program: Nodes) -> bytes:
    """The .onnx of it."""
    opsets = [_part(8, _part(2, 17)), _part(8, _part(1, _MICROSOFT) + _part(2, 1))]
    return _part(1, 9) + _part(2, "opscope") + _part(7, _graph("main", program)) + b"".join(opsets)


def session_graph(program: Nodes) -> bytes:
    """The graph that a session made of it, as opscope keeps it: the same nodes, with what they read and made."""
    found = {"schema": "opscope.onnxruntime-graph/1", "runtime": "1.32.0", "level": "all", "providers": ["CPU"]}
    return json.dumps({**found, "nodes": _ran(program), "shapes": _shapes(program)}).encode()


def profile(program: Nodes) -> bytes:
    """The profile of two runs of it."""
    rows, now = [_row("Session", "session_initialization", 0, 5)], 10
    for _ in range(2):
        begun = now
        now = _run(rows, program, now + 1)
        rows += [_row("Session", "SequentialExecutor::Execute", begun + 1, now - begun - 1)]
        rows += [_row("Session", "model_run", begun, now - begun)]
        now += 1
    return b"[\n" + b",\n".join(rows) + b"\n]\n"


def _run(rows: list[bytes], program: Nodes, now: int) -> int:
    """Write the rows of a graph; returns when it has ended."""
    for node in program:
        begun = now
        if node.inner:
            now = _run(rows, node.inner, now)
            rows.append(_row("Session", "SequentialExecutor::Execute", begun, now - begun))
        now += 7
        arguments = {"op_name": node.op, "provider": "CPUExecutionProvider"}
        rows.append(_row("Node", f"{node.name}_kernel_time", begun, now - begun, arguments))
    return now


def _row(kind: str, name: str, start: int, duration: int, arguments: dict[str, str] | None = None) -> bytes:
    row = {"cat": kind, "pid": 1, "tid": 1, "dur": duration, "ts": start, "ph": "X", "name": name}
    return json.dumps({**row, "args": arguments or {}}).encode()


def _inputs(program: Nodes, place: int) -> list[str]:
    """Names of the inputs of a node."""
    node = program[place]
    names = ["" if shape is None else f"{node.name}.{number}" for number, shape in enumerate(node.read)]
    return [f"{program[place - 1].name}.out", *names[1:]] if node.follows and place and names else names


def _ran(program: Nodes) -> list[dict[str, object]]:
    return [
        {
            "name": node.name,
            "op": node.op,
            "domain": node.domain,
            "inputs": _inputs(program, place),
            "outputs": [f"{node.name}.out"],
            "read": [{"dtype": "float", "shape": shape} for shape in node.read if shape is not None],
            "written": [{"dtype": "float", "shape": node.made}],
            "graphs": {"then_branch": _ran(node.inner)} if node.inner else {},
        }
        for place, node in enumerate(program)
    ]


def _shapes(program: Nodes) -> dict[str, object]:
    """Tensors of it, by name."""
    found: dict[str, object] = {}
    for place, node in enumerate(program):
        for name, shape in zip([*_inputs(program, place), f"{node.name}.out"], [*node.read, node.made], strict=True):
            if name and shape is not None:
                found[name] = {"dtype": "float", "shape": shape}
        found.update(_shapes(node.inner))
    return found


def _graph(name: str, program: Nodes) -> bytes:
    found = [_part(1, _node(program, place)) for place in range(len(program))]
    found.append(_part(2, name))
    given = [(place, number) for place, node in enumerate(program) for number in range(len(node.read))]
    for place, number in given:
        node = program[place]
        shape, tensor = node.read[number], _inputs(program, place)[number]
        if shape is None or tensor.endswith(".out"):
            continue
        if number in node.stored:
            found.append(_part(5, b"".join(_part(1, size) for size in shape) + _part(2, _FLOAT) + _part(8, tensor)))
        else:
            found.append(_part(11, _value(tensor, shape)))
    found += [_part(12, _value(f"{node.name}.out", node.made)) for node in program[-1:]]
    return b"".join(found)


def _value(name: str, shape: Sequence[int]) -> bytes:
    sizes = b"".join(_part(1, _part(1, size)) for size in shape)
    return _part(1, name) + _part(2, _part(1, _part(1, _FLOAT) + _part(2, sizes)))


def _node(program: Nodes, place: int) -> bytes:
    node = program[place]
    read = b"".join(_part(1, name) for name in _inputs(program, place))
    own = _part(2, f"{node.name}.out") + _part(3, node.name) + _part(4, node.op) + _part(7, node.domain)
    options = b"".join(_part(5, _attribute(name, value)) for name, value in node.attributes)
    body = _part(1, "then_branch") + _part(6, _graph("body", node.inner)) + _part(20, _GRAPH)
    return read + own + options + (_part(5, body) if node.inner else b"")


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        return _part(1, name) + _tag(2, _FIXED32) + struct.pack("<f", value) + _part(20, 1)
    if isinstance(value, tuple):
        return _part(1, name) + b"".join(_part(8, one) for one in value) + _part(20, _INTEGERS)
    kind, place = (_TEXT, 4) if isinstance(value, str) else (_INTEGER, 3)
    return _part(1, name) + _part(place, value) + _part(20, kind)


def _part(number: int, value: bytes | str | int) -> bytes:
    """A field of a message."""
    if isinstance(value, int):
        return _tag(number, _VARINT) + _varint(value)
    data = value.encode("utf-8") if isinstance(value, str) else value
    return _tag(number, _BYTES) + _varint(len(data)) + data


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 1 << 7:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _changed(rng: Random, program: Nodes, other: Nodes) -> Nodes:
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(program)) if program else 0
        action = rng.randrange(8)
        if action == 0 or not program:
            program = (*program[:at], *rng.choices(other or nodes(), k=rng.choice((1, 1, 2))), *program[at:])
        elif action == 1:
            program = (*program[:at], *program[at + rng.choice((1, 1, 4)) :])
        elif program[at].inner and rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
            inner = _changed(rng, program[at].inner, program[:3])
            program = (*program[:at], replace(program[at], inner=inner), *program[at + 1 :])
        else:
            program = (*program[:at], rng.choice(_CHANGES)(rng, program[at]), *program[at + 1 :])
    return program[:_MOST_NODES]


def _change_op(rng: Random, node: Node) -> Node:
    other = rng.choice(nodes())
    return replace(node, op=other.op, domain=rng.choice((node.domain, other.domain)))


def _change_name(rng: Random, node: Node) -> Node:
    return replace(node, name=rng.choice(("", *(other.name for other in nodes()), f"{node.name}/{node.op}")))


def _change_attributes(rng: Random, node: Node) -> Node:
    known = [one for other in nodes() for one in other.attributes]
    name, value = rng.choice((*node.attributes, *known))
    values: Iterable[Attribute] = (value, *_NUMBERS, *_TEXTS, tuple(rng.choices(_SIZES, k=rng.choice((0, 2, 70)))))
    kept = [one for one in node.attributes if one[0] != name or rng.random() < 0.1]  # noqa: PLR2004 - some come twice
    return replace(node, attributes=(*kept, (name, rng.choice((*values,)))))


def _change_shapes(rng: Random, node: Node) -> Node:
    read = list(node.read)
    if read and rng.random() < 0.8:  # noqa: PLR2004 - mostly an input
        at = rng.randrange(len(read))
        read[at] = rng.choice((None, _shape(rng, read[at] or ())))
        return replace(node, read=tuple(read))
    return replace(node, made=_shape(rng, node.made))


def _shape(rng: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    at, action = rng.randrange(len(shape) + 1), rng.randrange(4)
    if action == 0:
        return (*shape[:at], *shape[at + 1 :])
    more = rng.choices(_SIZES, k=rng.choice((1, 1, 1, _MOST_DIMENSIONS)) if action == 1 else 1)
    return (*shape[:at], *more, *shape[at + (action > 1) :])


def _change_inputs(rng: Random, node: Node) -> Node:
    """An input comes, goes, is stored or not, or is what the node before made."""
    at, action = rng.randrange(len(node.read) + 1), rng.randrange(4)
    if action == 0:
        return replace(node, read=(*node.read[:at], (3, 4), *node.read[at:]))
    if action == 1:
        return replace(node, read=(*node.read[:at], *node.read[at + 1 :]))
    return replace(node, stored=node.stored ^ {at}) if action == 2 else replace(node, follows=not node.follows)  # noqa: PLR2004


_CHANGES: tuple[Change, ...] = (_change_op, _change_attributes, _change_attributes, _change_shapes, _change_shapes)
_CHANGES = (*_CHANGES, _change_inputs, _change_name)

PROGRAM = Structure(lambda: [nodes(), nodes()[:4]], _changed, onnx)
GRAPH = Structure(lambda: [nodes(), nodes()[:4]], _changed, session_graph)
PROFILE = Structure(lambda: [nodes(), nodes()[:4]], _changed, profile)
