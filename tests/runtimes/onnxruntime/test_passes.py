"""Every pass of ONNX Runtime that renames, fuses or adds nodes: operators are those of the model, and so is their work.

The models are made here and run in the installed wheel. Multiplications are held against a plain counter that knows no
graph (``onnx_counter``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from installed import needs_onnxruntime
from job_variants import run_as
from onnx_models import Body, body, function, model, node
from onnx_runs import AttributedRun
from opscope.analysis.operators.operators import Operator
from opscope.api import analyze
from opscope.experiment.protocol import Job
from opscope.program.operators.kinds import Attribution
from opscope.runtimes.onnxruntime.graph import every_node
from opscope.runtimes.onnxruntime.onnx_file import read_onnx
from opscope.runtimes.onnxruntime.target import TRACE, onnxruntime_here

pytestmark = needs_onnxruntime
_ANY = np.random.default_rng(0)
IMAGE, ROWS = (1, 3, 16, 16), (2, 8)


def _small_numbers(*shape: int) -> np.ndarray:
    return (_ANY.standard_normal(shape) * 0.2).astype("f")


def _scale_and_zero() -> dict[str, np.ndarray]:
    return {"s": np.array(0.02, "f"), "z": np.array(0, "u1"), "zs": np.array(0, "i1")}


class _Run(AttributedRun):
    """A model that ran, analysed."""

    def __init__(self, directory: Path, content: bytes, inputs: Mapping[str, np.ndarray]) -> None:
        program = directory / "model.onnx"
        program.write_bytes(content)
        super().__init__(directory, program, inputs)

    def of(self, op: str) -> list[Operator]:

        return [one for one in self.operators if one.name.startswith(f"{op}: ")]

    def check(self) -> None:
        """All are known, none of the model's products is lost or counted twice, and its work is the counter's."""
        unknown = [one.name for one in self.operators if one.attribution is not Attribution.EXACT]
        assert not unknown
        assert self.macs == self.counted > 0
        assert all(one.macs is not None for one in self.operators)


def convolutions(
    count: int, *, named: bool = True, tail: str = "Relu"
) -> tuple[list[bytes], dict[str, np.ndarray], str]:
    """Convolutions of five channels each, which blocks of channels fill up, each behind the one before."""
    nodes, weights, last, given = [], {}, "x", 3
    for number in range(count):
        name = f"/{number}/Conv" if named else ""
        nodes.append(node("Conv", f"{last} w{number}", f"c{number}", name, pads=[1, 1, 1, 1]))
        nodes.append(node(tail, f"c{number}", f"t{number}", f"/{number}/{tail}" if named else ""))
        weights[f"w{number}"], last, given = _small_numbers(5, given, 3, 3), f"t{number}", 5
    return nodes, weights, last


def _image_model(nodes: list[bytes], weights: dict[str, np.ndarray], last: str, dtype: str = "float32") -> bytes:
    return model(body(nodes, {"x": (dtype, IMAGE)}, {last: (dtype, None)}, weights))


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_blocks_of_channels_count_no_padding(tmp_path: Path, *, named: bool) -> None:
    """Of five channels, which are run as eight or sixteen; a sum that is fused into a convolution is in it."""
    nodes, weights, last = convolutions(3, named=named)
    nodes += [node("Add", f"t1 {last}", "sum"), node("Relu", "sum", "y")]
    run = _Run(tmp_path, _image_model(nodes, weights, "y"), {"x": _small_numbers(*IMAGE)})
    run.check()
    assert run.counted == 16 * 16 * 5 * 9 * (3 + 5 + 5)
    assert {number for one in run.operators for number in one.handles} == set(range(8))


def test_weights_in_nodes_that_are_constants_count_as_others(tmp_path: Path) -> None:
    """Exporters write weights as nodes, too."""
    nodes, weights, last = convolutions(2)
    constants = [node("Constant", "", name, value=values) for name, values in weights.items()]
    run = _Run(tmp_path, _image_model([*constants, *nodes], {}, last), {"x": _small_numbers(*IMAGE)})
    run.check()
    assert [one.shape for one in read_onnx(run.program).graph.weights] == [(5, 3, 3, 3), (5, 5, 3, 3)]


def quantised_pairs() -> bytes:
    """Convolutions between pairs that quantise and dequantise."""
    nodes, weights, last, given = [], _scale_and_zero(), "x", 3
    for number in range(2):
        weights[f"w{number}"] = _ANY.integers(-50, 50, (5, given, 3, 3)).astype("i1")
        nodes += [
            node("QuantizeLinear", f"{last} s z", f"q{number}", f"q{number}"),
            node("DequantizeLinear", f"q{number} s z", f"d{number}", f"d{number}"),
            node("DequantizeLinear", f"w{number} s zs", f"dw{number}", f"dw{number}"),
            node("Conv", f"d{number} dw{number}", f"c{number}", f"/{number}/Conv", pads=[1, 1, 1, 1]),
            node("Relu", f"c{number}", f"r{number}", f"/{number}/Relu"),
        ]
        last, given = f"r{number}", 5
    nodes += [node("QuantizeLinear", f"{last} s z", "q"), node("DequantizeLinear", "q s z", "y")]
    return _image_model(nodes, weights, "y")


def test_pairs_that_quantise_become_one_convolution(tmp_path: Path) -> None:
    """What it computes is the convolution, the activation, and what is around them."""
    run = _Run(tmp_path, quantised_pairs(), {"x": _small_numbers(*IMAGE)})
    run.check()
    assert [one.macs for one in run.of("QLinearConv")] == [256 * 5 * 9 * 3, 256 * 5 * 9 * 5]
    assert all({"Conv", "Relu"} <= set(one.computes) for one in run.of("QLinearConv"))


def test_quantised_operators_are_run_channels_last(tmp_path: Path) -> None:
    """Transposes are added around them and pulled through what is between; an addition is found behind one."""
    nodes = [node("QuantizeLinear", "x s z", "q", "q")]
    weights = _scale_and_zero()
    for number, given in ((0, 3), (1, 5)):
        weights[f"w{number}"] = _ANY.integers(-50, 50, (5, given, 3, 3)).astype("i1")
        read = "q" if not number else "c0"
        inputs = f"{read} s z w{number} s zs s z"
        nodes.append(node("QLinearConv", inputs, f"c{number}", f"/{number}/Conv", pads=[1, 1, 1, 1]))
    nodes.append(node("QLinearAdd", "c0 s z c1 s z s z", "sum", "/sum/Add", "com.microsoft"))
    nodes.append(node("DequantizeLinear", "sum s z", "y", "dq"))
    run = _Run(tmp_path, _image_model(nodes, weights, "y"), {"x": _small_numbers(*IMAGE)})
    run.check()
    assert run.of("Transpose")
    assert [one.macs for one in run.of("QLinearConv")] == [256 * 5 * 9 * 3, 256 * 5 * 9 * 5]


def test_casts_around_kernels_of_another_type_are_added(tmp_path: Path) -> None:
    """A model of fp16 is run in fp32 where the CPU has no kernel."""
    nodes, weights, last = convolutions(2)
    halves = {name: values.astype("f2") for name, values in weights.items()}
    run = _Run(tmp_path, _image_model(nodes, halves, last, "float16"), {"x": _small_numbers(*IMAGE).astype("f2")})
    run.check()
    assert run.of("Cast")


def test_a_product_takes_transposes_in(tmp_path: Path) -> None:
    """The inner size is that of the model's product, whatever is transposed within."""
    nodes = [
        node("Transpose", "x", "t", "/t/Transpose", perm=[1, 0]),
        node("MatMul", "t b", "m", "/m/MatMul"),
        node("Mul", "m half", "y", "/y/Mul"),
    ]
    weights = {"b": _small_numbers(2, 5), "half": np.array(0.5, "f")}
    graph = body(nodes, {"x": ("float32", ROWS)}, {"y": ("float32", None)}, weights)
    run = _Run(tmp_path, model(graph), {"x": _small_numbers(*ROWS)})
    run.check()
    (product,) = run.of("FusedMatMul")
    assert product.macs == 8 * 5 * 2
    assert product.computes == ("Transpose", "MatMul", "Mul")


