"""Messages in words: sentences that every report uses for them and for the quality of a measurement."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from opscope.analysis.findings.message import Grade, MessageKind, grade_left
from opscope.core.units import counted_text, time_text
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.findings.message import Message, Quality

_WORDS = {Grade.GOOD: "good", Grade.USABLE: "usable", Grade.DO_NOT_TRUST: "do not trust"}
_LONG = 300
_AT_MOST = "at most, "
"""Beginning of a basis that bounds a saving from above."""
_MORE = re.compile(r"; |, (?:or|and|else|so that) |: (?=it |up to )| \((?=\d+ of )")
"""Place where a text goes on with another step or with details."""


def in_short(text: str) -> str:
    """Return the first step or statement of a text; the report has the rest."""
    return _MORE.split(text, maxsplit=1)[0]


def sentence(message: Message) -> str:
    """Return a message in one sentence: a finding's title; for warnings and concerns also what to do."""
    if message.kind is MessageKind.CONCERN:
        return f"{plain(message.title, _LONG)} (try: {plain(message.next_step, _LONG)})"
    if message.kind is MessageKind.WARNING and message.next_step:
        return f"{message.title}; {message.next_step}"
    if message.kind is MessageKind.LIMIT:
        return f"{plain(message.title, 2 * _LONG)}: {plain(message.evidence, 2 * _LONG)}"
    return f"not checked: {message.title}" if message.kind is MessageKind.NOT_CHECKED else message.title


class FindingParts(NamedTuple):
    """Finding in the words of every report, unescaped."""

    title: str
    place: str  # where in the trace of an NPU; empty elsewhere
    saving: str  # what acting on it would save; empty where that cannot be said
    evidence: str
    next_step: str
    details: str  # what the rest of the evidence says, and what is usual elsewhere


def finding_parts(message: Message) -> FindingParts | None:
    """Return the parts of a finding; None for a message of another kind, which is one sentence."""
    if message.kind is not MessageKind.FINDING:
        return None
    first, *rest = message.evidence.split("; ")
    more = "; ".join(rest)
    details = [f"{more[:1].upper()}{more[1:]}."] if rest else []
    details += [f"Typical: {message.context}."] if message.context else []
    recipe = f" (code: opscope skills show {message.recipe})" if message.recipe else ""
    return FindingParts(
        message.title,
        message.place or "",
        _saving_text(message),
        first,
        f"{message.next_step}{recipe}",
        " ".join(details),
    )


def _saving_text(message: Message) -> str:
    if message.saving_cycles:
        return f"could save up to {message.saving_cycles:,.0f} cycles"
    if not message.saving_ns:
        return ""
    ends = message.saving_ci95_ns
    between = f" [{time_text(ends[0])} to {time_text(ends[1])}]" if ends else ""
    saved, basis = f"{time_text(message.saving_ns)}{between}", message.saving_basis or ""
    if basis.startswith(_AT_MOST):
        return f"could save up to {saved} {basis.removeprefix(_AT_MOST)}"
    return f"would save {saved}{f', {basis}' if basis else ''}"


def grade_text(grade: Grade) -> str:
    """Return a grade in words."""
    return _WORDS[grade]


LATENCY, COMPARISON, EXPERIMENT = "latency", "comparison", "experiment"
"""Subjects of a grade: the inferences of one variant, two compared sides, or all variants of a bundle."""
GradedSubjects: TypeAlias = "Sequence[tuple[str, Quality | None]]"


def grades_text(subjects: GradedSubjects) -> str:
    """Return the grade of each subject: ``Measurement quality of latency: usable, of comparison: do not trust``.

    Subjects of one grade stand together; one that was not graded is left out.
    """
    by_grade: dict[Grade, list[str]] = {}
    for subject, quality in subjects:
        if quality is not None:
            by_grade.setdefault(quality.grade, []).append(subject)
    graded = ", ".join(f"of {' and '.join(names)}: {grade_text(grade)}" for grade, names in by_grade.items())
    return f"Measurement quality {graded}"


def quality_sentence(quality: Quality | None, subjects: GradedSubjects, *, reasons_told: bool = False) -> str:
    """Return the subjects' grades, the worst reason of a quality, what to do about it, and how many reasons there are.

    Empty when nothing was measured.
    """
    if quality is None:
        return ""
    grades = grades_text(subjects)
    if reasons_told or not quality.reasons:
        return grades
    worst, rest = quality.reasons[0], len(quality.reasons) - 1
    why = plain(in_short(worst.title), _LONG)
    # Where the grade says not to trust, the step comes before all findings: measure_again.
    do = f" (try: {plain(in_short(worst.next_step), _LONG)})" if quality.grade is not Grade.DO_NOT_TRUST else ""
    more = f"; {counted_text(rest, 'more reason')} in the report" if rest else ""
    return f"{grades}; {why}{do}{more}"


def unchecked_sentence(findings: Sequence[Message], ruled_out: Sequence[Message]) -> str:
    """Return how many rules could not be checked and the most frequent reason; empty if all were checked.

    A rule that needs what nobody measured, such as ceilings, counts, too: no findings is a statement of all rules.
    """
    reasons = Counter(message.title for message in ruled_out if message.kind is MessageKind.NOT_CHECKED)
    if not reasons:
        return ""
    rules = {message.rule for message in (*findings, *ruled_out)}
    why, _ = reasons.most_common(1)[0]
    unchecked = {message.rule for message in ruled_out if message.kind is MessageKind.NOT_CHECKED}
    return f"{len(unchecked)} of {len(rules)} checks not made, most often because {plain(why, _LONG)}."


def measure_again(quality: Quality | None) -> str:
    """Return the advice to measure again first, and how; empty unless the measurement cannot be trusted."""
    if quality is None or quality.grade is not Grade.DO_NOT_TRUST:
        return ""
    messages = [reason for reason in quality.reasons if grade_left(reason) is Grade.DO_NOT_TRUST]
    how = next((f": {plain(in_short(reason.next_step), _LONG)}" for reason in messages if reason.next_step), "")
    return f"Measure again before acting on any finding{how}"
