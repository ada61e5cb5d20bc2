"""A model with the operators of ExecuTorch's language models: a cache that is updated and attended to."""

from __future__ import annotations

import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - it registers the operators
from torch import nn

from opscope.runtimes.executorch.export.eager import EagerModel

PLACES, HEADS, SIZE, POSITION = 16, 2, 8, 5


class Cached(nn.Module):
    """Tokens go into a cache behind five others, and attend to all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(SIZE, SIZE)
        self.register_buffer("keys", torch.zeros(1, PLACES, HEADS, SIZE))
        self.register_buffer("values", torch.zeros(1, PLACES, HEADS, SIZE))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (1, count, heads, size)."""
        x = self.project(tokens)
        torch.ops.llama.update_cache(x, self.keys, POSITION)
        torch.ops.llama.update_cache(x, self.values, POSITION)
        return torch.ops.llama.custom_sdpa(x, self.keys, self.values, POSITION, is_causal=True)


def cached() -> EagerModel:
    """Three tokens."""
    torch.manual_seed(0)
    return EagerModel.of(Cached(), inputs=(torch.randn(1, 3, HEADS, SIZE),))
