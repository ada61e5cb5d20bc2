"""What a caller of a .tflite has to know: its signatures with their inputs and outputs, and what it needs to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import UsageError
from opscope.core.regular_files import opened
from opscope.program.structure.plan import Dynamism, PlannedTensor
from opscope.program.structure.signature import NamedTensor, Signature
from opscope.runtimes.litert.tflite import IDENTIFIER, IDENTIFIER_OFFSET, decode_tflite, is_tflite_program, read_tflite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.runtimes.litert.tflite import TfliteModel, TfliteSubgraph, TfliteTensor

SUFFIX = ".tflite"
_FLEX = "Flex"
_ONLY = "serving_default"
"""What a model without signatures is called by; LiteRT makes one of its first subgraph."""


class CallableModel(NamedTuple):
    """A .tflite as its caller sees it.

    Attributes:
        signatures: never empty.
        custom: names of operators that LiteRT itself does not have.
        operators: how many the model has, all subgraphs together.
        version: of the schema.
    """

    signatures: tuple[Signature, ...]
    custom: tuple[str, ...]
    operators: int
    version: int

    def signature(self, name: str) -> Signature | None:
        """The signature of a name."""
        return next((one for one in self.signatures if one.name == name), None)


def is_tflite(path: Path) -> bool:
    """Whether a file is one, or is named like one."""
    if path.suffix == SUFFIX:
        return True
    if not path.is_file():
        return False
    with opened(path) as stream:
        return is_tflite_program(stream.read(IDENTIFIER_OFFSET + len(IDENTIFIER)))


def read_callable(path: Path) -> CallableModel:
    """The signatures of a .tflite.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is not a .tflite, truncated, or damaged.
    """
    return _callable(read_tflite(path))


def decode_callable(data: bytes | memoryview, where: str) -> CallableModel:
    """The signatures in these bytes; ``where`` names them in errors.

    Raises:
        TraceFormatError: they are truncated or damaged.
    """
    return _callable(decode_tflite(data, where))


def check_callable(model: CallableModel, path: Path) -> None:
    """Refuse a model that the runtime of the wheel cannot run.

    Raises:
        UsageError: naming the operators.
    """
    flex = [name for name in model.custom if name.startswith(_FLEX)]
    if flex:
        problem = f"it calls operators of TensorFlow itself, which LiteRT does not have: {', '.join(flex)}"
        hint = "convert the model without SELECT_TF_OPS; opscope runs models of LiteRT's own operators"
        raise UsageError(problem, where=path, hint=hint)
    if model.custom:
        problem = f"it calls custom operators, which the installed LiteRT does not have: {', '.join(model.custom)}"
        raise UsageError(problem, where=path, hint="convert the model to built-in operators")


def _callable(model: TfliteModel) -> CallableModel:
    operators = [operator for graph in model.subgraphs for operator in graph.operators]
    custom = dict.fromkeys(operator.name for operator in operators if operator.custom)
    signatures = tuple(_signatures(model)) or (_unsigned(model.subgraphs[0]),)
    return CallableModel(signatures, tuple(custom), len(operators), model.version)


def _signatures(model: TfliteModel) -> list[Signature]:
    return [
        Signature(
            own.key or _ONLY,
            _named(model.subgraphs[own.subgraph], own.inputs),
            _named(model.subgraphs[own.subgraph], own.outputs),
        )
        for own in model.signatures
    ]


def _named(graph: TfliteSubgraph, members: Sequence[tuple[str, int]]) -> tuple[NamedTensor, ...]:
    """Inputs or outputs of a signature, which has its own names for tensors."""
    return tuple(NamedTensor(name, _tensor(graph.tensors[number])) for name, number in members)


def _unsigned(graph: TfliteSubgraph) -> Signature:
    """What LiteRT makes of a model without signatures."""
    sides = [_named(graph, [(graph.tensors[n].name, n) for n in side]) for side in (graph.inputs, graph.outputs)]
    return Signature(_ONLY, *sides)


def _tensor(tensor: TfliteTensor) -> PlannedTensor:
    return PlannedTensor(
        dtype=tensor.dtype,
        sizes=tuple(max(1, size) for size in tensor.shape),
        dim_order=(),
        dynamism=Dynamism.UNBOUNDED if tensor.dynamic else Dynamism.STATIC,
        data_buffer=0,
        allocation=None,
        name="",
        external=False,
    )
