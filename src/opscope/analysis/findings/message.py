"""What a user is told: one type for every rule to speak in, and for every report to draw.

Documents publish messages in shapes of their own, which only grow: ``Finding`` and ``RuledOut`` of rules, ``Concern``
and ``Unknown`` of the quality of a measurement, ``TileFinding`` of an NPU's trace, ``TraceWarning`` of a reader. Each
is made from a message where the rules end, and is a message again where a report begins: ``docs/design/rules.md``.

A saving is never a wish. It rests on one of two things, and says on which: a limit (what would be left if the time in
question were zero: Amdahl's law), or a rate that was measured on this machine. Its interval is that of the measurement.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.table import TraceWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.parts import PartFailure
    from opscope.core.table.places import OperatorKey


class Severity(str, enum.Enum):
    """How much a finding matters."""

    HIGH = "high"
    MEDIUM = "medium"
    INFO = "info"


class MessageKind(str, enum.Enum):
    """What a message is."""

    FINDING = "finding"
    """Something worth knowing or doing."""
    CONCERN = "concern"
    """Something that limits a measurement."""
    WARNING = "warning"
    """Something that limits what a file or a comparison tells."""
    PASSED = "passed"
    """A rule that was checked and found nothing."""
    NOT_CHECKED = "not checked"
    """A rule that could not be checked."""


class Saving(NamedTuple):
    """What acting on a finding would save."""

    ns: float | None = None  # per inference; None where that cannot be said
    # its 95 % interval; None with fewer than two processes, or without a saving
    ci95: tuple[float, float] | None = None
    basis: str | None = None  # what it supposes, or why there is none; None where no rule asked


LIMIT = "it is a limit of the measurement"
"""Why a finding has no saving that says how far figures can be relied on, and nothing about the model."""


def no_saving(why: str) -> Saving:
    """No saving can be said, and why."""
    return Saving(None, None, f"not reported: {why}")


class Message(NamedTuple):
    """Something that a user is told."""

    kind: MessageKind  # what it is
    rule: str  # stable identifier of the rule, the check or the warning; empty for a remark that has none
    title: str  # it in one sentence; of a rule that passed or was not checked, what was seen or what is missing
    evidence: str = ""  # the figures it rests on; empty where the title has them
    next_step: str = ""  # what to do; empty where there is nothing to do
    # how much a finding matters, or how far a concern limits: high where nothing can be concluded
    severity: Severity = Severity.INFO
    saving: Saving = Saving()  # what acting on it would save
    context: str | None = None  # what is usual elsewhere, with its source
    operators: tuple[OperatorKey, ...] = ()  # those whose time it is about; empty when it is about none in particular
    place: str | None = None  # where in the trace of an NPU; None elsewhere
    # which of several things that the rule knows it is about, such as an event of a unit; empty where the rule
    # has one alone
    subject: str = ""
    # page with code before and after the next step; None where the step is not a change of code
    recipe: str | None = None


def finding(
    rule: str,
    severity: Severity,
    words: tuple[str, str, str],
    saving: Saving = Saving(),  # noqa: B008 - an immutable value
    operators: Sequence[OperatorKey] = (),
) -> Message:
    """A finding."""
    return Message(MessageKind.FINDING, rule, *words, severity=severity, saving=saving, operators=tuple(operators))


def passed(rule: str, seen: str) -> Message:
    """A rule that was checked and found nothing, and what it saw."""
    return Message(MessageKind.PASSED, rule, seen)


def not_checked(rule: str, why: str) -> Message:
    """A rule that could not be checked, and why."""
    return Message(MessageKind.NOT_CHECKED, rule, why)


def note(text: str) -> Message:
    """A remark on what figures do not say, such as a comparison makes."""
    return Message(MessageKind.WARNING, "", text)


def warning(read: TraceWarning) -> Message:
    """What a reader noticed."""
    return Message(MessageKind.WARNING, read.code, read.message, next_step=read.hint)


PART_FAILED = "part_failed"
"""Code of what is not known because of a bug in opscope."""


def part_warning(failure: PartFailure) -> TraceWarning:
    """That a part of a result is not known because of a bug, as documents hold it."""
    hint = "report it with the traceback, which is in problems/ beside the report, or was printed"
    return TraceWarning(PART_FAILED, failure.sentence, hint)
