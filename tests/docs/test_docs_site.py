"""The documentation site: built without a warning, opens from a directory, and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from chromium import Chromium, needs_chromium
from waiting import HANG

ROOT = Path(__file__).resolve().parents[2]
_LOADS = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
pytestmark = pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs mkdocs: pip install 'opscope[dev]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    place = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_every_page_of_the_repository_is_in_the_site(site: Path) -> None:
    """Documentation, skills, and the files beside it."""
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    skills = [Path("skills") / f"{path.parent.name}.html" for path in (ROOT / "src").rglob("SKILL.md")]
    others = [Path("project") / f"{name}.html" for name in ("readme", "contributing", "changelog", "licence")]
    assert len(skills) >= 10
    assert [page for page in (*pages, *skills, *others) if not (site / page).is_file()] == []


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """No font, script, picture or style of another server; links that a reader follows are not loads."""
    loads = {found for page in site.rglob("*.html") for found in _LOADS.findall(page.read_text(encoding="utf-8"))}
    assert {load for load in loads if 'rel="canonical"' not in load} == set()
    styles = [style.read_text(encoding="utf-8") for style in site.rglob("*.css")]
    assert not any(re.search(r"url\((?:https?:)?//", text) for text in styles)


def test_front_matter_of_skills_is_no_text_of_the_page(site: Path) -> None:
    """It is for assistants; the page begins with its heading."""
    page = (site / "skills" / "opscope-gate-in-ci.html").read_text(encoding="utf-8")
    assert "name: opscope-gate-in-ci" not in page
    assert "Gate in CI" in page


@pytest.fixture
def browser() -> Iterator[Chromium]:
    """A browser without a network."""
    chromium = Chromium()
    yield chromium
    chromium.close()


@needs_chromium
def test_the_search_works_from_a_directory(site: Path, browser: Chromium) -> None:
    """Without server and network, a word leads to the page about it."""
    browser.view(1300, 900)
    browser.open(site / "index.html")
    browser.click(".md-search__input")
    _until(browser, "Type to start searching")  # before that, the index is still being loaded
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:  # a key that comes while the page is busy is lost on a loaded machine
        browser.value("document.querySelector('.md-search__input').value = ''")
        for text in ("", "roofline"):  # the same word again is not a new search
            browser.type(text)
            browser.press("ArrowRight")  # the search listens to keys, not to text
        if "Roofline: how far" in (found := _until(browser, "Roofline: how far")):
            break
    assert "Roofline: how far from the machine's limit" in found
    assert {address.partition(":")[0] for address in browser.requests()} <= {"file", "data", "about"}


def _until(browser: Chromium, text: str) -> str:
    """What the list of results says, as soon as it says ``text``, or after five seconds."""
    deadline = time.monotonic() + 5
    while text not in (said := browser.value("document.querySelector('.md-search-result').innerText")):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return said
