"""What every split of an analysis keeps: its times add up to the headline, its shares to one."""

from __future__ import annotations

import math

import pytest

from opscope.analysis.analysis import Analysis


def check_splits(found: Analysis) -> None:
    """Operators, categories and backends, each with the rows outside; categories hold the copies already."""
    for rows in (found.operators, found.categories, found.backends):
        beside = [row for row in found.outside if rows is not found.categories or row.category is None]
        whole = [*rows, *beside]
        assert math.fsum(row.share for row in whole) == pytest.approx(1, rel=1e-9)
        assert math.fsum(row.time_ns or 0.0 for row in whole) == pytest.approx(found.headline_ns, rel=1e-9)
        for row in rows:
            assert row.share == pytest.approx((row.time_ns or 0.0) / found.headline_ns, rel=1e-9, abs=1e-9)
