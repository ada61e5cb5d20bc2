"""From a PyTorch model to a .pte, its .etrecord and its graph, through torch.export and a partitioner."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from opscope.errors import OpscopeError
from opscope.export.choices import DYNAMIC_INT8, FP16, INT8, QUANTISED, XNNPACK, Choice
from opscope.export.graph import model_graph, tensor_specs
from opscope.export.quantise import calibration_inputs, quantised
from opscope.export.trouble import export_error
from opscope.program.exported import ExportedMethod

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from opscope.export.eager import EagerMethod, EagerModel


class Heard(Protocol):
    """Hears which step an export is at."""

    def __call__(self, step: str) -> None:
        """Called before each step."""
        ...


class Places(NamedTuple):
    """Where an export writes its files."""

    program: Path
    etrecord: Path
    graph: Path


@contextlib.contextmanager
def step(name: str, heard: Heard, graphs: Iterable[Any] = ()) -> Iterator[None]:
    """A step of an export: what it raises becomes an error that names it.

    Args:
        name: of the step.
        heard: is told.
        graphs: exported programs, to find the line of an operator in.

    Raises:
        ExportError: the step failed.
    """
    heard(name)
    try:
        yield
    except OpscopeError:
        raise
    except Exception as error:  # torch and ExecuTorch raise whatever there is; the traceback goes to the log
        raise export_error(name, error, graphs) from error


def export(model: EagerModel, name: str, choice: Choice, places: Places, heard: Heard) -> Lowered:
    """Export a model and write its files.

    Args:
        model: in evaluation mode, fp32; it is changed when it is exported in half precision.
        name: of the model, for the graph.
        choice: number type and backend.
        places: where to write.
        heard: hears of the steps.

    Raises:
        ExportError: a step failed; the error names the step, and the operator and line where they can be told.
        UsageError: what the model's author says about quantisation does not fit the model.
    """
    import torch

    with torch.no_grad():
        methods = _converted(model.methods, choice.dtype)
        programs = {key: _exported(key, one, model, choice, heard) for key, one in methods.items()}
        with step(f"lowering for {choice.backend}", heard, programs.values()):
            lowered = _lowered(programs, choice)
        with step("serialising", heard, programs.values()):
            lowered.save(str(places.program))
            lowered.get_etrecord().save(str(places.etrecord))
            graph = msgspec.json.encode(model_graph(name, choice.dtype, programs))
            places.graph.write_bytes(msgspec.json.format(graph, indent=1) + b"\n")
    return Lowered(methods, programs)


class Lowered(NamedTuple):
    """What was lowered: the methods with inputs in the exported number type, and their exported programs."""

    methods: Mapping[str, EagerMethod]
    programs: Mapping[str, Any]

    def described(self, name: str, model: EagerModel, choice: Choice) -> ExportedMethod:
        """What the record of the export says about a method; its outputs come from running it."""
        method, nodes = self.methods[name], self.programs[name].graph.nodes
        called = [str(node.target) for node in nodes if node.op == "call_function"]
        static = choice.dtype == INT8
        return ExportedMethod(
            name=name,
            inputs=tensor_specs((method.inputs, dict(method.kwargs))),
            outputs=[],
            nodes=len(called),
            quantised=sum("quantize" in target for target in called),
            tokens=method.tokens,
            calibration=len(calibration_inputs(method, model.quantisation)) if static else None,
            calibration_made=model.quantisation.calibration is None if static else None,
        )


def _converted(methods: Mapping[str, EagerMethod], dtype: str) -> dict[str, EagerMethod]:
    """The methods with modules and inputs in half precision, where that is asked for."""
    if dtype != FP16:
        return dict(methods)
    return {name: halved(method) for name, method in methods.items()}


def halved(method: EagerMethod) -> EagerMethod:
    """A method in half precision; its module is changed, as those that share parts with it must be."""
    import torch
    from torch.utils import _pytree

    from opscope.export.eager import EagerMethod as Method

    def half(value: Any) -> Any:  # noqa: ANN401 - any leaf of the inputs
        return value.half() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    inputs, kwargs = _pytree.tree_map(half, (method.inputs, dict(method.kwargs)))
    return Method(method.module.half(), inputs, kwargs, method.dynamic_shapes, method.tokens)


def _exported(name: str, method: EagerMethod, model: EagerModel, choice: Choice, heard: Heard) -> Any:  # noqa: ANN401
    import torch

    def run(module: Any) -> Any:  # noqa: ANN401 - torch is not typed here
        return torch.export.export(
            module, method.inputs, dict(method.kwargs), dynamic_shapes=method.dynamic_shapes, strict=False
        )

    several = f" of {name}" if len(model.methods) > 1 else ""
    with step(f"torch.export{several}", heard):
        exported = run(method.module)
    if choice.dtype not in QUANTISED:
        return exported
    with step(f"quantising{several}", heard, [exported]):
        graph = quantised(exported.module(), method, model.quantisation, dynamic=choice.dtype == DYNAMIC_INT8)
        return run(graph)


def _lowered(programs: Mapping[str, Any], choice: Choice) -> Any:  # noqa: ANN401 - likewise
    from executorch.exir import to_edge_transform_and_lower

    partitioner = {name: _partitioners(choice) for name in programs}
    edge = to_edge_transform_and_lower(dict(programs), partitioner=partitioner, generate_etrecord=True)
    return edge.to_executorch()


def _partitioners(choice: Choice) -> list[Any]:
    if choice.backend != XNNPACK:
        return []
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
        XnnpackPartitioner,
    )

    # Dynamically quantised products first: the general partitioner would leave their conversions outside.
    dynamic = [XnnpackDynamicallyQuantizedPartitioner()] if choice.dtype == DYNAMIC_INT8 else []
    return [*dynamic, XnnpackPartitioner()]
