"""Eight-bit models by pt2e: quantise and dequantise nodes for the XNNPACK partitioner to take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opscope.errors import ExportError, UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.export.eager import EagerMethod, Inputs, Quantisation

MADE_BATCHES = 4
"""Calibration batches when the model gives none: the example inputs, then seeded ones like them."""
_SEED = 1


def calibration_inputs(method: EagerMethod, choice: Quantisation) -> Sequence[Inputs]:
    """What a method is calibrated on: what the model's author gave, else inputs made like the examples.

    Made inputs are normal numbers with the mean and spread of the example, and its own integers in another order, so
    that indices stay valid.

    Raises:
        UsageError: the author gave an empty list, or inputs of another number than the method takes.
    """
    if choice.calibration is None:
        return [method.inputs, *_made(method.inputs)]
    given = list(choice.calibration)
    if not given or any(len(inputs) != len(method.inputs) for inputs in given):
        problem = f"calibration needs at least one tuple of {len(method.inputs)} inputs each"
        raise UsageError(problem, where="Quantisation.calibration", hint="or None: inputs are made like the examples")
    return given


def _made(example: Inputs) -> list[Inputs]:
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    return [tuple(_like(value, generator) for value in example) for _ in range(MADE_BATCHES - 1)]


def _like(value: Any, generator: Any) -> Any:  # noqa: ANN401 - torch is not typed here
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
    """The graph with quantise and dequantise nodes.

    Args:
        graph: module of the exported method.
        method: its inputs.
        choice: of the model's author.
        dynamic: activations are quantised at run time, which XNNPACK does for linear layers and convolutions.

    Raises:
        ExportError: the quantiser found nothing to quantise.
        UsageError: the author names a submodule that there is not.
    """
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    _check_skipped(method.module, choice.skip)
    config = get_symmetric_quantization_config(is_per_channel=choice.per_channel, is_dynamic=dynamic)
    quantizer = XNNPACKQuantizer().set_global(config)
    if choice.skip:
        quantizer.set_filter_function(lambda node: not _belongs(node, choice.skip))
    # Ranges that are found at run time need one call only, which makes their observers known.
    batches = [method.inputs] if dynamic else calibration_inputs(method, choice)
    prepared = prepare_pt2e(graph, quantizer)
    for inputs in batches:
        prepared(*inputs, **method.kwargs)
    converted = convert_pt2e(prepared)
    _check_quantised(converted, dynamic=dynamic)
    return converted


def _belongs(node: Any, names: Sequence[str]) -> bool:  # noqa: ANN401 - a node of torch.fx
    """Whether a node came from one of these submodules, or from a part of one."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return any(path == name or path.startswith(f"{name}.") for path in paths for name in names)


def _check_skipped(module: Any, names: Sequence[str]) -> None:  # noqa: ANN401 - likewise
    known = [name for name, _ in module.named_modules() if name]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(f"the model has no submodule {name!r}", where="Quantisation.skip", hint=hint)


def _check_quantised(graph: Any, *, dynamic: bool) -> None:  # noqa: ANN401 - likewise
    named = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    if any("quantized_decomposed" in name or "torchao.quantize" in name for name in named):
        return
    what = "dynamically; that is for linear layers and convolutions" if dynamic else "by XNNPACK's quantiser"
    hint = "--dtype int8 quantises more kinds of operators" if dynamic else "--dtype fp32 or fp16 leaves it as it is"
    raise ExportError(f"quantising failed: no operator of the model can be quantised {what}", hint=hint)
