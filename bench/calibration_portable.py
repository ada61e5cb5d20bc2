"""Exports a network of which nothing is delegated: ``python bench/calibration_portable.py PROGRAM``.

Its latency is that of portable kernels: plain loops of one thread that leave memory traffic and the compiler's code as
they are, so that its noise is of another kind than that of a delegate.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor, nn

_ROWS, _WIDTH = 96, 128


class Portable(nn.Module):
    """Softmax, layer norm, a transposed copy and a small matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.last = nn.Linear(_ROWS, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (1, 96, 128) to (1, 128, 4)."""
        normed: Tensor = self.norm(torch.softmax(x, dim=-1) * x)
        scores: Tensor = self.last(torch.sigmoid(normed).transpose(1, 2).contiguous())
        return scores


def main(program: Path) -> None:
    """Export it, with seeded weights and without a partitioner."""
    torch.manual_seed(0)
    exported = torch.export.export(Portable().eval(), (torch.randn(1, _ROWS, _WIDTH),))
    to_edge_transform_and_lower(exported).to_executorch().save(str(program))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
