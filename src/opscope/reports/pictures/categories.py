"""The split by category as bars: as long as the headlines, and none where a table has no times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import Role
from opscope.core.units import time_text
from opscope.program.operators.kinds import Category
from opscope.reports.document.html import COLOURS, legend
from opscope.reports.pictures.bars import Bar, BarSegment, bars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.compare.compare import Comparison
    from opscope.reports.content.content import ReportContent

_PAIR = 2


class SplitBar(NamedTuple):
    """A latency and the times of its categories, all in nanoseconds; no times where only shares are known."""

    name: str
    headline_ns: float
    times_ns: Mapping[Category, float]


def category_shift(content: ReportContent) -> str | None:
    """A bar a variant, of two the baseline first, as in the table; None where no category has a time."""
    done = [(r.variant, r.analysis) for r in content.variants if r.analysis is not None]
    if len(done) == _PAIR:
        done.sort(key=lambda pair: pair[0].role is not Role.BASELINE)
    rows = [
        SplitBar(
            variant.name,
            analysis.headline_ns,
            {c.category: c.time_ns for c in analysis.categories if c.time_ns is not None},
        )
        for variant, analysis in done
    ]
    return split_bars(rows)


def compared_split(comparison: Comparison) -> str | None:
    """A bar for either side of a comparison."""
    changes = comparison.categories
    sides = (
        ("baseline", comparison.baseline.headline_ns, {row.category: row.baseline_ns for row in changes}),
        ("candidate", comparison.candidate.headline_ns, {row.category: row.candidate_ns for row in changes}),
    )
    return split_bars([SplitBar(*side) for side in sides])


def split_bars(rows: Sequence[SplitBar]) -> str | None:
    """The bars with their colours; a row without times is named, and has no bar."""
    longest = max((row.headline_ns for row in rows if row.times_ns), default=0)
    if longest <= 0:
        return None
    drawn = [Bar(_name(row), _segments(row), row.headline_ns / longest) for row in rows]
    return f"{legend((one.value, one) for one in Category)}{bars(drawn, 'Latency by category')}"


def _name(row: SplitBar) -> str:
    return f"{row.name}, {time_text(row.headline_ns) if row.times_ns else 'shares only'}"


def _segments(row: SplitBar) -> list[BarSegment]:
    return [
        BarSegment(one.value, time / row.headline_ns, COLOURS[one])
        for one in Category
        if (time := row.times_ns.get(one, 0)) > 0
    ]
