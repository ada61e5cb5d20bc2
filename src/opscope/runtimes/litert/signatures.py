"""What a caller of a .tflite has to know: its signatures with their inputs and outputs, and what it needs to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from opscope.core.errors import RunError, UsageError
from opscope.program.structure.exported import Signature, Tensor
from opscope.program.structure.plan import UNNAMED, Dynamism, PlannedTensor
from opscope.runtimes.language import is_cache
from opscope.runtimes.litert.tflite import (
    MEDIAPIPE,
    REGISTERED,
    read_tflite,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from opscope.bundle.manifest import PlannedInput
    from opscope.runtimes.litert.tflite import TfliteModel, TfliteSubgraph, TfliteTensor

_FLEX = "Flex"
_NPUS = {
    "ethos-u": "an Arm Ethos-U",
    "edgetpu-custom-op": "a Google Edge TPU",
    "DISPATCH_OP": "an NPU of a LiteRT plugin",
}
"""Operators that compilers for NPUs write: Vela, the Edge TPU compiler, and LiteRT's own for its dispatch."""
_ONLY = "serving_default"
"""What a model without signatures is called by; LiteRT makes one of its first subgraph."""


class CallableModel(NamedTuple):
    """A .tflite as its caller sees it."""

    signatures: tuple[Signature, ...]  # never empty
    custom: tuple[str, ...]  # names of operators that are none of the schema
    operators: int  # how many the model has, all subgraphs together
    version: int  # of the schema

    def signature(self, name: str) -> Signature | None:
        """The signature of a name."""
        return next((one for one in self.signatures if one.name == name), None)


def read_callable(path: Path) -> CallableModel:
    """The signatures of a .tflite."""
    return describe_callable(read_tflite(path))


def check_callable(model: CallableModel, path: Path) -> None:
    """Refuse a model that the runtime of the wheel cannot run, with or without its delegate."""
    compiled = next((name for name in model.custom if name in _NPUS), None)
    if compiled:
        problem = f"it was compiled for {_NPUS[compiled]}, which alone supports its operator {compiled}"
        raise UsageError(problem, where=path, hint="give the .tflite from before NPU compilation")
    flex = [name for name in model.custom if name.startswith(_FLEX)]
    if flex:
        problem = f"it calls TensorFlow operators, which LiteRT does not have: {', '.join(flex)}"
        hint = "convert the model without SELECT_TF_OPS; opscope supports LiteRT's built-in operators only"
        raise UsageError(problem, where=path, hint=hint)
    unknown = [name for name in model.custom if name not in MEDIAPIPE | REGISTERED]
    if unknown:
        problem = f"it calls custom operators, which the installed LiteRT does not have: {', '.join(unknown)}"
        raise UsageError(problem, where=path, hint="convert the model to built-in operators")


class NamedSides(Protocol):
    """A signature as the runtime tells it: names in its own order."""

    @property
    def inputs(self) -> Sequence[str]:
        """Of its inputs."""

    @property
    def outputs(self) -> Sequence[str]:
        """Of its outputs."""


Told = TypeVar("Told", bound=NamedSides)


@dataclass(frozen=True)
class CalledSignature(Generic[Told]):
    """A signature that is called."""

    declared: Signature  # as the file has it; arrays are in this order
    told: Told  # as the runtime has it


def called_signatures(
    model: CallableModel, told: Mapping[str, Told], calls: Sequence[str]
) -> dict[str, CalledSignature[Told]]:
    """What is called, by name, in the order of the first calls."""
    signatures = {}
    for name in _names(model, calls):
        signature = model.signature(name)
        alone = next(iter(told.values())) if len(model.signatures) == len(told) == 1 else None
        there = told.get(name) or alone
        if signature is None or there is None:
            raise RunError(f"the model has no signature {name!r}; it has: {', '.join(sorted(told))}")
        for ours, theirs in ((signature.inputs, there.inputs), (signature.outputs, there.outputs)):
            if {one.name for one in ours} != set(theirs):
                raise RunError(
                    f"LiteRT and the file disagree on the inputs or outputs of {name!r}: LiteRT has {', '.join(theirs)}"
                )
        signatures[name] = CalledSignature(signature, there)
    return signatures


