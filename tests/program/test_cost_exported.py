"""The cost model against torch's own counter, published figures and itself, on programs that were really exported."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from costed_models import LENGTHS, SIDES
from exports import served
from opscope.core.grouping import grouped
from opscope.program.cost.cost import GraphCosts, step_cost
from opscope.program.cost.operator_cost import Cost
from opscope.program.cost.shapes import is_dynamic, propagate
from opscope.program.structure.plan import InstructionKind
from opscope.runtimes.executorch.etrecord import read_etrecord
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.executorch.xnnpack import read_xnn_graphs

pytestmark = [
    pytest.mark.nightly,  # exports models of many kinds
    pytest.mark.runtime,
    pytest.mark.filterwarnings("ignore"),
]  # torch warns of itself
NOTHING = Cost(0, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with NAME.pte of every model, made by one process."""
    directory = tmp_path_factory.mktemp("costed")
    script = Path(__file__).parents[1] / "support" / "costed_models.py"
    done = subprocess.run(
        [sys.executable, str(script), str(directory)], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return directory


def costs(path: Path, inputs: Sequence[tuple[int, ...]] | None = None) -> list[tuple[str, Cost | None]]:
    """Every operator of a program with its cost, for the shapes of the file or for real ones of its inputs."""
    (plan,) = read_executable(path).plans
    graphs = {found.delegate: found.graph for found in read_xnn_graphs(path)}
    known = None if inputs is None else propagate(plan, graphs, inputs)
    found: list[tuple[str, Cost | None]] = []
    for step in plan.chains[0].steps:
        if step.kind is InstructionKind.KERNEL:
            found.append((plan.called(step), step_cost(plan, step, known and known.sizes)))
        elif step.kind is InstructionKind.DELEGATE:
            each = GraphCosts(graphs[step.target], known and known.dims[step.target])
            found += [(node.kind, each.nodes([n])) for n, node in enumerate(graphs[step.target].nodes)]
    return found


def total(path: Path) -> Cost:
    """Of all operators, each of which has a known cost."""
    found = [cost for _, cost in costs(path)]
    assert None not in found
    return sum((cost for cost in found if cost is not None), NOTHING)


def test_resnet18_has_the_published_number_of_multiply_accumulates(programs):
    """1.81 GMAC at 224x224, delegated and with portable operators alone; weights of 46.7 MB."""
    delegated, portable = total(programs / "resnet18.pte"), total(programs / "resnet18_portable.pte")
    assert delegated.macs == portable.macs == 1_814_073_344
    parameters, folded = 11_689_512, 4_800  # batch norm has four numbers for each of 4800 channels, two are learned
    assert delegated.weight_bytes == 4 * (parameters - folded)
    assert portable.weight_bytes == 4 * (parameters + 2 * folded)
    assert delegated.bytes < portable.bytes


@pytest.mark.parametrize("name", ["resnet18", "vit_layer", "images_32", "images_portable_32"])
def test_torch_counts_as_many_products(programs, name):
    """Convolutions of every sort and matrix products: exactly half of the operations that torch's counter finds."""
    counted = json.loads((programs / "counted.json").read_text())
    assert total(programs / f"{name}.pte").macs == counted[name.partition("_portable")[0].removesuffix("_32")]


def test_four_bit_weights(programs):
    """48 x 64 halves of a byte, 96 scales of two bytes, 48 numbers of bias; data become eight bits wide."""
    convert, layer = (cost for _, cost in costs(programs / "four_bits.pte"))
    assert convert == Cost(0, 0, 5 * 64 * 4, 5 * 64, 0)
    assert layer == Cost(5 * 48 * 64, 2 * 5 * 48 * 64, 5 * 64, 5 * 48 * 4, 48 * 32 + 96 * 2 + 48 * 4)


DYNAMIC = [("words", (1, length)) for length in LENGTHS]
DYNAMIC += [("images", (1, 3, side, side)) for side in SIDES]
DYNAMIC += [("words_portable", (1, LENGTHS[0])), ("images_portable", (1, 3, SIDES[0], SIDES[0]))]


@pytest.mark.parametrize(("name", "shape"), DYNAMIC)
def test_a_program_for_any_size_costs_what_its_twin_for_that_size_costs(programs, name, shape):
    """Operator for operator. Views are where the two differ: they need an instruction only where sizes can differ."""
    (plan,) = read_executable(programs / f"{name}.pte").plans
    assert is_dynamic(plan)
    found = computing(costs(programs / f"{name}.pte", [shape]))
    assert found == computing(costs(programs / f"{name}_{shape[-1]}.pte"))
    assert not any(cost == "None" for _, cost in found)
    assert found != computing(costs(programs / f"{name}.pte")), "the file's own shapes are upper bounds"


def computing(found: list[tuple[str, Cost | None]]) -> Counter[tuple[str, str]]:
    """Operators and costs but for views and for arithmetic on sizes."""
    free = ("StaticReshape", "executorch_prim::", "aten::sym_size")
    return Counter((name, str(cost)) for name, cost in found if not name.startswith(free))


def test_without_the_shapes_of_its_inputs_a_program_for_any_size_has_no_cost(programs):
    """Only what is fixed: weights that are transposed, tables of constants."""
    found = dict(costs(programs / "words.pte", []))
    assert {name for name, cost in found.items() if cost not in {None, NOTHING}} <= {"aten::permute_copy.out"}
    assert found["FullyConnected"] is None


def test_inputs_that_look_alike_are_told_apart_by_their_place(programs):
    """A delegate uses the second of two inputs first; their stated shapes are the same, their real ones are not."""
    unequal = dict(costs(programs / "crossed.pte", [(2, 3), (2, 5)]))
    assert all(cost is not None for cost in unequal.values())
    assert unequal["Concatenate2"].read_bytes == 2 * (3 + 5) * 4


@pytest.mark.parametrize(
    ("model", "counted"),
    [
        ("upsampling_models.py:upsampling", 8),
        ("attention_models.py:written_out", 3),
        ("attention_models.py:attention", 6),
    ],
)
def test_the_exporters_graph_counts_as_many_bytes(tmp_path: Path, model: str, counted: int) -> None:
    """Where one node of the exporter's graph is one of the delegate's, their tensors are as large: all are fp32."""
    done = served(tmp_path, str(Path(__file__).parents[1] / "support" / model))
    (graph,) = read_etrecord(tmp_path / "m_xnnpack_fp32.etrecord").graphs
    sizes = {name: math.prod(map(int, own)) * 4 for name, own in graph.sizes.items()}
    by_handle = grouped([(handle, node) for node in graph.nodes for handle in node.handles], lambda pair: pair[0])
    pairs = []
    for found in read_xnn_graphs(done.program):
        costs_ = GraphCosts(found.graph)
        bearing = Counter(node.debug_handle for node in found.graph.nodes)
        for number, node in enumerate(found.graph.nodes):
            own = by_handle.get(node.debug_handle, [])
            if len(own) == 1 and bearing[node.debug_handle] == 1:
                tensors = {*own[0][1].inputs, *own[0][1].outputs}
                pairs.append((own[0][1].target, costs_.nodes([number]).bytes, sum(sizes[name] for name in tensors)))
    assert [(target, ours) for target, ours, _ in pairs] == [(target, theirs) for target, _, theirs in pairs]
    assert len(pairs) >= counted
