"""A document of a few blocks in every form: the same words and figures, and only what a form can show."""

from __future__ import annotations

import pytest

from opscope.reports.document.blocks import (
    Block,
    Bullets,
    CellMap,
    Closing,
    Details,
    Document,
    Figures,
    Fold,
    Format,
    HeadlineFigure,
    MapCell,
    Section,
    Sentence,
    changed_ratio,
    column,
    table,
)
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.terminal import terminal_document
from terminal_text import text_of
from texts import NO_ROOM, PAGES_HAVE_A_MAP

_ROWS = [("conv", 1_500_000.0, 0.75), ("relu", 499.0, 0.002), ("add", None, 0.248)]
_COLUMNS = (
    column("operator", Format.NAME, lambda row: row[0]),
    column("ms", Format.MS, lambda row: row[1], absent="not timed"),
    column("share", Format.SHARE, lambda row: row[2]),
)


def _document(*blocks: Block) -> Document:
    return Document("a model", "1.50 ms", blocks, [])


def _terminal(document: Document) -> str:
    return text_of(terminal_document(document))


FORMS = {"terminal": _terminal, "markdown": markdown_document, "page": html_document}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_has_the_same_values_in_every_form(form: str) -> None:
    """What is not known says so, and a time too short for the decimals is not shown as zeros."""
    closing = [Closing("together", {"ms": 2_000_000.0, "share": 1.0}, is_total=True)]
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


def test_a_long_table_is_folded_on_a_page_and_cut_elsewhere() -> None:
    """Each form says how many rows it has no room for, and where they are."""
    rows = [(f"conv {number}", 1e6, 0.001) for number in range(30)]
    long = table(rows, *_COLUMNS, label="Operators").folded(Fold(3, 20, "the JSON has all"))
    page = html_document(_document(long))
    shown, behind = page.split('<details class="more"><summary>17 more</summary>')
    assert ("conv 2<" in shown, "conv 3<" in shown, "conv 19<" in behind, "conv 20<" in page) == (
        True,
        False,
        True,
        False,
    )
    assert '<div class="wide" tabindex="0" role="region" aria-label="Operators">' in shown
    assert 'aria-label="Operators, continued"' in behind
    assert "The table has 10 more rows: the JSON has all." in behind
    for text in (markdown_document(_document(long)), _terminal(_document(long))):
        assert ("conv 2" in text, "conv 3" in text) == (True, False)
        assert "The table has 27 more rows: the JSON has all." in text
    few = table(rows[:3], *_COLUMNS, label="Operators").folded(Fold(3, 20, "the JSON has all"))
    assert all("more" not in FORMS[form](_document(few)).split("</style>")[-1] for form in FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_a_change_is_in_per_cent_and_a_trend_is_a_line(form: str) -> None:
    """Of a ratio and of an interval of ratios; a page has a picture where others have blocks."""
    row = (1.125, (1.1, 1.15), (1.0, 2.0))
    text = FORMS[form](
        _document(
            table(
                [row],
                column("change", Format.CHANGE, lambda row: changed_ratio(row[0], better=False)),
                column("interval", Format.CHANGE, lambda row: row[1]),
                column("runs", Format.TREND, lambda row: row[2]),
            )
        )
    )
    assert "+12.5 %" in text
    assert "+10.0 % to +15.0 %" in text
    assert ('<td class="n slower"' in text, '<svg class="spark"' in text, "▁█" in text) == (
        (True, True, False) if form == "page" else (False, False, True)
    )


def _map(rows: int, left_out: tuple[int, int] = (0, 0)) -> CellMap:
    listed = [(f"m{number}<", [MapCell("+30*", -4), MapCell("<1", 2, ("a|b", "c"))]) for number in range(rows)]
    return CellMap("Changes", "model", "phone", ["phone 0", "phone 1"], listed, left_out, "JSON has all")


def test_a_heat_map_has_a_shade_a_cell_and_heads_that_are_heard() -> None:
    """Cells have no end tags; names and texts are escaped."""
    page = html_document(_document(_map(1)))
    cells = "<td class=loss4>+30*<td class=gain2>&lt;1<span>a|b</span><span>c</span>"
    assert f'<tr><th scope="row" title="m0&lt;">m0&lt;</th>{cells}</tr>' in page
    assert '<th class="up" scope="col" title="phone 1"><span>phone 1</span></th>' in page
    assert '<div class="wide map" tabindex="0" role="region" aria-label="Changes">' in page
    assert ("worse, " in page, " better" in page, "No room" in page, "<details" in page) == (True, True, False, False)


def test_a_heat_map_of_many_rows_is_folded_and_says_what_has_no_room() -> None:
    """The first rows at once, all behind a click."""
    page = html_document(_document(_map(40, left_out=(3, 1))))
    shown, behind = page.split('<details class="more"><summary>All 40 models by 2 phones</summary>')
    assert (shown.count("<td"), behind.count("<td")) == (40, 80)
    assert 'aria-label="Changes, all"' in behind
    assert f"{NO_ROOM} 3 models and 1 phone: JSON has all." in behind


def test_a_small_heat_map_is_a_table_in_markdown_and_a_large_one_a_sentence() -> None:
    """Bold stands for its colours; a terminal has no maps."""
    text = markdown_document(_document(_map(1)))
    assert "| model | phone 0 | phone 1 |" in text
    assert "| m0\\< | **+30\\*** | **\\<1** (a\\|b, c) |" in text
    large = markdown_document(_document(_map(400, left_out=(3, 0))))
    assert f"{PAGES_HAVE_A_MAP} 403 models by 2 phones; JSON has all." in large
    assert "+30" not in _terminal(_document(_map(1)))


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_figures_that_nothing_else_says_are_listed(form: str) -> None:
    """Where no tiles stand beside each other."""
    figures = [HeadlineFigure("slower", "40", "of 320")]
    assert "40 of 320" in " ".join(FORMS[form](_document(Figures(figures, alone=True))).split())
    assert "320" not in FORMS[form](_document(Figures(figures)))
