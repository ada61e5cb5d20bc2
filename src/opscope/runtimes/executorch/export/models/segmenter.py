"""An encoder-decoder for image segmentation in the shape of SqueezeSAM.

Source of the shape: Varadarajan et al., "SqueezeSAM: User friendly mobile interactive segmentation", 2023: a U-net of
convolutions whose first layer sees clicks and boxes as further channels, with attention at the lowest resolution. The
widths, the norm over channels in NCHW and the leaky activations are chosen here, smaller than the published network;
they make what its published profile shows: convolutions, and transposes around every norm.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from opscope.runtimes.executorch.export.eager import EagerModel

_SEED = 0
_SIZE, _CHANNELS = 256, 5
_WIDTHS = (16, 32, 64, 96)
_HEADS = 4


class ChannelNorm(nn.Module):
    """Layer norm over the channels of an image, which wants them last in memory."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, image: Tensor) -> Tensor:
        """An image of the same shape, (batch, channels, height, width)."""
        normed: Tensor = self.norm(image.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return normed


def _convolution_block(source: int, target: int, stride: int = 1) -> nn.Sequential:
    """Return a 3x3 convolution with norm and activation."""
    convolution = nn.Conv2d(source, target, 3, stride, 1)
    return nn.Sequential(convolution, ChannelNorm(target), nn.LeakyReLU(0.01))


class SpatialAttention(nn.Module):
    """Self-attention between the places of an image, added to it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.parts = nn.LayerNorm(channels), nn.Linear(channels, 3 * channels)
        self.output = nn.Linear(channels, channels)

    def forward(self, image: Tensor) -> Tensor:
        """An image of the same shape."""
        batch, channels, height, width = image.shape
        size = channels // _HEADS
        tokens = image.flatten(2).transpose(1, 2)
        parts = self.parts(self.norm(tokens)).reshape(batch, height * width, 3, _HEADS, size).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(parts[0] @ parts[1].transpose(-2, -1) * size**-0.5, dim=-1)
        mixed = self.output((weights @ parts[2]).transpose(1, 2).reshape(batch, height * width, channels))
        added: Tensor = image + mixed.transpose(1, 2).reshape(batch, channels, height, width)
        return added


class Segmenter(nn.Module):
    """The complete network."""

    def __init__(self) -> None:
        super().__init__()
        pairs = list(pairwise(_WIDTHS))
        self.stem = _convolution_block(_CHANNELS, _WIDTHS[0], 2)
        self.down = nn.ModuleList(
            nn.Sequential(_convolution_block(a, b, 2), _convolution_block(b, b)) for a, b in pairs
        )
        self.middle = nn.Sequential(SpatialAttention(_WIDTHS[-1]), SpatialAttention(_WIDTHS[-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.merge = nn.ModuleList(_convolution_block(2 * a, a) for a, _ in reversed(pairs))
        self.mask = nn.ConvTranspose2d(_WIDTHS[0], 1, 2, 2)

    def forward(self, image: Tensor) -> Tensor:
        """Mask scores of shape (1, 1, 256, 256) of an image with two maps for clicks and boxes, (1, 5, 256, 256)."""
        levels = [self.stem(image)]
        for down in self.down:
            levels.append(down(levels[-1]))
        features = self.middle(levels.pop())
        for up, merge in zip(self.up, self.merge, strict=True):
            features = merge(torch.cat([up(features), levels.pop()], dim=1))
        scores: Tensor = self.mask(features)
        return scores


def build() -> EagerModel:
    """Return the network with seeded weights, and an image of random numbers."""
    torch.manual_seed(_SEED)
    return EagerModel.of(Segmenter().eval(), (torch.randn(1, _CHANNELS, _SIZE, _SIZE),))
