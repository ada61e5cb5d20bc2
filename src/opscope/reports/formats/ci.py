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

from opscope.analysis.gate.decision import Outcome, failing
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
"""Of a level: GitHub shows ten of a step, and one more may be written by the step itself."""
_MOST_FINDINGS = 3
_LONGEST = 300
_TITLE = "opscope check"


class Annotation(NamedTuple):
    """A workflow command."""

    level: str  # error, warning or notice
    title: str
    text: str
    line: str | None = None  # ``file:line`` of the code that it is about, or a file; None: it is about the run

    def command(self, root: str = "") -> str:
        """The line to print.

        ``root``: directory that files are relative to; the file of another directory is told in the text.
        """
        file, number = _split(self.line or "", root)
        text = self.text if file or not self.line else f"{self.text} ({plain(self.line, _LONGEST)})"
        given = {"file": file, "line": number if file else "", "title": self.title}
        properties = ",".join(f"{name}={_property(value)}" for name, value in given.items() if value)
        return f"::{self.level} {properties}::{_data(text)}"


def gate_annotations(
    decision: Decision[Any],
    text: GateText,
    *,
    path: str = "",
    findings: Sequence[Message] = (),
    layers: Mapping[str, str] = MappingProxyType({}),
) -> list[Annotation]:
    """The annotations of a decision.

    ``decision``: of a gate; ``text``: what its kind of evidence says; ``path``: file of the program that was judged,
    where it is one; ``findings``: that the program of the baseline does not have; ``layers``: lines of the model's
    code, by layer.
    """
    slower, lone = _operators(decision.evidence, layers)
    texts = [gate_sentence(decision, text)]
    texts += [f"{plain(one.name)}: {reason(one, text)}" for one in failing(decision)[:3] if len(decision.criteria) > 1]
    texts += [f"Next: {decision.advice}"] if decision.advice else []
    first = next((one.line for one in slower if one.line), path or None)
    level, title = "notice" if decision.let_through else "error", plain(f"{_TITLE}: {text.answer}", _LONGEST)
    head = Annotation(level, title, plain(". ".join(texts), 3 * _LONGEST), first)
    new = [
        Annotation("notice", plain(one.title, _LONGEST), _advice(one), next(iter(one.lines), None)) for one in findings
    ]
    return [head, *slower[:_MOST], *[*new[:_MOST_FINDINGS], *lone][: _MOST - 1]]


def _advice(one: Message) -> str:
    return ". ".join(plain(word, _LONGEST) for word in (one.evidence, one.next_step) if word)


def _operators(evidence: object, layers: Mapping[str, str]) -> tuple[list[Annotation], list[Annotation]]:
    """Operators that lost, and those that one side alone has."""
    if isinstance(evidence, WorkAndTimeEvidence):
        work, time = _operators(evidence.work, layers), _operators(evidence.time, layers)
        return [*work[0], *time[0]], [*work[1], *time[1]]
    if isinstance(evidence, ComparisonEvidence):
        least = LEAST_LOSS * evidence.end_to_end.candidate_ns
        return [_slower(one) for one in evidence.slower if -one.saved_ns >= least], list(_lone(evidence.unmatched))
    if isinstance(evidence, WorkEvidence):
        return list(_more_work(evidence.changed, layers)), []
    return [], []


def _slower(change: OperatorChange) -> Annotation:
    before, after = (time_text(ns or 0.0) for ns in (change.baseline_ns, change.candidate_ns))
    text = f"{before} to {after}, {time_text(-change.saved_ns)} lost, in traced runs"
    return Annotation("warning", f"slower: {_name(change)}", text, change.source)


def _lone(changes: Iterable[OperatorChange]) -> Iterator[Annotation]:
    for one in changes:
        side = "new" if one.baseline_ns is None else "gone"
        took = one.candidate_ns if one.baseline_ns is None else one.baseline_ns
        line = one.source if one.baseline_ns is None else None  # the line of what is gone is another's now
        yield Annotation("notice", f"{side}: {_name(one)}", f"{time_text(took or 0.0)} in traced runs", line)


