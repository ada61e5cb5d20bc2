"""Models defined in the project, with seeded random weights: latency does not depend on what a model has learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class Built(NamedTuple):
    """A model in evaluation mode and its example inputs."""

    module: Module
    inputs: tuple[Tensor, ...]
