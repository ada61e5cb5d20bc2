"""Cards of results in a notebook."""

from __future__ import annotations

from opscope.reports.notebook.card import more_rows


def test_rows_that_a_card_leaves_out_are_counted() -> None:
    """Nothing is said of a card that has all."""
    assert more_rows(3, 3) == []
    (said,) = more_rows(3, 1_007)
    assert said.startswith("1,004 more")
