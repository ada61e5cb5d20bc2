"""What is printed on a terminal: every string is text, whatever it holds.

Rich reads strings as markup, in which ``[f32]`` vanishes, ``[/x]`` is an error and ``[link=...]`` a link, and prints
control characters as they are. Tables, lines and consoles are therefore those of this module;
``tests/house/test_printing.py`` holds the sources against it.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING

import rich.console
import rich.table
import rich.text
from rich.segment import Segment

from opscope.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

_LINES = re.compile("([^\n]+)")


class Text(rich.text.Text):
    """A line of text: no markup in it is read, and what no terminal shows is escaped.

    Args:
        text: of any origin.
        style: of the whole line.
    """

    def __init__(self, text: str = "", style: str = "") -> None:
        super().__init__(printable(text), style)


class TextTable(rich.table.Table):
    """A table whose cells and heads are text."""

    def add_column(self, header: rich.console.RenderableType = "", *args: object, **options: object) -> None:
        """As in the base class; a string is text."""
        super().add_column(_text(header), *args, **options)  # type: ignore[arg-type]  # passed on as they were given

    def add_row(self, *cells: rich.console.RenderableType | None, **options: object) -> None:
        """As in the base class; a string is text."""
        super().add_row(*map(_text, cells), **options)  # type: ignore[arg-type]  # likewise


class TextConsole(rich.console.Console):
    """A console that reads no markup, and prints no control character but those of its own styles.

    Args:
        file: to print to; None: standard output.
        stderr: whether it is standard error instead.
        width: in columns; None: that of the terminal.
    """

    def __init__(self, file: IO[str] | None = None, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(file=file, stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As in the base class, with what no terminal shows escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_lines(segment.text), segment.style)


def _text(cell: rich.console.RenderableType | None) -> rich.console.RenderableType | None:
    return Text(cell) if isinstance(cell, str) else cell


def _lines(text: str) -> str:
    return _LINES.sub(lambda line: printable(line[0]), text)
