"""Which instruction makes and which reads each value."""

from __future__ import annotations

from opscope.program.xnnpack.boundaries import Link, Links
from plans import Method, tensor


def test_kernels_read_their_inputs_and_make_their_output() -> None:
    """In the order of instructions; nobody makes an input of the method, and nobody reads its output."""
    data, shown, out = (tensor(2, 3) for _ in range(3))
    method = Method(data)
    method.call("aten::relu.out", data, out=shown)
    method.call("aten::add.out", shown, data, 1, out=out)
    links = Links(method.plan(), {})
    first, second = Link(0, None), Link(1, None)
    found = {name: method.number(each) for name, each in (("data", data), ("shown", shown), ("out", out))}
    assert {name: links.makers(value) for name, value in found.items()} == {
        "data": [],
        "shown": [first],
        "out": [second],
    }
    assert {name: links.readers(value) for name, value in found.items()} == {
        "data": [first, second],
        "shown": [second],
        "out": [],
    }
