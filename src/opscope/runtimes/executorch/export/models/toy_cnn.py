"""A small network that has a bit of everything a profile shows: convolutions, a portable operator, layout changes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opscope.runtimes.executorch.export.eager import EagerModel

_SIZE = 64
_SEED = 0


class ToyCnn(nn.Module):
    """Two convolutions, a layer norm over channels, a pooled classifier.

    The layer norm wants channels last in memory and is not delegated, so the tensor is permuted before and after it:
    the pattern that costs most in practice, in small.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.body = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Class scores, shape (1, 10), of an image of shape (1, 3, 64, 64)."""
        features = self.body(self.stem(image))
        normed = self.norm(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        pooled = torch.relu(normed).mean((2, 3))
        scores: Tensor = self.head(pooled)
        return scores


def build() -> EagerModel:
    """The network with seeded weights, and an image of random numbers."""
    torch.manual_seed(_SEED)
    return EagerModel.of(ToyCnn().eval(), (torch.randn(1, 3, _SIZE, _SIZE),))