def test_an_operator_that_is_a_function_is_in_all_that_it_is_made_of(tmp_path: Path) -> None:
    """HardSwish has no kernel: its function is run in its place; an operator of the model's own, too."""
    nodes, weights, last = convolutions(2, tail="HardSwish")
    nodes += [node("Twice", last, "y", "/twice", "own")]
    own = function("Twice", "a", "b", [node("Add", "a a", "c"), node("Tanh", "c", "b")])
    graph = body(nodes, {"x": ("float32", IMAGE)}, {"y": ("float32", None)}, weights)
    run = _Run(tmp_path, model(graph, [own]), {"x": _small_numbers(*IMAGE)})
    run.check()
    assert [one.computes for one in run.operators if list(one.handles) == [4]] == [("Twice",), ("Twice",)]


def condition(*, stored: bool) -> bytes:
    """A branch that runs a product, chosen by an input or by what is stored."""
    made = {"r": ("float32", None)}
    first = body([node("MatMul", "x w", "p"), node("Relu", "p", "r")], {}, made)
    other = body([node("MatMul", "x w", "n"), node("Neg", "n", "r")], {}, made)
    chosen = node("If", "c", "i", then_branch=first, else_branch=other)
    weights = {"w": _small_numbers(8, 4), "v": _small_numbers(4, 6)}
    inputs: dict[str, tuple[str, tuple[int, ...]]] = {"x": ("float32", ROWS)}
    if stored:
        weights["c"] = np.array(1, "?")
    else:
        inputs["c"] = ("bool", ())
    nodes = [chosen, node("MatMul", "i v", "y")]
    return model(body(nodes, inputs, {"y": ("float32", None)}, weights))


