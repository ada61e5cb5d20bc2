"""Documents of a bundle against their schemas: what is wrong with one, and whether it is foreign."""

from __future__ import annotations

import json

import pytest

from opscope.bundle.documents import examined
from opscope.bundle.kernel_evidence import EvidenceRun
from opscope.bundle.manifest import Manifest

KINDS = (Manifest, EvidenceRun)


@pytest.mark.parametrize(
    ("content", "at", "newer"),
    [
        ("{", "", False),
        ("[]", "", False),
        ("{}", "schema", False),
        (json.dumps({"schema": "opscope.bundle/99"}), "schema", True),
        (json.dumps({"schema": "opscope.kernel-evidence/2"}), "schema", True),
        (json.dumps({"schema": "other.bundle/1"}), "schema", False),
        (json.dumps({"schema": 1}), "schema", False),
        (json.dumps({"schema": ["opscope.bundle/1"]}), "schema", False),
    ],
)
def test_another_schema_is_a_fault(content: str, at: str, *, newer: bool) -> None:
    """A later version of one that is known asks for an upgrade."""
    found = examined(content.encode(), *KINDS)
    assert found.foreign
    ((place, message),) = found.faults
    assert (place, "upgrade opscope" in message) == (at, newer)
