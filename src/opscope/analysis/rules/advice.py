"""Next steps for a finding, in the words of the runtime that ran the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.rules.evidence import time_of
from opscope.core.grouping import grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.operators.operators import Operator


class RuntimeAdvice(NamedTuple):
    """Next steps by calls or tools of one runtime. The defaults suit any runtime."""

    narrower_type: str = "quantise the model to int8, profile it and compare"
    caller_copies: str = "avoid copying inputs and outputs: pass smaller tensors, or give the runtime your own memory"
    copies: str = "remove operators that only copy, and outputs that only pass an input through"
    layout_of_inputs: str | None = None  # None: callers cannot choose the layout of inputs
    batch_norms: str = "fold each batch normalisation into its convolution before the model is converted"
    converted_weights: str = "fold the conversion into the stored weights when the model is converted"
    early_loading: str = "load once, before the user's first inference, and keep the loaded model"
    why_outside: str = "find out why: give the model with --program"


_BY_FORMAT = {
    "etdump": RuntimeAdvice(
        narrower_type="export the model in int8, profile it and compare",
        caller_copies=(
            "avoid copying inputs and outputs: pass smaller tensors, or let the program use the caller's memory with "
            "MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False) at export"
        ),
        copies=(
            "remove the copies: clone() and contiguous() in the model, and outputs that only pass an input through"
        ),
        layout_of_inputs="pass the inputs channels last",
        batch_norms=(
            "fold each batch normalisation into its convolution before the export (model.eval(), then "
            "torch.nn.utils.fusion.fuse_conv_bn_eval)"
        ),
        early_loading=(
            "load once, before the user's first inference, and keep the method; memory-map the file (MmapDataLoader)"
        ),
        why_outside="find out why the partitioner rejected them: XnnpackPartitioner(verbose=True)",
    ),
    "litert": RuntimeAdvice(
        narrower_type="quantise the model to int8 (ai-edge-quantizer), profile it and compare",
        caller_copies="avoid copying inputs and outputs: pass smaller tensors, or fill the model's buffers in place",
        why_outside="find out why: give the model (--program MODEL.tflite, or opscope preflight MODEL.tflite)",
    ),
    "onnxruntime": RuntimeAdvice(
        narrower_type="quantise the model to int8 (onnxruntime.quantization), profile it and compare",
        caller_copies="avoid copying inputs and outputs: pass smaller tensors, and bind them once with io_binding()",
        copies="remove nodes that only copy, and keep neighbouring nodes on one device: each change of it copies",
        converted_weights=(
            "fold the conversion: store these initializers in the type in which they are computed, or let a kernel of "
            "that type run (no Cast or DequantizeLinear between weights and node)"
        ),
        early_loading="make the session once, before the user's first inference, and keep it",
    ),
    "openvino": RuntimeAdvice(
        narrower_type="quantise the model to int8 (NNCF), profile it and compare",
        caller_copies="avoid copying inputs and outputs: pass smaller tensors, and set them once in the infer request",
        early_loading="compile the model once, before the user's first inference, and keep it, or set CACHE_DIR",
    ),
}
"""Advice by the beginning of the names of a runtime's trace formats."""


def find_advice(trace_format: str) -> RuntimeAdvice:
    """Return the next steps for users of the runtime whose traces have a format, such as ``onnxruntime-json``."""
    return _BY_FORMAT.get(trace_format.partition("-")[0], RuntimeAdvice())


_SHAPES = "try fewer, larger operators, with shapes that suit the kernels"
_BY_KIND = {
    "deconvolution": (
        "try a resize and a convolution, or a convolution and depth-to-space, in place of each transposed convolution; "
        "retrain and compare"
    ),
    "depthwise": "depthwise convolutions move many bytes for little arithmetic: try fewer, wider layers",
}


def suggest_shapes(operators: Sequence[Operator]) -> str:
    """Return what helps operators that stay far below what the machine can do, by the kind that takes most time."""
    times = {kind: time_of(members) for kind, members in grouped(operators, lambda operator: operator.kind).items()}
    longest_kind = max(times, key=lambda kind: times[kind], default="")
    return _BY_KIND.get(longest_kind, _SHAPES)
