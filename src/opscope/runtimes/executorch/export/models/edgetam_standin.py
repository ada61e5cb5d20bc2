"""A stand-in for EdgeTAM's image encoder, for where upstream's code and checkpoint cannot be had.

Same interface and shapes: an image (1, 3, 1024, 1024) in, a dictionary of features at a 4th, an 8th and a 16th of the
size out, a pyramid over four levels of the trunk of which the lowest is dropped, position encodings that are cached
under ``torch.no_grad``. Other than upstream: the trunk is a few convolutions instead of RepViT-M1, levels have 12 to 96
channels instead of 48 to 384, features 32 instead of 256. Its latency says nothing about EdgeTAM's.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from opscope.runtimes.executorch.export.models.edgetam import adapted

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel

_SEED = 0
_LEVELS = (12, 24, 48, 96)
_FEATURES = 32
_SUMMED = (2, 3)


class Trunk(nn.Module):
    """Four levels, each of half the size of the one before; the first is a 4th of the image."""

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Sequential(_halving_layer(3, _LEVELS[0] // 2), nn.GELU(), _halving_layer(_LEVELS[0] // 2, _LEVELS[0]))
        rest = [_halving_layer(a, b) for a, b in pairwise(_LEVELS)]
        self.levels = nn.ModuleList([stem, *rest])

    def forward(self, image: Tensor) -> list[Tensor]:
        """Return the levels, largest first."""
        levels: list[Tensor] = []
        for level in self.levels:
            levels.append(nn.functional.gelu(level(levels[-1] if levels else image)))
        return levels


def _halving_layer(source: int, target: int) -> nn.Module:
    mixed = nn.Conv2d(source, target, 1, bias=False)
    return nn.Sequential(nn.Conv2d(source, source, 3, 2, 1, groups=source), mixed, nn.BatchNorm2d(target))


class Positions(nn.Module):
    """Waves over rows and columns, kept for every size that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[tuple[int, int], Tensor] = {}

    def forward(self, asking: Tensor) -> Tensor:
        """Encodings of the shape of the input."""
        height, width = int(asking.shape[-2]), int(asking.shape[-1])
        with torch.no_grad():
            if (height, width) not in self.cache:
                waves = torch.arange(_FEATURES // 2)[:, None, None] + 1
                rows, columns = torch.arange(height)[None, :, None] / height, torch.arange(width)[None, None, :] / width
                self.cache[height, width] = torch.cat(
                    [(rows * waves).sin().expand(-1, -1, width), (columns * waves).cos().expand(-1, height, -1)]
                )
            return self.cache[height, width][None].repeat(asking.shape[0], 1, 1, 1)


class Neck(nn.Module):
    """Features of one width from levels of several; the two lowest levels are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.position_encoding: nn.Module = Positions()
        self.convs = nn.ModuleList(nn.Conv2d(channels, _FEATURES, 1) for channels in _LEVELS)

    def forward(self, levels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Features and position encodings, largest first."""
        features = [conv(level) for conv, level in zip(self.convs, levels, strict=True)]
        lower = nn.functional.interpolate(features[_SUMMED[1]], scale_factor=2.0, mode="nearest")
        features[_SUMMED[0]] = features[_SUMMED[0]] + lower
        return features, [self.position_encoding(feature) for feature in features]


class StandIn(nn.Module):
    """The encoder with upstream's names: ``trunk``, ``neck``, and a dictionary as its result."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.neck = Trunk(), Neck()

    def forward(self, image: Tensor) -> dict[str, Tensor | list[Tensor]]:
        """``vision_features``, ``vision_pos_enc`` and ``backbone_fpn``, the lowest level dropped."""
        features, positions = self.neck(self.trunk(image))
        features, positions = features[:-1], positions[:-1]
        return {"vision_features": features[-1], "vision_pos_enc": positions, "backbone_fpn": features}


def build() -> EagerModel:
    """Return the stand-in with seeded weights behind the adapter of the real encoder."""
    torch.manual_seed(_SEED)
    return adapted(StandIn())
