"""The picture of the split by category."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from large_content import large_content
from opscope.analysis.analysis import Analysis
from opscope.program.operators.kinds import Category
from opscope.reports.content.content import VariantResult, category_rows
from opscope.reports.pictures.bars import SplitBar, category_shift, split_bars
from opscope.reports.sections.first import category_table


def ends(picture: str) -> list[float]:
    """Where the bars of a picture end, in per cent of its width, by their heights."""
    found: dict[str, float] = {}
    for left, top, width in re.findall(r'<rect x="([\d.-]+)%" y="(\d+)" width="([\d.-]+)%"', picture):
        found[top] = max(found.get(top, 0.0), float(left) + float(width))
    return list(found.values())


def test_a_bar_is_as_long_as_its_headline() -> None:
    """The longest takes the whole width; none goes on beyond the latency that stands beside it."""
    fast = SplitBar("accelerated", 1e6, {Category.CONVOLUTION: 0.75e6, Category.OTHER: 0.25e6}, 1.0)
    slow = SplitBar("baseline", 4e6, {Category.CONVOLUTION: 3e6, Category.GEMM: 0.5e6, Category.OTHER: 0.5e6}, 1.0)
    picture = split_bars([slow, fast])
    assert picture is not None
    assert ends(picture) == pytest.approx([100, 25])
    assert "<span>baseline, 4.00 ms</span><span>accelerated, 1.00 ms</span>" in picture


def test_what_a_table_has_no_time_of_has_no_bar() -> None:
    """Its latency is told, and why there is no bar; a category without time has no part."""
    none = SplitBar("without-avx2", 2e6, {}, 1.6)
    picture = split_bars([SplitBar("baseline", 4e6, {Category.CONVOLUTION: 4e6, Category.GEMM: 0.0}, 1.0), none])
    assert picture is not None
    assert ends(picture) == pytest.approx([100])
    assert picture.count("<rect") == 1
    assert "<span>without-avx2, 2.00 ms</span>" in picture
    assert "tracing takes 1.60x: shares only" in picture


def test_the_picture_of_a_report_has_the_times_of_its_table(tmp_path: Path) -> None:
    """Part by part, of the variant whose split the table is."""
    content = large_content(tmp_path, operators=40, inferences=4)
    picture = category_shift(content)
    assert picture is not None
    drawn = [title.split(": ") for title in re.findall(r"<title>(.*?)</title>", picture)]
    for row in category_rows(content):
        if row.time_ns:
            assert [row.category.value, f"{row.share * 100:.1f} %"] in drawn


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


def test_a_telephone_shows_shares_where_there_are_no_times(tmp_path: Path) -> None:
    """Where there are, it does without them: speedups and verdicts take the room."""
    content = large_content(tmp_path, operators=8, inferences=4)
    rows = category_rows(content)
    assert [one.spare for one in category_table(rows).columns if one.head == "share"] == [True]
    untimed = [msgspec.structs.replace(row, time_ns=None) for row in rows]
    assert [one.spare for one in category_table(untimed).columns if one.head == "share"] == [False]
