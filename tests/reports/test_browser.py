"""The HTML report in a real Chromium, opened from disk with the network off."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from chromium import Chromium, needs_chromium
from hostile_names import HOSTILE
from large_content import large_content
from opscope.analysis.operators.operators import Operator
from opscope.reports.content.content import ReportContent, listed_operators
from opscope.reports.report import html_report

pytestmark = needs_chromium

OPERATORS = "#operators table"
ROWS = f"[...document.querySelectorAll('{OPERATORS} tbody tr')]"
VISIBLE = f"{ROWS}.filter((row) => getComputedStyle(row).display !== 'none')"
BOXES = "[...document.querySelectorAll('svg.icicle:first-of-type > svg')]"
_SHOWN_AT_FIRST = 200
OPEN_ALL = "[...document.querySelectorAll('details')].forEach((one) => { one.open = true })"
SORT_ALL = f"""[...document.querySelectorAll('{OPERATORS} th')].map((head, column) => ({{
  name: head.querySelector('button').textContent.trim(),
  numeric: head.classList.contains('n'),
  turns: [0, 1].map(() => {{
    head.querySelector('button').click();
    const rows = [...head.closest('table').tBodies[0].rows];
    return {{ order: head.ariaSort, texts: rows.map((row) => row.cells[column].textContent.trim()) }};
  }}),
}}))"""


class Pages(NamedTuple):
    """A sound report of 241 operators and framework steps, and one whose every name is hostile."""

    sound: Path
    hostile: Path
    content: ReportContent


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """Both, written to disk."""
    directory = tmp_path_factory.mktemp("pages")
    content = large_content(directory, operators=200, inferences=60)
    found = Pages(directory / "sound.html", directory / "hostile.html", content)
    found.sound.write_text(html_report(content), encoding="utf-8")
    found.hostile.write_text(html_report(hostile(content)), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """One browser for all tests."""
    browser = Chromium()
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium: Chromium, pages: Pages) -> Chromium:
    """The browser with the sound report, all its sections opened, on a window of a usual size."""
    chromium.view(1200, 900)
    chromium.open(pages.sound)
    chromium.value(OPEN_ALL)
    return chromium


@pytest.fixture
def closed(chromium: Chromium, pages: Pages) -> Chromium:
    """The browser with the sound report as a reader finds it."""
    chromium.view(1200, 900)
    chromium.open(pages.sound)
    return chromium


def hostile(content: ReportContent) -> ReportContent:
    """The same report with a hostile name wherever a name comes from outside."""
    replace = msgspec.structs.replace
    results = []
    for result in content.variants:
        assert result.analysis
        names = {
            "operators": ("name", "module", "source", "code", "backend"),
            "modules": ("path", "type"),
            "sources": ("source", "code"),
            "delegates": ("backend",),
        }
        views = {
            view: [replace(row, **{field: bad(n + k) for k, field in enumerate(fields)}) for n, row in enumerate(rows)]
            for view, fields in names.items()
            if (rows := getattr(result.analysis, view))
        }
        results.append(replace(result, analysis=replace(result.analysis, **views)))
    model = replace(content.manifest.model, name=bad(0), source=bad(2), backends=[bad(1), bad(3)])
    environment = replace(content.manifest.environment, cpu=bad(1), kernel=bad(6), features=[bad(4)])
    manifest = replace(content.manifest, model=model, environment=environment)
    findings = [replace(f, title=bad(n), evidence=bad(n + 1), next_step=bad(n)) for n, f in enumerate(content.findings)]
    return replace(content, manifest=manifest, variants=results, findings=findings)


def bad(number: int) -> str:
    """One of the hostile names."""
    return HOSTILE[number % len(HOSTILE)]


def cells(browser: Chromium, column: int) -> list[str]:
    """Texts of a column of the operator table, in the order of the rows."""
    return browser.value(f"{ROWS}.map((row) => row.cells[{column}].textContent.trim())")


def heads(browser: Chromium) -> list[str]:
    """Names of the operator table's columns."""
    return browser.value(f"[...document.querySelectorAll('{OPERATORS} th')].map((head) => head.textContent.trim())")


