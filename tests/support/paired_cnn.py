"""The network of ``tests/data/tflite/images.tflite`` in PyTorch, with the same weights: one network, two runtimes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from opscope.runtimes.executorch.export.eager import EagerModel


def weights(*shape: int) -> Tensor:
    """The weights of a shape, in the order of axes of tensorflow; as in ``tests/data/tflite/make.py``."""
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape).astype("f") * np.float32(0.1))


class PairedCnn(nn.Module):
    """Convolutions with a residual, a mean and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.point = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)
        kernels = {
            self.stem: weights(3, 3, 3, 8).permute(3, 2, 0, 1),
            self.depthwise: weights(3, 3, 8, 1).permute(2, 3, 0, 1),
            self.point: weights(1, 1, 8, 8).permute(3, 2, 0, 1),
            self.head: weights(8, 4).T,
        }
        for layer, kernel in kernels.items():
            layer.weight.data = kernel.contiguous()
            if layer.bias is not None:
                layer.bias.data = weights(len(layer.bias))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.stem(functional.pad(x, (0, 1, 0, 1))).relu()
        y = self.point(functional.relu6(self.depthwise(x)))
        return self.head((x + y).mean((2, 3), keepdim=True).flatten(1))


def build() -> EagerModel:
    """For the exporter."""
    return EagerModel.of(PairedCnn().eval(), (torch.zeros(1, 3, 224, 224),))
