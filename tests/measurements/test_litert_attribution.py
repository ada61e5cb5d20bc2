"""Traces of LiteRT attributed to the operators of their .tflite."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.errors import MismatchError
from opscope.workflows.analyze.analyses import analyze
from texts import ANOTHER_PROGRAM, NO_DELEGATE_RULE

DATA = Path(__file__).resolve().parents[1] / "data"
TRACE = DATA / "litert" / "partial.litert.json"


def test_operators_of_each_part_have_costs_and_those_outside_a_reason() -> None:
    """Two calls of the delegate around CUMSUM: numbered behind the operators of the file, as LiteRT numbers them."""
    found = analyze(TRACE, program=DATA / "litert" / "partial.tflite", warmup=0)
    rows = {row.name: row for row in found.operators if row.kind != "framework"}
    convolution = rows["Convolution (NHWC, F32) IGEMM"]
    assert convolution.attribution is not None
    assert convolution.attribution.value == "exact"
    assert convolution.macs
    assert convolution.bytes
    # A 1x1 convolution that ran as a matrix product is a convolution.
    assert rows["Fully Connected (NC, F32) GEMM"].category.value == "Convolution"
    outside = rows["CUMSUM"]
    inner = {row.instruction for row in rows.values() if row.backend == "XNNPACK"}
    assert outside.instruction is not None
    assert min(number for number in inner if number is not None) > outside.instruction
    (reason,) = [row for row in found.portable if row.name == "CUMSUM"]
    assert reason.reason == NO_DELEGATE_RULE


def test_another_program_is_refused() -> None:
    """Its operators are not those of the trace."""
    with pytest.raises(MismatchError, match=ANOTHER_PROGRAM):
        analyze(TRACE, program=DATA / "tflite" / "mlp.tflite", warmup=0)
