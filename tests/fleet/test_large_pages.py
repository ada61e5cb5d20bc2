"""Pages of large fleets and long histories: bounded, worst and newest first, and still whole in the JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from block_texts import cells
from chromium import COMMAND, Chromium
from nightly_fleet import eventful_fleet, steady_fleet, store_nights
from opscope.api import stored_fleet
from opscope.core.stats.effect import Verdict
from opscope.fleet.analysis.fleet import fleet
from opscope.fleet.analysis.history import FigureUnit, History, Metric, Order, Point, Subject, history
from opscope.fleet.analysis.nights import RunChange
from opscope.fleet.analysis.parts import FleetRun
from opscope.fleet.reports.fleet import (
    MOST_CELLS,
    MOST_COLUMNS,
    change_map,
    distance_map,
    fleet_html,
    fleet_markdown,
    speedup_map,
)
from opscope.fleet.reports.history import history_html, history_summary
from opscope.fleet.reports.notebook import fleet_card
from opscope.reports.document.blocks import MapCell, trend_svg, trend_text
from opscope.reports.notebook.card import MOST_ROWS
from terminal_text import text_of
from texts import FIRST_NIGHT, NO_ROOM, PAGES_HAVE_A_MAP

NOISE = [1.004, 0.997, 1.001, 0.995, 1.006, 0.999, 1.002, 0.996, 1.003, 0.998]
SUBJECT = Subject("toy", "fp32", "a phone", "local", "accelerated", 1, "", "untraced")
LATENCY = Metric("latency", FigureUnit.TIME)


def run(model: str, device: str, latency_ns: float | None = 1e6, **given: object) -> FleetRun:
    """A configuration of which only what matters is said."""
    usual: dict[str, object] = {
        "bundle": f"{device}-{model}",
        "variant": "accelerated",
        "role": "accelerated",
        "created": "2026-01-01T00:00:00",
        "runs": 1,
        "arm": "untraced",
        "speedup": 2.0,
        "ci95": (1.9, 2.1),
        "verdict": "faster",
        "grade": "good",
        "placed": "2026-01-30T05:00:00",
    }
    return FleetRun(model=model, device=device, latency_ns=latency_ns, **(usual | given))  # type: ignore[arg-type]


def change(ratio: float, verdict: Verdict) -> RunChange:
    """A newest run against a level of 1 ms."""
    return RunChange(1e6, ratio, 1e6, ratio, (0.99, 1.01), verdict, 30, 1, [1e6, ratio * 1e6])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of forty models on ten devices over twenty nights in which much happens."""
    work = tmp_path_factory.mktemp("page")
    store_nights(work / "store", eventful_fleet(40, 10, 20, seed=4))
    (work / "fleet.html").write_text(fleet_html(stored_fleet(work / "store")), encoding="utf-8")
    return work / "fleet.html"


@pytest.mark.parametrize(
    ("ratio", "verdict", "cell"),
    [
        (1.02, Verdict.SLOWER, MapCell("+2", -1)),
        (1.3, Verdict.SLOWER, MapCell("+30", -4)),
        (0.5, Verdict.FASTER, MapCell("-50", 4)),
        (1.3, Verdict.NO_DIFFERENCE, MapCell("+30")),
        (0.999, Verdict.NO_DIFFERENCE, MapCell("0")),
        (1.3, Verdict.UNDECIDABLE, MapCell("+30?")),
    ],
)
def test_a_cell_has_a_figure_and_a_colour_only_where_a_change_is_shown(
    ratio: float, verdict: Verdict, cell: MapCell
) -> None:
    """In per cent of the usual level; too few runs have a question mark."""
    found = change_map(fleet("store", [run("toy", "phone", change=change(ratio, verdict))], []))
    assert found.rows == [("toy", [cell])]


def test_a_map_has_the_worst_first_and_empty_cells_for_what_did_not_run() -> None:
    """The larger side goes down; a run that is older than the newest night is a dot."""
    slower = change(1.3, Verdict.SLOWER)
    runs = [
        run("a", "one", change=change(1.0, Verdict.NO_DIFFERENCE)),
        run("b", "one", placed="2026-01-01"),
        run("c", "one", change=change(1.0, Verdict.NO_DIFFERENCE)),
        run("c", "two", change=slower),
    ]
    found = change_map(fleet("store", runs, []))
    assert (found.down, found.columns) == ("model", ["two", "one"])
    nothing, same = MapCell(""), MapCell("0")
    assert found.rows == [
        ("c", [MapCell("+30", -4), same]),
        ("a", [nothing, same]),
        ("b", [nothing, MapCell("·")]),
    ]


def test_distances_are_from_the_fastest_device() -> None:
    """The fastest is named; a latency with tracing is never beside one without."""
    runs = [run("a", "one"), run("a", "two", 4e6), run("a", "three", 64e6), run("a", "four", 1.0, arm="traced")]
    assert dict(distance_map(fleet("store", runs, [])).rows) == {
        "one": [MapCell("best", 2)],
        "two": [MapCell("4.0", -2)],
        "three": [MapCell("64", -5)],
    }