def numbers(texts: list[str]) -> list[float]:
    """The number at the start of each text."""
    return [float(re.match(r"[+-]?[\d.]+", text)[0]) for text in texts]


def listed(pages: Pages) -> list[Operator]:
    """The operators that have rows of their own."""
    return [row.operator for row in listed_operators(pages.content)[0]]


def status(browser: Chromium) -> str:
    """What the filters of the operator table say."""
    return browser.value("document.querySelector('#operators output').textContent")


def test_the_page_opens_offline_without_a_sound(browser: Chromium, pages: Pages) -> None:
    """No network, no request but the file itself, nothing on the console, no violation of the policy."""
    assert browser.value("navigator.onLine") is False
    assert browser.requests() == [pages.sound.resolve().as_uri()]
    assert browser.alarms() == []
    assert browser.value("document.documentElement.classList.contains('js')")


def test_nothing_runs_even_if_a_name_were_markup(chromium: Chromium, pages: Pages, tmp_path: Path) -> None:
    """With escaping taken away the policy still stops scripts, handlers, styles, pictures and addresses."""
    path = tmp_path / "broken.html"
    markup = (
        "<main><script>window.ran = 1</script><img src=x onerror='window.ran = 2'><style>body{display:none}</style>"
        "<svg onload='window.ran = 3'></svg><iframe srcdoc='<script>parent.ran = 4</script>'></iframe>"
        "<p style='display:none' id=p>p</p>"
    )
    path.write_text(pages.sound.read_text().replace("<main>", markup, 1))
    chromium.open(path)
    assert chromium.value("window.ran === undefined")
    assert chromium.value("getComputedStyle(document.body).display") == "block"
    assert chromium.value("getComputedStyle(document.getElementById('p')).display") == "block"
    assert len([one for one in chromium.alarms() if one["method"] == "Audits.issueAdded"]) >= 5


def test_every_column_sorts_by_a_click(browser: Chromium) -> None:
    """Numbers begin with the largest, texts with the first; the next click turns the order; empty cells stay last."""
    columns = browser.value(SORT_ALL)
    assert [column["name"] for column in columns] == heads(browser)
    assert len(columns) == 12
    for column in columns:
        name, numeric = column["name"], column["numeric"]
        orders = [turn["order"] for turn in column["turns"]]
        assert orders == (["descending", "ascending"] if numeric else ["ascending", "descending"]), name
        for turn in column["turns"]:
            texts = turn["texts"]
            known = [text for text in texts if text]
            assert known, name
            assert texts[: len(known)] == known, f"{name}: an empty cell stands before others"
            if numeric:
                assert numbers(known) == sorted(numbers(known), reverse=turn["order"] == "descending"), name
        assert column["turns"][0]["texts"] != column["turns"][1]["texts"] or len(set(known)) == 1, name
    assert browser.value(f"document.querySelectorAll('{OPERATORS} th[aria-sort]').length") == 1


def test_texts_sort_as_a_person_would(browser: Chromium) -> None:
    """Numbers inside of names count as numbers: block 9 stands before block 10."""
    browser.click(f"{OPERATORS} th:nth-child(2) button")
    layers = [text.partition("with")[0] for text in cells(browser, 1)]
    found = [tuple(int(part) for part in re.findall(r"\d+", text)) for text in layers if text]
    assert found == sorted(found)
    assert (9, 0) in found
    assert (10, 0) in found


def test_the_table_sorts_by_keys(browser: Chromium) -> None:
    """Tab leads from head to head, Enter and the space bar sort, and what has the keyboard is seen."""
    browser.focus(f"{OPERATORS} th:nth-child(1) button")
    browser.press("Tab")
    assert browser.value("document.activeElement.textContent") == "layer"
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter")
    assert browser.value("document.activeElement.closest('th').ariaSort") == "ascending"
    browser.press(" ")
    assert browser.value("document.activeElement.closest('th').ariaSort") == "descending"


