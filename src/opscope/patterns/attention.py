"""Attention of operators that XNNPACK delegates, with a mask of numbers."""

from __future__ import annotations

import torch
from torch import Tensor

MASKED = -1e4
"""Added to the product of a position that is masked: its weight is 0 in float32, and half precision can hold it."""


def additive_mask(keep: Tensor) -> Tensor:
    """The numbers to add to the products of an attention, for a mask that is True where a position is attended to.

    Make it once, when the model is built, and keep it as a buffer.

    Returns:
        float32 of the same shape: 0 where ``keep`` is True, ``MASKED`` elsewhere.
    """
    return torch.zeros(keep.shape).masked_fill(~keep, MASKED)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """What ``scaled_dot_product_attention`` computes, without its guard for rows that are masked as a whole.

    Such a row gives the mean of ``value`` instead of 0.

    Returns:
        Shape (..., queries, width of the output).
    """
    products = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return torch.softmax(products if mask is None else products + mask, -1) @ value
