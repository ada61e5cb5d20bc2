"""A text transformer of the size called BERT-Mini, on 128 tokens.

Source: Turc et al., "Well-Read Students Learn Better: On the Importance of Pre-training Compact Models", 2019, table 1:
width 256, 4 layers; heads of 64 and a feed-forward part four times as wide follow Devlin et al., "BERT", NAACL 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opscope.runtimes.executorch.export.eager import EagerModel
from opscope.runtimes.executorch.export.patterns import NormInFp32

_SEED = 0
_WORDS, _TOKENS = 30522, 128
_WIDTH, _LAYERS, _HEAD = 256, 4, 64


class BertAttention(nn.Module):
    """Multi-head self-attention over all tokens, with a projection each for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of the same shape, (batch, tokens, width)."""
        batch, count, width = tokens.shape
        parts = [
            part(tokens).reshape(batch, count, width // _HEAD, _HEAD).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        weights = torch.softmax(parts[0] @ parts[1].transpose(-2, -1) * _HEAD**-0.5, dim=-1)
        out: Tensor = self.output((weights @ parts[2]).transpose(1, 2).reshape(batch, count, width))
        return out


class BertLayer(nn.Module):
    """Attention and a two-layer network, each added to its input and normed after that."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.after_attention = BertAttention(), NormInFp32(nn.LayerNorm(_WIDTH))
        self.network = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))
        self.after_network = NormInFp32(nn.LayerNorm(_WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of the same shape."""
        tokens = self.after_attention(tokens + self.attention(tokens))
        out: Tensor = self.after_network(tokens + self.network(tokens))
        return out


class TextTransformer(nn.Module):
    """The complete encoder; its pooled first token classifies the text."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(_TOKENS, _WIDTH)
        self.norm = NormInFp32(nn.LayerNorm(_WIDTH))
        self.layers = nn.Sequential(*(BertLayer() for _ in range(_LAYERS)))
        self.pool = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """States of shape (1, tokens, 256) and the pooled one, (1, 256), of word numbers of shape (1, tokens)."""
        positions = torch.arange(words.shape[1])
        states = self.layers(self.norm(self.words(words) + self.places(positions)))
        return states, torch.tanh(self.pool(states[:, 0]))


def build() -> EagerModel:
    """Return the network with seeded weights, and random words."""
    torch.manual_seed(_SEED)
    return EagerModel.of(TextTransformer().eval(), (torch.randint(0, _WORDS, (1, _TOKENS)),))
