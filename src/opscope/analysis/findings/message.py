"""Messages to a user: one type for every rule to produce, for documents to publish, and for every report to show.

A saving is never a wish. It rests on one of two things, and says on which: a limit (what would be left if the time in
question were zero: Amdahl's law), or a rate that was measured on this machine. Its interval is that of the measurement.

A measurement as a whole has a verdict, too: good, usable or do not trust, with what limits it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.table import TraceWarning
from opscope.core.table.places import OperatorKey
from opscope.core.units import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.core.parts import PartFailure


class Severity(str, enum.Enum):
    """Importance of a finding."""

    HIGH = "high"
    MEDIUM = "medium"
    INFO = "info"


class MessageKind(str, enum.Enum):
    """Kind of a message."""

    FINDING = "finding"
    """Observation worth knowing or acting on."""
    LIMIT = "limit"
    """Finding of a rule on how far figures can be relied on, with nothing to do about the model."""
    CONCERN = "concern"
    """Problem that limits a measurement."""
    WARNING = "warning"
    """Problem that limits what a file or a comparison tells."""
    PASSED = "passed"
    """Result of a rule that was checked and found nothing."""
    NOT_CHECKED = "not_checked"
    """Result of a rule that could not be checked."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """Message to a user; fields after ``next_step`` that are empty or unknown are left out.

    Attributes:
        kind: what it is.
        rule: stable identifier of the rule or the check; empty for a remark that has none.
        severity: how much a finding matters; of a concern how far it limits: ``high`` where nothing can be concluded,
            ``medium`` where figures hold within their intervals.
        title: it in one sentence; of a rule that passed or was not checked, what was seen or what is missing.
        evidence: the figures it rests on; empty where the title has them.
        saving_ns: what acting on it would save per inference, as ``saving_basis`` says; null where that cannot be said.
        next_step: what to do; empty where there is nothing to do.
        saving_ci95_ns: 95 % interval of ``saving_ns``; null with fewer than two processes, or without a saving.
        saving_basis: what the saving supposes, or why there is none; null where no rule asked.
        context: what is usual elsewhere, with its source; null where nothing is known that applies.
        operators: those whose time it is about; empty when it is about none in particular.
        recipe: page with code before and after, as `opscope skills show` names it; null where there is none.
        place: where in the trace of an NPU: tile and, where there is one, call and cycle; null elsewhere.
        subject: which of several things that the rule knows it is about, such as an event of a unit; empty where the
            rule has one alone. Reports show findings of one rule and subject on several tiles once.
        lines: lines of the model's code that it is about, as ``file:line``; empty where none is known.
        saving_cycles: most cycles of an NPU's trace that acting on it would save; null where that cannot be said.
    """

    kind: MessageKind
    rule: str
    severity: Severity
    title: str
    evidence: str
    saving_ns: float | None
    next_step: str
    saving_ci95_ns: tuple[float, float] | None = None
    saving_basis: str | None = None
    context: str | None = None
    operators: tuple[OperatorKey, ...] = ()
    recipe: str | None = None
    place: str | None = None
    subject: str = ""
    lines: tuple[str, ...] = ()
    saving_cycles: float | None = None

    def about(
        self,
        *,
        context: str | None = None,
        recipe: str | None = None,
        place: str | None = None,
        subject: str | None = None,
        lines: Sequence[str] = (),
        saving_cycles: float | None = None,
    ) -> Message:
        """Return this message with the given details added."""
        return msgspec.structs.replace(
            self,
            context=context or self.context,
            recipe=recipe or self.recipe,
            place=place or self.place,
            subject=subject or self.subject,
            lines=tuple(lines) or self.lines,
            saving_cycles=self.saving_cycles if saving_cycles is None else saving_cycles,
        )


class Saving(NamedTuple):
    """Saving that acting on a finding would bring."""

    ns: float | None = None  # per inference; None where that cannot be said
    # its 95 % interval; None with fewer than two processes, or without a saving
    ci95: tuple[float, float] | None = None
    basis: str | None = None  # what it supposes, or why there is none; None where no rule asked


def no_saving(why: str) -> Saving:
    """Return the absence of a saving, with the reason."""
    return Saving(None, None, f"not reported: {why}")


def finding(
    rule: str,
    severity: Severity,
    words: tuple[str, str, str],
    saving: Saving = Saving(),  # noqa: B008 - an immutable value
    operators: Sequence[OperatorKey] = (),
) -> Message:
    """Return a finding; ``words`` are its title, evidence and next step."""
    title, evidence, step = words
    return Message(
        MessageKind.FINDING,
        rule,
        severity,
        title,
        evidence,
        saving.ns,
        step,
        saving.ci95,
        saving.basis,
        operators=tuple(operators),
    )


def limit(rule: str, severity: Severity, words: tuple[str, str, str]) -> Message:
    """Return a finding on how far figures can be relied on."""
    return msgspec.structs.replace(finding(rule, severity, words), kind=MessageKind.LIMIT)


def passed(rule: str, seen: str) -> Message:
    """Return the result of a rule that was checked and found nothing, with what it saw."""
    return _brief_message(MessageKind.PASSED, rule, seen)


def not_checked(rule: str, why: str) -> Message:
    """Return the result of a rule that could not be checked, and why."""
    return _brief_message(MessageKind.NOT_CHECKED, rule, why)


def note(text: str) -> Message:
    """Return a remark on what figures do not say."""
    return _brief_message(MessageKind.WARNING, "", text)


def warning(read: TraceWarning) -> Message:
    """Return a reader's warning as a message."""
    return _brief_message(MessageKind.WARNING, read.code, read.message, read.hint)


