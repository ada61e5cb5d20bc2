"""What a summary looks like on a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType


def text_of(shown: RenderableType, width: int = 80) -> str:
    """The text on a terminal of this many columns, without colours."""
    told = io.StringIO()
    Console(file=told, width=width, highlight=False).print(shown)
    return told.getvalue()
