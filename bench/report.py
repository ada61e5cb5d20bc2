"""The HTML report of a large model: how big it is, how long it takes to write, and how soon a browser shows it.

A synthetic model of 2,000 operators and 1,000 measured inferences a variant, 10,000 with ``--full``, through the real
analyses. The page is written five times, and opened five times from disk with the network off, each time in a new
process of the Chromium that is installed.
"""

from __future__ import annotations

import gzip
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chromium import COMMAND, Chromium
from large_content import large_content
from opscope.reports.report import html_report

if TYPE_CHECKING:
    from opscope.reports.content.content import ReportContent

_OPERATORS, _RUNS = 2_000, 5
_OPENING = """(() => {
  const [page] = performance.getEntriesByType("navigation");
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [paint.startTime, page.domContentLoadedEventEnd, page.loadEventEnd];
})()"""
_TIMED = """((act) => {
  const start = performance.now();
  act();
  document.querySelector("#operators table").getBoundingClientRect();
  return performance.now() - start;
})"""
_SORT = "() => document.querySelector('#operators th button').click()"
_FILTER = """() => {
  const box = document.querySelector("#operators input");
  box.value = "gemm";
  box.dispatchEvent(new Event("input"));
}"""
_ZOOM = (
    "() => document.querySelector('svg.icicle > svg:nth-child(2)').dispatchEvent(new Event('click', {bubbles: true}))"
)
_FIGURES = ("first contentful paint", "DOM content loaded", "load", "sort by name", "filter by a text", "zoom")


def run(*, full: bool) -> bool:
    """Print the figures; those of the browser are left out where there is none."""
    inferences = 10_000 if full else 1_000
    with tempfile.TemporaryDirectory() as directory:
        content = large_content(Path(directory), _OPERATORS, inferences)
        path = Path(directory) / "report.html"
        seconds = [time_writing(path, content) for _ in range(_RUNS)]
        page = path.read_bytes()
        print(f"{_OPERATORS:,} operators, {inferences:,} inferences a variant")
        print(f"{'file size':<24} {len(page) / 1e6:8.2f} MB ({len(gzip.compress(page)) / 1e6:.2f} MB with gzip)")
        print(f"{'writing, first':<24} {seconds[0] * 1e3:8.0f} ms")
        print(f"{'writing, then':<24} {statistics.median(seconds[1:]) * 1e3:8.0f} ms")
        if COMMAND is None:
            print("not opened: there is no chromium")
            return True
        openings = [time_opening(path) for _ in range(_RUNS)]
    for name, values in zip(_FIGURES, zip(*openings, strict=True), strict=True):
        spread = f"({min(values):.0f} to {max(values):.0f}, n = {_RUNS})"
        print(f"{name:<24} {statistics.median(values):8.0f} ms {spread}")
    return True


def time_writing(path: Path, content: ReportContent) -> float:
    """Write the page and return the seconds that it took."""
    start = time.perf_counter()
    path.write_text(html_report(content), encoding="utf-8")
    return time.perf_counter() - start


def time_opening(path: Path) -> list[float]:
    """Return the milliseconds of each figure, in a new browser."""
    browser = Chromium()
    try:
        browser.view(1200, 900)
        browser.open(path)
        browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        times = list(browser.value(_OPENING))
        browser.value("document.querySelector('#operators').scrollIntoView()")
        return times + [browser.value(f"{_TIMED}({act})") for act in (_SORT, _FILTER, _ZOOM)]
    finally:
        browser.close()
