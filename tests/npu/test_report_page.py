"""The report of AI Engine traces: what its first screen says, that it adds up, and that names stay text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aie_gemm import Gemm
from aie_traces import Span, Tile, records
from chromium import COMMAND, Chromium
from opscope.npu.analysis.sweep import SweepRow, sweep
from opscope.npu.reports.answer import answer, iteration_lines, told
from opscope.npu.reports.drawing import Cell, Lane, covered, heat_map, timeline
from opscope.npu.reports.page import call_sequences, tiles_html, tiles_markdown
from opscope.npu.reports.sweep import sweep_html, sweep_markdown, sweep_sentence
from opscope.npu.reports.terminal import tiles_summary
from opscope.npu.workflows.aie import TilesRequest, analyze_tiles

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
    found = answer(analysis)

    assert found.headline.startswith("The core is busy part of the time: 61.3 % of the cycles are in kernel calls; ")
    assert found.pace.startswith("pace: bound by the B input stream; a call every 513 cycles, 512 predicted")
    assert "100.0 % of the calls of the whole run" in found.seen
    assert analysis.findings[0].rule == "stream_sets_pace"


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
    rules = [one.rule for one in told(analysis.findings)]
    missing = [found for found in analysis.findings if found.rule == "events_missing" or "not traced" in found.title]

    assert len(rules) == len(set(rules))
    assert len(missing) == 8
    assert any((one.place or "").endswith("and 7 more tiles") for one in told(analysis.findings))


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
    shown = "".join(str(part) for part in tiles_summary(examined.analysis).renderables)

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


def test_the_array_is_drawn_as_it_lies() -> None:
    """The highest row at the top, columns from left to right, also where no core was traced."""
    cells = [Cell(2, 0, 0.5, "50 %", "a"), Cell(4, 3, 1.0, "100 %", "b")]
    found = re.findall(r'<text x="([\d.]+)%" y="(\d+)"[^>]*>(\d+ %)</text>', heat_map(cells, "cores"))
    (left, low, _), (right, high, _) = found

    assert float(left) < float(right)
    assert int(low) > int(high)


def test_an_empty_lane_draws_nothing() -> None:
    """No stretch, no box."""
    none = np.empty(0, np.int64)
    assert "<rect" not in timeline([Lane("nothing", "#000000", none, none)], (0, 10), "empty")


def test_the_markdown_timeline_holds_every_call_once(tmp_path: Path) -> None:
    """Its stretches follow each other, and their kinds add up."""
    examined = analyze_tiles(saved(tmp_path / "t.json", Gemm(outputs=13).tile())).examined
    found = call_sequences(examined.cores[0])

    assert len(found) == 20
    assert [one.first for one in found] == [1, *(one.last + 1 for one in found[:-1])]
    assert found[-1].last == 65
    counts = [int(number) for one in found for number in re.findall(r"(\d+) x", one.kinds)]
    assert sum(counts) == 65


def test_the_markdown_map_shows_the_array_as_it_lies(tmp_path: Path) -> None:
    """The highest row first; a place that was not traced is empty."""
    tiles = [tile for tile in array() if (tile.row, tile.column) != (5, 0)]
    text = tiles_markdown(analyze_tiles(saved(tmp_path / "t.json", *tiles)).examined)

    assert re.search(r"\| row 5 \|  \| \d+\.\d % \|\n\| row 4 \| \d+\.\d % \| \d+\.\d % \|", text)


def test_a_sweep_keeps_names_as_text() -> None:
    """Labels are names of files, which may hold anything."""
    rows = [SweepRow(label=f"{HOSTILE}{number}", path="x", M=8, K=8, N=8, utilisation=0.5) for number in range(2)]
    found = sweep([*rows, SweepRow(label="broken", path="y", problem=HOSTILE)])
    page, text = sweep_html(found), sweep_markdown(found)

    assert "<script>alert" not in page
    assert "\\<script\\>" in text
    assert "\x1b" not in page + text
    assert page.count("<svg") == 1


def test_of_bounds_that_are_equally_frequent_a_sweep_names_the_first() -> None:
    """The sentence is the same every time."""
    bounds = ["call", "A input stream", "B input stream", "C output stream", "not explained"]
    rows = [SweepRow(label=f"{n}", path="x", M=8 << n, K=8, N=8, bound_by=by) for n, by in enumerate(bounds)]

    assert sweep_sentence(sweep(rows)).endswith("; 1 of 5 bound by the kernel call itself")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """One browser for all tests."""
    browser = Chromium()
    yield browser
    browser.close()


@pytest.mark.skipif(COMMAND is None, reason="needs chromium")
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
    for selector in (".headline", ".tiles", "svg.bars", "svg.map", "ol.findings li"):
        assert chromium.value(f"({bottom})({json.dumps(selector)})") <= 800, selector
    assert chromium.value("document.documentElement.scrollWidth") <= 1280
