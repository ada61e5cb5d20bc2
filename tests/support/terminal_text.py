"""What a summary looks like on a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from opscope.reports.document.console import TextConsole, print_laid_out

if TYPE_CHECKING:
    from rich.console import RenderableType


def text_of(shown: RenderableType, width: int = 80) -> str:
    """The text on a terminal of this many columns, without colours, as commands print it."""
    told = io.StringIO()
    print_laid_out(shown, TextConsole(told, width=width))
    return told.getvalue()
