"""A small language model with two methods: prefill reads a prompt, decode makes one token after another.

A decoder as in Touvron et al., "LLaMA", 2023: root mean square norms, rotary positions, gated feed-forward parts. Keys
and values of earlier tokens are inputs and outputs of fixed length, so that a caller keeps them and the methods hold no
state: methods of a program share no memory in every runner.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opscope.runtimes.executorch.export.eager import EagerMethod, EagerModel

_SEED = 0
WORDS, LENGTH, PROMPT = 512, 64, 16
"""Number of words of the vocabulary, of places for tokens, and of tokens of the prompt."""
_WIDTH, _LAYERS, _HEADS = 128, 2, 4
_SIZE = _WIDTH // _HEADS
_HIDDEN = 3 * _WIDTH
_FORBIDDEN = -1e4  # fits into half precision too


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of the same shape."""
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class DecoderLayer(nn.Module):
    """Attention over the stored tokens, and a gated network; each behind a norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_network = Norm(), Norm()
        self.query, self.key, self.value, self.output = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4))
        self.gate, self.wide = (nn.Linear(_WIDTH, _HIDDEN, bias=False) for _ in range(2))
        self.narrow = nn.Linear(_HIDDEN, _WIDTH, bias=False)

    def parts(self, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of tokens, shape (1, heads, tokens, size).

        Queries and keys contain rotary positions.
        """
        y = self.before_attention(x)
        query, key, value = (
            part(y).view(1, -1, _HEADS, _SIZE).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        return _rotate_pairs(query, turn), _rotate_pairs(key, turn), value

    def mixed(self, x: Tensor, query: Tensor, stored: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Return tokens after attention to the stored keys and values, and after the network."""
        weights = torch.softmax(query @ stored[0].transpose(-1, -2) * _SIZE**-0.5 + mask, dim=-1)
        x = x + self.output((weights @ stored[1]).transpose(1, 2).reshape(1, -1, _WIDTH))
        y = self.before_network(x)
        out: Tensor = x + self.narrow(nn.functional.silu(self.gate(y)) * self.wide(y))
        return out


class Decoder(nn.Module):
    """Weights, positions and mask that both methods share."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, _WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(layers))
        self.norm, self.head = Norm(), nn.Linear(_WIDTH, WORDS, bias=False)
        angles = torch.arange(LENGTH)[:, None] * 10000.0 ** -torch.linspace(0, 1, _SIZE // 2)
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]))
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), _FORBIDDEN).triu(1))
        self.register_buffer("places", torch.arange(LENGTH))

    def scores(self, x: Tensor) -> Tensor:
        """Return scores of the next word after the last token, shape (1, words)."""
        out: Tensor = self.head(self.norm(x[:, -1]))
        return out


class Prefill(nn.Module):
    """Reads a prompt."""

    def __init__(self, shared: Decoder) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores (1, words), and keys and values (layers, heads, length, size), of a prompt (1, tokens)."""
        shared, count = self.shared, words.shape[1]
        x, turn, mask = shared.words(words), shared.turns[:, :count], shared.mask[:count, :count]
        keys, values = [], []
        for layer in shared.layers:
            query, key, value = layer.parts(x, turn)
            x = layer.mixed(x, query, (key, value), mask)
            keys.append(_pad_tokens(key, LENGTH))
            values.append(_pad_tokens(value, LENGTH))
        return shared.scores(x), torch.cat(keys), torch.cat(values)


class Decode(nn.Module):
    """Reads one token after others."""

    def __init__(self, shared: Decoder) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, word: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, keys and values of a token (1, 1) at a position (1,), given the keys and values before it."""
        shared = self.shared
        x, turn, mask = shared.words(word), shared.turns[:, position], shared.mask[position]
        here = (shared.places == position).view(1, 1, LENGTH, 1).to(x.dtype)
        new_keys, new_values = [], []
        for number, layer in enumerate(shared.layers):
            query, key, value = layer.parts(x, turn)
            # By arithmetic: XNNPACK takes sums and products, and no torch.where.
            old = keys[number : number + 1], values[number : number + 1]
            stored = old[0] + here * (key - old[0]), old[1] + here * (value - old[1])
            x = layer.mixed(x, query, stored, mask)
            new_keys.append(stored[0])
            new_values.append(stored[1])
        return shared.scores(x), torch.cat(new_keys), torch.cat(new_values)


def _rotate_pairs(x: Tensor, turn: Tensor) -> Tensor:
    """Apply rotary positions: pairs of numbers are turned by an angle that grows with the position."""
    first_half, second_half = x.chunk(2, dim=-1)
    return torch.cat(
        [first_half * turn[0] - second_half * turn[1], second_half * turn[0] + first_half * turn[1]], dim=-1
    )


def _pad_tokens(x: Tensor, length: int) -> Tensor:
    """Pad tokens with zeros after them, up to a length."""
    return nn.functional.pad(x, (0, 0, 0, length - x.shape[2]))


def build(layers: int = _LAYERS) -> EagerModel:
    """Return both methods with shared seeded weights; decode's example continues the prompt of prefill's."""
    torch.manual_seed(_SEED)
    shared = Decoder(layers).eval()
    prefill, decode = Prefill(shared).eval(), Decode(shared).eval()
    prompt = torch.randint(0, WORDS, (1, PROMPT))
    with torch.no_grad():
        scores, keys, values = prefill(prompt)
    word = scores.argmax(-1, keepdim=True)
    return EagerModel(
        {
            "prefill": EagerMethod(prefill, (prompt,), tokens=PROMPT),
            "decode": EagerMethod(decode, (word, torch.tensor([PROMPT]), keys, values), tokens=1),
        }
    )
