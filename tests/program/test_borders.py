"""Between which layers an added transpose stands."""

from graphs import graph
from opscope.program.xnnpack.boundaries import Neighbours

GRAPH = graph("""
    input  x fp32 1x3x8x8
    const  w fp32 8x3x3x3
    t fp32 1x8x8x3 = StaticTranspose x perm=0,2,3,1 handle=65535
    a fp32 1x8x8x8 = Conv2d t w handle=1
    u fp32 1x8x8x8 = StaticTranspose a perm=0,3,1,2 handle=65535
    v fp32 1x8x8x8 = StaticTranspose u perm=0,2,3,1 handle=65535
    b fp32 1x8x8x8 = Softmax v handle=2
    y fp32 1x8x8x8 = StaticTranspose b perm=0,3,1,2 handle=65535
    output y
""")


def test_at_the_input_it_stands_between_the_caller_and_the_first_layer():
    """Value 0 is the delegate's input."""
    assert Neighbours(GRAPH).around(0) == ((), (1,), (0,), ())


def test_between_layers_other_added_nodes_are_passed():
    """Two transposes in a row serve the same pair."""
    assert Neighbours(GRAPH).around(2) == ((1,), (4,), (), ())
    assert Neighbours(GRAPH).around(3) == ((1,), (4,), (), ())


def test_at_the_output_it_stands_between_the_last_layer_and_the_caller():
    """The last value is the delegate's output."""
    assert Neighbours(GRAPH).around(5) == ((4,), (), (), (GRAPH.outputs[0],))


def test_it_belongs_to_who_wants_it_else_to_who_made_its_input():
    """The layer behind it, or the one before it at the output."""
    assert [Neighbours(GRAPH).carrier(number) for number in (0, 2, 5)] == [1, 4, 4]
