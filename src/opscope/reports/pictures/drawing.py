"""Pictures of a report's document: drawn only for the forms that show any."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from opscope.core.errors import MemoryLimitError, with_hint
from opscope.core.parts import explained
from opscope.reports.document.blocks import Picture
from opscope.reports.document.template import NOT_DRAWN

if TYPE_CHECKING:
    from collections.abc import Callable


def picture(name: str, draw: Callable[[], str | None], caption: str = "", instead: str = "") -> Picture:
    """A picture that says why where it cannot be drawn; nothing where there is nothing to draw."""
    return Picture(lambda: _drawn(name, draw), caption, instead)


def _drawn(name: str, draw: Callable[[], str | None]) -> str:
    try:
        drawn = explained(f"the picture {name}", draw, lambda failure: f"<p>{html.escape(failure.sentence)}</p>")
    except MemoryLimitError as error:
        return f"{NOT_DRAWN}{html.escape(with_hint(error))}</p>"
    return drawn or ""
