"""The signatures of a .tflite with their inputs and outputs, and the operators that it needs to run."""

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
"""Operators that NPU compilers write: Vela, the Edge TPU compiler, and LiteRT's own for its dispatch."""
_ONLY = "serving_default"
"""Name of the method of a model without signatures; LiteRT makes one of its first subgraph."""


class CallableModel(NamedTuple):
    """A .tflite as its caller sees it."""

    signatures: tuple[Signature, ...]  # never empty
    custom: tuple[str, ...]  # names of operators that are none of the schema
    operators: int  # how many the model has, all subgraphs together
    version: int  # of the schema

    def signature(self, name: str) -> Signature | None:
        """Return the signature of a name; None if there is none."""
        return next((signature for signature in self.signatures if signature.name == name), None)


def read_callable(path: Path) -> CallableModel:
    """Read the signatures of a .tflite."""
    return describe_callable(read_tflite(path))


def check_callable(model: CallableModel, path: Path) -> None:
    """Raise UsageError for a model that the runtime of the wheel cannot run, with or without its delegate."""
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
    """A signature as the runtime describes it: names in its own order."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of its inputs."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of its outputs."""


Described = TypeVar("Described", bound=NamedSides)


@dataclass(frozen=True)
class CalledSignature(Generic[Described]):
    """A signature that is called, as the file and as the runtime describe it."""

    declared: Signature  # as the file has it; arrays are in this order
    described: Described  # as the runtime has it


def called_signatures(
    model: CallableModel, runtime_signatures: Mapping[str, Described], calls: Sequence[str]
) -> dict[str, CalledSignature[Described]]:
    """Return the called signatures by name, in the order of first calls.

    Raises RunError if the model lacks a signature, or if file and runtime disagree on its inputs or outputs.
    """
    signatures = {}
    for name in _called_names(model, calls):
        signature = model.signature(name)
        only = (
            next(iter(runtime_signatures.values())) if len(model.signatures) == len(runtime_signatures) == 1 else None
        )
        described = runtime_signatures.get(name) or only
        if signature is None or described is None:
            raise RunError(f"the model has no signature {name!r}; it has: {', '.join(sorted(runtime_signatures))}")
        for ours, theirs in ((signature.inputs, described.inputs), (signature.outputs, described.outputs)):
            if {tensor.name for tensor in ours} != set(theirs):
                raise RunError(
                    f"LiteRT and the file disagree on the inputs or outputs of {name!r}: LiteRT has {', '.join(theirs)}"
                )
        signatures[name] = CalledSignature(signature, described)
    return signatures


def caches_in_place(inputs: Sequence[str], outputs: Sequence[str], resized: bool = False) -> list[str]:
    """Return the caches of keys and values that a call reads and writes under one name: each of them is one buffer.

    LiteRT-LM binds them like that on a CPU (the outputs of ``llm_litert_compiled_model_executor.cc`` are duplicates
    of the inputs, that is the same memory), so an update copies no whole cache. Caches whose sizes are given anew
    have two buffers.
    """
    return [] if resized else [name for name in outputs if is_cache(name) and name in inputs]


def open_sizes(
    model: CallableModel, calls: Sequence[str], inputs: Sequence[PlannedInput]
) -> dict[str, dict[str, list[int]]]:
    """Return the requested sizes of inputs that the file leaves open, by signature and input."""
    signatures = [signature for name in _called_names(model, calls) if (signature := model.signature(name)) is not None]
    declared = [(signature.name, tensor) for signature in signatures for tensor in signature.inputs]
    sizes: dict[str, dict[str, list[int]]] = {}
    for (name, tensor), planned in zip(declared, inputs, strict=False):
        if tensor.dynamism is not Dynamism.STATIC and planned.shape is not None:
            sizes.setdefault(name, {})[tensor.name] = planned.shape
    return sizes


def input_tensors(signatures: Iterable[Signature], inputs: Sequence[PlannedInput]) -> list[Tensor]:
    """Return the inputs of all called signatures, in the order of the file."""
    if inputs:
        return [Tensor(list(planned.shape or ()), planned.dtype) for planned in inputs]
    declared = [declared_input for signature in signatures for declared_input in signature.inputs]
    return [Tensor(list(tensor.sizes), tensor.dtype.name) for tensor in declared]


def _called_names(model: CallableModel, calls: Sequence[str]) -> Sequence[str]:
    return tuple(dict.fromkeys(calls)) or (model.signatures[0].name,)


def table_rows(path: Path) -> int | None:
    """Return the number of rows of the smallest stored table that vectors are looked up in; None without a table."""
    graphs = read_tflite(path).subgraphs
    tables = [
        graph.tensors[operator.inputs[1]]
        for graph in graphs
        for operator in graph.operators
        if operator.name == "EMBEDDING_LOOKUP" and len(operator.inputs) > 1 and operator.inputs[1] >= 0
    ]
    return min((table.shape[0] for table in tables if table.constant and table.shape), default=None)


def check_without_delegate(path: Path) -> None:
    """Raise UsageError for a model that LiteRT's own kernels cannot run."""
    delegated = [name for name in read_callable(path).custom if name in MEDIAPIPE]
    if delegated:
        problem = f"only the XNNPACK delegate runs these operators of the model: {', '.join(delegated)}"
        raise UsageError(problem, where=path, hint="leave out --delegate, or choose xnnpack")


def describe_callable(model: TfliteModel) -> CallableModel:
    """Return the signatures of a decoded .tflite, its custom operators and how many operators it has."""
    operators = [operator for graph in model.subgraphs for operator in graph.operators]
    custom = dict.fromkeys(operator.name for operator in operators if operator.custom)
    signatures = tuple(_list_signatures(model)) or (_default_signature(model.subgraphs[0]),)
    return CallableModel(signatures, tuple(custom), len(operators), model.version)


def _list_signatures(model: TfliteModel) -> list[Signature]:
    return [
        Signature(
            signature.key or _ONLY,
            _plan_named_tensors(model.subgraphs[signature.subgraph], signature.inputs),
            _plan_named_tensors(model.subgraphs[signature.subgraph], signature.outputs),
        )
        for signature in model.signatures
    ]


def _plan_named_tensors(graph: TfliteSubgraph, members: Sequence[tuple[str, int]]) -> tuple[PlannedTensor, ...]:
    """Return inputs or outputs of a signature, which has its own names for tensors."""
    return tuple(_plan_tensor(name, graph.tensors[number]) for name, number in members)


def _default_signature(graph: TfliteSubgraph) -> Signature:
    """Return the signature that LiteRT makes for a model without any."""
    sides = [
        _plan_named_tensors(graph, [(graph.tensors[n].name, n) for n in side]) for side in (graph.inputs, graph.outputs)
    ]
    return Signature(_ONLY, *sides)


def _plan_tensor(name: str, tensor: TfliteTensor) -> PlannedTensor:
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
