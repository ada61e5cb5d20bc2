"""EdgeTAM's image encoder (Zhou et al. 2025): transformers' own neck behind RepViT-M1, which is written out here.

transformers takes the trunk from timm, whose import needs torchvision, and no build of that loads beside every torch.
The blocks below are those of timm's ``repvit_m1`` as published: widths 48, 96, 192 and 384, depths 2, 2, 14 and 2,
a depthwise convolution of three branches, squeeze and excitation in every other block, and no distillation head.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import EdgeTamVisionConfig, EdgeTamVisionModel
from transformers.models.edgetam import modeling_edgetam

from zoo.models.seeded import seeded

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel

WIDTHS, DEPTHS = (48, 96, 192, 384), (2, 2, 14, 2)
SIZE = 1024
"""Height and width of the image that EdgeTAM takes."""
_SMALL = 256


def normed(inside: int, outside: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without a bias, and its norm."""
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outside))


class TokenMixer(nn.Module):
    """A depthwise convolution of 3x3, one of 1x1, and the input, added; training keeps them apart."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.conv1 = normed(width, width, 3, groups=width), normed(width, width, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the branches."""
        return self.conv(x) + self.conv1(x) + x


class SqueezeExcite(nn.Module):
    """Channels weighed by what their means say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(8, (width // 4 + 4) // 8 * 8)
        self.fc1, self.fc2 = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The weighed channels."""
        return x * self.fc2(self.fc1(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class ChannelMixer(nn.Module):
    """Two products over channels, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.act, self.conv2 = normed(width, 2 * width), nn.GELU(), normed(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The input and what the products add."""
        return x + self.conv2(self.act(self.conv1(x)))


def block(width: int, *, excited: bool) -> nn.Sequential:
    """A block: places, then channels."""
    weigh = [SqueezeExcite(width)] if excited else []
    return nn.Sequential(TokenMixer(width), *weigh, ChannelMixer(width))


def stage(inside: int, outside: int, depth: int, *, halve: bool) -> nn.Sequential:
    """Blocks of one width, behind a step to half the size where that is asked for."""
    smaller = (block(inside, excited=False), normed(inside, inside, 3, 2, inside), normed(inside, outside))
    before = [*smaller, ChannelMixer(outside)] if halve else []
    return nn.Sequential(*before, *(block(outside, excited=at % 2 == 0) for at in range(depth)))


class RepViT(nn.Module):
    """RepViT-M1 as a backbone: the output of each of its four stages."""

    def __init__(self) -> None:
        super().__init__()
        first = WIDTHS[0]
        self.stem = nn.Sequential(normed(3, first // 2, 3, 2), nn.GELU(), normed(first // 2, first, 3, 2))
        inside = (first, *WIDTHS)
        self.stages = nn.ModuleList(
            stage(inside[at], WIDTHS[at], DEPTHS[at], halve=at > 0) for at in range(len(WIDTHS))
        )

    def forward(self, image: Tensor, **_: object) -> SimpleNamespace:
        """Features at a 4th to a 32nd of the size, under the names of timm's wrapper in transformers."""
        features = [self.stem(image)]
        for one in self.stages:
            features.append(one(features[-1]))
        return SimpleNamespace(last_hidden_state=features[1:], hidden_states=None)


class ImageEncoder(nn.Module):
    """Trunk and neck, without the position encodings: they depend on the size alone, so a caller can keep them."""

    def __init__(self) -> None:
        super().__init__()
        known = modeling_edgetam.AutoModel
        modeling_edgetam.AutoModel = SimpleNamespace(from_config=lambda _: nn.Identity())
        try:
            self.encoder = EdgeTamVisionModel(EdgeTamVisionConfig())
        finally:
            modeling_edgetam.AutoModel = known
        self.encoder.backbone = RepViT()

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Features of the image at a 4th, an 8th and a 16th of its size."""
        return tuple(self.encoder(image).fpn_hidden_states)


def edgetam() -> EagerModel:
    """The encoder at a quarter of the size in either direction, for a run that does not take minutes."""
    return seeded(ImageEncoder, (1, 3, _SMALL, _SMALL))


def edgetam_1024() -> EagerModel:
    """The encoder at its own size."""
    return seeded(ImageEncoder, (1, 3, SIZE, SIZE))


def parameters() -> int:
    """Parameters of the trunk; timm's ``repvit_m1`` without its classifier has as many."""
    with torch.device("meta"):
        return sum(each.numel() for each in RepViT().parameters())
