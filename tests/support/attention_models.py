"""Models whose export records hold numbers that are not finite."""

from __future__ import annotations

import torch
from torch import nn

from opscope.runtimes.executorch.export.eager import EagerModel


class Masked(nn.Module):
    """Attention with a mask of true and false, which torch.export turns into one of zeros and -Infinity."""

    def forward(self, query: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attend to the query's own tokens."""
        return nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)


def masked() -> EagerModel:
    """Two heads of eight numbers, eight tokens, a causal mask."""
    torch.manual_seed(0)
    return EagerModel.of(Masked(), inputs=(torch.randn(1, 2, 8, 8), torch.ones(8, 8).tril().bool()))


class WrittenOut(nn.Module):
    """The same attention as the advice has it, with a mask of numbers."""

    def forward(self, query: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attend to the query's own tokens."""
        return torch.softmax(query @ query.transpose(-2, -1) * 8**-0.5 + mask, -1) @ query


def written_out() -> EagerModel:
    """The inputs of ``masked``, the mask as numbers."""
    torch.manual_seed(0)
    query, mask = torch.randn(1, 2, 8, 8), torch.ones(8, 8).tril().bool()
    return EagerModel.of(WrittenOut(), inputs=(query, torch.zeros(8, 8).masked_fill(~mask, -1e4)))


def attention() -> EagerModel:
    """A layer of an encoder, as PyTorch has it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    return EagerModel.of(layer, inputs=(torch.randn(1, 8, 16),))


def keywords() -> EagerModel:
    """A convolution over a spectrogram of any length: a size without an upper bound."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    length = torch.export.Dim("length")
    return EagerModel.of(net, inputs=(torch.randn(1, 1, 40, 98),), dynamic_shapes={"input": {3: length}})
