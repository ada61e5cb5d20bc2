"""Inputs and outputs of every kind, dynamic shapes, and state that a call leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.export import Dim

from zoo.models.seeded import seeded

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel

_WIDTH = 128


class Recommender(nn.Module):
    """Bags of categories and dense features: a small DLRM (Naumov et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(30, _WIDTH, mode=mode) for mode in ("sum", "mean"))
        self.dense = nn.Linear(8, _WIDTH)
        self.score = nn.Sequential(nn.Linear(3 * _WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1))

    def forward(self, dense: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """A score for every row."""
        parts = [bag(of) for bag, of in zip(self.bags, (first, second), strict=True)]
        return self.score(torch.cat([self.dense(dense).relu(), *parts], dim=1)).sigmoid()


class Bags(nn.Module):
    """The same bags as sums of embeddings, which every runtime knows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.score = nn.Embedding(30, _WIDTH), nn.Linear(_WIDTH, 3)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the mean of the words."""
        return self.score(self.words(words).mean(dim=1))


class TwoTowers(nn.Module):
    """Two inputs of different kinds, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.words, self.shared = nn.Embedding(40, 8), nn.Linear(8, _WIDTH)

    def forward(self, image: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Similarity of the two, and the embedding of the image."""
        seen, read = self.shared(self.image(image)), self.shared(self.words(words).mean(dim=1))
        return seen @ read.T, seen


class Named(nn.Module):
    """A dictionary with a list in it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.ModuleList(nn.Conv2d(size, 2 * size, 3, stride=2, padding=1) for size in (3, 6, 12))

    def forward(self, image: Tensor) -> dict[str, Tensor | list[Tensor]]:
        """Levels of features and the mean of the last one."""
        levels = []
        for level in self.features:
            image = level(image).relu()
            levels.append(image)
        return {"levels": levels, "pooled": image.mean(dim=(2, 3))}


class Scaled(nn.Module):
    """Numbers beside tensors as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, value: Tensor, factor: float, offset: int) -> Tensor:
        """A layer, scaled and moved."""
        return self.layer(value) * factor + offset


class Remembering(nn.Module):
    """A running mean and a count that forward changes."""

    mean: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)
        self.register_buffer("mean", torch.zeros(1, _WIDTH))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """The value without its running mean, and how many were seen."""
        self.seen.add_(1)
        self.mean.mul_(0.9).add_(0.1 * value)
        return self.layer(value - self.mean), self.seen.clone()


class Counting(nn.Module):
    """A running mean that forward changes, and nothing that only the state leads to."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)
        self.register_buffer("mean", torch.zeros(1, _WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        """The value without its running mean."""
        self.mean.mul_(0.9).add_(0.1 * value)
        return self.layer(value - self.mean)


class Window(nn.Module):
    """A buffer that holds the last frames, as streaming models keep it."""

    frames: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(_WIDTH, _WIDTH, 8)
        self.register_buffer("frames", torch.zeros(1, _WIDTH, 8))

    def forward(self, frame: Tensor) -> Tensor:
        """Features of the last eight frames."""
        self.frames.copy_(torch.cat([self.frames[:, :, 1:], frame], dim=2))
        return self.conv(self.frames)


def recommender() -> EagerModel:
    """Embedding bags and dense features."""
    return seeded(Recommender, (4, 8), torch.arange(20).reshape(4, 5), torch.arange(12).reshape(4, 3))


def bags() -> EagerModel:
    """Bags as means of embeddings."""
    return seeded(Bags, torch.arange(20).reshape(4, 5))


def two_towers() -> EagerModel:
    """An image and words in, two outputs."""
    return seeded(TwoTowers, (2, 3, 24, 24), torch.arange(12).reshape(2, 6))


def named() -> EagerModel:
    """A dictionary out."""
    return seeded(Named, (1, 3, 32, 32))


def scaled() -> EagerModel:
    """A tensor, a float and an integer in."""
    return seeded(Scaled, (1, _WIDTH), 0.5, 2)


def remembering() -> EagerModel:
    """State that forward changes in place."""
    return seeded(Remembering, (1, _WIDTH))


def counting() -> EagerModel:
    """A running mean that forward changes."""
    return seeded(Counting, (1, _WIDTH))


def window() -> EagerModel:
    """A buffer of frames that moves with every call."""
    return seeded(Window, (1, _WIDTH, 1))


def dynamic_batch() -> EagerModel:
    """A batch of one to eight."""
    return seeded(
        lambda: nn.Sequential(nn.Linear(_WIDTH, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)),
        (2, _WIDTH),
        dynamic_shapes={"input": {0: Dim("batch", min=1, max=8)}},
    )


def dynamic_image() -> EagerModel:
    """An image of any size up to a limit."""
    height, width = (Dim(name, min=16, max=64) for name in ("height", "width"))
    return seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        (1, 3, 24, 32),
        dynamic_shapes={"input": {2: height, 3: width}},
    )
