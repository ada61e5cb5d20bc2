"""The order of repetitions: every round runs every variant once, in an order drawn anew for each round."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def interleaved(variants: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """For every round the variants in the order they run.

    Drift of the machine then falls on all variants alike, and exchanging two of them within a round changes nothing
    when they are the same, which is what the permutation test of a comparison rests on.
    """
    generator = random.Random(seed)  # noqa: S311 - an order to be repeated, not a secret
    return [generator.sample(list(variants), len(variants)) for _ in range(rounds)]
