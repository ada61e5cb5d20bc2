"""The verdict on a measurement: good, usable or do not trust, with what limits it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import Message, MessageKind, Severity, sorted_out

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.core.parts import PartFailure


class Grade(str, enum.Enum):
    """How far the figures can be trusted."""

    GOOD = "good"
    USABLE = "usable"
    """The figures hold within their intervals; the reasons say what makes these wide, or what to keep in mind."""
    DO_NOT_TRUST = "do_not_trust"
    """The figures may be wrong, or nothing can be concluded from them."""


class Quality(msgspec.Struct, frozen=True):
    """The verdict on a measurement.

    Attributes:
        grade: the worst that any reason leaves.
        reasons: what limits it, worst first.
        ruled_out: what was checked and found in order, and what could not be checked.
    """

    grade: Grade
    reasons: list[Message]
    ruled_out: list[Message]

    @property
    def doubt(self) -> Message | None:
        """Why times are not to be trusted; None where they are.

        That both sides compute different results says nothing about their times: a retrained model is no slower one.
        Nor does the load average: what others took from the inferences themselves is a check of its own.
        """
        found = (one for one in self.reasons if grade_left(one) is Grade.DO_NOT_TRUST)
        return next((one for one in found if one.rule not in _NOT_OF_TIMES), None)

    def kept(self) -> list[str]:
        """What holds although the figures are not to be trusted, a sentence each; empty where times are in doubt."""
        found = [one.rule for one in self.reasons if grade_left(one) is Grade.DO_NOT_TRUST]
        return [] if self.doubt else [_NOT_OF_TIMES[rule] for rule in dict.fromkeys(found)]


_SEVERITIES = {Grade.GOOD: Severity.INFO, Grade.USABLE: Severity.MEDIUM, Grade.DO_NOT_TRUST: Severity.HIGH}
_ORDER = list(Grade)
_NOT_OF_TIMES = {
    "outputs_alike": "The outputs differ; the times are not in doubt",
    "idle": "What others took from the inferences leaves their times in no doubt",
}
"""Checks that limit a grade and say nothing of how the inferences that count were timed, and what that leaves."""
_GRADES = {severity: grade for grade, severity in _SEVERITIES.items()}


def concern(check: str, limits_to: Grade, problem: str, advice: str) -> Message:
    """Something that limits a measurement."""
    return Message(MessageKind.CONCERN, check, _SEVERITIES[limits_to], problem, "", None, advice)


def grade_left(told: Message) -> Grade:
    """The best grade that a concern leaves."""
    return _GRADES[told.severity]


def judge(messages: Iterable[Message]) -> Quality:
    """The verdict from what all checks say."""
    reasons, ruled_out = sorted_out(messages)
    reasons.sort(key=lambda reason: -_ORDER.index(grade_left(reason)))
    return Quality(grade_left(reasons[0]) if reasons else Grade.GOOD, reasons, ruled_out)


def unjudged(failure: PartFailure) -> Quality:
    """The verdict where a bug keeps the checks from being made: not good, since nobody looked."""
    advice = "report the bug; do not decide on these figures alone"
    return judge([concern("quality", Grade.USABLE, f"the measurement was not checked: {failure.because}", advice)])
