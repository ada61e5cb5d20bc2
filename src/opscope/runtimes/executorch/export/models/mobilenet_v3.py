"""MobileNetV3-Small at 224x224 with width 1.0.

Source: Howard et al., "Searching for MobileNetV3", ICCV 2019, table 2. Widths of the squeeze layers and the batch norm
constants follow the reference models: 2,542,856 parameters for 1000 classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from opscope.runtimes.executorch.export.eager import EagerModel

_SEED = 0
_SIZE = 224
_CLASSES = 1000
_STEM, _LAST, _HEAD = 16, 576, 1024
_DIVISOR = 8


class BlockSpec(NamedTuple):
    """One row of the paper's table: kernel, expanded and output channels, squeeze-and-excite, non-linearity, stride."""

    kernel: int
    expanded: int
    channels: int
    squeeze: bool
    hard_swish: bool
    stride: int


_BLOCKS = (
    BlockSpec(3, 16, 16, squeeze=True, hard_swish=False, stride=2),
    BlockSpec(3, 72, 24, squeeze=False, hard_swish=False, stride=2),
    BlockSpec(3, 88, 24, squeeze=False, hard_swish=False, stride=1),
    BlockSpec(5, 96, 40, squeeze=True, hard_swish=True, stride=2),
    BlockSpec(5, 240, 40, squeeze=True, hard_swish=True, stride=1),
    BlockSpec(5, 240, 40, squeeze=True, hard_swish=True, stride=1),
    BlockSpec(5, 120, 48, squeeze=True, hard_swish=True, stride=1),
    BlockSpec(5, 144, 48, squeeze=True, hard_swish=True, stride=1),
    BlockSpec(5, 288, 96, squeeze=True, hard_swish=True, stride=2),
    BlockSpec(5, 576, 96, squeeze=True, hard_swish=True, stride=1),
    BlockSpec(5, 576, 96, squeeze=True, hard_swish=True, stride=1),
)


def _round_channels(value: float) -> int:
    """Return the nearest multiple of 8 that is at least 90 % of a number."""
    rounded = max(_DIVISOR, int(value + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return rounded + _DIVISOR if rounded < 0.9 * value else rounded


class ConvNormAct(nn.Sequential):
    """Convolution without bias, batch norm, and a non-linearity if there is one."""

    def __init__(self, channels: tuple[int, int], kernel: int, stride: int, groups: int, act: nn.Module | None) -> None:
        source, target = channels
        conv = nn.Conv2d(source, target, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
        norm = nn.BatchNorm2d(target, eps=0.001, momentum=0.01)
        super().__init__(conv, norm, *([act] if act is not None else []))


class SqueezeExcite(nn.Module):
    """Scales each channel by a number computed from the mean of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _round_channels(channels / 4)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Scaled features of the same shape."""
        pooled = nn.functional.adaptive_avg_pool2d(features, 1)
        scale = nn.functional.hardsigmoid(self.expand(nn.functional.relu(self.reduce(pooled))))
        return features * scale


class InvertedResidual(nn.Module):
    """Expand by a 1x1 convolution, filter each channel, squeeze and excite, project back."""

    def __init__(self, source: int, block: BlockSpec) -> None:
        super().__init__()
        act = nn.Hardswish if block.hard_swish else nn.ReLU
        expanded = block.expanded
        layers: list[nn.Module] = []
        if expanded != source:
            layers.append(ConvNormAct((source, expanded), 1, 1, 1, act()))
        layers.append(ConvNormAct((expanded, expanded), block.kernel, block.stride, expanded, act()))
        if block.squeeze:
            layers.append(SqueezeExcite(expanded))
        layers.append(ConvNormAct((expanded, block.channels), 1, 1, 1, None))
        self.layers = nn.Sequential(*layers)
        self.residual = block.stride == 1 and source == block.channels

    def forward(self, features: Tensor) -> Tensor:
        """Output features, added to the input where the shapes agree."""
        out: Tensor = self.layers(features)
        return features + out if self.residual else out


class MobileNetV3Small(nn.Module):
    """The complete network."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [ConvNormAct((3, _STEM), 3, 2, 1, nn.Hardswish())]
        source = _STEM
        for block in _BLOCKS:
            layers.append(InvertedResidual(source, block))
            source = block.channels
        layers.append(ConvNormAct((source, _LAST), 1, 1, 1, nn.Hardswish()))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(_LAST, _HEAD), nn.Hardswish(), nn.Linear(_HEAD, _CLASSES))
        self.apply(_initialise_weights)

    def forward(self, image: Tensor) -> Tensor:
        """Class scores, shape (1, 1000), of an image of shape (1, 3, 224, 224)."""
        features = nn.functional.adaptive_avg_pool2d(self.features(image), 1)
        scores: Tensor = self.classifier(torch.flatten(features, 1))
        return scores


def _initialise_weights(module: nn.Module) -> None:
    """Set weights that keep the size of activations through the network, so that outputs can be compared."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def build() -> EagerModel:
    """Return the network with seeded weights, and an image of random numbers."""
    torch.manual_seed(_SEED)
    return EagerModel.of(MobileNetV3Small().eval(), (torch.randn(1, 3, _SIZE, _SIZE),))
