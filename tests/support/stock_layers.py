"""PyTorch's own transformers and recurrent layers, as they come and as the advice makes them.

``build("encoder")`` and ``build("encoder", advised=True)`` have the same weights and example inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from opscope.patterns import additive_mask, replace_attentions, replace_recurrent

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, HEADS, LENGTH = 128, 4, 64
STEPS = 40


class Attended(nn.Module):
    """Attention from a sequence to itself, or to another one; the weights of the attention are not returned."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """A sequence of the same shape."""
        other = x if other is None else other
        return self.attention(x, other, other, need_weights=False)[0]


class Encoded(nn.Module):
    """An encoder, with an order of its positions or without."""

    def __init__(self, layers: int = 2, *, causal: bool = False, numbers: bool = False, **options: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        self.register_buffer("mask", (additive_mask(~later) if numbers else later) if causal else None)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """A sequence of the same shape."""
        return self.encoder(x, self.mask, padding, is_causal=False)


class Decoded(nn.Module):
    """A decoder that attends to what an encoder made."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """A sequence of the same shape."""
        return self.decoder(x, memory)


class Stepped(nn.Module):
    """A recurrent layer and a classifier of its last output."""

    def __init__(self, layer: type[nn.RNNBase], state: int) -> None:
        super().__init__()
        self.layer = layer(64, state, batch_first=True)
        self.head = nn.Linear(state, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Ten numbers."""
        return self.head(self.layer(x)[0][:, -1])


def _sequence(batch: int = 1, length: int = LENGTH, width: int = WIDTH) -> Tensor:
    return torch.randn(batch, length, width)


def _padded() -> Tensor:
    return torch.arange(LENGTH).view(1, -1) >= LENGTH - 9


_Made = tuple[nn.Module, tuple[Tensor, ...]]
TRANSFORMERS: dict[str, Callable[[bool], _Made]] = {
    "attention": lambda _: (Attended(), (_sequence(),)),
    "attention_to_other": lambda _: (Attended(kdim=96, vdim=96), (_sequence(), _sequence(1, 48, 96))),
    "attention_long": lambda _: (Attended(), (_sequence(1, 196),)),
    "encoder": lambda _: (Encoded(), (_sequence(),)),
    "encoder_norm_first": lambda _: (Encoded(4, norm_first=True), (_sequence(),)),
    "encoder_causal": lambda advised: (Encoded(causal=True, numbers=advised), (_sequence(),)),
    "encoder_padded": lambda _: (Encoded(), (_sequence(), _padded())),
    "encoder_batch": lambda _: (Encoded(), (_sequence(4),)),
    "decoder": lambda _: (Decoded(), (_sequence(), _sequence(1, 48))),
    "transformer": lambda _: (
        nn.Transformer(WIDTH, HEADS, 2, 2, 2 * WIDTH, batch_first=True),
        (_sequence(), _sequence(1, 32)),
    ),
}
RECURRENT: dict[str, Callable[[bool], _Made]] = {
    "gru": lambda _: (Stepped(nn.GRU, 192), (_sequence(1, STEPS, 64),)),
    "gru_batch": lambda _: (Stepped(nn.GRU, 128), (_sequence(16, STEPS, 64),)),
    "lstm_batch": lambda _: (Stepped(nn.LSTM, 128), (_sequence(16, STEPS, 64),)),
}
STOCK = {**TRANSFORMERS, **RECURRENT}


def build(name: str, *, advised: bool = False) -> _Made:
    """A model in evaluation mode and its example inputs, seeded; with the advice followed where that is asked for."""
    torch.manual_seed(0)
    model, inputs = STOCK[name](advised)
    model.eval()
    if advised:
        replaced = (replace_attentions if name in TRANSFORMERS else replace_recurrent)(model)
        assert replaced, name
    return model, inputs
