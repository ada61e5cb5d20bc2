"""Whole networks of well-known shapes, small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.models.seeded import seeded

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel

_IMAGE = (1, 3, 32, 32)


def convolved(inside: int, outside: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, its norm and an activation."""
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.ReLU())


class UNet(nn.Module):
    """Down, up with transposed convolutions, joined at every level (Ronneberger et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([convolved(3, 8), convolved(8, 16), convolved(16, 32)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)])
        self.joined = nn.ModuleList([convolved(32, 16), convolved(16, 8)])
        self.classes = nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Scores of every pixel."""
        first = self.down[0](image)
        second = self.down[1](nn.functional.max_pool2d(first, 2))
        lowest = self.down[2](nn.functional.max_pool2d(second, 2))
        middle = self.joined[0](torch.cat([self.up[0](lowest), second], dim=1))
        return self.classes(self.joined[1](torch.cat([self.up[1](middle), first], dim=1)))


class Inception(nn.Module):
    """Branches of several kernels, joined (Szegedy et al. 2015)."""

    def __init__(self, inside: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                convolved(inside, 8, 1),
                nn.Sequential(convolved(inside, 8, 1), convolved(8, 8)),
                nn.Sequential(convolved(inside, 4, 1), convolved(4, 8, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), convolved(inside, 8, 1)),
            ]
        )

    def forward(self, features: Tensor) -> Tensor:
        """All branches."""
        return torch.cat([branch(features) for branch in self.branches], dim=1)


class Residual(nn.Module):
    """What a module adds to its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, features: Tensor) -> Tensor:
        """The input and what is added."""
        return features + self.inner(features)


class Dense(nn.Module):
    """Every layer sees all before it (Huang et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(convolved(8 + 4 * at, 4) for at in range(3))

    def forward(self, features: Tensor) -> Tensor:
        """All features so far."""
        for layer in self.layers:
            features = torch.cat([features, layer(features)], dim=1)
        return features


class Excited(nn.Module):
    """Channels weighed by their means (Hu et al. 2018), in an inverted bottleneck."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(convolved(8, 32, 1), convolved(32, 32, 3, 1, 32))
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 8, 1), nn.SiLU(), nn.Conv2d(8, 32, 1), nn.Sigmoid()
        )
        self.narrow = nn.Conv2d(32, 8, 1)

    def forward(self, features: Tensor) -> Tensor:
        """The input and what the block adds."""
        wide = self.wide(features)
        return features + self.narrow(wide * self.weigh(wide))


class Mixer(nn.Module):
    """Products over places, then over channels (Tolstikhin et al. 2021)."""

    def __init__(self, places: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.places, self.channels = (
            nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
            for size in (places, channels)
        )

    def forward(self, patches: Tensor) -> Tensor:
        """The patches, mixed."""
        patches = patches + self.places(self.norms[0](patches).transpose(1, 2)).transpose(1, 2)
        return patches + self.channels(self.norms[1](patches))


class ConvNeXt(nn.Module):
    """A block with a norm over channels (Liu et al. 2022)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.scale = nn.LayerNorm(channels), nn.Parameter(torch.full((channels,), 0.1))
        self.mixed = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, features: Tensor) -> Tensor:
        """The input and what the block adds."""
        last = self.mixed(self.norm(self.spatial(features).permute(0, 2, 3, 1)))
        return features + (last * self.scale).permute(0, 3, 1, 2)


class PointNet(nn.Module):
    """Points one by one, then their largest features (Qi et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Conv1d(3, 16, 1), nn.ReLU(), nn.Conv1d(16, 32, 1), nn.ReLU())
        self.classes = nn.Linear(32, 4)

    def forward(self, points: Tensor) -> Tensor:
        """Scores of the cloud."""
        return self.classes(self.points(points).amax(dim=2))


class Attending(nn.Module):
    """An encoder of PyTorch's own layers over learned places."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        """The tokens, where padding is left out."""
        return self.layers(tokens, src_key_padding_mask=padding)


def u_net() -> EagerModel:
    """Segmentation by a U-Net."""
    return seeded(UNet, _IMAGE)


def residual() -> EagerModel:
    """Two residual blocks and a classifier, as in ResNet."""
    return seeded(
        lambda: nn.Sequential(
            convolved(3, 16, 7, 2),
            nn.MaxPool2d(3, 2, 1),
            *(Residual(nn.Sequential(convolved(16, 16), nn.Conv2d(16, 16, 3, padding=1))) for _ in range(2)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        ),
        _IMAGE,
    )


def inception() -> EagerModel:
    """Two Inception blocks."""
    return seeded(lambda: nn.Sequential(Inception(3), Inception(32)), _IMAGE)


def dense_net() -> EagerModel:
    """A dense block and a transition."""
    return seeded(lambda: nn.Sequential(convolved(3, 8), Dense(), convolved(20, 10, 1), nn.AvgPool2d(2)), _IMAGE)


def efficient_net() -> EagerModel:
    """Inverted bottlenecks with squeeze and excitation, as in EfficientNet."""
    return seeded(lambda: nn.Sequential(convolved(3, 8, 3, 2), Excited(), Excited()), _IMAGE)


def mlp_mixer() -> EagerModel:
    """An MLP-Mixer of two blocks."""
    return seeded(lambda: nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.Flatten(2), Mixer(16, 16), Mixer(16, 16)), _IMAGE)


def conv_next() -> EagerModel:
    """Two ConvNeXt blocks."""
    return seeded(lambda: nn.Sequential(nn.Conv2d(3, 16, 4, 4), ConvNeXt(16), ConvNeXt(16)), _IMAGE)


def keyword_spotting() -> EagerModel:
    """DS-CNN for keywords (Zhang et al. 2017): separable convolutions over a spectrogram."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, (10, 4), 2, (5, 1)),
            nn.ReLU(),
            *(convolved(16, 16, *how) for how in ((3, 1, 16), (1,), (3, 1, 16), (1,))),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 12),
        ),
        (1, 1, 49, 10),
    )


def autoencoder() -> EagerModel:
    """Anomaly detection as in MLPerf Tiny: layers that narrow and widen."""
    pairs = (64, 32), (32, 8), (8, 32), (32, 64)
    return seeded(
        lambda: nn.Sequential(
            *(
                part
                for inside, outside in pairs
                for part in (nn.Linear(inside, outside), nn.BatchNorm1d(outside), nn.ReLU())
            )
        ),
        (1, 64),
    )


def point_net() -> EagerModel:
    """A cloud of 64 points."""
    return seeded(PointNet, (1, 3, 64))


def attending() -> EagerModel:
    """PyTorch's own encoder with a mask of padding."""
    return seeded(Attending, (1, 8, 32), torch.zeros(1, 8, dtype=torch.bool))
