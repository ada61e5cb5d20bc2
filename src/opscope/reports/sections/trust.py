"""How far to trust a measurement: what limits it, what was checked, and what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import MessageKind, part_warning, warning
from opscope.analysis.findings.quality import grade_left
from opscope.reports.content.content import limits
from opscope.reports.content.switch import switch_messages
from opscope.reports.document.blocks import Bullets, Details, Format, Section, Sentence, TableCell, column, table
from opscope.reports.document.messages import grade_text, sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.findings.message import Message
    from opscope.analysis.findings.quality import Quality
    from opscope.core.parts import PartFailure
    from opscope.reports.content.content import ReportContent
    from opscope.reports.document.blocks import Block, TableBlock


def trust_section(content: ReportContent, failures: Sequence[PartFailure]) -> Section:
    """The grade and its reasons, the limits of the figures, and the checks."""
    told = [*switch_messages(content), *limits(content), *(warning(part_warning(one)) for one in failures)]
    blocks = [*quality_blocks(content.quality), Bullets([sentence(one) for one in told])]
    ruled_out = [*content.ruled_out, *(content.quality.ruled_out if content.quality else [])]
    for title, kind in (("Passed Checks", MessageKind.PASSED), ("Checks Not Made", MessageKind.NOT_CHECKED)):
        found = [one for one in ruled_out if one.kind is kind]
        if found:
            count = f"{title.capitalize()}: {len(found)}."
            blocks.append(Details(f"{title} ({len(found)})", [Bullets(_named(found))], count))
    return Section("Measurement Quality", blocks, "trust", "Trust")


def _named(messages: Iterable[Message]) -> list[str]:
    return [f"{one.rule}: {one.title}" for one in messages]


def quality_blocks(quality: Quality | None) -> list[Block]:
    """The grade, and what limits it."""
    if quality is None:
        return []
    return [Sentence(f"Measurement quality: {grade_text(quality.grade)}."), _concerns(quality)]


def _concerns(quality: Quality) -> TableBlock:
    return table(
        quality.reasons,
        column("what limits it", Format.TEXT, lambda told: TableCell(told.title, told.rule)),
        column("to", Format.TEXT, lambda told: grade_text(grade_left(told))),
        column("what to do", Format.TEXT, lambda told: told.next_step),
    )
