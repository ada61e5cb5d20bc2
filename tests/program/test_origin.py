"""From a debug handle to the aten operator, the module and the line of Python."""

import msgspec
import pytest

from graphs import graph
from opscope.program.origin import Origins, own_line
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.etrecord import EdgeGraph, EdgeNode, ModuleScope, SourceLine

FLOAT = NumberType("float32", 32)


def edge(name: str, target: str, inputs: str, handle: int, module: str = "stem") -> EdgeNode:
    """An operator of the exporter's graph with one output of its own name."""
    frames = (
        SourceLine("/home/me/model.py", 12, "forward", "return self.stem(x)"),
        SourceLine("/usr/lib/python3/site-packages/torch/nn/modules/conv.py", 565, "forward", "return self._conv(x)"),
    )
    scopes = (ModuleScope("", "my.Model"), ModuleScope(module, "torch.nn.Conv2d"))
    return EdgeNode(name, target, tuple(inputs.split()), (name,), frames, scopes, (handle,))


RECORD = EdgeGraph(
    method="forward",
    nodes=(
        edge("conv", "aten.convolution.default", "x", 1),
        edge("norm", "aten._native_batch_norm_legit_no_training.default", "conv", 2),
        edge("relu", "aten.relu.default", "norm", 3),
        edge("mul", "aten.mul.Tensor", "relu", 4, "head"),
        edge("sig", "aten.sigmoid.default", "mul", 4, "head"),
    ),
    sizes={"conv": (1, 8, 16, 16), "mul": ("s0", 8, 16, 16), "sig": (1, 8, 16, 16)},
)
PAYLOAD = """
    input x fp32 1x16x16x4
    const w fp32 8x3x3x4
    a fp32 1x16x16x8 = Conv2d x w handle=1
    b fp32 1x16x16x8 = Sigmoid a handle=4
    output b
"""


def test_a_handle_leads_to_operator_module_and_the_line_outside_of_torch():
    """The payload's dimensions are N, H, W, C; the record's are N, C, H, W."""
    origin = Origins(RECORD).of_node(graph(PAYLOAD).nodes[0], (1, 16, 16, 8))
    assert (origin.aten, origin.module, origin.frame.line) == ("aten.convolution.default", "stem", 12)


def test_the_kind_chooses_among_the_operators_of_one_handle():
    """Both are of handle 4."""
    origin = Origins(RECORD).of_node(graph(PAYLOAD).nodes[1], (1, 16, 16, 8))
    assert (origin.aten, origin.module) == ("aten.sigmoid.default", "head")


def test_a_portable_operator_is_found_by_its_name():
    """Of the operators of its handles the one it is called by."""
    found = Origins(RECORD).of_handles((4,), "aten::sigmoid.out")
    assert found.aten == "aten.sigmoid.default"
    assert Origins(RECORD).of_handles((99,), "aten::sigmoid.out") is None


def test_operators_that_no_node_carries_are_fused_into_their_producer():
    """Batch norm and ReLU went into the convolution."""
    fused = Origins(RECORD).fused({1, 4}, [1, 2, 3, 4])
    assert fused == {1: ["aten._native_batch_norm_legit_no_training.default", "aten.relu.default"]}


def test_a_payload_of_the_recorded_model_has_no_conflict():
    """Kinds and sizes agree."""
    assert Origins(RECORD).conflict(graph(PAYLOAD)) is None


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("handle=1", "handle=3", "aten.relu.default"),
        ("handle=1", "handle=77", "nothing"),
        ("a fp32 1x16x16x8", "a fp32 1x32x32x8", "different sizes"),
    ],
)
def test_a_payload_of_another_model_is_recognised(old, new, told):
    """By an operator that is not the node's, a handle that is not there, or sizes that differ."""
    assert told in Origins(RECORD).conflict(graph(PAYLOAD.replace(old, new)))


def test_sizes_that_can_differ_do_not_count():
    """The recorded size is an expression; the known ones must be there."""
    convolution = graph(PAYLOAD).nodes[0]
    symbolic = msgspec.structs.replace(RECORD, sizes={"conv": ("s0", 8, "s1", "s1")})
    payload = graph(PAYLOAD.replace("1x16x16x8", "1x64x64x8"))
    assert Origins(symbolic).conflict(payload) is None
    assert Origins(symbolic).of_node(convolution, (1, 64, 64, 8)).aten == "aten.convolution.default"


def test_a_line_of_torch_is_better_than_none():
    """Where every line is torch's own."""
    frames = (SourceLine("/x/torch/a.py", 1, "f", ""), SourceLine("/x/torch/b.py", 2, "g", ""))
    assert own_line(frames).line == 2
    assert own_line(()) is None
