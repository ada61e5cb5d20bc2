"""Templates of pages, their pictures, and who wrote a report.

Pictures are drawn only for the forms that show any. Figures of a report are held only against those of the same rules.
"""

from __future__ import annotations

import html
import platform
import re
from importlib.metadata import version
from typing import TYPE_CHECKING

import jinja2

from opscope.core.errors import MemoryLimitError, with_hint
from opscope.core.parts import explained
from opscope.core.version import __version__
from opscope.reports.document.blocks import Picture
from opscope.reports.document.text import LONG, plain

if TYPE_CHECKING:
    from collections.abc import Callable


WRITTEN_BY = f"opscope {__version__}"
"""Name and version that reports written now carry."""
NOT_DRAWN = "<p>not drawn: "
"""Beginning of the note in place of a picture that could not be drawn."""
_GENERATOR = re.compile(r'^<meta name="generator" content="opscope ([^"\s]{1,40})">$', re.MULTILINE)
_ROW = re.compile(r"^\| Report \| written by opscope (\S{1,40}) \|$", re.MULTILINE)
_PICTURES = re.compile(r'^<meta name="pictures" content="([^"]{0,200})">$', re.MULTILINE)


def environment() -> jinja2.Environment:
    """Return the templates of this package, with a filter for sentences."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("opscope.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    templates.filters["clean_long"] = lambda text: plain(text, LONG)
    return templates


def drawers() -> str:
    """Return what the strokes of pictures depend on besides the figures: libraries, and the system with its fonts."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("altair", "vl-convert-python"))
    return f"{libraries}, {platform.system()} {platform.machine()}"


def writer_of(report: str) -> str | None:
    """Return the version of opscope that wrote an HTML or Markdown report; None if it names none."""
    match = _GENERATOR.search(report) or _ROW.search(report)
    return match[1] if match else None


def drawn_by(page: str) -> str | None:
    """Return the libraries and system that drew the pictures of a page; None if the page does not say."""
    match = _PICTURES.search(page)
    return match[1] if match else None


def picture(name: str, draw: Callable[[], str | None], caption: str = "", instead: str = "") -> Picture:
    """Return a picture that shows the reason if it cannot be drawn, and nothing if there is nothing to draw."""
    return Picture(lambda: _draw_or_explain(name, draw), caption, instead)


def _draw_or_explain(name: str, draw: Callable[[], str | None]) -> str:
    try:
        drawn = explained(f"the picture {name}", draw, lambda failure: f"<p>{html.escape(failure.sentence)}</p>")
    except MemoryLimitError as error:
        return f"{NOT_DRAWN}{html.escape(with_hint(error))}</p>"
    return drawn or ""
