"""Widths of the weights of programs, by which is chosen what to switch off."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.runtimes.registry import runtime_of

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(
    ("program", "bits"),
    [
        ("litert/tiny_int8.tflite", {8}),
        ("tflite/cnn.tflite", {32}),
        ("tflite/wide_dynamic.tflite", {8}),
        ("tflite/unary.tflite", set()),
        ("onnx/cnn.onnx", {32}),
        ("onnx/quantised.onnx", {8}),
    ],
)
def test_the_weights_of_a_program_tell_their_widths(program: str, bits: set[int]) -> None:
    """Of each format; a program without weights tells none."""
    assert runtime_of(DATA / program).weight_bits(DATA / program) == bits


def test_those_of_an_exported_program(toy_programs: dict[str, Path]) -> None:
    """By the graphs of its delegates."""
    found = {dtype: runtime_of(program).weight_bits(program) for dtype, program in toy_programs.items()}
    assert found == {"fp32": {32}, "int8": {8}}
