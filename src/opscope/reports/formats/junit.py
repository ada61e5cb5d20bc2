"""The decision of a gate as JUnit XML, which CI systems show as tests.

One test suite, one test case a criterion. What readers agree on is used and no more: ``testsuites`` with one
``testsuite``, counts and ``time`` on both, ``testcase`` with ``name``, ``classname`` and ``time``, in it nothing or one
of ``failure``, ``error`` and ``skipped`` (github.com/testmoapp/junitxml describes what tools agree on; the schema of
Jenkins' xUnit plugin, junit-10.xsd, has no ``skipped`` count on ``testsuites``).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from opscope.analysis.gate.decision import Outcome
from opscope.reports.document.text import plain
from opscope.reports.gate import gate_notes, gate_sentence, limit_text, measured_text, reason

if TYPE_CHECKING:
    from opscope.analysis.gate.decision import Criterion, Decision
    from opscope.reports.gate import GateText

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
