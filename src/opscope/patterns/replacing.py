"""Puts modules in the place of others in a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def replace_modules(root: nn.Module, kind: type[nn.Module], make: Callable[[nn.Module], nn.Module]) -> int:
    """Put another module in the place of every submodule of a class; the root itself stays.

    Returns:
        How many were replaced.
    """
    found = [
        (parent, name, child)
        for parent in list(root.modules())
        for name, child in parent.named_children()
        if isinstance(child, kind)
    ]
    for parent, name, child in found:
        setattr(parent, name, make(child))
    return len(found)