PART_FAILED = "part_failed"
"""Code of the warning that a part is unknown because of a bug in opscope."""


def part_warning(failure: PartFailure) -> TraceWarning:
    """Return the warning that a part of a result is unknown because of a bug."""
    hint = "report it with the traceback, which is in problems/ next to the report, or was printed"
    return TraceWarning(PART_FAILED, failure.sentence, hint)


def _brief_message(kind: MessageKind, rule: str, title: str, step: str = "") -> Message:
    return Message(kind, rule, Severity.INFO, title, "", None, step)


_MOSTLY = 2 / 3
"""Share of its time that an earlier finding with the same advice must also count for a finding to be a repetition."""
_MENTIONED = 0.01
"""Share of a finding's time above which a finding says that another one counts it too."""


def split_ruled_out(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """Split messages into findings and those that were ruled out or not checked, both in the given order."""
    findings: list[Message] = []
    ruled_out: list[Message] = []
    for message in messages:
        (ruled_out if message.kind in {MessageKind.PASSED, MessageKind.NOT_CHECKED} else findings).append(message)
    return findings, ruled_out


def advice_of(findings: Iterable[Message]) -> list[Message]:
    """Return the findings that something can be done about, without limits of the measurement."""
    return [message for message in findings if message.kind is MessageKind.FINDING]


def limits_of(findings: Iterable[Message]) -> list[Message]:
    """Return the findings on how far figures can be relied on."""
    return [message for message in findings if message.kind is MessageKind.LIMIT]


def order_findings(findings: Sequence[Message], first: Sequence[str] = ()) -> list[Message]:
    """Order findings by severity, then by the lower end of the saving; ties keep their order."""
    severities = list(Severity)
    return sorted(
        findings,
        key=lambda message: (severities.index(message.severity), message.rule not in first, -_least_saving(message)),
    )


def _least_saving(message: Message) -> float:
    """Return the least that acting on a finding saves in ns, as far as known; 0 if unknown."""
    if message.saving_ci95_ns is not None:
        return max(0.0, message.saving_ci95_ns[0])
    return message.saving_ns or 0.0


def with_overlaps(
    findings: Sequence[Message], known: Sequence[Message], times: Mapping[OperatorKey, float]
) -> tuple[list[Message], list[Message]]:
    """Split findings into new ones and, as ruled out, those that repeat an earlier one.

    A new finding whose time an earlier one also counts says so in its evidence.
    """
    seen, new, repeated = list(known), [], []
    for message in findings:
        first = next((earlier for earlier in seen if _is_repetition(message, earlier, times)), None)
        if first is not None:
            repeated.append(passed(message.rule, f"{message.title}: same operators as {first.rule}"))
            continue
        note = _overlap_note(message, seen, times) if message.operators else None
        new.append(msgspec.structs.replace(message, evidence=f"{message.evidence}; {note}") if note else message)
        seen.append(message)
    return new, repeated


def _is_repetition(message: Message, earlier: Message, times: Mapping[OperatorKey, float]) -> bool:
    """Return whether a finding gives the advice of an earlier one about mostly the same time."""
    if not message.operators or message.next_step != earlier.next_step:
        return False
    return _common_time(message, earlier, times) >= _MOSTLY * sum(
        times.get(operator, 0.0) for operator in message.operators
    )


def _common_time(message: Message, earlier: Message, times: Mapping[OperatorKey, float]) -> float:
    """Return the time of the operators that two findings are both about."""
    return sum(times.get(operator, 0.0) for operator in set(message.operators) & set(earlier.operators))


def _overlap_note(message: Message, seen: Sequence[Message], times: Mapping[OperatorKey, float]) -> str | None:
    """Return which earlier finding counts most of the same time; None if none counts a notable part."""
    if message.saving_ns is None:
        same = [earlier.rule for earlier in seen if set(earlier.operators) == set(message.operators)]
        return f"same operators as {same[0]}" if same else None
    total = sum(times.get(operator, 0.0) for operator in message.operators)
    shared = [
        (_common_time(message, earlier, times), earlier.rule) for earlier in seen if earlier.saving_ns is not None
    ]
    most, rule = max(shared, default=(0.0, ""), key=lambda pair: pair[0])
    if not total or most < _MENTIONED * total:
        return None
    part = "the time" if most >= (1 - _MENTIONED) * total else f"{milliseconds(most)} ms of the time"
    return f"{part} of these operators also counts in {rule}: do not add the savings"


class Grade(str, enum.Enum):
    """Trust that the figures of a measurement deserve."""

    GOOD = "good"
    USABLE = "usable"
    """The figures hold within their intervals; the reasons say what makes these wide, or what to keep in mind."""
    DO_NOT_TRUST = "do_not_trust"
    """The figures may be wrong, or nothing can be concluded from them."""


class Quality(msgspec.Struct, frozen=True):
    """Verdict on a measurement.

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
        """First reason why the figures cannot be trusted; None if they can."""
        return next((reason for reason in self.reasons if grade_left(reason) is Grade.DO_NOT_TRUST), None)


_SEVERITIES = {Grade.GOOD: Severity.INFO, Grade.USABLE: Severity.MEDIUM, Grade.DO_NOT_TRUST: Severity.HIGH}
_ORDER = list(Grade)
_GRADES = {severity: grade for grade, severity in _SEVERITIES.items()}


def concern(check: str, limits_to: Grade, problem: str, advice: str) -> Message:
    """Return a problem that limits a measurement."""
    return Message(MessageKind.CONCERN, check, _SEVERITIES[limits_to], problem, "", None, advice)


def grade_left(message: Message) -> Grade:
    """Return the best grade that a concern allows."""
    return _GRADES[message.severity]


def judge(messages: Iterable[Message]) -> Quality:
    """Return the verdict on a measurement from the messages of all checks."""
    reasons, ruled_out = split_ruled_out(messages)
    reasons.sort(key=lambda reason: -_ORDER.index(grade_left(reason)))
    return Quality(grade_left(reasons[0]) if reasons else Grade.GOOD, reasons, ruled_out)


def unjudged(failure: PartFailure) -> Quality:
    """Return the verdict if a bug keeps the checks from running: not good, since nothing was checked."""
    advice = "report the bug; do not decide on these figures alone"
    return judge([concern("quality", Grade.USABLE, f"the measurement was not checked: {failure.because}", advice)])
