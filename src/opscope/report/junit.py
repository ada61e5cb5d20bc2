"""The decision of a gate as JUnit XML, which CI systems show as tests.

One test suite, one test case a criterion. What readers agree on is used and no more: ``testsuites`` with one
``testsuite``, counts and ``time`` on both, ``testcase`` with ``name``, ``classname`` and ``time``, in it nothing or one
of ``failure``, ``error`` and ``skipped`` (github.com/testmoapp/junitxml describes what tools agree on; the schema of
Jenkins' xUnit plugin, junit-10.xsd, has no ``skipped`` count on ``testsuites``).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from opscope.analyze.gate import Outcome
from opscope.report.gate import gate_sentence, interval_text, limit_text, value_text
from opscope.report.text import plain

if TYPE_CHECKING:
    from opscope.analyze.gate import Criterion, GateReport

# What XML 1.0 (fifth edition), production 2, does not allow in a document, not even as a reference.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SUITE = "opscope check"


def junit_xml(report: GateReport) -> bytes:
    """The decision as a document in UTF-8.

    A regression is a failure. A criterion that cannot be decided is an error, or skipped where that is let through.
    ``time`` is that of one inference, in seconds, so that the history that CI systems draw is one of latency.
    """
    cases = [_case(criterion, report) for criterion in report.criteria]
    counts = Counter(child.tag for case in cases for child in case)
    figures = {
        "tests": str(len(cases)),
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "time": _seconds(report.end_to_end.candidate_ns),
    }
    root = ET.Element("testsuites", {"name": _SUITE, **figures})
    suite = ET.SubElement(root, "testsuite", {"name": _SUITE, **figures, "skipped": str(counts["skipped"])})
    suite.append(_properties(report))
    suite.extend(cases)
    out = ET.SubElement(suite, "system-out")
    out.text = xml_text("\n".join([gate_sentence(report), *report.mismatches, *report.notes]))
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def xml_text(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return _FORBIDDEN.sub("", text)


def _case(criterion: Criterion, report: GateReport) -> ET.Element:
    attributes = {
        "classname": xml_text(f"opscope.{plain(report.model or report.candidate.label)}"),
        "name": xml_text(plain(criterion.name)),
        "time": _seconds(criterion.candidate_ns),
    }
    case = ET.Element("testcase", attributes)
    message = xml_text(criterion.reason)
    if criterion.outcome is Outcome.REGRESSION:
        _explain(ET.SubElement(case, "failure", {"message": message, "type": "regression"}), criterion)
    elif criterion.outcome is Outcome.INCONCLUSIVE and report.let_through:
        _explain(ET.SubElement(case, "skipped", {"message": f"inconclusive: {message}"}), criterion)
    elif criterion.outcome is Outcome.INCONCLUSIVE:
        _explain(ET.SubElement(case, "error", {"message": message, "type": "inconclusive"}), criterion)
    return case


def _explain(element: ET.Element, criterion: Criterion) -> None:
    quantity = criterion.quantity
    figures = f"measured {value_text(quantity, criterion.measured)} {interval_text(quantity, criterion.ci95)}"
    element.text = xml_text(f"{plain(criterion.name)}: {figures}, limit {limit_text(criterion)}; {criterion.reason}")


def _properties(report: GateReport) -> ET.Element:
    values = {
        "outcome": report.outcome.value,
        "baseline": report.baseline.path,
        "candidate": report.candidate.path,
        "threshold": f"{report.threshold:g}",
        "slowdown": f"{report.slowdown:.6g}",
        "design": report.end_to_end.design,
        "arm": report.end_to_end.arm,
    }
    found = ET.Element("properties")
    for name, value in values.items():
        ET.SubElement(found, "property", {"name": name, "value": xml_text(value)})
    return found


def _seconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e9:.9f}"