def test_filters_leave_what_fits_and_sum_it_up(browser: Chromium, pages: Pages) -> None:
    """A text and choices work together; rows, milliseconds and share of what is shown are those of the analysis."""
    analysis = pages.content.shown
    assert analysis
    rows = listed(pages)
    total = analysis.headline_ns
    browser.focus("#operators input")
    browser.type("dwCONV")
    expected = [row for row in rows if "DWConv" in row.name]
    spent = sum(row.shown_ns for row in expected)
    assert status(browser) == (
        f"{len(expected)} of {len(rows)} rows: {spent / 1e6:.3f} ms, {spent / total * 100:.1f} %"
    )
    assert browser.value(f"{VISIBLE}.length") == len(expected)
    browser.click("#operators .controls button")
    choose = "const s = document.querySelector('#operators select[name=backend]'); s.value = 'portable'"
    browser.value(f"(() => {{ {choose}; s.dispatchEvent(new Event('change')) }})()")
    portable = [row for row in rows if row.backend == "portable"]
    assert status(browser).startswith(f"{len(portable)} of {len(rows)} rows")
    browser.focus("#operators input")
    browser.type("nothing has this name")
    assert status(browser) == f"0 of {len(rows)} rows: 0.000 ms, 0.0 %"
    browser.click("#operators .controls button")
    assert status(browser).startswith(f"{len(rows)} of {len(rows)} rows")


def test_a_choice_can_be_made_by_keys(browser: Chromium) -> None:
    """An arrow in a list takes the next category."""
    browser.focus("#operators select[name=category]")
    browser.press("ArrowDown")
    chosen = browser.value("document.activeElement.value")
    assert chosen
    assert set(browser.value(f"{VISIBLE}.map((row) => row.cells[2].textContent)")) == {chosen}


def test_of_very_many_rows_the_first_are_shown_until_all_are_asked_for(browser: Chromium, pages: Pages) -> None:
    """Sorting and filtering work on all of them."""
    assert pages.content.shown
    count = len(listed(pages))
    assert count > _SHOWN_AT_FIRST
    assert browser.value(f"{VISIBLE}.length") == _SHOWN_AT_FIRST
    shortest = min(row.share for row in listed(pages))
    browser.click(f"{OPERATORS} th[aria-sort] button")
    assert numbers([browser.value(f"{VISIBLE}[0].cells[8].textContent")]) == [round(shortest * 100, 1)]
    browser.click("#operators .controls button:last-child")
    assert browser.value(f"{VISIBLE}.length") == count
    assert browser.value("document.querySelector('#operators .controls button:last-child').hidden")


def test_the_module_tree_folds(browser: Chromium) -> None:
    """By click and by arrow keys; all at once too."""
    rows = "[...document.querySelectorAll('.tree tbody tr')]"
    shown = f"{rows}.filter((row) => getComputedStyle(row).display !== 'none').length"
    whole = browser.value(f"{rows}.length")
    browser.click("#layers .controls button:nth-child(1)")
    assert browser.value(shown) == whole
    browser.click("#layers .controls button:nth-child(2)")
    assert 1 < browser.value(shown) < whole
    before = browser.value(shown)
    browser.focus(".tree tr:nth-child(2) .fold")
    browser.press("ArrowRight")
    assert browser.value("document.activeElement.ariaExpanded") == "true"
    opened = browser.value(shown)
    assert opened > before
    browser.press("ArrowLeft")
    assert browser.value(shown) == before
    browser.click(".tree tr:nth-child(2) .fold")
    assert browser.value(shown) == opened


def test_a_box_of_the_icicle_zooms(browser: Chromium) -> None:
    """A click makes it as wide as the picture, what is beside it goes; the button brings back the whole."""
    first = f"{BOXES}[1].querySelector('rect').getBoundingClientRect().width"
    wide = f"{first} / document.querySelector('svg.icicle').getBoundingClientRect().width"
    assert browser.value(wide) < 0.2
    gone = f"{BOXES}.filter((box) => getComputedStyle(box).display === 'none').length"
    browser.click("svg.icicle > svg:nth-child(2) > rect")
    assert browser.value(wide) == pytest.approx(1, abs=0.01)
    assert browser.value(gone) > 0
    assert "ms" in browser.value("document.querySelector('#inference .shown').textContent")
    browser.click("#inference .controls button")
    assert browser.value(wide) < 0.2
    assert browser.value(gone) == 0


