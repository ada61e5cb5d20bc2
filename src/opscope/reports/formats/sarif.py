"""Findings as SARIF 2.1.0, which code hosts show beside the lines of a change.

A result is a finding; its places are the lines of the model's Python that caused its operators, or the program itself
where no line is known. Paths are those that the export saw: under the directory that is named as root they are relative
to it, as code hosts want them.

Source of the format: OASIS, Static Analysis Results Interchange Format 2.1.0 (errata 01).
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from opscope.analysis.findings.message import Severity
from opscope.core.version import __version__
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.findings.message import Message
    from opscope.core.table.places import OperatorKey

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.HIGH: "error", Severity.MEDIUM: "warning", Severity.INFO: "note"}
_MOST_PLACES = 10
"""Lines of one finding; a code host shows the first, and links to few more."""
_LONGEST = 400


def with_lines(findings: Iterable[Message], lines: Mapping[OperatorKey, str]) -> list[Message]:
    """Findings with the lines of their operators, where they name none themselves."""
    return [
        one.about(lines=one.lines or list(dict.fromkeys(lines[key] for key in one.operators if key in lines)))
        for one in findings
    ]


def sarif(program: str, findings: Sequence[Message], root: str = "") -> bytes:
    """The file: one run of one tool, with a rule for each kind of finding.

    Args:
        program: the program that was looked at, or the trace, as it was named.
        findings: those to tell.
        root: directory that paths are relative to where they are below it; empty: paths as the export saw them.
    """
    rules = list(dict.fromkeys(finding.rule for finding in findings))
    log = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "opscope",
                        "semanticVersion": __version__,
                        "rules": [_rule(one) for one in rules],
                    }
                },
                "results": [_result(one, rules, program, root) for one in findings],
                "columnKind": "unicodeCodePoints",
            }
        ],
    }
    return msgspec.json.format(msgspec.json.encode(log), indent=2) + b"\n"


def _rule(name: str) -> dict[str, Any]:
    return {"id": name, "shortDescription": {"text": f"{name.replace('_', ' ').capitalize()}."}}


def _result(message: Message, rules: Sequence[str], program: str, root: str) -> dict[str, Any]:
    words = [message.title, message.evidence, f"Next: {message.next_step}" if message.next_step else ""]
    places = [_place(*_split(line), root) for line in message.lines[:_MOST_PLACES]] or [_place(program, None, root)]
    first = message.lines[0] if message.lines else program
    return {
        "ruleId": message.rule,
        "ruleIndex": rules.index(message.rule),
        "level": _LEVELS[message.severity],
        "message": {"text": ". ".join(plain(word, _LONGEST) for word in words if word)},
        "locations": places[:1],
        **({"relatedLocations": places[1:]} if places[1:] else {}),
        # Figures change from run to run; the same finding in the same file is the same alert.
        "partialFingerprints": {"opscope/v1": f"{message.rule}:{message.subject}:{_uri(_split(first)[0], root)}"},
    }


def _split(line: str) -> tuple[str, int | None]:
    file, _, number = line.rpartition(":")
    return (file, int(number)) if file and number.isdecimal() else (line, None)


def _place(file: str, line: int | None, root: str) -> dict[str, Any]:
    # Code hosts show no result without a line; the first one stands for a whole file.
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(file, root)}, "region": {"startLine": line or 1}}}


def _uri(file: str, root: str) -> str:
    """A reference to a file: relative below the root, of the scheme ``file`` where it is absolute."""
    path = PurePath(file)
    if root and path.is_relative_to(root):
        path = path.relative_to(root)
    text = quote(path.as_posix(), safe="/~!$&'()*+,;=@")
    return f"file://{text}" if path.is_absolute() else text
