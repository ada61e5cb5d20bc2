"""What comes first: measuring again where the figures cannot be trusted, else the first finding."""

from __future__ import annotations

from opscope.analysis.findings.message import Grade, concern, judge
from opscope.reports.document.messages import measure_again

BAD = concern("processes_agree", Grade.DO_NOT_TRUST, "processes differ by 60.0 %", "close other programs, add rounds")
FAIR = concern("steady", Grade.USABLE, "3 of 8 processes become slower", "let the device cool")


def test_figures_that_cannot_be_trusted_are_measured_again_first() -> None:
    """With what to do about the reasons for that grade, and only those."""
    assert measure_again(judge([FAIR, BAD])) == (
        "Measure again before acting on any finding: close other programs, add rounds"
    )


def test_usable_figures_are_acted_on() -> None:
    """Neither a usable measurement nor one that was not judged."""
    assert measure_again(judge([FAIR])) == ""
    assert measure_again(None) == ""
