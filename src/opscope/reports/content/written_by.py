"""Who wrote a report: what every page names, so that its figures are held only against those of the same rules."""

from __future__ import annotations

import re

from opscope.core.version import __version__

WRITTEN_BY = f"opscope {__version__}"
"""What reports that are written now name."""
NOT_DRAWN = "<p>not drawn: "
"""What stands in the place of a picture on a page of a process that can draw none."""
_GENERATOR = re.compile(r'^<meta name="generator" content="opscope ([^"\s]{1,40})">$', re.MULTILINE)
_ROW = re.compile(r"^\| Report \| written by opscope (\S{1,40}) \|$", re.MULTILINE)
_PICTURES = re.compile(r'^<meta name="pictures" content="([^"]{0,200})">$', re.MULTILINE)


def writer_of(report: str) -> str | None:
    """Version of the opscope that wrote a report, HTML or Markdown; None where it names none, as earlier ones do."""
    found = _GENERATOR.search(report) or _ROW.search(report)
    return found[1] if found else None


def drawn_by(page: str) -> str | None:
    """What drew the pictures of a page; None for one that does not tell."""
    found = _PICTURES.search(page)
    return found[1] if found else None
