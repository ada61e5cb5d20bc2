"""What documents hold of the messages of rules: findings in order, and what was ruled out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import LIMIT, Message, MessageKind, Saving, Severity, finding, no_saving
from opscope.core.table.places import OperatorKey
from opscope.core.units import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NOT_CHECKED = "not checked: "
"""How the reason of a rule that could not be checked begins."""
_MENTIONED = 0.01
"""Share of a finding's time from which it is said that another finding counts the same time."""


class Finding(msgspec.Struct, frozen=True):
    """Something worth knowing or doing.

    Attributes:
        rule: stable identifier of the rule.
        severity: how much it matters.
        title: the finding in one sentence.
        evidence: the figures it rests on.
        saving_ns: what acting on it would save per inference, as ``saving_basis`` says; null where that cannot be said.
        next_step: what to do.
        saving_ci95_ns: 95 % interval of ``saving_ns``; null with fewer than two processes, or without a saving.
        saving_basis: what the saving supposes, or why there is none.
        context: what is usual elsewhere, with its source; null where nothing is known that applies.
        operators: those whose time it is about; empty when it is about none in particular.
        recipe: page of opscope's documentation with code before and after the next step; null where there is none.
    """

    rule: str
    severity: Severity
    title: str
    evidence: str
    saving_ns: float | None
    next_step: str
    saving_ci95_ns: tuple[float, float] | None = None
    saving_basis: str | None = None
    context: str | None = None
    operators: list[OperatorKey] = []
    recipe: str | None = None

    @property
    def is_limit(self) -> bool:
        """Whether it says how far the figures can be relied on, and nothing to do about the model."""
        return self.saving_basis == no_saving(LIMIT).basis


class RuledOut(msgspec.Struct, frozen=True):
    """A rule that was checked and found nothing; or that could not be checked, as ``checked`` says."""

    rule: str
    reason: str

    @property
    def checked(self) -> bool:
        """Whether there was enough to check it by."""
        return not self.reason.startswith(NOT_CHECKED)


def published(messages: Iterable[Message]) -> tuple[list[Finding], list[RuledOut]]:
    """Findings, and what was ruled out or could not be checked, as documents hold them; both in the order given."""
    listed = list(messages)
    findings = [_finding(told) for told in listed if told.kind is MessageKind.FINDING]
    return findings, [ruled_out(told) for told in listed if told.kind in {MessageKind.PASSED, MessageKind.NOT_CHECKED}]


def _finding(told: Message) -> Finding:
    return Finding(
        rule=told.rule,
        severity=told.severity,
        title=told.title,
        evidence=told.evidence,
        saving_ns=told.saving.ns,
        next_step=told.next_step,
        saving_ci95_ns=told.saving.ci95,
        saving_basis=told.saving.basis,
        context=told.context,
        operators=list(told.operators),
        recipe=told.recipe,
    )


def ruled_out(told: Message) -> RuledOut:
    """A rule that found nothing, or could not be checked, as documents hold it."""
    return RuledOut(told.rule, told.title if told.kind is MessageKind.PASSED else f"{NOT_CHECKED}{told.title}")


def message_of(told: Finding | RuledOut) -> Message:
    """What a document holds, as the message that it was made from."""
    if isinstance(told, RuledOut):
        kind = MessageKind.PASSED if told.checked else MessageKind.NOT_CHECKED
        return Message(kind, told.rule, told.reason.removeprefix(NOT_CHECKED))
    saving = Saving(told.saving_ns, told.saving_ci95_ns, told.saving_basis)
    found = finding(told.rule, told.severity, (told.title, told.evidence, told.next_step), saving, told.operators)
    return found._replace(context=told.context, recipe=told.recipe)


def ordered(findings: Sequence[Finding], first: Sequence[str] = ()) -> list[Finding]:
    """Most severe first; within a severity by the lower end of the saving; ties in the order given."""
    severities = list(Severity)
    return sorted(findings, key=lambda f: (severities.index(f.severity), f.rule not in first, -_least(f)))


def _least(found: Finding) -> float:
    """The least that acting on it saves, as far as that is known; 0 where nothing is."""
    if found.saving_ci95_ns is not None:
        return max(0.0, found.saving_ci95_ns[0])
    return found.saving_ns or 0.0


def with_overlaps(
    findings: Sequence[Finding], known: Sequence[Finding], times: Mapping[OperatorKey, float]
) -> list[Finding]:
    """The same findings; those whose time an earlier one counts, too, say so in their evidence."""
    seen, done = list(known), []
    for found in findings:
        note = _overlap(found, seen, times) if found.operators else None
        done.append(msgspec.structs.replace(found, evidence=f"{found.evidence}; {note}") if note else found)
        seen.append(found)
    return done


def _overlap(found: Finding, seen: Sequence[Finding], times: Mapping[OperatorKey, float]) -> str | None:
    """Which earlier finding with a saving counts most of the same time; None when none counts any worth mentioning."""
    own = {place: times.get(place, 0.0) for place in found.operators}
    whole = sum(own.values())
    shared = [
        (sum(own[place] for place in other.operators if place in own), other.rule)
        for other in seen
        if other.saving_ns is not None and other.operators
    ]
    most, rule = max(shared, default=(0.0, ""), key=lambda pair: pair[0])
    if found.saving_ns is None:
        same = [other.rule for other in seen if set(other.operators) == set(own)]
        return f"these are the operators of {same[0]}" if same else None
    if not whole or most < _MENTIONED * whole:
        return None
    if most >= (1 - _MENTIONED) * whole:
        return f"the time of these operators is part of {rule}: do not add the savings up"
    return f"{milliseconds(most)} ms of the time of these operators is part of {rule}: do not add the savings up"