@pytest.mark.parametrize(
    ("speedup", "verdict", "cell"),
    [
        (2.0, "faster", MapCell("2.00", 2)),
        (16.0, "faster", MapCell("16", 5)),
        (0.5, "slower", MapCell("0.50", -2)),
        (1.1, "no difference", MapCell("1.10?")),
        (None, None, MapCell("-")),
    ],
)
def test_speedups_are_those_of_one_variant(speedup: float | None, verdict: str | None, cell: MapCell) -> None:
    """Over the baseline of the same bundle, whatever the others reached; a question mark where none was shown."""
    runs = [run("toy", "phone", variant="sme2", speedup=speedup, verdict=verdict), run("toy", "phone", variant="i8mm")]
    assert speedup_map(fleet("store", runs, []), "sme2").rows == [("toy", [cell])]


def test_a_few_speedups_stand_with_intervals_and_latencies() -> None:
    """What keeps one from being trusted is said in words, on the page and in Markdown."""
    runs = [
        run("toy", "board"),
        run("toy", "phone", grade="do_not_trust", ci95=None, verdict="no_difference"),
        run("big", "phone", 4e6, speedup=None, verdict=None),
    ]
    made = fleet("store", runs, [])
    told = ("no interval", "1.00 ms", "no difference detected", "do not trust")
    assert speedup_map(made, "accelerated", detailed=True).rows == [
        ("big", [MapCell(""), MapCell("4.00 ms", 0, ("no baseline",))]),
        ("toy", [MapCell("2.00x", 2, ("1.90x to 2.10x", "1.00 ms")), MapCell("2.00x", 0, told)]),
    ]
    assert "<td class=gain2>2.00x<span>1.90x to 2.10x</span><span>1.00 ms</span>" in fleet_html(made)
    assert "| **2.00x** (1.90x to 2.10x, 1.00 ms) |" in fleet_markdown(made)


