"""Draws the README's pictures from the recorded report: ``python docs/pictures.py``; needs Chromium.

Run it behind ``docs/record.py``.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chromium import Chromium  # noqa: E402 - found by the line above

PARTS = {
    "answer": "[document.querySelector('h1'), document.querySelector('.tiles')]",
    "split": "[document.querySelector('.columns > div:first-child')]",
    "next": "[document.querySelector('.columns > div:last-child')]",
}
"""Of the first screen: elements that a picture holds, from the first to the last."""
_BOX = """(() => {{ const boxes = {elements}.map((one) => one.getBoundingClientRect());
  return {{ x: Math.min(...boxes.map((b) => b.left)) - 12, y: Math.min(...boxes.map((b) => b.top)) + scrollY - 2,
    width: Math.max(...boxes.map((b) => b.right)) - Math.min(...boxes.map((b) => b.left)) + 24,
    height: Math.max(...boxes.map((b) => b.bottom)) - Math.min(...boxes.map((b) => b.top)) + 8, scale: 1.25 }} }})()"""


def main() -> int:
    """Draw the parts of the recorded report."""
    browser = Chromium()
    try:
        browser.view(1280, 1000)
        browser.open(ROOT / "docs" / "recorded" / "report.html")
        for name, elements in PARTS.items():
            clip = browser.value(_BOX.format(elements=elements))
            shot = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
            (ROOT / "docs" / "pictures" / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
    finally:
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
