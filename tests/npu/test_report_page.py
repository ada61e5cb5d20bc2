"""The report of AI Engine traces: what its first screen says, that it adds up, and that names stay text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from aie_gemm import Gemm
from aie_stalls import Caller
from aie_traces import Span, Tile, records
from chromium import Chromium, needs_chromium
from opscope.npu.reports.answer import answer, iteration_lines, join_findings, tiles_screen
from opscope.npu.reports.page import array_map, tiles_html, tiles_markdown
from opscope.npu.reports.pictures import Lane, covered, timeline
from opscope.npu.workflows.aie import TilesRequest, analyze_tiles
from opscope.reports.document.terminal import terminal_document
from texts import PART_OF_THE_TIME

HOSTILE = "<script>alert(1)</script>|`*\x1b[31m\u202e"
SIZES = TilesRequest(M=48, K=128, N=32, m=16, k=32, n=32, row=1, col=1, dtype="bf16", arch="npu1")


def saved(path: Path, *tiles: Tile) -> Path:
    """A trace in JSON."""
    path.write_text(json.dumps(list(records(tiles))))
    return path


def hostile() -> Tile:
    """A core whose unused slot has a hostile name."""
    tile = Gemm().tile()
    names = [HOSTILE if name == "MEMORY_STALL" else name for name in tile.names]
    return tile._replace(names=names, spans=[*tile.spans, Span(5, 1100, 1140)])


def array() -> list[Tile]:
    """Eight cores, of which one waits longer."""
    return [
        Gemm(rest=900 if (row, column) == (3, 1) else 0, row=row, column=column).tile()
        for row in range(2, 6)
        for column in range(2)
    ]


def test_the_answer_names_what_sets_the_pace(tmp_path: Path) -> None:
    """A stream that takes longer than the call it feeds, with both figures, and what to do about it."""
    analysis = analyze_tiles(saved(tmp_path / "t.json", Gemm().tile()), SIZES).analysis
    headline, lines = answer(analysis)

    assert headline.startswith(f"The core is {PART_OF_THE_TIME}: 61.3 % of the cycles are in kernel calls; ")
    assert lines[1].startswith("period: bound by the B input stream; a call every 513 cycles, 512 predicted")
    assert "100.0 % of the calls of the whole run" in lines[-1]
    assert analysis.findings[0].rule == "stream_sets_pace"


def test_a_core_that_waits_in_its_calls_is_not_busy(tmp_path: Path) -> None:
    """It is in calls nearly always, and waits in two thirds of that time."""
    examined = analyze_tiles(saved(tmp_path / "t.json", Caller(stalls={"LOCK_STALL": 670}).tile())).examined
    headline, lines = answer(examined.analysis)

    assert headline == (
        "The core is waiting most of the time: 99.1 % of the cycles are in kernel calls; 67.0 % of these are stalls"
    )
    assert lines[1].startswith("period: bound by lock stall in calls; a call every 1,010 cycles")
    assert "of the cycles; 67.0 % of these stalled" in tiles_html(examined)


def test_the_next_step_is_something_to_do(tmp_path: Path) -> None:
    """A mark that was recorded twice needs no step, so another finding has it."""
    core = Caller(call=1000, vector=900).tile()
    twice = core._replace(spans=sorted([*core.spans, Span(0, 103, 104)], key=lambda span: span.start))
    analysis = analyze_tiles(saved(tmp_path / "t.json", twice)).analysis
    shown = "".join(str(part) for part in terminal_document(tiles_screen(analysis)).renderables)

    assert "call_start_repeated" in {one.rule for one in analysis.findings}
    assert "nothing to do" not in shown


def test_a_pace_that_is_not_explained_says_by_how_many_periods(tmp_path: Path) -> None:
    """In the answer and in the tables."""
    core = Caller((105, 536, 257), call=60, vector=40, waits=(40, 470, 190), moves=(105, 536, 130))
    examined = analyze_tiles(saved(tmp_path / "t.json", core.tile())).examined

    assert answer(examined.analysis)[1][1].startswith("period: not explained, n = 3; a call every 257 cycles")
    assert all("not explained, n = 3" in text for text in (tiles_html(examined), tiles_markdown(examined)))


def test_what_was_not_traced_is_not_said_to_be_nothing(tmp_path: Path) -> None:
    """Its row in the table says so, instead of 0."""
    examined = analyze_tiles(saved(tmp_path / "t.json", Gemm().tile()), SIZES).examined
    text = tiles_markdown(examined)

    assert "| stream stall | not traced |" in text
    assert "| window |" in text
    assert "| 100.0 % |" in text


def test_the_same_finding_of_many_cores_is_told_once(tmp_path: Path) -> None:
    """With the first place, and how many more there are; the JSON has each of them."""
    analysis = analyze_tiles(saved(tmp_path / "t.json", *array())).analysis
    rules = [one.rule for one in join_findings(analysis.findings)]
    missing = [found for found in analysis.findings if found.rule == "events_missing" or "not traced" in found.title]

    assert len(rules) == len(set(rules))
    assert len(missing) == 8
    assert any((one.place or "").endswith("and 7 more tiles") for one in join_findings(analysis.findings))


def test_iterations_are_told_with_what_was_expected(tmp_path: Path) -> None:
    """How many of how many, how long they take, and by what they were found; of like tiles in one line."""
    asked = TilesRequest(M=16, K=128, N=192, m=16, k=32, n=32, row=1, col=2, warmup=1, iterations=2)
    tiles = [Gemm(outputs=9, column=column).tile() for column in range(2)]
    rows = analyze_tiles(saved(tmp_path / "t.json", *tiles), asked).analysis.tiles
    (line,) = iteration_lines(rows)

    assert line.startswith("tile 2,0 and 1 more: 3 iterations of 3 expected, ")
    assert " cycles: the tiling gives 12 working calls" in line


def test_names_of_a_trace_stay_text(tmp_path: Path) -> None:
    """Markup, escape sequences and direction characters never reach a page or a terminal."""
    examined = analyze_tiles(saved(tmp_path / "t.json", hostile()), SIZES).examined
    page, text = tiles_html(examined), tiles_markdown(examined)
    shown = "".join(str(part) for part in terminal_document(tiles_screen(examined.analysis)).renderables)

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "\\<script\\>" in text
    assert all(bad not in part for part in (page, text, shown) for bad in ("\x1b", "\u202e"))


@pytest.mark.parametrize("tiles", [[Gemm().tile()], array(), [Tile("mem", 2, 1, ("LOCK_3_REL",), [Span(0, 5, 6)])]])
def test_every_page_is_whole(tmp_path: Path, tiles: list[Tile]) -> None:
    """One core, many cores, none: nothing is left unfilled, and no style or link leads out."""
    page = tiles_html(analyze_tiles(saved(tmp_path / "t.json", *tiles)).examined)

    assert "None" not in re.sub(r"<script>.*?</script>|<style>.*?</style>", "", page, flags=re.DOTALL)
    assert not re.findall(r'\sstyle="|https?://(?!www\.w3\.org/)', page)
    assert page.count("<section") == page.count("</section>")


@pytest.mark.parametrize(("edges", "bins"), [((0, 100), 7), ((13, 57), 4), ((0, 90), 90)])
def test_a_timeline_covers_what_its_spans_cover(edges: tuple[int, int], bins: int) -> None:
    """Each part shows the share of its cycles that are active; checked cycle by cycle."""
    start, end = np.array([3, 20, 60]), np.array([10, 41, 61])
    active = np.array([any(a <= t < b for a, b in zip(start, end, strict=True)) for t in range(100)], np.float64)
    whole = np.concatenate([[0.0], np.cumsum(active)])
    bounds = np.linspace(*edges, bins + 1)
    expected = np.diff(np.interp(bounds, np.arange(101), whole)) / np.diff(bounds)

    assert covered(start, end, edges, bins) == pytest.approx(expected)


def test_the_array_is_a_map_of_one_figure_as_it_lies(tmp_path: Path) -> None:
    """The share of the peak where all have it, else that of the cycles in calls; the highest row at the top."""
    rows = analyze_tiles(saved(tmp_path / "t.json", *array()), SIZES).analysis.working
    mixed = [msgspec.structs.replace(rows[0], utilisation=None), *rows[1:]]
    shown = array_map(rows)

    assert (shown.label, array_map(mixed).label) == ("Share of the peak", "Share of cycles in calls")
    assert [name for name, _ in shown.rows] == [f"row {row}" for row in sorted({row.row for row in rows}, reverse=True)]
    assert sum(bool(cell.text) for _, cells in shown.rows for cell in cells) == len(rows)


@pytest.mark.parametrize(("utilisation", "shade"), [(0.0, 0), (0.3, 2), (0.5, 2), (1.0, 5)])
def test_the_map_has_one_scale_for_every_array(utilisation: float, shade: int, tmp_path: Path) -> None:
    """From 0 to the peak: an evenly slow array is pale."""
    rows = analyze_tiles(saved(tmp_path / "t.json", *array()), SIZES).analysis.working
    shown = array_map([msgspec.structs.replace(row, utilisation=utilisation) for row in rows])

    assert {cell.shade for _, cells in shown.rows for cell in cells if cell.text} == {shade}


def test_names_of_lanes_are_text_beside_the_picture() -> None:
    """However narrow the picture, they keep their width; every second number of the axis can be left out."""
    stretch = np.array([2]), np.array([5])
    found = timeline([Lane("B input stream", "#000000", *stretch)], (0, 1000), "calls")
    names, picture = found.split("<svg", 1)

    assert "<span>B input stream</span><span>cycle</span>" in names
    assert "B input stream" not in picture
    assert re.findall(r'<text class="minor"[^>]*>([\d,]+)<', picture) == ["250", "750"]
    assert re.findall(r"<text x[^>]*>([\d,]+)<", picture) == ["0", "500", "1,000"]


def test_an_empty_lane_draws_nothing() -> None:
    """No stretch, no box."""
    none = np.empty(0, np.int64)
    assert "<rect" not in timeline([Lane("nothing", "#000000", none, none)], (0, 10), "empty")


def test_the_markdown_map_shows_the_array_as_it_lies(tmp_path: Path) -> None:
    """The highest row first; a place that was not traced is empty."""
    tiles = [tile for tile in array() if (tile.row, tile.column) != (5, 0)]
    text = tiles_markdown(analyze_tiles(saved(tmp_path / "t.json", *tiles)).examined)
    rows = [line for line in text.splitlines() if line.startswith(("| row 5 |", "| row 4 |"))]
    assert [line.count("%") for line in rows] == [1, 2]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """One browser for all tests."""
    browser = Chromium()
    yield browser
    browser.close()


@needs_chromium
def test_the_first_screen_answers_in_a_browser(tmp_path: Path, chromium: Chromium) -> None:
    """Answer, array and advice are on a screen of 1280 x 800; nothing is asked for, nothing is violated."""
    examined = analyze_tiles(saved(tmp_path / "t.json", *array(), hostile()), SIZES).examined
    page = tmp_path / "report.html"
    page.write_text(tiles_html(examined), encoding="utf-8")
    chromium.view(1280, 800)
    chromium.open(page)
    bottom = "(s) => document.querySelector(s).getBoundingClientRect().bottom"

    assert chromium.alarms() == []
    assert chromium.requests() == [page.resolve().as_uri()]
    for selector in (".headline", ".tiles", "svg.bars", "div.map", "ol.findings li"):
        assert chromium.value(f"({bottom})({json.dumps(selector)})") <= 800, selector
    assert chromium.value("document.documentElement.scrollWidth") <= 1280


_OVERLAPS = """[...document.querySelectorAll("svg.timeline")].some((picture) => {
  const shown = [...picture.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
  const boxes = shown.filter((box) => box.width > 0);
  return boxes.some((a, i) => boxes.some((b, j) => j > i && a.top === b.top && a.left < b.right && b.left < a.right));
})"""
_CUT = """[...document.querySelectorAll(".names span")].filter((name) => name.scrollWidth > name.clientWidth).length"""
_OUTSIDE = """[...document.querySelectorAll(".names, .lines text")].filter(
  (one) => one.getBoundingClientRect().left < 0 || one.getBoundingClientRect().right > innerWidth).length"""


@needs_chromium
@pytest.mark.parametrize("width", [360, 1280])
def test_names_and_axes_are_readable_on_any_screen(tmp_path: Path, chromium: Chromium, width: int) -> None:
    """No name is cut, no number stands on another or outside the page, on a phone as on a desk, with nine digits."""
    late = [Gemm(begin=10**8, row=row, column=column).tile() for row in range(2, 6) for column in range(2)]
    examined = analyze_tiles(saved(tmp_path / "t.json", *late), SIZES).examined
    page = tmp_path / "report.html"
    page.write_text(tiles_html(examined), encoding="utf-8")
    chromium.view(width, 800)
    chromium.open(page)

    assert chromium.value("document.querySelectorAll('.timeline .names span').length") > 8
    assert chromium.value(_CUT) == 0
    assert chromium.value(_OUTSIDE) == 0
    assert chromium.value(_OVERLAPS) is False


def test_rates_in_seconds_are_of_the_window_of_all_cores(tmp_path: Path) -> None:
    """As those in cycles: of two cores of which one starts later, neither stands for the whole."""
    core = Gemm()
    tiles = [core.tile(), core._replace(column=1, begin=core.begin + 20_000).tile()]
    said = msgspec.structs.replace(SIZES, clock_mhz=1000.0)
    analysis = analyze_tiles(saved(tmp_path / "t.json", *tiles), said).analysis
    assert analysis.mac_per_cycle is not None
    assert analysis.gmac_per_s is not None
    assert analysis.gmac_per_s.low == pytest.approx(analysis.mac_per_cycle)
    assert analysis.working[0].mac_per_cycle is not None
    assert analysis.mac_per_cycle < analysis.working[0].mac_per_cycle