def test_the_icicle_is_walked_by_keys(browser: Chromium) -> None:
    """Down to what it holds, along its neighbours, up again; Enter zooms and Escape shows the whole."""
    label = "document.activeElement.getAttribute('aria-label').split(':')[0]"
    browser.focus("svg.icicle > svg")
    assert browser.value(label) == "method forward"
    steps = []
    for key in ("ArrowDown", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "ArrowUp"):
        browser.press(key)
        steps.append(browser.value(label))
    assert steps[:3] == ["0 XNNPACK", "1 portable", "0 XNNPACK"]
    assert steps[3] not in steps[:3]
    assert steps[4:] == ["0 XNNPACK", "method forward"]
    browser.press("ArrowDown")
    browser.press("Enter")
    assert browser.value("document.activeElement.getAttribute('width')") == "100%"
    browser.press("Escape")
    assert browser.value("parseFloat(document.activeElement.getAttribute('width'))") < 20


def test_the_page_is_complete_without_scripts(chromium: Chromium, pages: Pages) -> None:
    """Every row and every module is shown, and nothing that would need a script."""
    chromium.open(pages.sound, scripts=False)
    assert pages.content.shown
    assert not chromium.value("document.documentElement.classList.contains('js')")
    assert chromium.value(f"{VISIBLE}.length") == len(listed(pages))
    assert chromium.value("document.querySelectorAll('button, input, select').length") == 0
    modules = "[...document.querySelectorAll('.tree tbody tr')]"
    assert chromium.value(f"{modules}.every((row) => getComputedStyle(row).display !== 'none')")
    assert chromium.value("document.querySelectorAll('svg.icicle > svg').length") > 50
    assert chromium.value("getComputedStyle(document.querySelector('.tall')).maxHeight") == "none"
    assert chromium.alarms() == []


def test_print_shows_all_and_no_controls(browser: Chromium, pages: Pages) -> None:
    """What is folded, filtered or closed on the screen stands on paper; buttons do not."""
    browser.click("#layers .controls button:nth-child(2)")
    browser.focus("#operators input")
    browser.type("gemm")
    browser.view(720, 1000, media="print")
    assert pages.content.shown
    assert browser.value(f"{VISIBLE}.length") == len(listed(pages))
    modules = "[...document.querySelectorAll('.tree tbody tr')]"
    assert browser.value(f"{modules}.every((row) => row.getClientRects().length)")
    assert browser.value("document.querySelector('details td').getClientRects().length") == 1
    hidden = "[...document.querySelectorAll('nav, .controls, .fold')]"
    assert browser.value(f"{hidden}.length > 3 && {hidden}.every((e) => !e.getClientRects().length)")
    assert browser.pdf().startswith(b"%PDF")


def test_links_lead_to_their_part(browser: Chromium) -> None:
    """Every link of the contents; the heading is then in the window, below the bar."""
    links = browser.value("[...document.querySelectorAll('nav a')].map((a) => a.getAttribute('href'))")
    assert len(links) > 8
    for link in reversed(links):
        browser.click(f"nav a[href='{link}']")
        top = f"document.querySelector('{link} h2, {link} h1').getBoundingClientRect().top"
        assert 0 <= browser.value(f"new Promise((done) => setTimeout(() => done({top}), 30))") < 880, link


def test_reference_is_closed_until_somebody_asks(closed: Chromium) -> None:
    """The answer comes first: of the words of the page, fewer than half are shown; each closed section says its own."""
    shown, whole = "document.querySelector('main').innerText", "document.querySelector('main').textContent"
    count = "{}.trim().split(/\\s+/).length"
    all_shown = "[...document.querySelectorAll('.part')].forEach((part) => part.style.contentVisibility = 'visible')"
    closed.value(all_shown)
    assert closed.value(count.format(shown)) < 0.5 * closed.value(count.format(whole))
    answers = closed.value("[...document.querySelectorAll('.closed > summary')].map((one) => one.innerText)")
    assert len(answers) >= 5
    assert all(re.search(r"\d", answer) for answer in answers), answers


def test_a_link_opens_what_it_leads_to(closed: Chromium) -> None:
    """Also when it was closed again behind the same address."""
    is_open = "document.querySelector('#operators').open"
    assert not closed.value(is_open)
    for _ in range(2):
        closed.click("nav a[href='#operators']")
        assert closed.value(f"new Promise((done) => setTimeout(() => done({is_open}), 30))")
        closed.value("document.querySelector('#operators').open = false")


