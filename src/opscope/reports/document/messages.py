"""Messages in words: what every report says of them in one sentence, and of the quality of a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import MessageKind
from opscope.analysis.findings.quality import Grade, messages_of
from opscope.core.units import counted_text
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from opscope.analysis.findings.message import Message
    from opscope.analysis.findings.quality import Quality

_WORDS = {Grade.GOOD: "good", Grade.USABLE: "usable", Grade.DO_NOT_TRUST: "do not trust"}
_NAMED = 3
_LONG = 300


def sentence(told: Message) -> str:
    """A message in one sentence; of a finding its title, of a warning and a concern also what to do."""
    if told.kind is MessageKind.CONCERN:
        return f"{plain(told.title, _LONG)} (do: {plain(told.next_step, _LONG)})"
    if told.kind is MessageKind.WARNING and told.next_step:
        return f"{told.title}; {told.next_step}"
    return f"not checked: {told.title}" if told.kind is MessageKind.NOT_CHECKED else told.title


def first_clause(evidence: str) -> str:
    """What is shown of the evidence of a finding: its first clause; the rest is a detail."""
    return evidence.partition("; ")[0]


def further_clauses(evidence: str) -> list[str]:
    """The other clauses of the evidence of a finding."""
    return evidence.split("; ")[1:]


def grade_text(grade: Grade) -> str:
    """A grade in words."""
    return _WORDS[grade]


def quality_sentence(quality: Quality | None, *, reasons_told: bool = False) -> str:
    """The grade, and of the worst reasons what was seen and what to do; empty when nothing was measured."""
    if quality is None:
        return ""
    if reasons_told:
        return f"Measurement quality: {grade_text(quality.grade)}"
    reasons = [sentence(told) for told in messages_of(quality) if told.kind is MessageKind.CONCERN]
    rest = len(reasons) - _NAMED
    more = f"; {counted_text(rest, 'more reason')} in the report" if rest > 0 else ""
    shown = f"; {'; '.join(reasons[:_NAMED])}{more}" if reasons else ""
    return f"Measurement quality: {grade_text(quality.grade)}{shown}"


def measure_again(quality: Quality | None) -> str:
    """That measuring again comes before everything else, and how; empty unless the measurement cannot be trusted."""
    if quality is None or quality.grade is not Grade.DO_NOT_TRUST:
        return ""
    told = [one for one in quality.reasons if one.limits_to is Grade.DO_NOT_TRUST]
    steps = dict.fromkeys(plain(one.advice, _LONG) for one in told if one.advice)
    why = plain(told[0].problem, _LONG)
    how = f": {'; '.join(list(steps)[:_NAMED])}" if steps else ""
    return f"Measure again before acting on any finding{how} ({why})"
