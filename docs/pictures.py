"""Pictures of the pages: parts of a report's first screen, drawn by Chromium. ``docs/record.py`` has them drawn."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chromium import Chromium  # noqa: E402 - found by the line above

PARTS = {
    "answer": (950, "[document.querySelector('h1'), document.querySelector('.tiles')]"),
    "shift": (1280, "[document.querySelector('.tiles'), document.querySelector('.columns > div:first-child')]"),
}
"""Of the first screen: width of the window, and the first and last element that a picture holds."""
_BOX = """(() => {{ const boxes = {elements}.map((one) => one.getBoundingClientRect());
  return {{ x: Math.min(...boxes.map((b) => b.left)) - 12, y: Math.min(...boxes.map((b) => b.top)) + scrollY - 2,
    width: Math.max(...boxes.map((b) => b.right)) - Math.min(...boxes.map((b) => b.left)) + 24,
    height: Math.max(...boxes.map((b) => b.bottom)) - Math.min(...boxes.map((b) => b.top)) + 8, scale: 1.25 }} }})()"""


def draw(page: Path, names: Iterable[str]) -> None:
    """Draw these pictures from a report."""
    browser = Chromium()
    try:
        browser.open(page)
        for name in names:
            width, elements = PARTS[name]
            browser.view(width, 1000)
            clip = browser.value(_BOX.format(elements=elements))
            shot = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
            (ROOT / "docs" / "pictures" / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
    finally:
        browser.close()
