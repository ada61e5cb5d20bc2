"""Statements of an export about its program's methods, which callers can name: part of ``opscope.export/1``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from opscope.program.structure.plan import PlannedTensor


class Tensor(msgspec.Struct, frozen=True):
    """Shape and number type of an input or output."""

    shape: list[int]
    dtype: str


class TensorSpec(msgspec.Struct, frozen=True):
    """A tensor that a method takes or gives.

    Attributes:
        shape: sizes; a text names a size that can differ between calls.
        dtype: type of its elements, as torch names it.
    """

    shape: list[int | str]
    dtype: str


class UnrolledLayer(msgspec.Struct, frozen=True):
    """A recurrent layer, which the exporter turns into operators for each of its steps.

    Attributes:
        module: its path in the model; empty for the model itself.
        kind: ``gru``, ``lstm`` or ``rnn``.
        steps: how many; null where that can differ between calls.
    """

    module: str
    kind: str
    steps: int | None


class ExportedMethod(msgspec.Struct, frozen=True):
    """One method as it was exported.

    Attributes:
        name: of the method.
        inputs: tensors of the example inputs, in the order of the program.
        outputs: tensors that it gave on them.
        nodes: calls of operators in the exported graph, before lowering.
        quantised: quantise and dequantise nodes among them.
        tokens: tokens of a call, as the model's author says; null where that means nothing.
        calibration: batches that static quantisation was calibrated on; null without.
        calibration_made: they were made from the example inputs, so that they say nothing about accuracy.
        unrolled: recurrent layers, whose steps make an export long.
    """

    name: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    nodes: int
    quantised: int
    tokens: int | None = None
    calibration: int | None = None
    calibration_made: bool | None = None
    unrolled: list[UnrolledLayer] = []


class Signature(NamedTuple):
    """A function of a program that can be called.

    Its tensors have the names that it gives them. An unknown size is 1, and the tensor then of any sizes.
    """

    name: str  # by which it is called
    inputs: tuple[PlannedTensor, ...]  # in the order of the file
    outputs: tuple[PlannedTensor, ...]
