"""Pictures of the pages, drawn by Chromium: parts of a report's first screen, which ``docs/record.py`` has drawn.

Usage: python docs/pictures.py NAME COMMENT.md draws what ``opscope check --markdown`` wrote, as a comment on a pull
request; NAME ANNOTATIONS.txt what ``--annotations`` wrote, as GitHub lists it below a run.
"""

from __future__ import annotations

import base64
import html
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

import markdown

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


_COMMENT = """<!doctype html><meta charset="utf-8"><style>
body {{ font: 14px/1.5 "DejaVu Sans", sans-serif; color: #1f2328; margin: 0; padding: 16px; width: 800px }}
article {{ border: 1px solid #d1d9e0; border-radius: 6px }} article > div {{ padding: 4px 16px 12px }}
header {{ background: #f6f8fa; border-bottom: 1px solid #d1d9e0; padding: 8px 16px; color: #59636e }}
header b {{ color: #1f2328 }} h2, h3 {{ margin: 16px 0 8px }}
h2 {{ border-bottom: 1px solid #d1d9e0; padding-bottom: 6px }}
table {{ border-collapse: collapse; margin: 12px 0 }} td, th {{ border: 1px solid #d1d9e0; padding: 5px 12px }}
tr:nth-child(2n) td {{ background: #f6f8fa }} code {{ background: #eff1f3; border-radius: 4px; padding: 1px 4px }}
</style><article><header><b>github-actions</b> bot</header><div>{body}</div></article>"""


_ANNOTATIONS = """<!doctype html><meta charset="utf-8"><style>
body {{ font: 14px/1.5 "DejaVu Sans", sans-serif; color: #1f2328; margin: 0; padding: 16px; width: 800px }}
article {{ border: 1px solid #d1d9e0; border-radius: 6px }} section {{ padding: 10px 16px; position: relative }}
section + section {{ border-top: 1px solid #d1d9e0 }}
header {{ background: #f6f8fa; border-bottom: 1px solid #d1d9e0; padding: 8px 16px; color: #59636e }}
b {{ display: block }} small {{ color: #0969da }} p {{ margin: 2px 0 0; color: #59636e }}
.error b {{ color: #cf222e }} .warning b {{ color: #9a6700 }} .notice b {{ color: #0969da }}
</style><article><header>Annotations</header>{body}</article>"""
_COMMAND = re.compile(r"::(error|warning|notice) (.*?)::(.*)")


def _unescaped(text: str) -> str:
    for sign, code in ((",", "%2C"), (":", "%3A"), ("\n", "%0A"), ("\r", "%0D"), ("%", "%25")):
        text = text.replace(code, sign)
    return html.escape(text)


def _annotation(line: str) -> str:
    found = _COMMAND.fullmatch(line)
    if found is None:
        raise ValueError(f"not a workflow command: {line}")
    level, properties, text = found.groups()
    given = {name: _unescaped(value) for name, _, value in (one.partition("=") for one in properties.split(","))}
    place = f"{given['file']}#L{given['line']}" if "line" in given else given.get("file", "")
    return f'<section class="{level}"><b>{given["title"]}</b><small>{place}</small><p>{_unescaped(text)}</p></section>'


def page_of(path: Path) -> str:
    """The page that shows a file: Markdown as a comment, commands as annotations."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return _COMMENT.format(body=markdown.markdown(text, extensions=["tables"]))
    return _ANNOTATIONS.format(body="".join(map(_annotation, text.splitlines())))


def draw_on_github(path: Path, name: str) -> None:
    """Draw a comment on a pull request, or annotations of a run, as GitHub lays them out."""
    place = tempfile.TemporaryDirectory()
    picture = Path(place.name) / "page.html"
    picture.write_text(page_of(path), encoding="utf-8")
    browser = Chromium()
    try:
        browser.view(832, 600)
        browser.open(picture)
        clip = browser.value(_BOX.format(elements="[document.querySelector('article')]"))
        shot = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        (ROOT / "docs" / "pictures" / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
    finally:
        browser.close()
        place.cleanup()


if __name__ == "__main__":
    draw_on_github(Path(sys.argv[2]), sys.argv[1])
