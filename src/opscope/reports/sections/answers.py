"""What each section of the page says in a line, beside its heading, while it is closed."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from opscope.analysis.operators.operators import sums
from opscope.core.units import counted_text, share_text, size_text
from opscope.reports.content.content import operator_rows, resources
from opscope.reports.document.text import plain
from opscope.reports.sections.program import layer_text

if TYPE_CHECKING:
    from opscope.analysis.analysis import Analysis
    from opscope.reports.content.content import ReportContent

_NAME = 60


def section_answers(content: ReportContent) -> dict[str, str]:
    """The lines, by the names that the templates know them by; empty where a section has nothing to say."""
    shown = content.shown
    return {
        "operators_answer": _operators(content),
        "kernels_answer": _kernels(content),
        "layers_answer": _layers(shown) if shown else "",
        "delegates_answer": _delegates(shown) if shown else "",
        "memory_answer": _memory(content),
        "checks_answer": _checks(content),
        "run_answer": _run(content),
    }


def _operators(content: ReportContent) -> str:
    rows = operator_rows(content)
    if not rows:
        return ""
    first = next((row.operator for row in rows if row.operator.kind != "framework"), rows[0].operator)
    longest = plain(layer_text(first) or first.name, _NAME)
    return f"{counted_text(len(rows), 'row')}; the longest is {longest}, {share_text(first.share)}"


def _kernels(content: ReportContent) -> str:
    found = content.kernels
    if found is None or not found.ladders:
        return "by algorithm and number types"
    return f"of {counted_text(len(found.ladders), 'variant')}, with how each is known"


def _layers(shown: Analysis) -> str:
    leaves = [row for row in shown.modules if row.path and row.self_share > 0]
    if not leaves:
        return "modules are not known"
    first = max(leaves, key=lambda row: row.self_share)
    return f"the longest is {plain(first.path, _NAME)}, {share_text(first.self_share)}"


def _delegates(shown: Analysis) -> str:
    tax = sums(shown.layout)[1]
    calls, portable = counted_text(len(shown.delegates), "call"), counted_text(len(shown.portable), "operator")
    return f"{calls} of delegates, layout tax {share_text(tax)}, {portable} not delegated"


def _memory(content: ReportContent) -> str:
    known = [row.peak_rss_bytes for row in resources(content) if row.peak_rss_bytes is not None]
    return f"peak resident memory {size_text(int(median(known)))}" if known else "not known"


def _checks(content: ReportContent) -> str:
    left = sum(not each.checked for each in content.ruled_out)
    more = f", {left} not made" if left else ""
    return f"{counted_text(len(content.ruled_out) - left, 'rule')} found nothing{more}"


def _run(content: ReportContent) -> str:
    plan = content.manifest.plan
    return f"{plan.rounds} rounds, {len(content.manifest.repetitions)} repetitions, and how to reproduce them"
