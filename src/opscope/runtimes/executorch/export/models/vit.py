"""A vision transformer of the size called ViT-Tiny, patches of 16x16 at 224x224.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021; the tiny size is that of Touvron et al.,
"Training data-efficient image transformers", ICML 2021, table 1: width 192, 12 layers, 3 heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opscope.runtimes.executorch.export.eager import EagerModel

_SEED = 0
_SIZE, _PATCH = 224, 16
_WIDTH, _LAYERS, _HEADS, _CLASSES = 192, 12, 3, 1000


class VitAttention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.output = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of the same shape, (batch, tokens, width)."""
        batch, count, width = tokens.shape
        parts = self.inputs(tokens).reshape(batch, count, 3, _HEADS, width // _HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        weights = torch.softmax(query @ key.transpose(-2, -1) * (width // _HEADS) ** -0.5, dim=-1)
        joined = (weights @ value).transpose(1, 2).reshape(batch, count, width)
        out: Tensor = self.output(joined)
        return out


class VitLayer(nn.Module):
    """Attention and a two-layer network, each behind a layer norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(_WIDTH)
        self.attention = VitAttention()
        self.before_network = nn.LayerNorm(_WIDTH)
        self.network = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of the same shape."""
        tokens = tokens + self.attention(self.before_attention(tokens))
        out: Tensor = tokens + self.network(self.before_network(tokens))
        return out


class VisionTransformer(nn.Module):
    """The complete network."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, _WIDTH, _PATCH, _PATCH)
        self.kind = nn.Parameter(torch.randn(1, 1, _WIDTH) * 0.02)
        self.place = nn.Parameter(torch.randn(1, (_SIZE // _PATCH) ** 2 + 1, _WIDTH) * 0.02)
        self.layers = nn.Sequential(*(VitLayer() for _ in range(_LAYERS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        """Class scores, shape (1, 1000), of an image of shape (1, 3, 224, 224)."""
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.kind, tokens], dim=1) + self.place
        scores: Tensor = self.head(self.norm(self.layers(tokens))[:, 0])
        return scores


def build() -> EagerModel:
    """Return the network with seeded weights, and an image of random numbers."""
    torch.manual_seed(_SEED)
    return EagerModel.of(VisionTransformer().eval(), (torch.randn(1, 3, _SIZE, _SIZE),))
