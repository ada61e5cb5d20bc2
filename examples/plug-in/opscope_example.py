"""A plug-in for opscope: a rule, a kind of operators and a format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Severity, finding, passed
from opscope.program.operators.kinds import Category, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.findings.message import Message
    from opscope.analysis.rules.evidence import Evidence

SHORT_NS, SEVERAL = 50_000, 2
ROPE = Kind("rope", Category.ELEMENTWISE, aten="fused_rope")


def short_operators(evidence: Evidence) -> Message:
    """Operators so short that calling them costs as much as they do."""
    short = evidence.where(lambda one: one.shown_ns < SHORT_NS)
    if len(short) < SEVERAL:
        return passed("", "fewer than two operators take less than 50 us")
    words = (
        f"{len(short)} operators take less than 50 us each",
        f"together {evidence.share(short):.1%} of the latency",
        "fuse them with their neighbours",
    )
    return finding("", Severity.MEDIUM, words, evidence.limit(short))


class Lines:
    """Each operator as a line of text."""

    suffix = ".lines.txt"

    def export(self, results: Sequence[tuple[str, Analysis]]) -> bytes:
        """Name of the variant, time in ns and name of the operator."""
        rows = [f"{label}\t{one.shown_ns:.0f}\t{one.name}" for label, own in results for one in own.operators]
        return "\n".join([*rows, ""]).encode()
