"""The quality of a measurement in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.quality import Grade
from opscope.reports.content.text import plain

if TYPE_CHECKING:
    from opscope.analysis.findings.quality import Quality

_WORDS = {Grade.GOOD: "good", Grade.USABLE: "usable", Grade.DO_NOT_TRUST: "do not trust"}
_NAMED = 3
_LONG = 300


def grade_text(grade: Grade) -> str:
    """A grade in words."""
    return _WORDS[grade]


def quality_sentence(quality: Quality | None) -> str:
    """The grade, and of the worst reasons what was seen and what to do; empty when nothing was measured."""
    if quality is None:
        return ""
    told = [
        f"{plain(reason.problem, _LONG)} (do: {plain(reason.advice, _LONG)})" for reason in quality.reasons[:_NAMED]
    ]
    rest = len(quality.reasons) - len(told)
    more = f"; {rest} more below" if rest else ""
    return f"Measurement quality: {grade_text(quality.grade)}" + (f"; {'; '.join(told)}{more}" if told else "")