def test_a_map_of_any_size_is_bounded_and_says_so() -> None:
    """As many columns and cells as a page has room for; what is left out is counted."""
    devices, models = range(MOST_COLUMNS + 5), range(MOST_CELLS // MOST_COLUMNS + 10)
    steady = change(1.0, Verdict.NO_DIFFERENCE)
    runs = [run(f"m{m}", f"d{d}", change=steady) for m in models for d in devices]
    made = fleet("store", runs, [])
    assert change_map(made).left_out == (10, 5)
    text = fleet_html(made)
    assert f"{NO_ROOM} 10 models and 5 devices" in text
    assert text.count("<td") < 3 * MOST_CELLS + 20_000
    told = fleet_markdown(made)
    assert told.count(f"{PAGES_HAVE_A_MAP} {len(models)} models by {len(devices)} devices; see fleet.json") == 3
    assert len(told) < 10_000


def test_a_card_has_the_first_runs_and_counts_the_rest() -> None:
    """What was not measured is said, and has no speedup."""
    runs = [run("toy", f"d{number:03}") for number in range(MOST_ROWS + 7)]
    runs.append(run("toy", "a", None, speedup=None, verdict=None))
    card = fleet_card(fleet("store", runs, []))
    (grid,) = card.grids
    assert len(grid.rows) == MOST_ROWS
    assert cells(grid)[:2] == [
        ["a", "toy", "accelerated", "not measured", ""],
        ["d000", "toy", "accelerated", "1.00 ms", "2.00x"],
    ]
    assert card.lines[0].startswith("8 more")


def test_a_fleet_is_told_in_markdown(page: Path) -> None:
    """What got worse and where, the first rows of each list, and where the rest is."""
    text = fleet_markdown(stored_fleet(page.parent / "store"))
    assert "- Xperia 5 \\#1 (device):" in text
    assert "## Improvements in the last 14 days" in text
    assert "more rows: see fleet.json" in text


def test_what_is_widespread_is_told_once(page: Path) -> None:
    """The device that got slower with all its models is one line above the list, and in none of its rows."""
    text = page.read_text(encoding="utf-8")
    assert re.search(r"<li>Xperia 5 #1 \(device\): \d+ of \d+ configurations are slower", text)
    listed = text.split('aria-label="Slower than usual"')[1].split("</table>")[0]
    assert "Xperia 5 #1" not in listed
    assert listed.count('<svg class="spark"') == listed.count("<tr>") - 1


def test_a_fleet_of_one_night_says_that_nothing_can_be_compared(tmp_path: Path) -> None:
    """And after a second night that five predecessors are the fewest."""
    store_nights(tmp_path / "one", steady_fleet(2, 2, 1))
    assert FIRST_NIGHT in fleet_html(stored_fleet(tmp_path / "one"))
    store_nights(tmp_path / "two", steady_fleet(2, 2, 2))
    text = fleet_html(stored_fleet(tmp_path / "two"))
    assert "None can be judged yet." in text
    assert "4 have too few earlier runs to judge (fewer than 5)." in text


def test_a_line_of_runs_has_a_point_each_and_none_for_a_single_run() -> None:
    """From the lowest to the highest; equal values are in the middle; long series are binned."""
    assert trend_svg([1.0]) == trend_text([1.0]) == ""
    assert 'points="2,14 4,2"' in trend_svg([1.0, 2.0])
    assert 'points="2,8 4,8"' in trend_svg([1.0, 1.0])
    assert trend_svg([float(n) for n in range(600)]).count(",") == 60
    assert trend_text([1.0, 2.0, 1.5]) == "▁█▅"
    assert trend_text([1.0, 1.0]) == "▄▄"


def many(series: int, changed: int = 0, runs: int = 30) -> History:
    """Series of one metric, of which some have a step of 20 % in the middle, each a night later than the one before."""
    found = []
    for number in range(series):
        for night in range(runs):
            step = 1.2 if number < changed and night >= 10 + number % 15 else 1.0
            when = f"2026-01-{night + 1:02d}T00:00:00"
            point = Point(f"{number}-{night}", when, when[:10], 1e6 * step * NOISE[(night + number) % 10], when)
            found.append((msgspec.structs.replace(SUBJECT, model=f"m{number}"), point))
    return history("store", LATENCY, Order.DATE, found, 0)


def test_a_history_of_many_series_has_few_pictures_and_a_line_for_each() -> None:
    """The changed ones first, the newest of them with pictures; folded, and nothing is lost."""
    text = history_html(many(60, changed=32))
    assert len(re.findall(r"<svg xmlns", text)) == 12
    changed, steady = text.split("<h2>Series without a change</h2>")
    assert changed.count('<td class="n slower"') == 32
    assert changed.count("<li>worse: ") == 12
    assert steady.count('<td class="long">m') == 28
    first = re.findall(r"<td>(2026\S+)</td>", changed)
    assert len(first) == 32
    assert first == sorted(first, reverse=True)


def test_a_single_run_has_no_picture() -> None:
    """Nor a line: a figure of one point says nothing that its value does not."""
    text = history_html(many(5, runs=1))
    assert "<svg" not in text
    assert text.count('<td class="long">m') == 5
    assert text.count('>1 <span class="dim">not judged</span>') == 5


def test_a_few_series_have_a_picture_each() -> None:
    """As long as there are no more than a page shows at a glance."""
    assert history_html(many(3)).count("<svg xmlns") == 3


def test_a_terminal_is_not_flooded_by_series_that_did_not_change() -> None:
    """Those that changed are told; of the others as many as there is room for, and how many more there are."""
    text = text_of(history_summary(many(80, changed=2)))
    assert text.count("worse:") == 2
    assert "30 more series without a change" in text


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """One browser for all tests."""
    opened = Chromium()
    yield opened
    opened.close()


@pytest.mark.skipif(COMMAND is None, reason="needs chromium")
def test_a_fleet_fits_a_phone_and_opens_by_the_keyboard(page: Path, browser: Chromium) -> None:
    """No page wider than its window, no request, no alarm; Enter unfolds the whole map."""
    browser.view(390, 800)
    browser.open(page)
    assert browser.value("document.documentElement.scrollWidth") == 390
    assert len(browser.requests()) == 1
    browser.focus("details:has(.whole) > summary")
    browser.press("Enter")
    assert browser.value("document.querySelector('details:has(.whole)').open") is True
    assert browser.value("document.querySelectorAll('.whole tbody tr').length") >= 40
    assert browser.alarms() == []


@pytest.mark.skipif(COMMAND is None, reason="needs chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_shade_can_be_read(page: Path, browser: Chromium, scheme: str) -> None:
    """Contrast of text on each shade over the ground is 4.5 at least (WCAG 2.2, 1.4.3)."""
    browser.view(1400, 900, scheme)
    browser.open(page)
    contrasts = browser.value(CONTRASTS)
    assert min(contrasts.values()) >= 4.5, contrasts


CONTRASTS = """(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = parse(getComputedStyle(document.body).backgroundColor);
  const row = document.querySelector('.map tbody tr');
  const found = {};
  for (const name of ['', ...[1, 2, 3, 4, 5].flatMap((n) => [`loss${n}`, `gain${n}`])]) {
    const cell = row.insertCell();
    if (name) cell.className = name;
    const style = getComputedStyle(cell);
    const [r, g, b, a = 1] = parse(style.backgroundColor);
    const over = [r, g, b].map((c, i) => c * a + ground[i] * (1 - a));
    const [high, low] = [light(over), light(parse(style.color))].sort((x, y) => y - x);
    found[name] = (high + 0.05) / (low + 0.05);
    cell.remove();
  }
  return found;
})()"""
