"""Verdicts on the fastest of several variants, which the same latencies chose."""

from __future__ import annotations

import numpy as np
import pytest

from opscope.core.stats.effect import ALPHA, stepped_down
from opscope.core.stats.hierarchy import median_effect, typical

VARIANTS, ROUNDS, EXPERIMENTS = 5, 12, 80


def test_the_smallest_is_corrected_for_all_tests() -> None:
    """Holm: the smallest by their number, each further one by one less, and never below one before it."""
    assert stepped_down([0.04, 0.001, 0.02], 10) == pytest.approx([0.32, 0.01, 0.18])
    assert stepped_down([0.01, 0.0101], 3) == pytest.approx([0.03, 0.03])
    assert stepped_down([0.9], 3) == [1.0]
    assert stepped_down([], 3) == []


def test_the_fastest_of_identical_variants_is_rarely_called_faster() -> None:
    """Uncorrected it would be in a quarter of all experiments: it was chosen for being fast."""
    random = np.random.default_rng(5)
    called = {"alone": 0, "corrected": 0}
    for _ in range(EXPERIMENTS):
        levels = 1e6 * np.exp(0.02 * random.standard_t(3, (VARIANTS, ROUNDS)))
        sides = [[np.array([level]) for level in own] for own in levels]
        first = min(sides, key=typical)
        p_values = [median_effect(own, first, paired=True).p_value or 0.0 for own in sides if own is not first]
        called["alone"] += min(p_values) <= ALPHA
        called["corrected"] += min(stepped_down(p_values, VARIANTS * (VARIANTS - 1) // 2)) <= ALPHA
    assert called["corrected"] <= 0.1 * EXPERIMENTS < called["alone"]
