"""XNNPACK payloads read: nodes, values, scales, and the truth about them as the runtime itself recorded it."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from beside import DUMPS, reads_dumps
from flat import f32, flat, i16, i32, u8, u32, u64
from opcodes import count_opcodes
from opscope.core.errors import TraceFormatError
from opscope.program.structure.dtypes import NumberType
from opscope.program.xnnpack.graph import (
    NO_HANDLE,
    ConstantData,
    Convolution,
    Padding,
    Pooling,
    QuantisationKind,
    QuantisationScales,
    Resizing,
    Slicing,
    XnnGraph,
    XnnNode,
    XnnValue,
)
from opscope.runtimes.executorch.etrecord import read_etrecord
from opscope.runtimes.executorch.xnnpack import NODES, decode_xnn_graph, read_xnn_graphs

TWO_METHODS = Path(__file__).parents[2] / "data" / "two_methods.pte"
ABSENT = 2**32 - 1


def _tensor(number: int, **fields: object) -> dict:
    slots = {"dtype": 0, "dims": 2, "constant": 3, "flags": 5}
    return {0: u8(1), 1: {6: u32(number), **{slots[name]: content for name, content in fields.items()}}}


def _quantised(number: int, kind: int, parameters: dict) -> dict:
    return {0: u8(2), 1: {0: {0: i16(3), 6: u32(number)}, 1: u8(kind), 2: parameters}}


def _node(number: int, content: dict, **fields: object) -> dict:
    slots = {"handle": 2, "bounds": 3}
    return {0: u8(number), 1: content, **{slots[name]: value for name, value in fields.items()}}


def _bare_graph(nodes: list[dict], values: list[dict], identifier: bytes = b"XN01", **fields: object) -> bytes:
    slots = {"version": 0, "inputs": 4, "outputs": 5, "constants": 8}
    return flat({1: nodes, 2: values, **{slots[name]: value for name, value in fields.items()}}, identifier)


def graph(nodes: list[dict], values: int | list[dict] = 24, **fields: object) -> XnnGraph:
    """A graph with these nodes, and values 0, 1, 2 ... for them to use."""
    contents = [_tensor(number) for number in range(values)] if isinstance(values, int) else values
    return decode_xnn_graph(_bare_graph(nodes, contents, **fields), "model.pte")


def _only_node(number: int, content: dict, **fields: object) -> XnnNode:
    return graph([_node(number, content, **fields)]).nodes[0]


def with_header(flat_graph: bytes, constants: bytes = b"") -> bytes:
    """A payload as the exporter writes it: header, graph, constants."""
    start = 32
    behind = start + len(flat_graph)
    header = struct.pack("<4s4sHIIIQ", b"", b"XH00", 30, start, len(flat_graph), behind, len(constants))
    return header.ljust(start, b"\0") + flat_graph + constants


SMALL = with_header(
    _bare_graph(
        [_node(7, {15: u32(0), 16: u32(1), 17: u32(ABSENT), 18: u32(2)}, handle=u32(5))],
        [
            _tensor(0, dtype=i16(1), dims=u32([1, 8, 8, 3]), flags=u32(1)),
            _quantised(1, 1, {1: i32(0), 3: u32(16)}),
            _tensor(2, dtype=i16(1), dims=u32([1, 8, 8, 16]), flags=u32(2)),
        ],
        inputs=u32([0]),
        outputs=u32([2]),
        constants=[{0: u64(0)}, {0: u64(2**64 - 1), 1: u64(432), 2: "stem"}],
    ),
    b"w" * 16,
)


@pytest.mark.parametrize("number", [7, 13, 39])
def test_a_convolution(number):
    """Inputs are data, filter and bias; an absent bias is left out. Attributes have the schema's names.

    Plain, depthwise and transposed have the same fields. An older payload lacks the last ones: no bounds, no flags.
    """
    fields = {slot: u32(slot + 1) for slot in range(15)}
    tensors = {15: u32(4), 16: u32(5), 17: u32(ABSENT), 18: u32(6)}
    found = _only_node(7, {**fields, **tensors, 19: u32(1)}, handle=u32(9))
    assert found == XnnNode(
        kind="Conv2d",
        number=7,
        debug_handle=9,
        inputs=(4, 5),
        outputs=(6,),
        output_min=None,
        output_max=None,
        flags=1,
        attributes=Convolution(*range(1, 16)),
    )
    assert (found.attributes.kernel_height, found.attributes.groups) == (5, 13)
    older = _only_node(number, {4: u32(3), **tensors, 17: u32(2)})
    assert (older.inputs, older.attributes.kernel_height) == ((4, 5, 2), 3)
    assert (older.output_min, older.flags, older.attributes.adjustment_height) == (None, 0, 0)


def test_nodes_and_values_newer_than_this_version_are_kept():
    """Their numbers and debug handles stay; what they read is not known, and values are counted."""
    assert _only_node(200, {0: u32(1)}, handle=u32(3)) == XnnNode("unknown", 200, 3, (), (), None, None, 0, None)
    found = graph([_node(3, {0: u32(0), 1: u32(1)})], [_tensor(0), {0: u8(3), 1: {}}])
    assert (len(found.values), found.unknown_values, found.nodes[0].outputs) == (1, 1, (1,))


@pytest.mark.parametrize(
    ("number", "content", "inputs", "outputs", "attributes"),
    [
        (1, {0: u32(1), 1: u32(2), 2: u32(3)}, (1, 2), (3,), None),
        (2, {0: u32(1), 1: u32(2), 2: u32(ABSENT), 3: u32(4)}, (1, 2), (4,), None),
        (3, {0: u32(1), 1: u32(2)}, (1,), (2,), None),
        (5, {0: u32(3), 1: u32([2, 0, 1]), 2: u32(7), 3: u32(8)}, (7,), (8,), (2, 0, 1)),
        (9, {0: u32(14), 1: u32(28), 2: u32(7), 3: u32(8)}, (7,), (8,), Resizing(14, 28)),
        (10, {0: u32([1]), 1: u32([2]), 2: f32(0.5), 3: u32(7), 4: u32(8)}, (7,), (8,), Padding((1,), (2,), 0.5)),
        (14, {**{n: u32(n) for n in range(10)}, 10: u32(7), 11: u32(8)}, (7,), (8,), Pooling(*range(10))),
        (20, {0: u32(2), 1: u32([0, 8]), 2: u32(7), 3: u32(8)}, (7,), (8,), (0, 8)),
        (21, {4: u32(2), 5: u32(3), 6: u32(7), 7: u32(8), 8: u32(9)}, (7,), (8, 9), Pooling(0, 0, 0, 0, 2, 3)),
        (25, {0: f32(0.25), 1: u32(7), 2: u32(8)}, (7,), (8,), 0.25),
        (33, {0: u32(3), 1: u32(4), 2: u32(5), 3: u32(6), 5: u32(8)}, (4, 5, 6), (8,), 3),
        (38, {**{n: u32(n) for n in range(1, 5)}, 5: u32(8), 7: u32(5)}, (1, 2, 3, 4, 5), (8,), 0),
        (35, {1: u32([1, 0]), 2: u32([2, 4]), 3: u32(7), 4: u32(8)}, (7,), (8,), Slicing((1, 0), (2, 4))),
        (36, {n: u32(n + 1) for n in range(6)}, (1, 2, 3, 4, 5), (6,), None),
    ],
)  # fmt: skip
def test_every_shape_of_node(number, content, inputs, outputs, attributes):
    """Ids in the order of the schema, and the attributes that it has."""
    found = _only_node(number, content)
    assert (found.inputs, found.outputs, found.attributes) == (inputs, outputs, attributes)


def test_values_of_a_graph():
    """Id, type, shape, and whether the caller sets it, gets it, or the model brings it along."""
    values = [
        _tensor(0, dtype=i16(2), dims=u32([1, 3, 8]), flags=u32(1)),
        _tensor(7, dtype=i16(1), dims=u32([5]), constant=u32(2)),
        _tensor(9, flags=u32(2)),
    ]
    found = graph([], values, inputs=u32([0]), outputs=u32([9]))
    none = QuantisationScales(QuantisationKind.NONE)
    assert found.values[:2] == (
        XnnValue(0, NumberType("fp16", 16), (1, 3, 8), True, False, 0, none, 0),  # noqa: FBT003 - flags in order
        XnnValue(7, NumberType("fp32", 32), (5,), False, False, 2, none),  # noqa: FBT003 - likewise
    )
    assert found.values[1].is_constant
    assert found.values[0].size_bytes == 48
    assert (found.inputs, found.outputs, found.values[2].external_output) == ((0,), (9,), True)
    assert found.by_id()[7] is found.values[1]


@pytest.mark.parametrize(
    ("kind", "parameters", "expected"),
    [
        (1, {1: i32(3), 3: u32(16)}, QuantisationScales(QuantisationKind.PER_CHANNEL, 16, 3)),
        (1, {0: f32([0.5] * 4)}, QuantisationScales(QuantisationKind.PER_CHANNEL, 4, 0)),
        (2, {0: f32(0.5), 1: i32(-3)}, QuantisationScales(QuantisationKind.PER_TENSOR, scale=0.5, zero_point=-3)),
        (3, {0: i32(1)}, QuantisationScales(QuantisationKind.PER_TOKEN)),
        (4, {1: i32(1), 2: i32(32), 5: u32(64)}, QuantisationScales(QuantisationKind.PER_CHANNEL_GROUP, 64, 1)),
        (9, {}, QuantisationScales(QuantisationKind.UNKNOWN)),
    ],
)
def test_scales_of_a_value(kind, parameters, expected):
    """Their number is stated, or in older payloads it is the length of the list; a newer kind is unknown."""
    assert graph([], [_quantised(0, kind, parameters)]).values[0].quantisation == expected


def test_a_payload_is_a_graph_with_or_without_a_header():
    """Constants stand behind the graph, or elsewhere under a key; the older identifier is read by the same slots."""
    found = decode_xnn_graph(SMALL, "model.pte")
    assert found.constants == (ConstantData(0, 0, ""), ConstantData(None, 432, "stem"))
    assert found.nodes[0].kind == "Conv2d"
    nodes = [_node(4, {0: u32(0), 1: u32(1)}, bounds={1: f32(math.inf)})]
    old = decode_xnn_graph(_bare_graph(nodes, [_tensor(0), _tensor(1)], b"XN00", version="0"), "model.pte")
    assert (old.identifier, old.version, old.nodes[0].kind, old.constants) == ("XN00", "0", "Sigmoid", ())
    assert (old.nodes[0].output_min, old.nodes[0].output_max) == (0.0, math.inf), "an open side of a fused activation"


@pytest.mark.parametrize("data", [b"", bytes(8), b"\x10\0\0\0ET12" + bytes(64), SMALL[:20]])
def test_another_payload_is_refused(data):
    """With the place it has in the program."""
    with pytest.raises(TraceFormatError) as caught:
        decode_xnn_graph(data, "model.pte, delegate 0 of forward")
    assert caught.value.where == "model.pte, delegate 0 of forward"


@pytest.mark.parametrize(
    ("nodes", "values", "problem"),
    [
        ([_node(3, {0: u32(0), 1: u32(5)})], [_tensor(0)], "value 5 is used but not defined"),
        ([], [_tensor(3), _tensor(3)], "two values have the same id"),
        ([], [{0: u8(2), 1: {1: u8(3), 2: {}}}], "a quantised value has no tensor"),
        ([{0: u8(3)}], [], "a declared table is missing"),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(nodes, values, problem):
    """Ids that lead nowhere or to two places."""
    with pytest.raises(TraceFormatError, match=problem):
        graph(nodes, values)


def survives(data: bytes) -> bool:
    """Whether damaged bytes still are a payload; anything but a graph or a format error is raised."""
    try:
        decode_xnn_graph(data, "model.pte")
    except TraceFormatError:
        return False
    return True


def test_every_truncation_is_refused():
    """Wherever the copy stopped, also within the constants."""
    assert survives(SMALL)
    assert not any(survives(SMALL[:size]) for size in range(len(SMALL)))


def test_flipped_bytes_are_an_error_or_a_graph():
    """1,500 payloads with one to four random bytes changed."""
    rng = np.random.default_rng(4)
    data = np.frombuffer(SMALL, np.uint8)
    outcomes = []
    for _ in range(1_500):
        damaged = data.copy()
        count = rng.integers(1, 5)
        damaged[rng.integers(0, len(data), count)] = rng.integers(0, 256, count)
        outcomes.append(survives(damaged.tobytes()))
    assert 0 < sum(outcomes) < 1_500


@pytest.mark.parametrize("value", [0, 2**31, 2**32 - 1, 2**30], ids=hex)
def test_no_offset_or_length_is_trusted(value):
    """Every word replaced, one at a time, within a bound on memory."""
    damaged = [SMALL[:at] + struct.pack("<I", value) + SMALL[at + 4 :] for at in range(0, len(SMALL) - 3, 4)]
    tracemalloc.start()
    outcomes = [survives(each) for each in damaged]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcomes.count(False) > len(outcomes) // 10
    assert peak < 2**21


def test_offsets_to_other_places_in_the_file_are_an_error_or_a_graph():
    """Every word made to point to every eighth word of the file: tables that overlap, and their own parents."""
    for at in range(32, len(SMALL) - 19, 4):
        for target in range(0, len(SMALL), 32):
            survives(SMALL[:at] + struct.pack("<i", target - at) + SMALL[at + 4 :])


def test_the_delegates_of_a_program():
    """With their methods, and the instructions that call them; the other method has none."""
    (found,) = read_xnn_graphs(TWO_METHODS)
    assert (found.method, found.delegate, found.instructions) == ("prefill", 0, (0,))
    assert [node.kind for node in found.graph.nodes] == ["FullyConnected"]
    assert found.graph.nodes[0].output_min == 0.0  # the relu is fused


def test_a_delegate_without_payload_is_refused(tmp_path):
    """It could not run."""
    path = tmp_path / "model.pte"
    path.write_bytes(flat({1: [{0: "forward", 7: [{0: "XnnpackBackend"}]}]}, b"ET12"))
    with pytest.raises(TraceFormatError, match="it has no payload") as caught:
        read_xnn_graphs(path)
    assert caught.value.where.endswith("delegate 0 of forward")


def test_payloads_that_overlap_are_refused(tmp_path):
    """Many segments over the same bytes would make a small file take long; one segment may be shared."""
    size = len(SMALL)
    shared = [{0: "XnnpackBackend", 1: {0: u8(1), 1: u32(0)}} for _ in range(3)]
    path = tmp_path / "model.pte"
    path.write_bytes(segmented({1: [{0: "forward", 7: shared}], 4: [{1: u64(size)}]}))
    assert [found.delegate for found in read_xnn_graphs(path)] == [0, 1, 2]
    many = [{0: "XnnpackBackend", 1: {0: u8(1), 1: u32(n)}} for n in range(16)]
    path.write_bytes(segmented({1: [{0: "forward", 7: many}], 4: [{1: u64(size + 0)} for n in range(16)]}))
    assert len(read_xnn_graphs(path)) == 16  # equal segments are one
    path.write_bytes(segmented({1: [{0: "forward", 7: many}], 4: [{0: u64(0), 1: u64(size + n)} for n in range(16)]}))
    with pytest.raises(TraceFormatError, match="payloads overlap"):
        read_xnn_graphs(path)


def test_many_calls_of_many_delegates_are_read_in_linear_time(tmp_path):
    """As many delegates as instructions in a small file: each is looked at once."""

    def read(count: int) -> int:
        calls = [{0: u8(2), 1: {0: i32(number)}} for number in range(count)]
        delegates = [{0: "XnnpackBackend", 1: {0: u8(1), 1: u32(0)}} for _ in calls]
        path = tmp_path / f"{count}.pte"
        root = {1: [{0: "forward", 5: [{2: calls}], 7: delegates}], 4: [{1: u64(len(SMALL))}]}
        path.write_bytes(segmented(root))
        found = read_xnn_graphs(path)
        assert [delegate.instructions for delegate in found[:3]] == [(0,), (1,), (2,)]
        return count_opcodes(lambda: read_xnn_graphs(path))

    assert read(400) < 3 * read(200)


def segmented(root: dict) -> bytes:
    """A program with an extended header and the small payload behind it, then zeros."""
    program = flat(root, b"ET12")
    (at,) = struct.unpack_from("<I", program)
    size = len(program) + 32
    data = SMALL + bytes(16)
    header = struct.pack("<4sIQQQ", b"eh00", 32, size, size, len(data))
    return struct.pack("<I", at + 32) + program[4:8] + header + program[8:] + data


@reads_dumps
def test_nodes_and_handles_agree_with_the_runtime():
    """81 programs: node types in order, and the handles of every event, as the runtime itself recorded them."""
    truth = json.loads((DUMPS / "truth.json").read_text())
    seen: Counter[str] = Counter()
    for stem, calls in truth.items():
        found = {delegate.delegate: delegate for delegate in read_xnn_graphs(DUMPS / f"{stem}.pte")}
        for call in calls:
            delegate = found[call["delegate"]]
            nodes = delegate.graph.nodes
            assert call["instruction"] in delegate.instructions
            assert [f"XNN{node.kind}" for node in nodes] == call["xnodes"]
            for event in call["events"]:
                recorded = sorted({nodes[number].debug_handle for number in event["nodes"]})
                assert recorded == sorted(set(event["handles"]))
                seen["handles"] += len(recorded)
            seen.update(delegates=1, nodes=len(nodes), events=len(call["events"]))
        seen["files"] += 1
    assert seen == Counter(files=81, delegates=135, nodes=1398, events=1375, handles=1431)


@pytest.mark.runtime
def test_every_handle_is_found_in_the_exporters_graph(toy_program):
    """Except that of layout transposes, which the partitioner added."""
    (edge,) = read_etrecord(toy_program.with_suffix(".etrecord")).graphs
    nodes = [node for found in read_xnn_graphs(toy_program) for node in found.graph.nodes]
    handles = {node.debug_handle for node in nodes}
    assert NO_HANDLE in handles
    assert handles - {NO_HANDLE} <= set(edge.by_handle())
    assert {node.kind for node in nodes if node.debug_handle == NO_HANDLE} == {"StaticTranspose"}


@pytest.mark.runtime
def test_the_tables_follow_the_schema_of_the_installed_exporter():
    """Union numbers and the number of fields of each node type, read from the schema's text."""
    import re
    from importlib.util import find_spec

    package = Path(find_spec("executorch").submodule_search_locations[0])
    schema = (package / "backends" / "xnnpack" / "serialization" / "runtime_schema.fbs").read_text()
    schema = re.sub(r"//.*", "", schema)
    members = re.search(r"union XNodeUnion \{(.*?)\}", schema, re.DOTALL)[1]
    pairs = [[part.strip() for part in member.split(":")] for member in members.split(",") if member.strip()]
    assert {n: f"XNN{kind}" for n, (kind, _) in NODES.items()} == {n: pair[0] for n, pair in enumerate(pairs, 1)}
    for number, pair in enumerate(pairs, 1):
        body = re.search(rf"table {pair[-1]} \{{(.*?)\}}", schema, re.DOTALL)[1]
        names = re.findall(r"(\w+)\s*:", body)
        layout = NODES[number][1]
        assert names[layout.flags] == "flags"
        assert all(names[slot].endswith("_id") for slot in layout.inputs + layout.outputs)
        assert all("output" in names[slot] for slot in layout.outputs)
        fields = layout.attributes.__struct_fields__ if layout.attributes else ()
        expected = [names[field.slot] for field in layout.fields]
        assert list(fields[: len(expected)]) == expected or expected in [
            ["perm"],
            ["new_shape"],
            ["axis"],
            ["alpha"],
            ["negative_slope"],
        ]
