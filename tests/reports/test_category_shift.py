"""The picture of the split by category."""

from __future__ import annotations

from pathlib import Path

import msgspec

from large_content import large_content
from opscope.analysis.analysis import Analysis
from opscope.reports.content.content import VariantResult
from opscope.reports.pictures.pictures import category_shift


def test_no_bars_are_drawn_where_no_category_has_a_time(tmp_path: Path) -> None:
    """As where tracing takes too long for times: the table has shares alone, and no empty axes stand above it."""
    content = large_content(tmp_path, operators=8, inferences=4)
    assert category_shift(content) is not None
    shares = [VariantResult(one.variant, _without_times(one.analysis)) for one in content.variants if one.analysis]
    assert shares
    assert category_shift(msgspec.structs.replace(content, variants=shares)) is None


def _without_times(analysis: Analysis) -> Analysis:
    rows = [msgspec.structs.replace(row, time_ns=None) for row in analysis.categories]
    return msgspec.structs.replace(analysis, categories=rows)
