"""``torch.nn.MultiheadAttention`` of operators that XNNPACK delegates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from opscope.patterns.modules import MASKED, replace_modules

if TYPE_CHECKING:
    from collections.abc import Sequence


class MultiheadAttention(nn.Module):
    """Replacement of ``torch.nn.MultiheadAttention`` in evaluation mode, with a plain softmax.

    Queries, keys and values have a projection each, the scale is part of the first one's weights, and a mask is
    added:
    nothing guards against rows that are masked as a whole, which give the mean of the values instead of 0. Masks of
    numbers cost one addition; one of booleans is converted in every call.

    Args:
        attention: what to compute; it has neither ``add_bias_kv`` nor ``add_zero_attn``.
    """

    in_proj_bias = None  # torch.nn.TransformerEncoderLayer then calls this module and no fused kernel in its place

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        if not can_replace(attention):
            raise ValueError("attention with add_bias_kv or add_zero_attn has no delegated counterpart")
        self.batch_first, self.heads = attention.batch_first, attention.num_heads
        packed = attention.in_proj_weight
        weights = (
            packed.chunk(3)
            if packed is not None
            else (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
        )
        biases = (None,) * 3 if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
        scale = attention.head_dim**-0.5
        self.query = _scaled_linear(weights[0], biases[0], scale)
        self.key, self.value = (_scaled_linear(weights[at], biases[at]) for at in (1, 2))
        self.out = _scaled_linear(attention.out_proj.weight, attention.out_proj.bias)
        self.train(attention.training)

    def forward(  # noqa: PLR0913, PLR0917 - the arguments of torch.nn.MultiheadAttention
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs of ``torch.nn.MultiheadAttention``, and weights where they are needed."""
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is only a hint and needs attn_mask")
        batched = query.dim() == 3  # noqa: PLR2004 - batch, position, number
        sides = [self._by_batch(side, batched=batched) for side in (query, key, value)]
        batch, queries, keys = sides[0].shape[0], sides[0].shape[1], sides[1].shape[1]
        products = torch.bmm(
            self._split_heads(self.query(sides[0]), (0, 2, 1, 3)), self._split_heads(self.key(sides[1]), (0, 2, 3, 1))
        )
        if attn_mask is not None:
            products = products + _additive_numbers(attn_mask, products)
        if key_padding_mask is not None:
            numbers = _additive_numbers(key_padding_mask, products).view(batch, 1, 1, keys)
            products = (products.view(batch, self.heads, queries, keys) + numbers).view(-1, queries, keys)
        weights = torch.softmax(products, -1)
        attended = torch.bmm(weights, self._split_heads(self.value(sides[2]), (0, 2, 1, 3)))
        joined = attended.view(batch, self.heads, queries, -1).transpose(1, 2).reshape(batch, queries, -1)
        output = self._as_given(self.out(joined), batched=batched)
        if not need_weights:
            return output, None
        by_head = weights.view(batch, self.heads, queries, keys)
        returned = by_head.mean(1) if average_attn_weights else by_head
        return output, returned if batched else returned.squeeze(0)

    def _by_batch(self, side: Tensor, *, batched: bool) -> Tensor:
        """Return a side with its axes in the order batch, position, number."""
        if not batched:
            return side.unsqueeze(0)
        return side if self.batch_first else side.transpose(0, 1)

    def _as_given(self, output: Tensor, *, batched: bool) -> Tensor:
        """Return the output with its axes in the order of the inputs."""
        if not batched:
            return output.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1)

    def _split_heads(self, projected: Tensor, order: Sequence[int]) -> Tensor:
        """Return the heads one by one, in three dimensions: four would make torch.matmul expand its operands."""
        batch, length, _ = projected.shape
        heads = projected.view(batch, length, self.heads, -1).permute(*order)
        return heads.reshape(batch * self.heads, *heads.shape[2:])


def can_replace(attention: nn.MultiheadAttention) -> bool:
    """Return whether :class:`MultiheadAttention` computes the same as a module."""
    return attention.bias_k is None and not attention.add_zero_attn


def replace_attentions(model: nn.Module) -> int:
    """Put delegated attention in the place of every ``torch.nn.MultiheadAttention`` of a model.

    Those inside of ``torch.nn.TransformerEncoder`` and ``TransformerDecoder`` are among them. Load weights before.

    Returns:
        How many were replaced.
    """
    replaced = 0

    def made(attention: nn.MultiheadAttention) -> nn.Module:
        nonlocal replaced
        if not can_replace(attention):
            return attention
        replaced += 1
        return MultiheadAttention(attention)

    replace_modules(model, nn.MultiheadAttention, made)
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            encoder.use_nested_tensor = False  # it would look for the weights of the module that was replaced
    return replaced


def _additive_numbers(mask: Tensor, products: Tensor) -> Tensor:
    """Return a mask as numbers to add, none of them infinite; of booleans True is masked."""
    if mask.dtype is torch.bool:
        return mask.to(products.dtype) * MASKED
    return torch.clamp(mask, min=MASKED)


def _scaled_linear(weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> nn.Linear:
    """Return a linear layer with scaled copies of weights."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach() * scale)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach() * scale)
    return made
