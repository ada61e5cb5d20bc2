"""Lower a PyTorch model to a .pte, its .etrecord and its graph, through torch.export and a partitioner."""

from __future__ import annotations

import contextlib
import time
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.core.errors import ExportError, OpscopeError, UsageError, did_you_mean
from opscope.core.units import counted_text
from opscope.core.writing import write_atomically
from opscope.program.structure.exported import ExportedMethod, TensorSpec, UnrolledLayer
from opscope.runtimes.executorch.export.export_errors import export_error, first_line, source_of
from opscope.runtimes.exports import DYNAMIC, DYNAMIC_INT8, FP16, INT4_WEIGHTS, INT8, QUANTISED, XNNPACK, Choice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from opscope.core.system.stages import StageProgress
    from opscope.runtimes.executorch.export.eager import EagerMethod, EagerModel, Inputs, Quantisation


LOWERING, PARTITIONING, COMPILING = "lowering to the edge dialect", "partitioning", "compiling delegates"
_RECURRENT = {f"aten.{name}.input": name.partition("_")[0] for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")}
_SECONDS = 10.0
"""Seconds between two details of a stage: there may be hundreds of delegates, too many for a log."""
_BATCH_FIRST = -1
"""Position of the argument ``batch_first`` of the recurrent operators of ATen."""


def unrolled_layers(program: Any) -> list[UnrolledLayer]:  # noqa: ANN401 - torch is not typed here
    """Return the recurrent layers of an exported program that lowering turns into operators for each of their steps."""
    return [_describe_layer(node) for node in program.graph.nodes if str(node.target) in _RECURRENT]


def _describe_layer(node: Any) -> UnrolledLayer:  # noqa: ANN401 - a node of torch.fx
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    shape = node.args[0].meta["val"].shape
    steps = shape[1 if node.args[_BATCH_FIRST] else 0]
    known = int(steps) if isinstance(steps, int) else None
    return UnrolledLayer(stack[-1][0] if stack else "", _RECURRENT[str(node.target)], known)


def told(layers: list[UnrolledLayer]) -> str:
    """Return a short text about the unrolled layers; empty without any."""
    return ", ".join(
        f"{layer.module or 'the model'}: {layer.kind} of {layer.steps or 'all'} steps, unrolled" for layer in layers
    )


class Lowering:
    """Reports the progress of a lowering."""

    def __init__(self, progress: StageProgress) -> None:
        self._heard = progress
        self._delegates = self._done = 0

    def announced(self, partitioner: Any) -> Any:  # noqa: ANN401 - torch is not typed here
        """Wrap a partitioner so that it reports its beginning and how many delegates are compiled then."""
        partition = partitioner.partition

        def saying(program: Any) -> Any:  # noqa: ANN401 - likewise
            operators = sum(node.op == "call_function" for node in program.graph.nodes)
            self._heard(PARTITIONING, "")
            self._heard(PARTITIONING, counted_text(operators, "operator"))
            partitioned = partition(program)
            self._delegates += len(partitioned.partition_tags)
            self._heard(COMPILING, "")
            self._heard(COMPILING, f"{self._done} of {self._delegates}")
            return partitioned

        partitioner.partition = saying
        return partitioner

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Report every few seconds how many delegates XNNPACK's backend has compiled."""
        from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

        compile_one, last_report = XnnpackBackend.preprocess, time.monotonic()

        def counting(*arguments: Any) -> Any:  # noqa: ANN401 - likewise
            nonlocal last_report
            made = compile_one(*arguments)
            self._done += 1
            if time.monotonic() - last_report >= _SECONDS:
                last_report = time.monotonic()
                self._heard(COMPILING, f"{self._done} of {self._delegates}")
            return made

        XnnpackBackend.preprocess = staticmethod(counting)
        try:
            yield
        finally:
            XnnpackBackend.preprocess = staticmethod(compile_one)


def of_methods(programs: Mapping[str, Any]) -> dict[str, list[UnrolledLayer]]:
    """Return the unrolled layers of each method."""
    return {name: unrolled_layers(program) for name, program in programs.items()}


class GraphNode(msgspec.Struct, frozen=True):
    """One node of an exported graph.

    Attributes:
        name: unique in its method.
        op: kind of node, as torch.fx names it: ``placeholder``, ``call_function``, ``get_attr`` or ``output``.
        target: the operator with overload, or the name of a parameter or input.
        inputs: names of the nodes that it reads, each once.
        outputs: tensors that it writes.
        module: qualified name of the submodule it belongs to; null if unknown.
        module_type: class of that submodule; null if unknown.
        source: file and line of the Python that caused it; null if unknown.
    """

    name: str
    op: str
    target: str
    inputs: list[str]
    outputs: list[TensorSpec]
    module: str | None
    module_type: str | None
    source: str | None


class MethodGraph(msgspec.Struct, frozen=True):
    """The nodes of one method in the order of execution; parameters and inputs come first."""

    name: str
    nodes: list[GraphNode]


class ModelGraph(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.graph/1"):
    """The graphs that torch.export made of a model, with quantisation, before lowering."""

    model: str
    dtype: str
    methods: list[MethodGraph]


def model_graph(model: str, dtype: str, programs: Mapping[str, Any]) -> ModelGraph:
    """Return the graphs of exported programs."""
    return ModelGraph(
        model,
        dtype,
        [
            MethodGraph(name, [_describe_node(node) for node in program.graph.nodes])
            for name, program in programs.items()
        ],
    )


def _describe_node(node: Any) -> GraphNode:  # noqa: ANN401 - a node of torch.fx
    model_line, stack = source_of(node), list((node.meta.get("nn_module_stack") or {}).values())
    module, kind = stack[-1] if stack else (None, None)
    return GraphNode(
        name=node.name,
        op=node.op,
        target=str(node.target),
        inputs=[input_node.name for input_node in node.all_input_nodes],
        outputs=tensor_specs(node.meta.get("val")),
        module=module or None,
        module_type=kind if kind is None or isinstance(kind, str) else kind.__name__,
        source=None if model_line is None else f"{model_line.file}:{model_line.line}",
    )


def tensor_specs(value: Any) -> list[TensorSpec]:  # noqa: ANN401 - a tree of tensors and other values
    """Return shape and type of every tensor in a tree of values."""
    from torch import Tensor
    from torch.utils import _pytree

    return [_specify_tensor(leaf) for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _specify_tensor(tensor: Any) -> TensorSpec:  # noqa: ANN401 - torch is not typed here
    shape = [size if isinstance(size, int) else str(size) for size in tensor.shape]
    return TensorSpec(shape, str(tensor.dtype).removeprefix("torch."))


MADE_BATCHES = 4
"""Number of calibration batches if the model gives none: the example inputs, then seeded ones like them."""
_SEED = 1


def calibration_inputs(method: EagerMethod, choice: Quantisation) -> Sequence[Inputs]:
    """Return the inputs that a method is calibrated on: those of the model's author, else ones like the examples.

    Generated inputs are normal numbers with the mean and spread of the example, and its own integers in another
    order, so that indices stay valid.
    """
    if choice.calibration is None:
        return [method.inputs, *_generate_inputs(method.inputs)]
    author_inputs = list(choice.calibration)
    if not author_inputs or any(len(inputs) != len(method.inputs) for inputs in author_inputs):
        problem = f"calibration needs at least one tuple of {counted_text(len(method.inputs), 'input')} each"
        raise UsageError(problem, where="Quantisation.calibration", hint="or None to generate inputs like the examples")
    return author_inputs


def _generate_inputs(example: Inputs) -> list[Inputs]:
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    return [tuple(_generate_like(value, generator) for value in example) for _ in range(MADE_BATCHES - 1)]


def _generate_like(value: Any, generator: Any) -> Any:  # noqa: ANN401 - torch is not typed here
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        drawn = torch.randn(value.shape, generator=generator)
        spread = value.std() if value.numel() > 1 else 1.0
        return (drawn * spread + value.mean()).to(value.dtype)
    order = torch.randperm(value.numel(), generator=generator)
    return value.flatten()[order].reshape(value.shape)


def quantised(graph: Any, method: EagerMethod, choice: Quantisation, *, dynamic: bool) -> Any:  # noqa: ANN401 - likewise
    """Return the graph with quantise and dequantise nodes."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    _check_skipped(method.module, choice.skip)
    config = get_symmetric_quantization_config(is_per_channel=choice.per_channel, is_dynamic=dynamic)
    quantizer = XNNPACKQuantizer().set_global(config)
    if choice.skip:
        quantizer.set_filter_function(lambda node: not _is_in_submodules(node, choice.skip))
    # Ranges that are found at run time need one call only, which makes their observers known.
    batches = [method.inputs] if dynamic else calibration_inputs(method, choice)
    prepared = prepare_pt2e(graph, quantizer)
    for inputs in batches:
        prepared(*inputs, **method.kwargs)
    converted = convert_pt2e(prepared)
    _check_quantised(converted, dynamic=dynamic)
    return converted


def _is_in_submodules(node: Any, names: Sequence[str]) -> bool:  # noqa: ANN401 - a node of torch.fx
    """Return whether a node came from one of these submodules, or from a part of one."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return any(path == name or path.startswith(f"{name}.") for path in paths for name in names)


def _check_skipped(module: Any, names: Sequence[str]) -> None:  # noqa: ANN401 - likewise
    known = [name for name, _ in module.named_modules() if name]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(f"the model has no submodule {name!r}", where="Quantisation.skip", hint=hint)


def _check_quantised(graph: Any, *, dynamic: bool) -> None:  # noqa: ANN401 - likewise
    operators = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    if any("quantized_decomposed" in name or "torchao.quantize" in name for name in operators):
        return
    manner = "dynamically; only linear layers and convolutions support that" if dynamic else "by XNNPACK's quantiser"
    hint = "--dtype int8 quantises more kinds of operators" if dynamic else "--dtype fp32 or fp16 leaves it as it is"
    raise ExportError(f"quantising failed: no operator in the model can be quantised {manner}", hint=hint)


GROUP = 32
"""Number of 4-bit weights that share a scale, as ExecuTorch's own configuration of ``8da4w`` has it."""


def with_int4_weights(module: Any, choice: Quantisation) -> None:  # noqa: ANN401 - likewise
    """Give the linear layers of a module 4-bit weights and 8-bit activations, as ExecuTorch's ``8da4w`` does."""
    import torch
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.utils import TorchAOBaseTensor

    _check_skipped(module, choice.skip)
    fit = {
        name: part.weight
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.Linear)
        and part.in_features % GROUP == 0
        and not any(name == skipped or name.startswith(f"{skipped}.") for skipped in choice.skip)
    }
    if not fit:
        problem = f"quantising failed: no linear layer has an input size that is a multiple of {GROUP}"
        raise ExportError(problem, hint="--dtype dynamic-int8 has one scale per output channel instead")
    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(GROUP))
    plain = {name for name, weight in fit.items() if not isinstance(weight, TorchAOBaseTensor)}
    quantize_(module, config, filter_fn=lambda _, name: name in plain)


@contextlib.contextmanager
def step(name: str, progress: StageProgress, graphs: Iterable[Any] = ()) -> Iterator[None]:
    """Run a step of an export; what it raises becomes an error that names the step."""
    progress(name, "")
    try:
        yield
    except OpscopeError:
        raise
    except Exception as error:  # torch and ExecuTorch raise whatever there is; the traceback goes to the log
        raise export_error(name, error, graphs) from error


def export(model: EagerModel, name: str, choice: Choice, program: Path, progress: StageProgress) -> Lowered:
    """Export a model and write its files: the program, its record, and its graph."""
    import torch

    with torch.no_grad():
        methods = _convert_methods(model.methods, choice.dtype)
        programs = {key: _export_method(key, method, model, choice, progress) for key, method in methods.items()}
        layers = of_methods(programs)
        lowering = Lowering(progress)
        with step(LOWERING, progress, programs.values()), lowering.counted():
            from executorch.exir import to_edge_transform_and_lower

            if layers_text := told([layer for method_layers in layers.values() for layer in method_layers]):
                progress(LOWERING, layers_text)
            partitioner = {
                name: [lowering.announced(method_partitioner) for method_partitioner in _make_partitioners(choice)]
                for name in programs
            }
            edge = to_edge_transform_and_lower(dict(programs), partitioner=partitioner, generate_etrecord=True)
        with step("planning memory", progress, programs.values()):
            lowered = edge.to_executorch()
        with step("serialising", progress, programs.values()):
            lowered.save(str(program))
            problem = record_written(lowered, program.with_suffix(".etrecord"))
            graph = msgspec.json.encode(model_graph(name, choice.dtype, programs))
            write_atomically(program.with_name("graph.json"), msgspec.json.format(graph, indent=1) + b"\n")
    return Lowered(methods, programs, problem, layers)


def record_written(lowered: Any, path: Path) -> str | None:  # noqa: ANN401 - torch is not typed here
    """Write the ETRecord; return why it could not be written, else None.

    The program does not need the record, so no export fails because of it.
    """
    try:
        lowered.get_etrecord().save(str(path))
    except Exception as error:  # noqa: BLE001 - whatever torch's serialiser raises; the traceback goes to the log
        traceback.print_exc()
        path.unlink(missing_ok=True)
        return f"ExecuTorch could not write the .etrecord: {first_line(error)}"
    return None


class Lowered(NamedTuple):
    """Result of a lowering."""

    methods: Mapping[str, EagerMethod]  # with inputs in the exported number type
    programs: Mapping[str, Any]  # exported programs by method
    etrecord_problem: str | None  # why there is no ETRecord; None when there is
    unrolled: Mapping[str, list[UnrolledLayer]]  # recurrent layers by method

    def described(self, name: str, model: EagerModel, choice: Choice) -> ExportedMethod:
        """Describe a method for the record of the export, without its outputs, which come from running it."""
        method, nodes = self.methods[name], self.programs[name].graph.nodes
        targets = [str(node.target) for node in nodes if node.op == "call_function"]
        static = choice.dtype == INT8
        return ExportedMethod(
            name=name,
            inputs=tensor_specs((method.inputs, dict(method.kwargs))),
            outputs=[],
            nodes=len(targets),
            quantised=sum("quantize" in target for target in targets),
            tokens=method.tokens,
            calibration=len(calibration_inputs(method, model.quantisation)) if static else None,
            calibration_made=model.quantisation.calibration is None if static else None,
            unrolled=self.unrolled[name],
        )


def _convert_methods(methods: Mapping[str, EagerMethod], dtype: str) -> dict[str, EagerMethod]:
    """Return the methods with modules and inputs in half precision, if the number type asks for it."""
    if dtype != FP16:
        return dict(methods)
    return {name: halved(method) for name, method in methods.items()}


def halved(method: EagerMethod) -> EagerMethod:
    """Convert a method to half precision.

    Its module is changed in place, as modules that share parts with it must be.
    """
    import torch
    from torch.utils import _pytree

    from opscope.runtimes.executorch.export.eager import EagerMethod as Method

    def half(value: Any) -> Any:  # noqa: ANN401 - any leaf of the inputs
        return value.half() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    inputs, kwargs = _pytree.tree_map(half, (method.inputs, dict(method.kwargs)))
    return Method(method.module.half(), inputs, kwargs, method.dynamic_shapes, method.tokens)


def _export_method(name: str, method: EagerMethod, model: EagerModel, choice: Choice, progress: StageProgress) -> Any:  # noqa: ANN401
    import torch

    def run(module: Any) -> Any:  # noqa: ANN401 - torch is not typed here
        return torch.export.export(
            module, method.inputs, dict(method.kwargs), dynamic_shapes=method.dynamic_shapes, strict=False
        )

    several = f" of {name}" if len(model.methods) > 1 else ""
    if choice.dtype == INT4_WEIGHTS:
        with step(f"quantising{several}", progress):
            with_int4_weights(method.module, model.quantisation)
    with step(f"torch.export{several}", progress):
        exported = run(method.module)
        if model.passes:
            graph = exported.module()
            for change in model.passes:
                graph = change(graph).graph_module
            exported = run(graph)
    if choice.dtype not in QUANTISED or choice.dtype == INT4_WEIGHTS:
        return exported
    with step(f"quantising{several}", progress, [exported]):
        graph = quantised(exported.module(), method, model.quantisation, dynamic=choice.dtype == DYNAMIC_INT8)
        return run(graph)


def _make_partitioners(choice: Choice) -> list[Any]:
    if choice.backend != XNNPACK:
        return []
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
        XnnpackPartitioner,
    )

    # Dynamically quantised products first: the general partitioner would leave their conversions outside.
    dynamic = [XnnpackDynamicallyQuantizedPartitioner()] if choice.dtype in DYNAMIC else []
    return [*dynamic, XnnpackPartitioner()]