def caches_in_place(inputs: Sequence[str], outputs: Sequence[str], resized: bool = False) -> list[str]:
    """Caches of keys and values that a call is given and leaves, by their name on both sides: each is one buffer.

    So LiteRT-LM binds them on a CPU (the outputs of ``llm_litert_compiled_model_executor.cc`` are duplicates of the
    inputs, that is the same memory), and an update copies no whole cache. Those whose sizes are given anew have two.
    """
    return [] if resized else [name for name in outputs if is_cache(name) and name in inputs]


def open_sizes(
    model: CallableModel, calls: Sequence[str], inputs: Sequence[PlannedInput]
) -> dict[str, dict[str, list[int]]]:
    """Sizes that the file leaves open, as they are asked for, by signature and input."""
    called = [signature for name in _names(model, calls) if (signature := model.signature(name)) is not None]
    declared = [(signature.name, one) for signature in called for one in signature.inputs]
    sizes: dict[str, dict[str, list[int]]] = {}
    for (name, one), planned in zip(declared, inputs, strict=False):
        if one.dynamism is not Dynamism.STATIC and planned.shape is not None:
            sizes.setdefault(name, {})[one.name] = planned.shape
    return sizes


def input_tensors(called: Iterable[Signature], inputs: Sequence[PlannedInput]) -> list[Tensor]:
    """The inputs of all signatures that are called, in the order of the file, as for every runtime."""
    if inputs:
        return [Tensor(list(one.shape or ()), one.dtype) for one in inputs]
    declared = [one for signature in called for one in signature.inputs]
    return [Tensor(list(tensor.sizes), tensor.dtype.name) for tensor in declared]


def _names(model: CallableModel, calls: Sequence[str]) -> Sequence[str]:
    return tuple(dict.fromkeys(calls)) or (model.signatures[0].name,)


def table_rows(path: Path) -> int | None:
    """Rows of the smallest stored table that vectors are looked up in; None where there is none."""
    graphs = read_tflite(path).subgraphs
    tables = [
        graph.tensors[operator.inputs[1]]
        for graph in graphs
        for operator in graph.operators
        if operator.name == "EMBEDDING_LOOKUP" and len(operator.inputs) > 1 and operator.inputs[1] >= 0
    ]
    return min((table.shape[0] for table in tables if table.constant and table.shape), default=None)


def check_without_delegate(path: Path) -> None:
    """Refuse a model that LiteRT's own kernels cannot run."""
    delegated = [name for name in read_callable(path).custom if name in MEDIAPIPE]
    if delegated:
        problem = f"only the XNNPACK delegate runs these operators of the model: {', '.join(delegated)}"
        raise UsageError(problem, where=path, hint="leave out --delegate, or choose xnnpack")


def describe_callable(model: TfliteModel) -> CallableModel:
    """Return the signatures of a decoded .tflite, its custom operators and how many operators it has."""
    operators = [operator for graph in model.subgraphs for operator in graph.operators]
    custom = dict.fromkeys(operator.name for operator in operators if operator.custom)
    signatures = tuple(_signatures(model)) or (_unsigned(model.subgraphs[0]),)
    return CallableModel(signatures, tuple(custom), len(operators), model.version)


def _signatures(model: TfliteModel) -> list[Signature]:
    return [
        Signature(
            signature.key or _ONLY,
            _named(model.subgraphs[signature.subgraph], signature.inputs),
            _named(model.subgraphs[signature.subgraph], signature.outputs),
        )
        for signature in model.signatures
    ]


def _named(graph: TfliteSubgraph, members: Sequence[tuple[str, int]]) -> tuple[PlannedTensor, ...]:
    """Inputs or outputs of a signature, which has its own names for tensors."""
    return tuple(_tensor(name, graph.tensors[number]) for name, number in members)


def _unsigned(graph: TfliteSubgraph) -> Signature:
    """What LiteRT makes of a model without signatures."""
    sides = [_named(graph, [(graph.tensors[n].name, n) for n in side]) for side in (graph.inputs, graph.outputs)]
    return Signature(_ONLY, *sides)


def _tensor(name: str, tensor: TfliteTensor) -> PlannedTensor:
    return PlannedTensor(
        dtype=tensor.dtype,
        sizes=tuple(max(1, size) for size in tensor.shape),
        dim_order=(),
        dynamism=Dynamism.UNBOUNDED if tensor.open_axes else Dynamism.STATIC,
        data_buffer=0,
        planned=False,
        name=name,
        external=False,
        symbols=tuple(
            UNNAMED if axis in tensor.open_axes else "" for axis in range(len(tensor.shape) if tensor.open_axes else 0)
        ),
    )
