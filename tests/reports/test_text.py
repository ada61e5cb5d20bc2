"""Names in reports and figures in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.core.units import ratio_text, share_text, size_text, time_text
from opscope.reports.document.text import csv_cell, markdown, plain


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (812, "812 ns"),
        (1_500, "1.50 µs"),
        (412_345, "412 µs"),
        (1_834_000, "1.83 ms"),
        (9.9999e8, "1.00 s"),
    ],
)
def test_time_has_three_digits_and_the_unit_that_fits(nanoseconds: float, text: str) -> None:
    """Rounding up to the next unit changes the unit."""
    assert time_text(nanoseconds) == text


def test_shares_ratios_and_sizes() -> None:
    """One decimal for shares, two for ratios, binary units for sizes."""
    assert (share_text(0.397), ratio_text(1.834), size_text(27_850)) == ("39.7 %", "1.83x", "27.2 KiB")


@given(st.text())
def test_a_name_stays_on_one_line_of_bounded_length(name: str) -> None:
    """Whatever the name, no line break, no control or direction character, at most 120 characters."""
    shown = plain(name)
    assert len(shown) <= 120
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1


@given(st.text())
def test_markdown_cells_hold_no_markup(name: str) -> None:
    """Every character with a meaning in Markdown or HTML is escaped."""
    shown = markdown(name)
    for character in "|`<>*_[]":
        assert shown.count(character) == shown.count("\\" + character)


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_csv_cells_are_no_formulas(start: str) -> None:
    """A cell that a spreadsheet would compute is quoted; others are left alone."""
    assert csv_cell(f"{start}1+1") == f"'{start}1+1"
    assert csv_cell("Add (ND) #1") == "Add (ND) #1"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("\x1b[31m", r"'\\x1b[31m"),
        ("\t=1", r"'\\t=1"),
        ("a\\b\n", r"'\a\\b\n"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}x", r"'\\u202ex"),
        ("a\\b", r"a\b"),
        ("two words", "two words"),
    ],
)
def test_csv_cells_hold_nothing_that_a_terminal_obeys(text: str, cell: str) -> None:
    """Behind an apostrophe and a backslash the text is escaped."""
    assert csv_cell(text) == cell
