"""A decision of a gate for CI systems: as workflow commands of GitHub Actions, and as JUnit XML.

Workflow commands become annotations of a run and of the files of a change.

The first one is the headline: an error where the candidate may not pass, else a notice. Operators that lost are
warnings, operators that one side alone has, and findings that the baseline does not have, are notices: of each level
GitHub shows ten of a step. An annotation names the line of the model's code where that is known and below the root,
since GitHub knows files by their paths in the repository.

Source of the format: "Workflow commands for GitHub Actions"; escapes as in ``packages/core/src/command.ts`` of
github.com/actions/toolkit.

JUnit XML is one test suite, one test case a criterion. What readers agree on is used and no more: ``testsuites`` with
one ``testsuite``, counts and ``time`` on both, ``testcase`` with ``name``, ``classname`` and ``time``, in it nothing or
one of ``failure``, ``error`` and ``skipped`` (github.com/testmoapp/junitxml describes what tools agree on; the schema
of Jenkins' xUnit plugin, junit-10.xsd, has no ``skipped`` count on ``testsuites``).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

from opscope.analysis.gate.decision import Outcome, failing_criteria
from opscope.analysis.gate.gate import ComparisonEvidence
from opscope.analysis.work.gate import WorkAndTimeEvidence, WorkEvidence
from opscope.core.units import count_text, signed_share_text, time_text
from opscope.reports.document.text import plain
from opscope.reports.gate import LEAST_LOSS, gate_notes, gate_sentence, limit_text, measured_text, reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opscope.analysis.compare.compare import OperatorChange
    from opscope.analysis.findings.message import Message
    from opscope.analysis.gate.decision import Criterion, Decision
    from opscope.analysis.work.gate import WorkChange
    from opscope.reports.gate import GateText


_MOST = 9
"""Most annotations of a level: GitHub shows ten per step, and the step itself may write one."""
_MOST_FINDINGS = 3
_LONGEST = 300
_TITLE = "opscope check"


class Annotation(NamedTuple):
    """Annotation of GitHub Actions, written as a workflow command."""

    level: str  # error, warning or notice
    title: str
    text: str
    line: str | None = None  # ``file:line`` of the code that it is about, or a file; None: it is about the run

    def command(self, root: str = "") -> str:
        """Return the line to print.

        ``root``: directory that files are relative to; a file outside of it is named in the text instead.
        """
        file, number = _split_source_line(self.line or "", root)
        text = self.text if file or not self.line else f"{self.text} ({plain(self.line, _LONGEST)})"
        values = {"file": file, "line": number if file else "", "title": self.title}
        properties = ",".join(f"{name}={_escape_property(value)}" for name, value in values.items() if value)
        return f"::{self.level} {properties}::{_escape_data(text)}"


def gate_annotations(
    decision: Decision[Any],
    text: GateText,
    *,
    path: str = "",
    findings: Sequence[Message] = (),
    layers: Mapping[str, str] = MappingProxyType({}),
) -> list[Annotation]:
    """Return the annotations of a decision, the verdict first.

    ``text``: words of its kind of evidence; ``path``: file of the judged program, if it is one; ``findings``: findings
    that the baseline's program does not have; ``layers``: lines of the model's code, by layer.
    """
    slower, unmatched = _operator_annotations(decision.evidence, layers)
    texts = [gate_sentence(decision, text)]
    texts += [
        f"{plain(criterion.name)}: {reason(criterion, text)}"
        for criterion in failing_criteria(decision)[:3]
        if len(decision.criteria) > 1
    ]
    texts += [f"Next: {decision.advice}"] if decision.advice else []
    first = next((annotation.line for annotation in slower if annotation.line), path or None)
    level, title = "notice" if decision.let_through else "error", plain(f"{_TITLE}: {text.answer}", _LONGEST)
    head = Annotation(level, title, plain(". ".join(texts), 3 * _LONGEST), first)
    new = [
        Annotation("notice", plain(finding.title, _LONGEST), _advice_text(finding), next(iter(finding.lines), None))
        for finding in findings
    ]
    return [head, *slower[:_MOST], *[*new[:_MOST_FINDINGS], *unmatched][: _MOST - 1]]


def _advice_text(message: Message) -> str:
    return ". ".join(plain(word, _LONGEST) for word in (message.evidence, message.next_step) if word)


def _operator_annotations(evidence: object, layers: Mapping[str, str]) -> tuple[list[Annotation], list[Annotation]]:
    """Return annotations of the operators that became slower, and of those on one side only."""
    if isinstance(evidence, WorkAndTimeEvidence):
        work, time = _operator_annotations(evidence.work, layers), _operator_annotations(evidence.time, layers)
        return [*work[0], *time[0]], [*work[1], *time[1]]
    if isinstance(evidence, ComparisonEvidence):
        least = LEAST_LOSS * evidence.end_to_end.candidate_ns
        return [_slower_annotation(change) for change in evidence.slower if -change.saved_ns >= least], list(
            _unmatched_annotations(evidence.unmatched)
        )
    if isinstance(evidence, WorkEvidence):
        return list(_more_work_annotations(evidence.changed, layers)), []
    return [], []


def _slower_annotation(change: OperatorChange) -> Annotation:
    before, after = (time_text(ns or 0.0) for ns in (change.baseline_ns, change.candidate_ns))
    text = f"{before} to {after}, {time_text(-change.saved_ns)} lost, in traced runs"
    return Annotation("warning", f"slower: {_change_name(change)}", text, change.source)


def _unmatched_annotations(changes: Iterable[OperatorChange]) -> Iterator[Annotation]:
    for change in changes:
        side = "new" if change.baseline_ns is None else "gone"
        took = change.candidate_ns if change.baseline_ns is None else change.baseline_ns
        line = change.source if change.baseline_ns is None else None  # the line of what is gone is another's now
        yield Annotation("notice", f"{side}: {_change_name(change)}", f"{time_text(took or 0.0)} in traced runs", line)


def _change_name(change: OperatorChange) -> str:
    layer = f"{plain(change.module)}, " if change.module else ""
    return f"{layer}{plain(change.name)}"


def _more_work_annotations(changes: Iterable[WorkChange], layers: Mapping[str, str]) -> Iterator[Annotation]:
    for change in changes:
        if change.more > 0:
            share = (
                f" ({signed_share_text(change.candidate / change.baseline - 1)})"
                if change.baseline and change.candidate
                else ""
            )
            counts = (
                f"{count_text(change.baseline or 0)} to {count_text(change.candidate or 0)} instructions{share}, exact"
            )
            line = layers.get(change.layer or "")
            yield Annotation("warning", f"more work: {plain(change.label)}", counts, line)


def _split_source_line(line: str, root: str) -> tuple[str, str]:
    """Return the file, relative to the root, and the line; both empty if the file is outside of the root."""
    name, _, number = line.rpartition(":")
    file, number = (name, number) if name and number.isdecimal() else (line, "")
    path = PurePath(file)
    if path.is_absolute() and root and path.is_relative_to(root):
        path = path.relative_to(root)
    outside = path.is_absolute() or ".." in path.parts
    return ("", "") if outside or not file else (path.as_posix(), number)


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


# What XML 1.0 (fifth edition), production 2, does not allow in a document, not even as a reference.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SUITE = "opscope check"


def junit_xml(decision: Decision[Any], text: GateText) -> bytes:
    """Return the decision as a JUnit XML document in UTF-8.

    A regression is a failure. A criterion that cannot be decided is an error, or skipped where that is let through or
    where others decide. ``time`` is that of one inference, in seconds, so that the history that CI systems draw is one
    of latency; what is not measured in time has none.
    """
    elements = [_test_case(criterion, decision, text) for criterion in decision.criteria]
    counts = Counter(child.tag for element in elements for child in element)
    figures = {"tests": str(len(elements)), "failures": str(counts["failure"]), "errors": str(counts["error"])}
    figures |= _time_attribute(decision.criteria[0].candidate_ns)
    root = ET.Element("testsuites", {"name": _SUITE, **figures})
    suite = ET.SubElement(root, "testsuite", {"name": _SUITE, **figures, "skipped": str(counts["skipped"])})
    properties = ET.SubElement(suite, "properties")
    for name, value in {"outcome": decision.outcome.value, **text.properties}.items():
        ET.SubElement(properties, "property", {"name": name, "value": xml_text(value)})
    suite.extend(elements)
    out = ET.SubElement(suite, "system-out")
    out.text = xml_text("\n".join([gate_sentence(decision, text), *gate_notes(decision, text)]))
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def xml_text(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return _FORBIDDEN.sub("", text)


def _test_case(criterion: Criterion, decision: Decision[Any], text: GateText) -> ET.Element:
    """Return a criterion as a test case."""
    names = {"classname": f"opscope.{plain(text.subject)}", "name": plain(criterion.name)}
    attributes = {name: xml_text(value) for name, value in names.items()} | _time_attribute(criterion.candidate_ns)
    element = ET.Element("testcase", attributes)
    message, outcome, detail = xml_text(reason(criterion, text)), criterion.outcome, _detail_text(criterion, text)
    if outcome is Outcome.REGRESSION:
        _add_explanation(element, "failure", {"message": message, "type": outcome.value}, detail)
    elif outcome is Outcome.SKIPPED or (outcome is Outcome.INCONCLUSIVE and decision.let_through):
        _add_explanation(element, "skipped", {"message": f"{outcome.value}: {message}"}, detail)
    elif outcome is not Outcome.PASSED:
        _add_explanation(element, "error", {"message": message, "type": outcome.value}, detail)
    return element


def _detail_text(criterion: Criterion, text: GateText) -> str:
    explanation = text.reasons.get(criterion.name, criterion.reason)
    return f"{plain(criterion.name)}: measured {measured_text(criterion)}, limit {limit_text(criterion)}; {explanation}"


def _add_explanation(element: ET.Element, tag: str, attributes: dict[str, str], detail: str) -> None:
    ET.SubElement(element, tag, attributes).text = xml_text(detail)


def _time_attribute(nanoseconds: float | None) -> dict[str, str]:
    return {} if nanoseconds is None else {"time": f"{nanoseconds / 1e9:.9f}"}
