"""What reports say of a verdict: which size of a change is excluded, and that too few rounds decide nothing."""

from __future__ import annotations

import msgspec

from opscope.analysis.compare.compare import EndToEnd
from opscope.core.stats.effect import Verdict
from opscope.reports.content.content import no_difference_text

RESULT = EndToEnd(1e6, 1e6, 1.0, (0.98, 1.03), Verdict.NO_DIFFERENCE, 0.05, 0.8, "paired", 8, 8, excluded_beyond=0.03)


def test_no_difference_is_told_with_the_size_that_is_excluded() -> None:
    """An interval that ends at 3 % excludes more than that, and nothing smaller."""
    assert no_difference_text(RESULT) == "no difference detected; a change beyond 3.0 % is ruled out"


def test_an_interval_that_excludes_nothing_of_use_is_not_boasted_of() -> None:
    """From a third to three times as fast."""
    wide = msgspec.structs.replace(RESULT, ci95=(0.32, 2.8), excluded_beyond=2.1)
    assert no_difference_text(wide) == "no difference detected"


def test_a_result_without_an_exclusion_names_none() -> None:
    """As one whose interval is not known."""
    assert no_difference_text(msgspec.structs.replace(RESULT, excluded_beyond=None)) == "no difference detected"
