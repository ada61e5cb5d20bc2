"""Make torch_named.tflite: a small network of PyTorch as litert-torch converts it, whose names tell its modules.

python tests/data/tflite/torch_named.py OUT          (torch, litert-torch 0.10.0)
"""

from __future__ import annotations

import sys

import litert_torch
import torch
from torch import nn


class Conv_Block(nn.Module):  # noqa: N801 - an underscore in a class, as users have them
    """Convolution, normalisation and activation."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(given, made, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(made)
        self.act = nn.Hardswish()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The image with other channels."""
        made: torch.Tensor = self.act(self.norm(self.conv_in(image)))
        return made


class Net(nn.Module):
    """Two blocks, a sum, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Conv_Block(3, 4)
        self.blocks = nn.Sequential(Conv_Block(4, 4), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Scores of five classes."""
        made = self.stem(image)
        made = made + self.blocks(made)
        scores: torch.Tensor = self.head(made.mean((2, 3))).softmax(1)
        return scores


if __name__ == "__main__":
    torch.manual_seed(0)
    litert_torch.convert(Net().eval(), (torch.zeros(1, 3, 8, 8),)).export(sys.argv[1])