@pytest.mark.parametrize("stored", [False, True], ids=["chosen by an input", "always taken"])
def test_the_branch_that_ran_is_counted_and_no_other(tmp_path: Path, stored: bool) -> None:
    """Nodes have no names; tensors of both branches are called alike. One that is always taken replaces its node."""
    inputs = {"x": _small_numbers(*ROWS)} | ({} if stored else {"c": np.array(0, "?")})
    run = _Run(tmp_path, condition(stored=stored), inputs)
    run.check()
    assert run.counted == 2 * 8 * 4 + 2 * 4 * 6
    assert bool(run.of("Neg")) is not stored
    assert stored or not run.of("Relu")
    assert any(one.graphs for one in every_node(run.graph.nodes)) is not stored


def loop(counts: list[int]) -> bytes:
    """Loops whose bodies are called alike, each run another number of times."""
    nodes, weights, last = [], {"go": np.array(1, "?"), "w": _small_numbers(8, 8)}, "x"
    for number, count in enumerate(counts):
        weights[f"n{number}"] = np.array(count, "i8")
        inner = body(
            [
                node("MatMul", "state w", f"p{number}", "while/MatMul"),
                node("Tanh", f"p{number}", f"next{number}", "while/Tanh"),
                node("Identity", "cond", f"cond{number}", "while/Identity"),
            ],
            {"i": ("int64", ()), "cond": ("bool", ()), "state": ("float32", None)},
            {f"cond{number}": ("bool", ()), f"next{number}": ("float32", None)},
        )
        nodes.append(node("Loop", f"n{number} go {last}", f"l{number}", f"loop{number}", body=inner))
        last = f"l{number}"
    return model(body(nodes, {"x": ("float32", ROWS)}, {last: ("float32", None)}, weights))


def test_iterations_count_and_bodies_that_are_called_alike_are_told_apart(tmp_path: Path) -> None:
    """Each product is of its own loop."""
    run = _Run(tmp_path, loop([3, 5]), {"x": _small_numbers(*ROWS)})
    run.check()
    assert [(one.calls, one.macs) for one in run.of("MatMul")] == [(3, 3 * 128), (5, 5 * 128)]


def test_sizes_that_change_from_one_iteration_to_the_next_give_no_count(tmp_path: Path) -> None:
    """The last one would be counted for all; what has one size is counted."""
    inner = body(
        [
            node("MatMul", "state w", "p", "grown"),
            node("MatMul", "x w", "q", "same"),
            node("Concat", "p q", "next", "concat", axis=0),
            node("Identity", "cond", "go_on"),
        ],
        {"i": ("int64", ()), "cond": ("bool", ()), "state": ("float32", None)},
        {"go_on": ("bool", ()), "next": ("float32", None)},
    )
    weights = {"n": np.array(3, "i8"), "go": np.array(1, "?"), "w": _small_numbers(8, 8)}
    graph = body(
        [node("Loop", "n go x", "y", "loop", body=inner)], {"x": ("float32", ROWS)}, {"y": ("float32", None)}, weights
    )
    run = _Run(tmp_path, model(graph), {"x": _small_numbers(*ROWS)})
    assert run.counted == 64 * (2 + 4 + 6 + 3 * 2)
    assert {one.name: one.macs for one in run.of("MatMul")} == {"MatMul: grown": None, "MatMul: same": 3 * 128}


def test_a_scan_runs_its_body_for_each_row(tmp_path: Path) -> None:
    """Seven rows."""
    inner: Body = body(
        [node("MatMul", "state w", "p"), node("Add", "p row", "next"), node("Identity", "next", "out")],
        {"state": ("float32", (1, 8)), "row": ("float32", (1, 8))},
        {"next": ("float32", (1, 8)), "out": ("float32", (1, 8))},
        {"w": _small_numbers(8, 8)},
    )
    scan = node("Scan", "start x", "end y", "scan", body=inner, num_scan_inputs=1)
    graph = body(
        [scan],
        {"start": ("float32", (1, 8)), "x": ("float32", (7, 1, 8))},
        {"y": ("float32", None)},
    )
    run = _Run(tmp_path, model(graph), {"start": _small_numbers(1, 8), "x": _small_numbers(7, 1, 8)})
    run.check()
    assert run.counted == 7 * 64


def test_work_is_the_same_at_every_level_of_optimisation(tmp_path: Path) -> None:
    """Whatever a session fuses, lays out anew or fills up."""
    found = set()
    for level in ("none", "basic", "extended", "all"):
        directory = tmp_path / level
        directory.mkdir()
        program = tmp_path / "model.onnx"
        program.write_bytes(quantised_pairs())
        options = {"graph_optimization_level": level}
        asked = Job(str(program), run_as(options=options), 2, 7, 120.0, traced=True, warmup=1)
        assert onnxruntime_here().execute(asked, directory).measurement is not None
        operators = analyze(directory / TRACE, program=program).operators
        found.add(sum(one.macs or 0 for one in operators))
        own = [one for one in operators if one.kind != "framework"]
        assert {one.attribution for one in own} == {Attribution.EXACT}
    assert len(found) == 1
