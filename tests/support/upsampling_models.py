"""A small decoder of images: transposed convolution, concatenation and resize."""

from __future__ import annotations

import torch
from torch import nn

from opscope.runtimes.executorch.export.eager import EagerModel


class Upsampling(nn.Module):
    """Two convolutions down, a transposed one up, both sides joined, and a resize to the size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, m, 3, stride=2, padding=1) for n, m in ((3, 8), (8, 16)))
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.joined, self.head = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """A map of two channels, as large as the image."""
        wide = torch.relu(self.first(image))
        up = torch.relu(self.up(torch.relu(self.second(wide))))
        small = self.head(torch.relu(self.joined(torch.cat([wide, up], 1))))
        return torch.sigmoid(nn.functional.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False))


def upsampling() -> EagerModel:
    """An image of 32 by 32."""
    torch.manual_seed(0)
    return EagerModel.of(Upsampling().eval(), inputs=(torch.randn(1, 3, 32, 32),))
