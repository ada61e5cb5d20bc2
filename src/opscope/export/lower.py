"""From a PyTorch model to a .pte and its .etrecord, through torch.export and the XNNPACK partitioner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opscope.errors import ExportError, UsageError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.export.registry import EagerModel

DTYPES = ("fp32", "fp16", "int8")
_CALIBRATION_BATCHES = 4
_SEED = 1


def check_dtype(dtype: str) -> None:
    """Refuse number types that cannot be exported.

    Raises:
        UsageError: it is unknown.
    """
    if dtype not in DTYPES:
        raise UsageError(f"no number type {dtype!r}", where="--dtype", hint=did_you_mean(dtype, DTYPES))


def export(model: EagerModel, dtype: str, program: Path, etrecord: Path) -> None:
    """Export a model and write its two files.

    Args:
        model: in evaluation mode, fp32.
        dtype: one of ``DTYPES``; int8 is static, symmetric per channel, calibrated on random inputs.
        program: where to write the .pte.
        etrecord: where to write the .etrecord.

    Raises:
        ExportError: a step of the export failed; the error names the step and says what torch said.
    """
    module, inputs = _converted(model, dtype)
    step = "torch.export"
    try:
        exported = _exported(module, inputs, dtype)
        step = "lowering to XNNPACK"
        lowered = _lowered(exported)
        step = "serialising"
        lowered.save(str(program))
        lowered.get_etrecord().save(str(etrecord))
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AssertionError,
        NotImplementedError,
        AttributeError,
        KeyError,
    ) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "the full message is in the export log"
        raise ExportError(f"{step} failed: {first}", hint=hint) from error


def _converted(model: EagerModel, dtype: str) -> tuple[Any, tuple[Any, ...]]:
    if dtype != "fp16":
        return model.module, model.inputs
    halved = tuple(value.half() if value.is_floating_point() else value for value in model.inputs)
    return model.module.half(), halved


def _exported(module: Any, inputs: tuple[Any, ...], dtype: str) -> Any:  # noqa: ANN401 - torch is not typed here
    import torch

    exported = torch.export.export(module, inputs)
    if dtype != "int8":
        return exported
    return torch.export.export(_quantised(exported.module(), inputs), inputs)


def _quantised(graph: Any, inputs: tuple[Any, ...]) -> Any:  # noqa: ANN401 - likewise
    """The graph with quantise and dequantise nodes, calibrated on seeded random inputs."""
    import torch
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(graph, quantizer)
    generator = torch.Generator().manual_seed(_SEED)
    prepared(*inputs)
    for _ in range(_CALIBRATION_BATCHES - 1):
        prepared(*(torch.randn(value.shape, generator=generator) for value in inputs))
    return convert_pt2e(prepared)


def _lowered(exported: Any) -> Any:  # noqa: ANN401 - likewise
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()], generate_etrecord=True)
    return edge.to_executorch()
