"""Programs as other people export them: with numbers, None and changing sizes among the inputs, or weights apart."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, TypeAlias

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.devtools import BundledProgram
from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes.external_constants_pass import delegate_external_constants_pass_unlifted
from torch.export import Dim, export

Program: TypeAlias = Any
"""ExecuTorch's own kind of a finished program; its package has no types."""


class Scaled(torch.nn.Module):
    """A linear layer whose result is multiplied and moved by numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, times: int, plus: float, really: bool) -> torch.Tensor:
        """Layer, factor and summand; without ``really`` nothing at all."""
        return self.linear(x) * times + plus if really else x


class Masked(torch.nn.Module):
    """A sum whose second part may be left out."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """The sum."""
        return x + 1 if mask is None else x + mask


class Multiplied(torch.nn.Module):
    """A product with a number."""

    def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
        """The product."""
        return x * times


class Looked(torch.nn.Module):
    """An embedding of 1,000 tokens and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 8)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Values of tokens."""
        return self.linear(self.embedding(tokens))


class Rows(torch.nn.Module):
    """A linear layer and a softmax over any number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shares of each row."""
        return torch.softmax(self.linear(x), -1)


class Quantised(torch.nn.Module):
    """Values rounded to eight bits and back, in kernels that not every build has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rounded values."""
        rounded = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8)
        return torch.ops.quantized_decomposed.dequantize_per_tensor(rounded, 0.1, 0, -128, 127, torch.int8)


class Twice(torch.nn.Module):
    """An operator that nobody's build has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The values and themselves."""
        return torch.ops.elsewhere.twice(x)


_LIBRARY = torch.library.Library("elsewhere", "DEF")
_LIBRARY.define("twice(Tensor x) -> Tensor")
_LIBRARY.define("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
_LIBRARY.impl("twice", lambda x: x + x, "CompositeExplicitAutograd")
_LIBRARY.impl("twice.out", lambda x, out: out.copy_(x + x), "CompositeExplicitAutograd")


@functools.cache
def _exported(name: str) -> Program:
    two, tokens = torch.ones(2, 8), torch.ones(1, 16, dtype=torch.int64)
    torch.manual_seed(0)
    module, inputs, shapes = {
        "scaled": (Scaled(), (two, 3, 0.5, True), None),
        "masked": (Masked(), (two, None), None),
        "multiplied": (Multiplied(), (two, 3), {"x": None, "times": Dim.DYNAMIC}),
        "looked": (Looked(), (tokens,), None),
        "quantised": (Quantised(), (two,), None),
        "twice": (Twice(), (two,), None),
        "rows": (Rows(), (torch.ones(16, 8),), {"x": {0: Dim("rows", min=1, max=64)}}),
    }[name]
    return export(module.eval(), inputs, dynamic_shapes=shapes)


def finished(name: str, **configuration: object) -> Program:
    """One of these programs for XNNPACK, by the name of its class in small letters."""
    lowered = to_edge_transform_and_lower(_exported(name), partitioner=[XnnpackPartitioner()])
    return lowered.to_executorch(config=ExecutorchBackendConfig(**configuration))


def written(name: str, directory: Path) -> Path:
    """The file of one of them."""
    path = directory / f"{name}.pte"
    path.write_bytes(finished(name).buffer)
    return path


def written_apart(name: str, directory: Path, *, delegates: bool = False) -> tuple[Path, Path]:
    """The file of one of them and that of its weights; with ``delegates`` those of XNNPACK's layers are in it, too."""
    program = _apart(name) if delegates else finished(name, external_constants=True)
    path = directory / f"{name}.pte"
    path.write_bytes(program.buffer)
    program.write_tensor_data_to_file(str(directory))
    return path, directory / ("weights.ptd" if delegates else "_default_external_constant.ptd")


def _apart(name: str) -> Program:
    tagged = _exported(name).module()
    delegate_external_constants_pass_unlifted(module=tagged, gen_tag_fn=lambda _: "weights")
    lowered = to_edge_transform_and_lower(
        export(tagged, *_exported(name).example_inputs[:1]), partitioner=[XnnpackPartitioner()]
    )
    return lowered.to_executorch(config=ExecutorchBackendConfig(external_constants=lambda _: "weights"))


def written_bundled(directory: Path) -> Path:
    """``scaled`` with its inputs, 0 to 15 and the numbers of the export, and what they lead to."""
    inputs = [torch.arange(16.0).reshape(2, 8), 3, 0.5, True]
    with torch.no_grad():
        case = MethodTestCase(inputs=inputs, expected_outputs=[_exported("scaled").module()(*inputs)])
    bundle = BundledProgram(finished("scaled"), [MethodTestSuite("forward", [case])])
    path = directory / "scaled.bpte"
    path.write_bytes(serialize_from_bundled_program_to_flatbuffer(bundle))
    return path
