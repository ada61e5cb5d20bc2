"""Every kind of page on a telephone, in a real Chromium: all can be scrolled to, and letters can be read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_captures import made
from chromium import Chromium, needs_chromium
from command_line import ended_here
from fakes import FakeClock, FakeTarget
from nightly_fleet import eventful_fleet, store_nights
from opscope.api import Settings, profile
from programs import write_tiny_program

pytestmark = needs_chromium

DATA = Path(__file__).parents[1] / "data"
WIDTH = 390
SMALLEST = 9
"""CSS pixels that a letter of a picture is high, ascent and descent with it."""
CAPTURES = {
    "gemm": "npu1_bf16_gemm_256x768x768_tile_32x64x64.perfetto.json",
    "memory": "npu1_core_and_mem_small.perfetto.json",
    "core": "npu1_core_small.perfetto.json",
}
PAGES = {
    "report": "report good --out {page}",
    "report of a ladder": "report ladder --out {page}",
    "report of one variant": "report one --out {page}",
    "report of several bundles": "report good ladder --out combined --format html",
    "comparison": "compare good#baseline good#accelerated --html {page}",
    "comparison of two bundles": "compare good ladder --html {page}",
    "history": "history latency --store store --html {page}",
    "fleet": "store report --store store --out fleet",
    "NPU": "aie {gemm} --M 256 --K 768 --N 768 --m 32 --k 64 --n 64 --dtype bf16 --arch npu1 --out npu",
    "NPU with long names": "aie {memory} --out long",
    "NPU comparison": "compare {core} {memory} --html {page}",
}
"""The command that writes each; where it writes a directory, the page is the one in it."""
OPEN_ALL = "[...document.querySelectorAll('details')].forEach((one) => { one.open = true })"
CUT = """(() => {
  const wide = document.documentElement.clientWidth, found = [];
  const scrolls = (one) => { for (let up = one.parentElement; up; up = up.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(up).overflowX)) return true; return false; };
  for (const one of document.querySelectorAll('body *')) {
    if (one.closest('svg.icicle') && !one.matches('svg.icicle')) continue;  // its boxes are made wider by a click
    const box = one.getBoundingClientRect(), style = getComputedStyle(one);
    if (!box.width || !box.height || style.visibility === 'hidden') continue;
    const name = `${one.tagName}.${one.getAttribute('class') || ''} ${(one.textContent || '').trim().slice(0, 40)}`;
    if ((box.right > wide + 1 || box.left < -1) && !scrolls(one)) found.push(`sticks out: ${name}`);
    if (['hidden', 'clip'].includes(style.overflowX) && one.scrollWidth > one.clientWidth + 1)
      found.push(`is cut: ${name}`);
  }
  return found;
})()"""
SMALL = """[...document.querySelectorAll('svg:not(.icicle) text')].map((one) => [one, one.getBoundingClientRect()])
  .filter(([, box]) => box.height && Math.min(box.height, box.width || box.height) < %d && box.height < %d)
  .map(([one, box]) => `${one.textContent}: ${box.width.toFixed(1)} x ${box.height.toFixed(1)}`)"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """One browser for all tests."""
    opened = Chromium()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with bundles of one, two and four variants, and a store."""
    found = tmp_path_factory.mktemp("every_page")
    shutil.copytree(DATA / "bundles" / "with-ceilings", found / "good")
    program = write_tiny_program(found)
    for name, settings in (
        ("ladder", Settings(rounds=6, runs=5, warmup=1, ladder=True)),
        ("one", Settings(rounds=2, runs=5, warmup=1, ablate=("none",))),
    ):
        profile(str(program), settings=settings, out=found / name, target=FakeTarget(), clock=FakeClock())
    made(found)
    store_nights(found / "store", eventful_fleet(4, 3, 20, seed=4))
    return found


@pytest.mark.parametrize("kind", PAGES)
def test_a_telephone_shows_all_of_a_page(
    kind: str, place: Path, chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wider than the screen is in a part that scrolls, also in folded parts; no picture has tiny letters."""
    monkeypatch.chdir(place)
    page = place / f"{kind.replace(' ', '-').replace(',', '')}.html"
    words = PAGES[kind].format(page=page.name, **CAPTURES).split()
    assert ended_here(*words, "--quiet") == 0
    if not page.exists():
        (page,) = (place / words[words.index("--out") + 1]).glob("*.html")
    chromium.view(WIDTH, 844)
    chromium.open(page)
    chromium.value(OPEN_ALL)
    assert chromium.value("document.documentElement.scrollWidth") == WIDTH
    assert chromium.value(CUT) == []
    assert chromium.value(SMALL % (SMALLEST, SMALLEST)) == []
