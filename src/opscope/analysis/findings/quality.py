"""The verdict on a measurement: good, usable or do not trust, with what limits it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.finding import RuledOut, message_of, ruled_out
from opscope.analysis.findings.message import Message, MessageKind, Severity, not_checked

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


class Concern(msgspec.Struct, frozen=True):
    """Something that limits a measurement.

    Attributes:
        check: stable identifier of the check.
        limits_to: the best grade that it leaves.
        problem: what was seen, with figures.
        advice: what to do about it.
    """

    check: str
    limits_to: Grade
    problem: str
    advice: str


class Unknown(msgspec.Struct, frozen=True):
    """A check that were not made, and why."""

    check: str
    reason: str


class Quality(msgspec.Struct, frozen=True):
    """The verdict on a measurement.

    Attributes:
        grade: the worst that any reason leaves.
        reasons: what limits it, worst first.
        passed: what was checked and found in order.
        unknown: what could not be checked.
    """

    grade: Grade
    reasons: list[Concern]
    passed: list[RuledOut]
    unknown: list[Unknown]


_SEVERITIES = {Grade.GOOD: Severity.INFO, Grade.USABLE: Severity.MEDIUM, Grade.DO_NOT_TRUST: Severity.HIGH}
_GRADES = {severity: grade for grade, severity in _SEVERITIES.items()}


def concern(check: str, limits_to: Grade, problem: str, advice: str) -> Message:
    """Something that limits a measurement."""
    return Message(MessageKind.CONCERN, check, problem, next_step=advice, severity=_SEVERITIES[limits_to])


def grade_left(told: Message) -> Grade:
    """The best grade that a concern leaves."""
    return _GRADES[told.severity]


def judge(messages: Iterable[Message]) -> Quality:
    """The verdict from what all checks say."""
    listed, order = list(messages), list(Grade)
    concerns = [told for told in listed if told.kind is MessageKind.CONCERN]
    reasons = [Concern(told.rule, grade_left(told), told.title, told.next_step) for told in concerns]
    reasons.sort(key=lambda reason: -order.index(reason.limits_to))
    return Quality(
        grade=reasons[0].limits_to if reasons else Grade.GOOD,
        reasons=reasons,
        passed=[ruled_out(told) for told in listed if told.kind is MessageKind.PASSED],
        unknown=[Unknown(told.rule, told.title) for told in listed if told.kind is MessageKind.NOT_CHECKED],
    )


def unjudged(failure: PartFailure) -> Quality:
    """The verdict where a bug keeps the checks from being made: not good, since nobody looked."""
    advice = "report the bug; do not rest a decision on these figures alone"
    return judge([concern("quality", Grade.USABLE, f"the measurement was not checked: {failure.because}", advice)])


def messages_of(quality: Quality) -> list[Message]:
    """What a verdict holds, as messages: what limits the measurement, worst first; what passed; what is unknown."""
    return [
        *(concern(one.check, one.limits_to, one.problem, one.advice) for one in quality.reasons),
        *map(message_of, quality.passed),
        *(not_checked(one.check, one.reason) for one in quality.unknown),
    ]