def test_a_closed_section_is_printed(closed: Chromium) -> None:
    """Paper has no summary to click."""
    closed.view(720, 1000, media="print")
    assert closed.value("document.querySelector('#operators tbody tr').getClientRects().length") == 1


def test_a_telephone_shows_speedups_and_verdicts(closed: Chromium) -> None:
    """The tables of the first screen fit into 390 pixels: nothing of them has to be scrolled to."""
    closed.view(390, 844)
    wide = "[...document.querySelectorAll('.first .wide')]"
    assert closed.value(f"{wide}.map((one) => one.scrollWidth - one.clientWidth)") == [0, 0]
    heads = "[...document.querySelectorAll('.first th')].filter((one) => one.getClientRects().length)"
    assert closed.value(f"{heads}.map((one) => one.innerText)").count("speedup") == 2


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1200, "dark")])
def test_nothing_sticks_out(browser: Chromium, width: int, scheme: str) -> None:
    """On a telephone and in the dark: the page is as wide as its window, wide tables scroll by themselves."""
    browser.view(width, 900, scheme)
    assert browser.value("document.documentElement.scrollWidth") == width
    assert browser.value("document.body.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser: Chromium, scheme: str) -> None:
    """Contrast of every colour of text to its ground is at least 4.5 to 1 (WCAG 2.2, level AA)."""
    browser.view(1200, 900, scheme)
    selectors = ["body", ".dim", ".trust", "nav a", "th", ".faster", ".slower", "summary", ".tile span", ".marks text"]
    ground = colour(browser, "body", "backgroundColor")
    for selector in selectors:
        if not browser.value(f"Boolean(document.querySelector({json.dumps(selector)}))"):
            continue
        name = "fill" if selector == ".marks text" else "color"
        ink = colour(browser, selector, name)
        assert contrast(ink, ground) >= 4.5, selector
    for number in range(5):
        box = f".icicle .c{number} > "
        if browser.value(f"Boolean(document.querySelector('{box}rect'))"):
            assert contrast(colour(browser, f"{box}text", "fill"), colour(browser, f"{box}rect", "fill")) >= 4.5


def colour(browser: Chromium, selector: str, name: str) -> tuple[int, int, int]:
    """A computed colour of the first element of a selector."""
    text = browser.value(f"getComputedStyle(document.querySelector({json.dumps(selector)}))[{json.dumps(name)}]")
    red, green, blue = re.findall(r"\d+", text)[:3]
    return int(red), int(green), int(blue)


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """Contrast ratio of two colours as WCAG 2.2 defines it."""
    low, high = sorted(luminance(each) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def luminance(each: tuple[int, int, int]) -> float:
    """Relative luminance of a colour of sRGB."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in each]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def shape(browser: Chromium) -> list[list[int]]:
    """Of each table the number of cells of each row, cells over several columns counted as such."""
    count = "(row) => [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0)"
    return browser.value(f"[...document.querySelectorAll('table')].map((t) => [...t.rows].map({count}))")


def test_hostile_names_run_nothing_and_break_no_table(chromium: Chromium, pages: Pages) -> None:
    """Markup, quotes, directions, ten thousand characters and line ends stay text; the page works as ever."""
    chromium.view(1200, 900)
    chromium.open(pages.hostile)
    assert chromium.alarms() == []
    assert chromium.requests() == [pages.hostile.resolve().as_uri()]
    assert chromium.value("document.querySelectorAll('script').length") == 1
    assert chromium.value("document.querySelectorAll('img, iframe, [onerror], [onload], [style]').length") == 0
    tables: Any = shape(chromium)
    assert len(tables) > 10
    assert all(len(set(rows)) == 1 for rows in tables)
    assert chromium.value("document.title").startswith("<script>alert(1)</script>")
    assert chromium.value("document.documentElement.scrollWidth") == 1200
    assert len(chromium.value(SORT_ALL)) == 12
    chromium.focus("#operators input")
    chromium.type("<img src=x onerror=alert(1)>")
    assert not status(chromium).startswith("0 of")
    chromium.click("svg.icicle > svg:nth-child(2) > rect")
    assert chromium.alarms() == []
