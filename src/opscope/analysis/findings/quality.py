"""The verdict on a measurement: good, usable or do not trust, with what limits it."""

from __future__ import annotations

import enum

import msgspec

from opscope.analysis.findings.finding import RuledOut


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
    """A check that could not be made, and why."""

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
