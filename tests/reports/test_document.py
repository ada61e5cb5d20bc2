"""A document of a few blocks in every form: the same words and figures, and only what a form can show."""

from __future__ import annotations

import pytest

from opscope.reports.document.blocks import (
    Bullets,
    Closing,
    Details,
    Document,
    Format,
    Section,
    Sentence,
    column,
    table,
)
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.terminal import terminal_document
from terminal_text import text_of

_ROWS = [("conv", 1_500_000.0, 0.75), ("relu", 499.0, 0.002), ("add", None, 0.248)]
_COLUMNS = (
    column("operator", Format.NAME, lambda row: row[0]),
    column("ms", Format.MS, lambda row: row[1], absent="not timed"),
    column("share", Format.SHARE, lambda row: row[2]),
)


def _document(*blocks: Section | Sentence) -> Document:
    return Document("a model", "1.50 ms", blocks, [])


def _terminal(document: Document) -> str:
    return text_of(terminal_document(document))


FORMS = {"terminal": _terminal, "markdown": markdown_document, "page": html_document}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_has_the_same_values_in_every_form(form: str) -> None:
    """What is not known says so, and a time too short for the decimals is not shown as zeros."""
    closing = [Closing("together", {"ms": 2_000_000.0, "share": 1.0}, whole=True)]
    text = FORMS[form](_document(Section("Operators", [table(_ROWS, *_COLUMNS, closing=closing)])))
    for words in ("conv", "1.500", "75.0 %", "not timed", "together", "2.000", "100.0 %", "Operators"):
        assert words in text
    assert "0.000" not in text


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_two_sections_of_one_shape_are_told_apart_by_their_titles(form: str) -> None:
    """As the methods of a program, or the variants of a bundle, have the same tables."""
    parts = [Section(name, [table(_ROWS, *_COLUMNS)]) for name in ("decode", "prefill")]
    text = FORMS[form](_document(*parts))
    assert text.index("decode") < text.index("conv") < text.index("prefill") < text.rindex("conv")


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_a_section_with_nothing_to_show_has_no_title(form: str) -> None:
    """A heading promises something below it."""
    assert "Notes" not in FORMS[form](_document(Section("Notes", [Bullets([]), Sentence("")])))


def test_markdown_tells_how_many_rows_it_leaves_out() -> None:
    """A file that people read is not as long as the largest model."""
    rows = [(f"conv {number}", 1e6, 0.001) for number in range(203)]
    text = markdown_document(_document(Section("Operators", [table(rows, *_COLUMNS)])))
    assert "conv 199" in text
    assert "conv 200" not in text
    assert "3 more rows" in text
    assert "more row" not in markdown_document(_document(Section("Operators", [table(rows[:200], *_COLUMNS)])))


def test_a_page_has_a_script_only_where_it_has_something_to_do() -> None:
    """It is not asked for: what the page holds decides."""
    rows = table(_ROWS, *_COLUMNS)
    assert "<script" not in html_document(_document(Section("Operators", [rows]), Details("more", [rows])))
    sortable = table(_ROWS, *_COLUMNS, sortable=True)
    assert "<script" in html_document(_document(Section("Operators", [sortable])))
    assert "<script" in html_document(_document(Section("Operators", [rows], "operators", folded=True)))


def test_a_page_without_pictures_names_no_library_that_drew_them() -> None:
    """The recomputing of a page asks what drew them only where there are some."""
    assert 'name="pictures"' not in html_document(_document(Sentence("text")))


def test_what_a_page_sorts_by_is_the_value_in_the_unit_of_its_column() -> None:
    """It is not rounded as its text is."""
    page = html_document(_document(Section("Operators", [table(_ROWS, *_COLUMNS, sortable=True)])))
    assert 'data-v="1500000.0">1.500<' in page
    assert 'data-v="0.248">24.8 %<' in page