def _name(change: OperatorChange) -> str:
    layer = f"{plain(change.module)}, " if change.module else ""
    return f"{layer}{plain(change.name)}"


def _more_work(changes: Iterable[WorkChange], layers: Mapping[str, str]) -> Iterator[Annotation]:
    for one in changes:
        if one.more > 0:
            share = (
                f" ({signed_share_text(one.candidate / one.baseline - 1)})" if one.baseline and one.candidate else ""
            )
            counts = f"{count_text(one.baseline or 0)} to {count_text(one.candidate or 0)} instructions{share}, exact"
            line = layers.get(one.layer or "")
            yield Annotation("warning", f"more work: {plain(one.label)}", counts, line)


def _split(line: str, root: str) -> tuple[str, str]:
    """File, relative to the root, and line; empty where it is not below the root."""
    name, _, number = line.rpartition(":")
    file, number = (name, number) if name and number.isdecimal() else (line, "")
    path = PurePath(file)
    if path.is_absolute() and root and path.is_relative_to(root):
        path = path.relative_to(root)
    outside = path.is_absolute() or ".." in path.parts
    return ("", "") if outside or not file else (path.as_posix(), number)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# What XML 1.0 (fifth edition), production 2, does not allow in a document, not even as a reference.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SUITE = "opscope check"


def junit_xml(decision: Decision[Any], text: GateText) -> bytes:
    """The decision as a document in UTF-8.

    A regression is a failure. A criterion that cannot be decided is an error, or skipped where that is let through or
    where others decide. ``time`` is that of one inference, in seconds, so that the history that CI systems draw is one
    of latency; what is not measured in time has none.
    """
    elements = [_element(criterion, decision, text) for criterion in decision.criteria]
    counts = Counter(child.tag for element in elements for child in element)
    figures = {"tests": str(len(elements)), "failures": str(counts["failure"]), "errors": str(counts["error"])}
    figures |= _time(decision.criteria[0].candidate_ns)
    root = ET.Element("testsuites", {"name": _SUITE, **figures})
    suite = ET.SubElement(root, "testsuite", {"name": _SUITE, **figures, "skipped": str(counts["skipped"])})
    found = ET.SubElement(suite, "properties")
    for name, value in {"outcome": decision.outcome.value, **text.properties}.items():
        ET.SubElement(found, "property", {"name": name, "value": xml_text(value)})
    suite.extend(elements)
    out = ET.SubElement(suite, "system-out")
    out.text = xml_text("\n".join([gate_sentence(decision, text), *gate_notes(decision, text)]))
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def xml_text(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return _FORBIDDEN.sub("", text)


def _element(criterion: Criterion, decision: Decision[Any], text: GateText) -> ET.Element:
    """A criterion as a test."""
    names = {"classname": f"opscope.{plain(text.subject)}", "name": plain(criterion.name)}
    attributes = {name: xml_text(value) for name, value in names.items()} | _time(criterion.candidate_ns)
    element = ET.Element("testcase", attributes)
    message, outcome, detail = xml_text(reason(criterion, text)), criterion.outcome, _detail(criterion, text)
    if outcome is Outcome.REGRESSION:
        _explain(element, "failure", {"message": message, "type": outcome.value}, detail)
    elif outcome is Outcome.SKIPPED or (outcome is Outcome.INCONCLUSIVE and decision.let_through):
        _explain(element, "skipped", {"message": f"{outcome.value}: {message}"}, detail)
    elif outcome is not Outcome.PASSED:
        _explain(element, "error", {"message": message, "type": outcome.value}, detail)
    return element


def _detail(criterion: Criterion, text: GateText) -> str:
    told = text.reasons.get(criterion.name, criterion.reason)
    return f"{plain(criterion.name)}: measured {measured_text(criterion)}, limit {limit_text(criterion)}; {told}"


def _explain(element: ET.Element, tag: str, attributes: dict[str, str], detail: str) -> None:
    ET.SubElement(element, tag, attributes).text = xml_text(detail)


def _time(nanoseconds: float | None) -> dict[str, str]:
    return {} if nanoseconds is None else {"time": f"{nanoseconds / 1e9:.9f}"}
