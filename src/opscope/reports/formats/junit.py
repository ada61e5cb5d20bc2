"""The decision of a gate as JUnit XML, which CI systems show as tests.

One test suite, one test case a criterion. What readers agree on is used and no more: ``testsuites`` with one
``testsuite``, counts and ``time`` on both, ``testcase`` with ``name``, ``classname`` and ``time``, in it nothing or one
of ``failure``, ``error`` and ``skipped`` (github.com/testmoapp/junitxml describes what tools agree on; the schema of
Jenkins' xUnit plugin, junit-10.xsd, has no ``skipped`` count on ``testsuites``).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

from opscope.analysis.gate.gate import Outcome
from opscope.reports.document.text import plain
from opscope.reports.gate import gate_sentence, interval_text, limit_text, value_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.gate.gate import Criterion, GateReport

# What XML 1.0 (fifth edition), production 2, does not allow in a document, not even as a reference.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SUITE = "opscope check"


class Case(NamedTuple):
    """A criterion as a test."""

    suite: str  # what it is about; readers group by it
    name: str  # of the criterion
    message: str  # why its outcome
    detail: str  # the figures
    outcome: Outcome  # of the criterion
    let_through: bool  # whether what cannot be decided may pass
    ns: float | None = None  # time per inference, which readers draw the history of; None where there is no time


def junit_xml(report: GateReport) -> bytes:
    """The decision as a document in UTF-8.

    A regression is a failure. A criterion that cannot be decided is an error, or skipped where that is let through.
    ``time`` is that of one inference, in seconds, so that the history that CI systems draw is one of latency.
    """
    cases = [_case(criterion, report) for criterion in report.criteria]
    lines = [gate_sentence(report), *report.mismatches, *report.notes]
    return junit_document(cases, _properties(report), lines, report.end_to_end.candidate_ns)


def junit_document(
    cases: Sequence[Case], properties: Mapping[str, str], lines: Sequence[str], ns: float | None = None
) -> bytes:
    """Cases as a document of one suite."""
    elements = [_element(case) for case in cases]
    counts = Counter(child.tag for element in elements for child in element)
    figures = {"tests": str(len(cases)), "failures": str(counts["failure"]), "errors": str(counts["error"])}
    figures |= {} if ns is None else {"time": _seconds(ns)}
    root = ET.Element("testsuites", {"name": _SUITE, **figures})
    suite = ET.SubElement(root, "testsuite", {"name": _SUITE, **figures, "skipped": str(counts["skipped"])})
    found = ET.SubElement(suite, "properties")
    for name, value in properties.items():
        ET.SubElement(found, "property", {"name": name, "value": xml_text(value)})
    suite.extend(elements)
    out = ET.SubElement(suite, "system-out")
    out.text = xml_text("\n".join(lines))
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def xml_text(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return _FORBIDDEN.sub("", text)


def _case(criterion: Criterion, report: GateReport) -> Case:
    quantity = criterion.quantity
    figures = f"measured {value_text(quantity, criterion.measured)} {interval_text(quantity, criterion.ci95)}"
    return Case(
        suite=report.model or report.candidate.label,
        name=criterion.name,
        message=criterion.reason,
        detail=f"{plain(criterion.name)}: {figures}, limit {limit_text(criterion)}; {criterion.reason}",
        outcome=criterion.outcome,
        let_through=report.let_through,
        ns=criterion.candidate_ns,
    )


def _element(case: Case) -> ET.Element:
    attributes = {"classname": xml_text(f"opscope.{plain(case.suite)}"), "name": xml_text(plain(case.name))}
    attributes |= {} if case.ns is None else {"time": _seconds(case.ns)}
    element, message = ET.Element("testcase", attributes), xml_text(case.message)
    if case.outcome is Outcome.REGRESSION:
        _explain(element, "failure", {"message": message, "type": "regression"}, case.detail)
    elif case.outcome is Outcome.INCONCLUSIVE and case.let_through:
        _explain(element, "skipped", {"message": f"inconclusive: {message}"}, case.detail)
    elif case.outcome is not Outcome.PASSED:
        _explain(element, "error", {"message": message, "type": case.outcome.value}, case.detail)
    return element


def _explain(element: ET.Element, tag: str, attributes: dict[str, str], detail: str) -> None:
    ET.SubElement(element, tag, attributes).text = xml_text(detail)


def _properties(report: GateReport) -> dict[str, str]:
    return {
        "outcome": report.outcome.value,
        "baseline": report.baseline.path,
        "candidate": report.candidate.path,
        "threshold": f"{report.threshold:g}",
        "slowdown": "withheld" if report.slowdown is None else f"{report.slowdown:.6g}",
        "design": report.end_to_end.design,
        "arm": report.end_to_end.arm,
        "grade": report.end_to_end.grade.value if report.end_to_end.grade else "not judged",
    }


def _seconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e9:.9f}"
