"""Record of an export: schema ``opscope.export/1``. What was made, what was delegated, and how well it agrees."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.compare.outputs import OutputAgreement, compare_outputs
from opscope.analysis.preflight.parts import PortableGroup
from opscope.program.structure.exported import ExportedMethod, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.outputs import Array
    from opscope.analysis.preflight.preflight import MethodPreflight

EAGER_TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "int8": 0.5, "dynamic-int8": 0.1, "8da4w": 0.6}
"""Largest error against the model in PyTorch and fp32, relative to the largest value of the output.

Those of 8 and 4 bits are three times the largest that a registered model showed: 0.155 (vit_tiny), 0.029 (segmenter)
and 0.19 (llama_tiny with one layer).
"""
GRAPH_TOLERANCE = 0.25
"""The same against the quantised graph in PyTorch, which rounds where kernels do; most seen: 0.083 (vit_tiny)."""


class Delegation(msgspec.Struct, frozen=True):
    """Part of a method that was handed to XNNPACK.

    Attributes:
        calls: calls of delegates, in one inference.
        operators: operators that XNNPACK runs.
        portable_operators: operators that the runtime's own kernels run on tensors.
        size_operators: instructions that only compute sizes.
        macs: multiply-accumulates of all operators whose work is known.
        delegated_macs: multiply-accumulates that XNNPACK runs.
        share: ``delegated_macs`` as a share of ``macs``; null when there are no multiply-accumulates.
        unknown: operators whose work is not known.
        portable: what stayed, with the reason, most work first.
    """

    calls: int
    operators: int
    portable_operators: int
    size_operators: int
    macs: int
    delegated_macs: int
    share: float | None
    unknown: int
    portable: list[PortableGroup]


class MethodExport(msgspec.Struct, frozen=True):
    """One method of an export.

    Attributes:
        method: what was exported.
        delegation: what XNNPACK got of it.
        eager: the program's outputs against those of the model in PyTorch, on the example inputs.
        graph: against those of the quantised graph in PyTorch; null for number types that are not quantised.
    """

    method: ExportedMethod
    delegation: Delegation
    eager: OutputAgreement
    graph: OutputAgreement | None

    @property
    def agrees(self) -> bool:
        """Return whether every comparison is within its tolerance."""
        return self.eager.agree and (self.graph is None or self.graph.agree)


class ExportedFile(msgspec.Struct, frozen=True):
    """File of an export: its name in the directory, hash and bytes."""

    name: str
    sha256: str
    size: int


class ExportStage(msgspec.Struct, frozen=True):
    """Stage of an export, and the seconds that it took."""

    name: str
    seconds: float


class ExportRecord(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.export/1"):
    """Record of what an export made, and how it was checked.

    Attributes:
        opscope: version that exported.
        created: when, in UTC.
        source: the model as it was named.
        name: name of the model in the names of files.
        dtype: number type.
        backend: backend that took what it could.
        program: the .pte.
        etrecord: the .etrecord as it was exported; null when ExecuTorch could not write one. A bundle keeps it without
            weights, and states its hash there in the manifest.
        graph: graph.json.
        methods: methods in the order of a run.
        versions: versions of the packages that made it.
        partition_rules: release that the reasons of portable operators are of.
        etrecord_problem: why the .etrecord cannot be used; null when it was read back and fits the program.
        stages: what took how long, in order, without the checks at the end; empty in records of older versions.
    """

    opscope: str
    created: str
    source: str
    name: str
    dtype: str
    backend: str
    program: ExportedFile
    etrecord: ExportedFile | None
    graph: ExportedFile
    methods: list[MethodExport]
    versions: dict[str, str]
    partition_rules: str
    etrecord_problem: str | None = None
    stages: list[ExportStage] = []


def delegation(method: MethodPreflight) -> Delegation:
    """Return what of a method was delegated, as its program shows before it runs."""
    delegated = sum(row.delegated.macs for row in method.work)
    macs = delegated + sum(row.portable.macs for row in method.work)
    return Delegation(
        calls=method.partition.calls,
        operators=method.partition.delegated_operators,
        portable_operators=method.partition.portable_operators,
        size_operators=method.partition.size_operators,
        macs=macs,
        delegated_macs=delegated,
        share=delegated / macs if macs else None,
        unknown=sum(row.delegated.unknown + row.portable.unknown for row in method.work),
        portable=method.portable,
    )


_NARROW = {"float16": 2e-2, "bfloat16": 6e-2}
"""The least tolerance of a model that was built in such a type, whatever it is exported as."""


_FLOATING = ("fp32", "fp16")
_SHALLOW = 30
"""Operators up to which the tolerance of a floating-point type holds as it is."""


def usual_tolerance(dtype: str, inputs: Sequence[TensorSpec], operators: int) -> float:
    """Return the relative error that rounding explains in a model of so many operators, exported in a number type.

    Errors of rounding are as good as independent, so those of a deeper model add up with the square root of its depth
    (N. J. Higham and T. Mary, A new approach to probabilistic rounding error analysis, 2019).
    """
    of_types = max([EAGER_TOLERANCES[dtype], *(_NARROW.get(spec.dtype, 0.0) for spec in inputs)])
    depth = operators / _SHALLOW if dtype in _FLOATING else 1.0  # what quantising loses is far more than rounding
    return of_types * max(1.0, math.sqrt(depth))


def agreement_with_eager(
    eager: Sequence[Array], computed: Sequence[Array], dtype: str, limit: float
) -> OutputAgreement:
    """Compare the program's outputs with those of the model in PyTorch; ``limit`` is the largest relative error."""
    return compare_outputs(eager, computed, dtype, limit)


def agreement_with_graph(graph: Sequence[Array], computed: Sequence[Array], dtype: str) -> OutputAgreement:
    """Compare the program's outputs with those of the quantised graph in PyTorch."""
    return compare_outputs(graph, computed, dtype, GRAPH_TOLERANCE)
