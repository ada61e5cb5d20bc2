"""Shares with their sampling error, and tables of them in Markdown."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


class Share(NamedTuple):
    """A share: so many hits of so many."""

    hits: int
    of: int

    @property
    def value(self) -> float:
        """The fraction."""
        return self.hits / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        return self.bounds(0.95)

    def bounds(self, confidence: float) -> tuple[float, float]:
        """Return the interval at a confidence.

        Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927).
        """
        share, z = self.value, NormalDist().inv_cdf((1 + confidence) / 2)
        middle = (share + z * z / (2 * self.of)) / (1 + z * z / self.of)
        half = z * math.sqrt(share * (1 - share) / self.of + z * z / (4 * self.of * self.of)) / (1 + z * z / self.of)
        return max(middle - half, 0.0), min(middle + half, 1.0)

    @property
    def text(self) -> str:
        """The share in per cent, without a unit."""
        return f"{self.value * 100:.1f}"

    @property
    def with_interval(self) -> str:
        """The share in per cent with its 95 % interval, without a unit."""
        return f"{self.text} ({self.interval[0] * 100:.1f} to {self.interval[1] * 100:.1f})"


def count_true(values: NDArray[np.bool_]) -> Share:
    """Return how many are true."""
    return Share(int(np.count_nonzero(values)), values.size)


def sum_shares(shares: Iterable[Share]) -> Share:
    """Return several shares as one."""
    columns = list(zip(*shares, strict=True))
    return Share(sum(columns[0]), sum(columns[1]))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown: the first column is text, the others are numbers."""
    print("| " + " | ".join(head) + " |")
    print("|---" + "|---:" * (len(head) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print()
