"""The methods of a program one by one, as rows of a table."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.units import ratio_text
from opscope.reports.content.content import speedup_text
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.compare import EndToEnd
    from opscope.analysis.latency.latency import Latency
    from opscope.analysis.latency.methods import MethodTime
    from opscope.reports.content.content import ReportContent


class MethodRow(NamedTuple):
    """One method of the shown variant."""

    method: MethodTime  # its figures
    latency: Latency  # untraced where there is such, else traced
    verdict: EndToEnd | None  # against the baseline; None without one
    baseline_ns: float | None = None  # latency of the baseline; likewise

    @property
    def speedup(self) -> str:
        """Against the baseline, with the interval where there is one; empty without a baseline."""
        if self.verdict is None:
            return ""
        interval = self.verdict.ci95
        between = f" [{ratio_text(interval[0])}, {ratio_text(interval[1])}]" if interval else ""
        return f"{speedup_text(self.verdict)}{between}"


def method_rows(content: ReportContent) -> list[MethodRow]:
    """The methods of the shown variant in the order of their first calls; empty when there is one and no tokens."""
    changes = content.primary.methods if content.primary else []
    known = {change.method: (change.end_to_end, change.end_to_end.baseline_ns) for change in changes}
    if content.primary and not changes:
        # Of a single method, the verdict on all calls is its own.
        alone = content.primary.end_to_end, content.primary.end_to_end.baseline_ns
        known = {row.method: alone for row in _shown(content)}
    rows = [(row, *known.get(row.method, (None, None))) for row in _shown(content)]
    return [MethodRow(row, row.latency, verdict, before) for row, verdict, before in rows]


def _shown(content: ReportContent) -> list[MethodTime]:
    return content.shown.methods if content.shown else []


def tokens_text(row: MethodTime) -> str:
    """Tokens per second with their interval; a dash where a call stands for none."""
    if row.tokens_per_second is None:
        return "-"
    interval = row.tokens_ci95
    between = f" [{_rate(interval[0])}, {_rate(interval[1])}]" if interval else ""
    return f"{_rate(row.tokens_per_second)}{between}"


def calls_text(calls: Sequence[str]) -> str:
    """An order of calls as an option takes it: ``prefill,decode:16``."""
    runs = [(name, len(list(group))) for name, group in groupby(calls)]
    return ",".join(name if count == 1 else f"{name}:{count}" for name, count in runs)


def order_sentence(calls: Sequence[str]) -> str:
    """In which order methods were called, in one sentence."""
    if not calls:
        return ""
    runs = [(plain(name, 60), len(list(group))) for name, group in groupby(calls)]
    told = ", then ".join(name if count == 1 else f"{name} {count} times" for name, count in runs)
    return f"Every process calls {told}, over and over; each call of a method gets the same inputs."


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits are enough
