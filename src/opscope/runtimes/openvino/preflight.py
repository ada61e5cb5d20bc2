"""Predict, before a model is measured in OpenVINO, the nodes that the plugin runs, and their work.

The model runs once on this machine, unmeasured: that shows whether its frontend reads it, all shapes, and the
kernels that this CPU gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.preflight.operators import PlannedOperator
from opscope.analysis.preflight.parts import DelegateBoundaries
from opscope.analysis.preflight.preflight import Partition, Preflight, describe_cpu, method_preflight
from opscope.core.files import sha256_of
from opscope.program.kernels.cpu import KernelChoice
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify
from opscope.program.partition.verdicts import Eligibility, Form, SmeSupport
from opscope.program.structure.exported import Tensor
from opscope.runtimes.openvino.attribution import NODE_TYPES, facts_of
from opscope.runtimes.openvino.graph import GRAPH, read_graph
from opscope.runtimes.package_target import run_once

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from opscope.analysis.operators.operators import OperatorFacts
    from opscope.program.kernels.cpu import Cpu
    from opscope.program.structure.exported import Signature
    from opscope.runtimes.openvino.graph import OpenVinoGraph, RunNode
    from opscope.runtimes.openvino.target import OpenVinoTarget

_TABLE = "OpenVINO 2026.4"
_SECONDS = 300.0
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "uint8": 8}
_SILENT = frozenset({"Input", "Output", "Const"})
_CONTROL = frozenset({"If", "Loop", "TensorIterator"})


def openvino_preflight(
    path: Path, signature: Signature, limits: Mapping[str, int], target: OpenVinoTarget, *, cpu: Cpu | None
) -> Preflight:
    """Predict what a model runs on this machine.

    ``limits`` is the number of rows of the tables that inputs index, by input name.
    """
    graph, words = run_once(
        target, "OpenVINO", path, signature, limits, lambda run_directory: read_graph(run_directory / GRAPH)
    )
    ran = [
        (run_node, facts)
        for run_node, facts in zip(graph.ran, facts_of(graph), strict=True)
        if run_node.node.type not in _SILENT and run_node.kernel != _FUSED
    ]
    preflight = method_preflight(
        signature.name,
        [Tensor(list(tensor.sizes), tensor.dtype.name) for tensor in signature.inputs],
        _output_tensors(graph),
        [_plan_operator(run_node, facts) for run_node, facts in ran],
        cpu,
        branches=any(run_node.node.type in _CONTROL for run_node, _ in ran),
        partition=Partition(0, 0, len(ran), 0, 0, 0, []),
        borders=DelegateBoundaries(0, 0, 0, 0, 0),
    )
    text = f"one unmeasured inference ran to get tensor shapes, with {words}"
    return Preflight(str(path), sha256_of(path), describe_cpu(cpu), _TABLE, "", [preflight], text)


_FUSED = "undef"
"""Kernel of a node that was fused into another."""


def _output_tensors(graph: OpenVinoGraph) -> list[Tensor]:
    results = [
        run_node.node.outputs[0] for run_node in graph.ran if run_node.node.type == "Output" and run_node.node.outputs
    ]
    return [Tensor(list(tensor.shape or ()), NODE_TYPES.get(tensor.dtype, tensor.dtype)) for tensor in results]


def _plan_operator(run_node: RunNode, facts: OperatorFacts) -> PlannedOperator:
    known = facts.operator_class or classify(f"{run_node.node.type}: ")
    product = known.category in {Category.CONVOLUTION, Category.GEMM}
    types = facts.dtype or "unknown"
    unknown = Eligibility(SmeSupport.UNKNOWN, Form.PRODUCT, types, "no known rule", None, tried=False)
    return PlannedOperator(
        name=run_node.node.type,
        calls=1,
        category=known.category,
        cost=facts.cost,
        bits=_BITS.get(types),
        eligibility=unknown if product else None,
        added=facts.change is not None,
        kernels=KernelChoice(run_node.kernel, run_node.kernel) if product and run_node.kernel else None,
        converts=known.kind == "quantisation",
    )
