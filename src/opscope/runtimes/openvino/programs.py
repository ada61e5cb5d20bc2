"""Programs that OpenVINO takes: its own, and those of other runtimes, which are read as these read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.runtimes.litert.runtime import LiteRt
from opscope.runtimes.litert.tflite import read_tflite
from opscope.runtimes.onnxruntime.runtime import OnnxRuntime
from opscope.runtimes.openvino.ir_file import is_ir, read_ir_signature

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.program.structure.exported import Signature
    from opscope.runtimes.runtime import Runtime

OTHERS: tuple[Runtime, ...] = (OnnxRuntime(), LiteRt())
"""Whose programs it takes, too."""


class ProgramSides(NamedTuple):
    """What a caller gives to a program and gets."""

    signature: Signature  # of what is called: a program of several is called by its first
    inputs: Sequence[str] | None  # names of tensors, in its order; None: in the order of OpenVINO
    outputs: Sequence[str] | None  # likewise


def other_runtime(path: Path) -> Runtime | None:
    """The runtime whose program a file is; None for an IR, and for anything else."""
    return None if is_ir(path) else next((one for one in OTHERS if one.holds(path)), None)


def read_sides(path: Path) -> ProgramSides:
    """The sides of a program."""
    other = other_runtime(path)
    if other is None:
        return ProgramSides(read_ir_signature(path), None, None)
    signature = other.signatures(path)[0]
    if isinstance(other, LiteRt):
        return ProgramSides(signature, *_tensors_of(path, signature.name))
    inputs, outputs = ([one.name for one in side] for side in (signature.inputs, signature.outputs))
    return ProgramSides(signature, inputs, outputs)


def _tensors_of(path: Path, method: str) -> tuple[list[str], list[str]]:
    """Names of the tensors that a signature of a .tflite stands for."""
    model = read_tflite(path)
    named = next((one for one in model.signatures if one.key == method), None)
    graph = model.subgraphs[named.subgraph if named else 0]
    sides = [[number for _, number in side] for side in (named.inputs, named.outputs)] if named else []
    inputs, outputs = sides or (list(graph.inputs), list(graph.outputs))
    return [graph.tensors[number].name for number in inputs], [graph.tensors[number].name for number in outputs]
