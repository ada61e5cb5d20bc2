"""What acceleration did, or what changed between two programs, and where the change comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.compare.compare import shown_not_faster
from opscope.analysis.rules.acceleration import CONTEXT, SME
from opscope.analysis.rules.evidence import LEAST_SHARE
from opscope.analysis.rules.switched import HEAVY
from opscope.core.parts import part
from opscope.core.stats.effect import Verdict
from opscope.core.units import milliseconds, ratio_text, share_text
from opscope.reports.content.content import category_rows, no_difference_text, speedup_text, top_operators
from opscope.reports.document.blocks import Block, Bullets, Section, Sentence, verdict_text
from opscope.reports.sections.shift import shift_blocks

if TYPE_CHECKING:
    from opscope.analysis.compare.compare import Comparison
    from opscope.reports.content.content import OperatorRow, ReportContent

_TOP = 8
_FEW = 0.005


def acceleration_section(content: ReportContent) -> Section:
    """What acceleration did, and where the change comes from."""
    title = "What Changed" if content.manifest.programs else "Acceleration Analysis"
    comparison = content.primary
    if comparison is None:
        why = f", {content.manifest.left_out.switch}" if content.manifest.left_out.switch else ""
        answer = f"Not known: there is no baseline to compare with{why}"
        return Section(title, [Sentence(f"{answer}.")], "change", "Change", answer, folded=True)
    blocks: list[Block] = [Bullets(part("what acceleration did", lambda: accelerated(content), list[str]()))]
    found = part("what changed", lambda: shift_blocks(comparison) if content.has_split else [], list[Block]())
    where = [Section("Where the change comes from", found)] if found else []
    answer = f"speedup {speedup_text(comparison.end_to_end)}"
    return Section(title, [*blocks, *where], "change", "Change", answer, folded=True)


def accelerated(content: ReportContent) -> list[str]:
    """What acceleration did to the categories, and to operators it should help, one sentence each."""
    comparison = content.primary
    if comparison is None:
        return []
    if not content.has_split:
        return [_speed_line(comparison)]
    told = [
        f"{row.category.value} {ratio_text(row.speedup)} ({milliseconds(row.baseline_ns or 0)} to "
        f"{milliseconds(row.time_ns or 0)} ms)"
        for row in sorted(category_rows(content), key=lambda row: -(row.speedup or 0))
        if row.speedup and (row.baseline_ns or 0) > _FEW * comparison.baseline.headline_ns
    ]
    lines = [f"By category: {', '.join(told)}."] if told else []
    if content.manifest.programs:
        return lines  # nothing was switched, so nothing is expected of it
    return [*lines, *_expected(content), *_unhelped(content)]


def _speed_line(comparison: Comparison) -> str:
    found = comparison.end_to_end
    told = no_difference_text(found) if found.verdict is Verdict.NO_DIFFERENCE else verdict_text(found.verdict)
    return f"End to end: {speedup_text(found)}, {found.reason or told}."


def _expected(content: ReportContent) -> list[str]:
    """What SME2 is expected to give, where SME is what was switched."""
    off = content.result(content.primary.baseline.label) if content.primary else None
    switched = off.variant.ablated if off else None
    if switched is None:
        return [f"Expected if SME2 was switched: {CONTEXT}."]
    return [f"Expected: {CONTEXT}."] if SME & set(switched) else []


def _unhelped(content: ReportContent) -> list[str]:
    """Convolutions and matrix products in a delegate that are shown not to be faster, those above the threshold."""
    rows = [
        row
        for row in top_operators(content)
        if row.operator.category in HEAVY
        and row.operator.backend != "portable"
        and row.operator.share > LEAST_SHARE
        and row.change is not None
        and shown_not_faster(row.change)
    ]
    if not rows:
        return []
    return [
        (
            f"Delegated operators above {share_text(LEAST_SHARE)} that are not faster: "
            f"{', '.join(map(_named, rows[:_TOP]))}."
        )
    ]


def _named(row: OperatorRow) -> str:
    operator = row.operator
    return f"{operator.module or operator.name} ({milliseconds(operator.shown_ns)} ms)"
