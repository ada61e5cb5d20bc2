"""Why a program of lower precision is not faster: each cause by its operators, and programs of each kind, measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import opscope
from litert_builder import ModelBuilder
from onnx_models import body, model, node
from opscope.analysis.compare.number_types import LostGain, find_number_type_causes
from opscope.analysis.operators.operators import Operator
from opscope.api import compare
from opscope.program.operators.kinds import Category
from opscope.reports.comparison import comparison_document
from opscope.reports.document.terminal import terminal_document
from terminal_text import text_of

PROFILES = Path(__file__).parents[1] / "data" / "onnxruntime" / "number_types"
NODE = "CPUExecutionProvider"


def row(name: str, share: float, kind: str = "convolution", dtype: str = "float", **fields: str | int) -> Operator:
    """Return an operator of a call of 1 ms; the bytes that it moves are 1,000."""
    categories = {"convolution": Category.CONVOLUTION, "linear": Category.GEMM, "quantisation": Category.DATA_MOVEMENT}
    made = Operator(
        method="main",
        instruction=0,
        position=0,
        name=name,
        category=categories.get(kind, Category.ELEMENTWISE),
        kind=kind,
        backend=NODE,
        calls=1.0,
        time_ns=share * 1e6,
        share=share,
        traced_ns=share * 1e6,
        macs=None,
        bytes=1000,
        uncertainty_ns=0.0,
        dtype=dtype,
    )
    return msgspec.structs.replace(made, **fields)


FLOAT = [row("Conv: a", 0.9), row("Abs: b", 0.1, "unary", backend="XNNPACK")]
CONVERSION = row("QuantizeLinear: q", 0.2, "quantisation", weight_bytes=5)


@pytest.mark.parametrize(
    ("candidate", "kinds"),
    [
        ([row("Conv: a", 0.5, dtype="int8"), CONVERSION], [LostGain.CONVERSIONS]),
        (
            [row("Conv: a", 0.7), row("DequantizeLinear: w", 0.3, "quantisation", weight_bytes=250)],
            [LostGain.WIDE_KERNELS, LostGain.COMPUTED_WEIGHTS],
        ),
        ([row("Conv: a", 0.5, dtype="qint8"), row("ABS", 0.5, "unary", "int8", backend="portable")], ["left_delegate"]),
        ([row("Conv: a", 0.95, dtype="float16")], [LostGain.SLOW_KERNELS]),
        (
            [row("Conv: a", 0.5, dtype="uint8"), row("MatMul: c", 0.4, "linear", weights="int4")],
            [LostGain.SLOW_KERNELS],
        ),
        ([row("Conv: a", 0.5, dtype="int8")], []),
        ([row("Conv: a", 0.5, dtype="int8"), row("Cast: c", 0.04, "quantisation")], []),
    ],
)
def test_a_cause_is_named_from_its_operators(candidate: list[Operator], kinds: list[LostGain]) -> None:
    """The largest share first; below 5 % of the call nothing is said."""
    assert [cause.kind for cause in find_number_type_causes(FLOAT, candidate)] == kinds


def test_of_the_same_precision_nothing_is_said() -> None:
    """Neither of floats, nor where both sides are quantised, nor of the float program as the candidate."""
    quantised = [row("Conv: a", 0.8, dtype="int8"), CONVERSION]
    assert find_number_type_causes(FLOAT, FLOAT) == []
    assert find_number_type_causes(quantised, quantised) == []
    assert find_number_type_causes(quantised, FLOAT) == []


def test_what_was_outside_of_the_delegate_before_is_no_cause() -> None:
    """As much of the float program was."""
    outside = row("ABS", 0.5, "unary", backend="portable")
    candidate = [row("Conv: a", 0.4, dtype="int8"), outside]
    assert find_number_type_causes([*FLOAT, outside], candidate) == []


def test_conversions_are_seen_in_profiles_without_the_model() -> None:
    """Five conversions around a transposed convolution take 37 % of the runs, and the report says so."""
    comparison = compare(PROFILES / "up_f32.json", PROFILES / "up_int8.json")
    (cause,) = comparison.number_types
    assert (cause.kind, cause.operators) == (LostGain.CONVERSIONS, 5)
    assert cause.share == pytest.approx(0.371, abs=0.001)
    assert "5 conversions between number types stayed: 37.1 % of the call" in text_of(
        terminal_document(comparison_document(comparison))
    )
    assert compare(PROFILES / "up_int8.json", PROFILES / "up_f32.json").number_types == []


SIZE, CHANNELS = 56, 32


def stored(*shape: int) -> np.ndarray:
    """Return float weights."""
    return (np.random.default_rng(0).standard_normal(shape) / 8).astype(np.float32)


def onnx_program(kind: str, *, reduced: bool) -> bytes:
    """Return four layers in float or in lower precision, of a kind that ONNX Runtime does not run faster."""
    weights: dict[str, np.ndarray] = {"s": np.float32(0.05), "z": np.zeros((), np.uint8), "zw": np.zeros((), np.int8)}
    if not reduced:
        weights = {}
    shape = [256, 64] if kind == "weights" else [1, CHANNELS, SIZE, SIZE]
    dtype = "float16" if kind == "half" and reduced else "float32"
    nodes, last = [], "x"
    for number in range(4):
        here, name = last, f"w{number}"
        weights[name] = stored(64, 64) if kind == "weights" else stored(CHANNELS, CHANNELS, 3, 3)
        if dtype == "float16":
            weights[name] = weights[name].astype(np.float16)
        elif reduced:
            weights[name] = (weights[name] * 20).astype(np.int8)
            nodes.append(node("DequantizeLinear", f"{name} s zw", f"f{number}", f"/l{number}/weights"))
            name = f"f{number}"
            if kind == "unquantised":
                nodes.append(node("QuantizeLinear", f"{last} s z", f"q{number}", f"/l{number}/q"))
                nodes.append(node("DequantizeLinear", f"q{number} s z", f"d{number}", f"/l{number}/d"))
                here = f"d{number}"
        if kind == "weights":
            nodes.append(node("MatMul", f"{here} {name}", f"c{number}", f"/l{number}/matmul"))
            last = f"c{number}"
            continue
        nodes.append(node("Conv", f"{here} {name}", f"c{number}", f"/l{number}/conv", pads=[1, 1, 1, 1]))
        nodes.append(node("Abs", f"c{number}", f"a{number}", f"/l{number}/abs"))
        last = f"a{number}"
    nodes.append(node("Identity", last, "y", "/out"))
    return model(body(nodes, {"x": (dtype, shape)}, {"y": (dtype, None)}, weights))


def litert_program(dtype: str) -> bytes:
    """Return three convolutions, each with an absolute value behind it, which the delegate runs in float alone."""
    builder = ModelBuilder()
    graph = builder.graph()
    shape = (1, SIZE, SIZE, 16)
    last = graph.given(dtype, shape)
    strides = {"padding": 0, "strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    for _ in range(3):
        filters = graph.weights(dtype, (16, 3, 3, 16))
        bias = graph.bias(16) if dtype == "qs8" else graph.weights("f32", (16,))
        made = graph.add("CONV_2D", [last, filters, bias], graph.made(dtype, shape), "Conv2DOptions", strides)
        last = graph.add("ABS", [made], graph.made(dtype, shape), "AbsOptions")
    graph.leaves(last)
    return builder.content()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("weights", LostGain.COMPUTED_WEIGHTS),
        ("half", LostGain.WIDE_KERNELS),
        ("unquantised", LostGain.WIDE_KERNELS),
        ("delegate", LostGain.LEFT_DELEGATE),
    ],
)
def test_measured_programs_that_are_not_faster_have_their_cause(kind: str, cause: LostGain, tmp_path: Path) -> None:
    """Each kind of program, in float and in lower precision, run in its runtime."""
    suffix = "tflite" if kind == "delegate" else "onnx"
    bundles = []
    for reduced in (False, True):
        program = tmp_path / f"{kind}-{reduced}.{suffix}"
        is_litert = suffix == "tflite"
        made = litert_program("qs8" if reduced else "f32") if is_litert else onnx_program(kind, reduced=reduced)
        program.write_bytes(made)
        settings = opscope.Settings(rounds=2, runs=8, warmup=2, ceilings=False)
        bundles.append(tmp_path / f"bundle-{reduced}")
        opscope.profile(program, settings=settings, out=bundles[-1])
    comparison = compare(*bundles)
    assert cause in {found.kind for found in comparison.number_types}
    assert comparison.end_to_end.verdict.value != "faster"
