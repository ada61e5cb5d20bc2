"""Models that cannot be exported, each for one reason, and small ones that can; loaded as a user's file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from opscope.runtimes.executorch.export.eager import EagerMethod, EagerModel, Quantisation

_ROW = (torch.randn(1, 8),)


class Branching(nn.Module):
    """Looks at a value to decide what to do."""

    def forward(self, x: Tensor) -> Tensor:
        """Either sign."""
        if x.sum() > 0:
            return x
        return -x


class Unsupported(nn.Module):
    """Calls an operator for which ExecuTorch has no kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Singular values."""
        y = x @ x.transpose(0, 1)
        return torch.linalg.svdvals(y)


class Mixed(nn.Module):
    """Makes a tensor of fp32 whatever its input is."""

    def forward(self, x: Tensor) -> Tensor:
        """A product."""
        return x @ torch.ones(8, 8)


class Wrong(nn.Module):
    """Computes something else when it is exported."""

    def forward(self, x: Tensor) -> Tensor:
        """The input, or twice of it."""
        return x * 2 if torch.compiler.is_exporting() else x


class Ordered(nn.Module):
    """An encoder with a mask: PyTorch looks whether it is a causal one."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """A sequence of the same shape."""
        return self.encoder(x, self.mask)


def _linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def branching() -> Any:
    """Fails in torch.export."""
    return Branching(), _ROW


def ordered() -> Any:
    """Fails in torch.export, in PyTorch's own code."""
    return Ordered(), (torch.randn(1, 4, 8),)


def unsupported() -> Any:
    """Fails while lowering, or when the program is loaded."""
    return Unsupported(), (torch.randn(4, 4),)


def mixed() -> Any:
    """Fails in half precision only."""
    return Mixed(), _ROW


def wrong() -> Any:
    """Exports, and computes something else than in PyTorch."""
    return Wrong(), _ROW


def misfit() -> Any:
    """Example inputs of another size than the layer wants."""
    return _linear(), (torch.randn(1, 5),)


def alone() -> Any:
    """No example inputs."""
    return _linear()


def listed() -> Any:
    """Example inputs that are no tuple."""
    return _linear(), torch.randn(1, 8), {}


def function() -> Any:
    """No module."""
    return torch.relu, _ROW


def checkpoint() -> Any:
    """Weights that are not there."""
    model = _linear()
    model.load_state_dict(torch.load("weights/missing.pt", weights_only=True))
    return model, _ROW


def needs_more() -> Any:
    """A package that is not installed."""
    import a_package_that_nobody_has  # noqa: F401

    return _linear(), _ROW


def raising() -> Any:
    """An error of the builder's own."""
    raise ValueError("the configuration has no depth")


def activation() -> Any:
    """Nothing to quantise at run time."""
    return nn.Sequential(nn.Hardtanh()), _ROW


def skipping() -> Any:
    """Names a submodule that there is not."""
    return EagerModel.of(_linear(), _ROW, quantisation=Quantisation(skip=("2x",)))


def uncalibrated() -> Any:
    """Calibration inputs of another number than the method takes."""
    return EagerModel.of(_linear(), _ROW, quantisation=Quantisation(calibration=[(_ROW[0], _ROW[0])]))


def shapes() -> Any:
    """Names a dynamic size of an input that there is not."""
    return EagerModel.of(_linear(), _ROW, dynamic_shapes={"image": {0: torch.export.Dim("n", max=4)}})


def linear() -> Any:
    """Exports in every number type."""
    return _linear(), _ROW


def rows() -> Any:
    """A number of rows that differs between calls."""
    given = (torch.randn(3, 8),)
    return EagerModel.of(_linear(), given, dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=5)},))


def partly() -> Any:
    """The last layer stays in fp32; calibrated on inputs of its own."""
    calibration = [(torch.randn(1, 8),) for _ in range(3)]
    return EagerModel.of(_linear(), _ROW, quantisation=Quantisation(calibration=calibration, skip=("2",)))


class Example:
    """ExecuTorch's interface for example models."""

    def get_eager_model(self) -> nn.Module:
        """The module."""
        return _linear()

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        """Its inputs."""
        return _ROW


def two() -> Any:
    """Two methods that share their weights."""
    shared = _linear()
    return EagerModel(
        {
            "prefill": EagerMethod(shared, (torch.randn(6, 8),), tokens=6),
            "decode": EagerMethod(nn.Sequential(shared, nn.Softmax(-1)), _ROW, tokens=1),
        }
    )


NUMBER = 3


class Wide(torch.nn.Linear):
    """A class that cannot be built without a number."""

    def __init__(self, width: int, *, bias: bool = True) -> None:
        super().__init__(width, width, bias)


MODULE = torch.nn.Linear(2, 2)
