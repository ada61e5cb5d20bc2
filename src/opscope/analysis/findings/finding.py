"""Findings in order, and which of them count the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import Message, MessageKind, Severity, passed
from opscope.core.units import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.core.table.places import OperatorKey

_MOSTLY = 2 / 3
"""Share of a finding's time that an earlier one counts, from which it repeats that one if it advises the same."""
_MENTIONED = 0.01
"""Share of a finding's time from which it is said that another finding counts the same time."""


def sorted_out(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """Findings, and what was ruled out or could not be checked; both in the order given."""
    findings: list[Message] = []
    ruled_out: list[Message] = []
    for message in messages:
        (ruled_out if message.kind in {MessageKind.PASSED, MessageKind.NOT_CHECKED} else findings).append(message)
    return findings, ruled_out


def advice_of(findings: Iterable[Message]) -> list[Message]:
    """Those that something can be done about; the others are limits of the measurement."""
    return [one for one in findings if one.kind is MessageKind.FINDING]


def limits_of(findings: Iterable[Message]) -> list[Message]:
    """Those that say how far figures can be relied on."""
    return [one for one in findings if one.kind is MessageKind.LIMIT]


def ordered(findings: Sequence[Message], first: Sequence[str] = ()) -> list[Message]:
    """Most severe first; within a severity by the lower end of the saving; ties in the order given."""
    severities = list(Severity)
    return sorted(findings, key=lambda f: (severities.index(f.severity), f.rule not in first, -_least(f)))


def _least(found: Message) -> float:
    """The least that acting on it saves, as far as that is known; 0 where nothing is."""
    if found.saving_ci95_ns is not None:
        return max(0.0, found.saving_ci95_ns[0])
    return found.saving_ns or 0.0


def with_overlaps(
    findings: Sequence[Message], known: Sequence[Message], times: Mapping[OperatorKey, float]
) -> tuple[list[Message], list[Message]]:
    """Findings that no earlier one says already, and those that repeat one, as ruled out.

    Those whose time an earlier one counts, too, say so in their evidence.
    """
    seen, kept, repeated = list(known), [], []
    for found in findings:
        first = next((one for one in seen if _repeats(found, one, times)), None)
        if first is not None:
            repeated.append(passed(found.rule, f"{found.title}: same operators as {first.rule}"))
            continue
        note = _overlap(found, seen, times) if found.operators else None
        kept.append(msgspec.structs.replace(found, evidence=f"{found.evidence}; {note}") if note else found)
        seen.append(found)
    return kept, repeated


def _repeats(found: Message, earlier: Message, times: Mapping[OperatorKey, float]) -> bool:
    """Whether a finding advises the same as an earlier one about mostly the same time."""
    if not found.operators or found.next_step != earlier.next_step:
        return False
    return _common(found, earlier, times) >= _MOSTLY * sum(times.get(place, 0.0) for place in found.operators)


def _common(found: Message, other: Message, times: Mapping[OperatorKey, float]) -> float:
    """The time of the operators that two findings are about."""
    return sum(times.get(place, 0.0) for place in set(found.operators) & set(other.operators))


def _overlap(found: Message, seen: Sequence[Message], times: Mapping[OperatorKey, float]) -> str | None:
    """Which earlier finding with a saving counts most of the same time; None when none counts any worth mentioning."""
    if found.saving_ns is None:
        same = [other.rule for other in seen if set(other.operators) == set(found.operators)]
        return f"same operators as {same[0]}" if same else None
    whole = sum(times.get(place, 0.0) for place in found.operators)
    shared = [(_common(found, other, times), other.rule) for other in seen if other.saving_ns is not None]
    most, rule = max(shared, default=(0.0, ""), key=lambda pair: pair[0])
    if not whole or most < _MENTIONED * whole:
        return None
    part = "the time" if most >= (1 - _MENTIONED) * whole else f"{milliseconds(most)} ms of the time"
    return f"{part} of these operators also counts in {rule}: do not add the savings"
