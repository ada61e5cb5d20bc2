"""ShuffleNetV2 1.0x at 224x224, as published, and written so that all of it is delegated.

Source: Ma et al., "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design", ECCV 2018, table 5:
2.3 million parameters and 146 million multiply-accumulates for 1000 classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opscope.runtimes.executorch.export.eager import EagerModel

_SEED = 0
_SIZE = 224
_CLASSES = 1000
_STEM, _LAST = 24, 1024
_STAGES = ((116, 4), (232, 8), (464, 4))  # channels and units


def _conv(source: int, target: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(source, target, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(target),
    ]


def _shuffled(features: Tensor) -> Tensor:
    """Channels of both halves in turns."""
    batch, channels, height, width = features.shape
    halves = features.view(batch, 2, channels // 2, height, width)
    return halves.transpose(1, 2).reshape(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    """Half of the channels pass, the other half is convolved; then the halves are shuffled. A stride convolves both."""

    def __init__(self, source: int, target: int, *, delegated: bool) -> None:
        super().__init__()
        self.half, self.delegated = target // 2, delegated
        self.smaller = source != target
        stride, given = (2, source) if self.smaller else (1, self.half)
        beside = [*_conv(source, source, 3, 2, source), *_conv(source, self.half), nn.ReLU()] if self.smaller else []
        self.beside = nn.Sequential(*beside)
        self.branch = nn.Sequential(
            *_conv(given, self.half),
            nn.ReLU(),
            *_conv(self.half, self.half, 3, stride, self.half),
            *_conv(self.half, self.half),
            nn.ReLU(),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Features of all channels; half as high and wide with a stride."""
        if self.smaller:
            left, right = self.beside(features), features
        elif self.delegated:
            left, right = features[:, : self.half], features[:, self.half :]
        else:
            left, right = features.chunk(2, dim=1)
        return _shuffled(torch.cat((left, self.branch(right)), dim=1))


class ShuffleNetV2(nn.Module):
    """The whole network."""

    def __init__(self, *, delegated: bool) -> None:
        super().__init__()
        self.delegated = delegated
        layers = [*_conv(3, _STEM, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        source = _STEM
        for channels, units in _STAGES:
            for _ in range(units):
                layers.append(ShuffleUnit(source, channels, delegated=delegated))
                source = channels
        self.features = nn.Sequential(*layers, *_conv(source, _LAST), nn.ReLU())
        self.classifier = nn.Linear(_LAST, _CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # so that activations keep their size, and outputs can be compared
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, image: Tensor) -> Tensor:
        """Class scores, shape (1, 1000), of an image of shape (1, 3, 224, 224)."""
        features = self.features(image)
        pooled = features.mean((2, 3), keepdim=True).flatten(1) if self.delegated else features.mean((2, 3))
        scores: Tensor = self.classifier(pooled)
        return scores


def build() -> EagerModel:
    """The network as published, with seeded random weights."""
    return _seeded(delegated=False)


def build_delegated() -> EagerModel:
    """The same network with the same weights: slices in place of splits, and a mean that keeps its dimensions."""
    return _seeded(delegated=True)


def _seeded(*, delegated: bool) -> EagerModel:
    torch.manual_seed(_SEED)
    model = ShuffleNetV2(delegated=delegated).eval()
    return EagerModel.of(model, (torch.randn(1, 3, _SIZE, _SIZE),))
