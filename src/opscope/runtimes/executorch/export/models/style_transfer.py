"""Fast style transfer at 256x256 with half of the published channels, as published, and written for delegation.

Source: Johnson et al., "Perceptual Losses for Real-Time Style Transfer and Super-Resolution", ECCV 2016, supplementary
material, with instance norms (Ulyanov et al. 2016), reflection padding, and nearest-neighbour resizing before the last
convolutions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opscope.patterns.modules import replace_instance_norms, replace_reflection_pads
from opscope.runtimes.executorch.export.eager import EagerModel

_SEED = 0
_SIZE = 256
_WIDTHS = (16, 32, 64)
_BLOCKS = 5


class PaddedConvolution(nn.Sequential):
    """Reflection padding and a convolution, then a norm unless it is the last one."""

    def __init__(self, channels: tuple[int, int], kernel: int, stride: int, *, norm: bool = True) -> None:
        source, target = channels
        layers = [nn.ReflectionPad2d(kernel // 2), nn.Conv2d(source, target, kernel, stride)]
        super().__init__(*layers, *([nn.InstanceNorm2d(target, affine=True)] if norm else []))


class Residual(nn.Module):
    """Two convolutions beside the image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = (PaddedConvolution((channels, channels), 3, 1) for _ in range(2))
        self.layers = nn.Sequential(first, nn.ReLU(), second)

    def forward(self, image: Tensor) -> Tensor:
        """Features of the same shape."""
        changed: Tensor = self.layers(image)
        return image + changed


def _build_network() -> nn.Module:
    first, middle, last = _WIDTHS
    down = [
        layer
        for channels, kernel, stride in (((3, first), 9, 1), ((first, middle), 3, 2), ((middle, last), 3, 2))
        for layer in (PaddedConvolution(channels, kernel, stride), nn.ReLU())
    ]
    blocks = [Residual(last) for _ in range(_BLOCKS)]
    up = [
        layer
        for channels in ((last, middle), (middle, first))
        for layer in (nn.Upsample(scale_factor=2.0), PaddedConvolution(channels, 3, 1), nn.ReLU())
    ]
    return nn.Sequential(*down, *blocks, *up, PaddedConvolution((first, 3), 9, 1, norm=False))


def build() -> EagerModel:
    """Return the network as published, with seeded random weights."""
    torch.manual_seed(_SEED)
    model = _build_network().eval()
    return EagerModel.of(model, (torch.rand(1, 3, _SIZE, _SIZE),))


def build_delegated() -> EagerModel:
    """Return the network with its padding and norms replaced by patterns that are delegated; the weights are equal."""
    model = build()
    replace_reflection_pads(model.module)
    replace_instance_norms(model.module)
    return model
