"""Run directories of the Arm kit whose figures are those that were published for SqueezeSAM on one CPU core.

A reconstruction, no measurement: nobody published the traces. Published are the end-to-end latencies of int8 and fp16
without and with SME2, the categories of fp16 with SME2, and convolution and GEMM of fp16 without it (Arm's learning
path "Profiling ExecuTorch models with SME2 on Arm", page on operator-level bottlenecks; PyTorch's blog "Accelerating
On-Device ML Inference with ExecuTorch and Arm SME2"). What is not published is chosen here, and only as much as a
trace needs:

- Other is the rest by the kit's own formula, so it is time that no operator claims.
- Data movement and elementwise operators take as long without SME2 as with it: neither is accelerated.
- A category is spread evenly over as many operators as the published excerpt counts, else over a few.
- Of int8 no split is published, so its traces hold no operator.
- Inferences differ by half a percent around the published figure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import kit_files
from traces import Node, encode

NAME = "squeezesam_reconstructed_from_published_figures"
OFF, ON = "android_sme2_off", "android_sme2_on"
_JITTER = (-0.005, 0.0025, 0.0, -0.0025, 0.005)
_MICRO, _MILLI = 1_000, 1_000_000


class Published(NamedTuple):
    """Milliseconds of one variant: end to end, and by category where that is known."""

    end_to_end: float
    convolution: float = 0.0
    gemm: float = 0.0
    data_movement: float = 0.0
    elementwise: float = 0.0


FP16_OFF = Published(1163.0, 881.0, 31.6, 119.1, 1.7)
FP16_ON = Published(298.2, 98.1, 7.6, 119.1, 1.7)
INT8_OFF = Published(556.0)
INT8_ON = Published(304.0)
KERNELS = (
    "xnn_pf16_igemm_minmax_ukernel_4x8__neonsme2",
    "xnn_pf16_gemm_minmax_ukernel_6x8__neonsme2",
    "xnn_f16_vlrelu_ukernel__neonfp16arith_u16",
)
"""Kernel hints of the published excerpt."""


def write_fp16(directory: Path) -> Path:
    """The run in fp16, with the kernels that the published excerpt names as a log."""
    kit_run(directory, "fp16", ("F16", FP16_OFF), ("PF16", FP16_ON))
    place = directory / "android_trace_sme2_on"
    place.mkdir()
    lines = (f"Note (XNNPACK): Using gemm microkernel '{name}'." for name in KERNELS)
    (place / f"{NAME}_fp16_android_trace_sme2_on_t1_xnntrace.log").write_text("\n".join(lines) + "\n")
    return directory


def write_int8(directory: Path) -> Path:
    """The run in int8."""
    kit_run(directory, "int8", ("QS8", INT8_OFF), ("PQS8", INT8_ON))
    return directory


def kit_run(directory: Path, dtype: str, off: tuple[str, Published], on: tuple[str, Published]) -> None:
    """A run directory as the kit leaves it, with a config that says which experiment is the baseline.

    Args:
        directory: is made.
        dtype: becomes a part of the model's name.
        off: number type in XNNPACK's names, and figures, without SME2.
        on: the same with it.
    """
    directory.mkdir(parents=True)
    results = []
    for name, (tag, figures) in ((OFF, off), (ON, on)):
        place = directory / name
        place.mkdir()
        (place / f"{NAME}_{dtype}_{name}_t1.etdump").write_bytes(trace(tag, figures))
        results.append(_result(name, figures.end_to_end))
    planned = [
        {"name": n, "mode": "timing", "runs": len(_JITTER), "warmup": 0, "threads": [1], "runner_path": f"runner/{n}"}
        for n in (OFF, ON)
    ]
    model = f"out_squeezesam/artifacts/{NAME}_{dtype}.pte"
    config = {"model": model, "experiments": planned, "analysis": {"compare_pairs": [kit_files.pair(OFF, ON)]}}
    kit_files.write_json(directory / "squeezesam.json", config)
    manifest = {"model": model, "config": "configs/squeezesam.json", "results": results}
    kit_files.write_json(directory / "manifest.json", manifest)


def _result(name: str, median_ms: float) -> dict[str, Any]:
    metrics = {"runs": len(_JITTER), "threads": 1, "median_ms": median_ms}
    return {"experiment": name, "threads": 1, "mode": "timing", "status": "ok", "metrics": metrics}


def trace(tag: str, figures: Published) -> bytes:
    """An ETDump whose mean and median inference take as long as was published."""
    blocks = [("Default", [Node("Program::load_method", 30 * _MILLI)])]
    return encode([*blocks, *(("Execute", [_inference(tag, figures, part)]) for part in _JITTER)])


def _inference(tag: str, figures: Published, deviation: float) -> Node:
    """One inference: all operators in one delegate, the rest of the time in no operator."""
    children = [
        *_operators(f"Convolution (NHWC, {tag}) IGEMM", figures.convolution, 12),
        *_operators("Transpose (ND, X16)", figures.data_movement, 18),
        *_operators("LeakyReLU (NC)", figures.elementwise, 10),
        *_operators(f"Fully Connected (NC, {tag}) GEMM", figures.gemm, 3),
    ]
    whole = round(figures.end_to_end * _MILLI * (1 + deviation))
    call = Node("DELEGATE_CALL", whole - 100 * _MICRO, children=children)
    return Node("Method::execute", whole, children=[call])


def _operators(name: str, total_ms: float, count: int) -> list[Node]:
    """Operators of one name in whole microseconds, as XNNPACK records them; together as long as was published."""
    total = round(total_ms * 1000)
    if not total:
        return []
    times = [total // count + (number < total % count) for number in range(count)]
    return [Node(f"{name} #{n}", time * _MICRO, delegate=True) for n, time in enumerate(times, 1)]
