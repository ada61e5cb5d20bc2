"""Text on a terminal: every string is printed as text, whatever it holds.

Rich reads strings as markup, in which ``[f32]`` vanishes, ``[/x]`` is an error and ``[link=...]`` a link, and prints
control characters as they are. Tables, lines and consoles are therefore those of this module;
``tests/house/test_printing.py`` holds the sources against it.
"""

from __future__ import annotations

import os
import re
import sys
from typing import IO, TYPE_CHECKING, NamedTuple

import rich.console
import rich.measure
import rich.table
import rich.text
from rich.segment import Segment

from opscope.core.printable import printable
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_LINES = re.compile("([^\n]+)")
_NARROWEST_NAME, _LONGEST_NAME = 12, 200
_LONGEST_PIPED_NAME = 72
"""Columns of a name in a table that no terminal limits: rows stay readable, and both ends of the name are seen."""
WIDE = 10_000
"""Columns if nobody limits them: in a file or a pipe, every sentence stays on one line."""


class Text(rich.text.Text):
    """Line of text: markup in it is not read, and characters that no terminal shows are escaped."""

    def __init__(self, text: str = "", style: str = "") -> None:
        super().__init__(printable(text), style)


class NameCell:
    """Name in a cell: complete if the table has room, else cut in the middle, so that both ends are seen.

    ``name``: of any origin; ``note``: what stands behind it where there is room for both.
    """

    def __init__(self, name: str, note: str = "") -> None:
        self._name = plain(name, _LONGEST_NAME)
        self._noted = ", ".join(filter(None, (self._name, plain(note, _LONGEST_NAME))))

    def __rich_measure__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.measure.Measurement:
        """Return the range from the fewest columns that tell names apart to the complete name."""
        name_length, noted_length = Text(self._name).cell_len, Text(self._noted).cell_len
        most = _LONGEST_PIPED_NAME if console.width >= WIDE else _LONGEST_NAME
        return rich.measure.Measurement(min(name_length, _NARROWEST_NAME), min(noted_length, most))

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> Iterator[rich.console.RenderableType]:
        """Yield the name as one line that fits the available width."""
        room = Text(self._noted).cell_len <= options.max_width
        line = Text(self._noted if room else plain(self._name, options.max_width))
        line.no_wrap, line.overflow = True, "ellipsis"
        yield line


class TextTable(rich.table.Table):
    """Table whose cells and heads are text."""

    def add_column(self, header: rich.console.RenderableType = "", *args: object, **options: object) -> None:
        """Add a column as the base class does; a string head is text, not markup."""
        super().add_column(_as_text(header), *args, **options)  # type: ignore[arg-type]  # passed on unchanged

    def add_row(self, *cells: rich.console.RenderableType | None, **options: object) -> None:
        """Add a row as the base class does; string cells are text, not markup."""
        super().add_row(*map(_as_text, cells), **options)  # type: ignore[arg-type]  # passed on unchanged


class TextConsole(rich.console.Console):
    """Console that reads no markup, and prints no control character but those of its own styles.

    Styles are for terminals; see :func:`should_style` for the variables that ask for them or forbid them.

    Args:
        file: file to print to; None: standard output.
        stderr: whether it is standard error instead.
        width: width in columns; None: that of the terminal.
    """

    def __init__(self, file: IO[str] | None = None, *, stderr: bool = False, width: int | None = None) -> None:
        stream = file or (sys.stderr if stderr else sys.stdout)
        with_styles = should_style(os.environ, terminal=stream.isatty())
        super().__init__(
            file=file,
            stderr=stderr,
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
            color_system=None if not with_styles else "auto" if stream.isatty() else "standard",
            force_terminal=stream.isatty(),
            no_color=not with_styles,
        )

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as the base class does, with characters that no terminal shows escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_escape_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError for the caller; the base class would end Python with exit code 1."""
        raise BrokenPipeError


def should_style(environment: Mapping[str, str], *, terminal: bool) -> bool:
    """Return whether output has colours and other styles.

    ``NO_COLOR`` (https://no-color.org) comes first, then ``FORCE_COLOR`` (https://force-color.org) and
    ``CLICOLOR_FORCE``, then ``CLICOLOR=0`` (https://bixense.com/clicolors) and a terminal that can move no cursor.
    """
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "0") not in {"", "0", "false"} for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return environment.get("CLICOLOR") != "0" and moves_cursor(environment, terminal=terminal)


def moves_cursor(environment: Mapping[str, str], *, terminal: bool) -> bool:
    """Return whether lines can be overwritten, as progress bars do: on a terminal that is not dumb."""
    return terminal and environment.get("TERM", "").lower() not in {"dumb", "unknown"}


def lay_out(renderable: rich.console.RenderableType) -> rich.console.Group:
    """Put one blank line between a table and what follows; none is doubled or stands at the start or the end."""
    laid_out: list[rich.console.RenderableType] = []
    due = False
    for part in _flatten_groups(renderable):
        if isinstance(part, rich.text.Text) and not part.plain:
            due = True
            continue
        if due and laid_out:
            laid_out.append(Text())
        laid_out.append(part)
        due = isinstance(part, rich.table.Table) and part.show_header
    return rich.console.Group(*laid_out)


def print_laid_out(renderable: rich.console.RenderableType, console: TextConsole) -> None:
    """Print with the blank lines of :func:`lay_out`, and without blanks at the ends of lines."""
    console.print(_Lines(console.render_lines(lay_out(renderable), pad=False)), end="", soft_wrap=True)


class _Lines:
    """Lines that are rendered already."""

    def __init__(self, lines: Iterable[Sequence[Segment]]) -> None:
        self._lines = lines

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> Iterator[Segment]:
        """Yield each line without the blanks at its end."""
        for line in self._lines:
            yield from _strip_trailing_blanks(line)
            yield Segment.line()


def _strip_trailing_blanks(line: Sequence[Segment]) -> list[Segment]:
    segments = list(line)
    while segments and not segments[-1].text.rstrip(" "):
        segments.pop()
    return [*segments[:-1], *(Segment(segment.text.rstrip(" "), segment.style) for segment in segments[-1:])]


def _flatten_groups(renderable: rich.console.RenderableType) -> Iterator[rich.console.RenderableType]:
    if isinstance(renderable, rich.console.Group):
        for part in renderable.renderables:
            yield from _flatten_groups(part)
    else:
        yield renderable


def _as_text(cell: rich.console.RenderableType | None) -> rich.console.RenderableType | None:
    return Text(cell) if isinstance(cell, str) else cell


def _escape_lines(text: str) -> str:
    return _LINES.sub(lambda line: printable(line[0]), text)


_UNBOUNDED = 10_000


class FittingTable(NamedTuple):
    """Table with all of its columns if they fit, else only with those that matter most."""

    full: TextTable
    narrow: TextTable

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.console.RenderResult:
        """Yield the widest version that fits."""
        unbounded = options.update(max_width=_UNBOUNDED)
        fits = rich.measure.Measurement.get(console, unbounded, self.full).maximum <= options.max_width
        yield self.full if fits else self.narrow
