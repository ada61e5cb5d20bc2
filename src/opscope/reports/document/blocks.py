"""Blocks that a report is made of, and tables whose cells keep their values until they are written.

A report is built once, as a :class:`Document`. What writes it for a terminal, in Markdown, as a page or for a notebook
knows units, escaping and widths, and nothing of what the report is about.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from opscope.core import units
from opscope.core.stats.effect import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opscope.analysis.findings.message import Message
    from opscope.program.operators.kinds import Category


class Format(enum.Enum):
    """Kind of a column's cells, which decides how they become text."""

    NAME = "name"
    """A name of any origin; cut in the middle if it is too long."""
    TEXT = "text"
    """A sentence of any origin, or words of ours."""
    VERDICT = "verdict"
    COUNT = "count"
    """A whole number."""
    LARGE = "large"
    """A count with three significant digits: ``1.81 G``."""
    MS = "ms"
    """Nanoseconds, as milliseconds without a unit; in a table of short times, as :attr:`TIME`."""
    TIME = "time"
    """Nanoseconds with the unit that fits."""
    SHARE = "share"
    RATIO = "ratio"
    CHANGE = "change"
    """A ratio, as a signed change in per cent."""
    RATE = "rate"
    """A rate in the unit of its column, with three significant digits."""
    SIZE = "size"
    """Bytes."""
    FIGURE = "figure"
    """A figure in words, right-aligned like other figures."""
    BAR = "bar"
    """A share as a bar, or two shares as bars behind each other; pages only."""
    TREND = "trend"
    """Values in order, as a small line."""


LEFT = {Format.NAME, Format.TEXT, Format.VERDICT, Format.BAR, Format.TREND}
"""Formats whose cells are left-aligned."""

Value: TypeAlias = "str | float | Verdict | tuple[float, ...] | None"
"""Content of a cell: a value in its column's unit, the two ends of an interval, a trend, words, or nothing."""


class Tone(enum.Enum):
    """Emphasis of a text."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    """An explanation that can be skipped."""
    BAD = "bad"
    """A text that must not be overlooked."""
    BETTER = "faster"
    """A change for the better; its value is the class that faster verdicts have."""
    WORSE = "slower"
    """A change for the worse; its value is the class that slower verdicts have."""


class TableCell(NamedTuple):
    """Cell that says more than its value."""

    value: Value
    note: str = ""  # in small letters after the value
    category: Category | None = None  # category that gives the cell its colour
    depth: int | None = None  # depth of the row in a tree
    tone: Tone = Tone.PLAIN


def changed_ratio(ratio: float, *, better: bool) -> TableCell:
    """Return a cell of a :attr:`Format.CHANGE` column in the colour of its verdict."""
    return TableCell(ratio, tone=Tone.BETTER if better else Tone.WORSE)


class TableColumn(NamedTuple):
    """Column of a table, and how it takes its cell from the object that a row shows."""

    head: str
    format: Format
    of: Callable[[Any], Value | TableCell]
    absent: str = ""  # what stands for a value that is not known
    spare: bool = False  # whether a small screen does without it
    wide: bool = False  # whether a terminal does without it
    roomy: bool = False  # whether a terminal does without it where not all others have room
    pick: bool = False  # whether a page's readers can choose rows by it
    total: bool = False  # whether a page sums it over the rows that its readers chose


column = TableColumn
"""Shorthand for a column in a call of :func:`table`."""


class Row(NamedTuple):
    """Cells of a row; ``is_total`` marks the row that is the sum of all."""

    cells: tuple[TableCell, ...]
    is_total: bool = False


class Fold(NamedTuple):
    """Limits of a long table: rows that a page shows at once and on request; other forms show only the first ones."""

    first: int
    most: int
    elsewhere: str  # where all of it is


_SHORT_NS = 10_000
NOTEBOOK_ROWS = 10
"""Rows of a long table in a notebook; the data frame has all of them."""


class Block:
    """Part of a document."""


@dataclass(frozen=True)
class TableBlock(Block):
    """Table: rows, and below them the lines that lead to their sum."""

    columns: tuple[TableColumn, ...]
    rows: Sequence[Row]
    closing: Sequence[Row] = ()
    sortable: bool = False
    filterable: bool = False
    tree: bool = False
    label: str = ""  # what it is a table of, for readers who hear a page
    fold: Fold | None = None

    def folded(self, fold: Fold) -> TableBlock:
        """Return this table with a limit on the rows it shows at once."""
        return replace(self, fold=fold)

    def rest(self, most: int) -> str:
        """Return a sentence on the rows after the first ``most``; empty if there are none."""
        more = len(self.rows) - most
        elsewhere = self.fold.elsewhere if self.fold else "see the HTML report or JSON"
        return f"The table has {units.counted_text(more, 'more row')}: {elsewhere}." if more > 0 else ""

    @property
    def all_rows(self) -> list[Row]:
        """Rows of the table, the closing ones last."""
        return [*self.rows, *self.closing]

    @property
    def text_columns(self) -> list[int]:
        """Numbers of the columns that every form can show, which excludes bars."""
        return [number for number, column in enumerate(self.columns) if column.format is not Format.BAR]

    @property
    def has_heads(self) -> bool:
        """Return whether any column has a head."""
        return any(column.head for column in self.columns)


class Closing(NamedTuple):
    """Line below a table: its name for the first column, and its values by the heads of other columns."""

    name: str
    values: Mapping[str, Value]
    is_total: bool = False


def table(
    rows: Iterable[Any],
    *columns: TableColumn | None,
    closing: Iterable[Closing] = (),
    sortable: bool = False,
    filterable: bool = False,
    tree: bool = False,
    label: str = "",
) -> TableBlock:
    """Return a table with a row for each object; columns that are None are left out.

    Where no time reaches 10 µs, columns of milliseconds have times with their units instead: ``300 ns``.
    """
    present = tuple(column for column in columns if column is not None)
    listed = [Row(tuple(_as_table_cell(column.of(row)) for column in present)) for row in rows]
    below = [
        Row(
            (TableCell(line.name), *(TableCell(line.values.get(column.head, "")) for column in present[1:])),
            line.is_total,
        )
        for line in closing
    ]
    columns_shown = tuple(map(_use_time_units, present)) if _are_times_short(present, [*listed, *below]) else present
    return TableBlock(columns_shown, listed, below, sortable, filterable, tree, label)


def _are_times_short(columns: Sequence[TableColumn], rows: Sequence[Row]) -> bool:
    """Return whether a table has times in columns of milliseconds, none of which reaches 10 µs."""
    numbers = [number for number, column in enumerate(columns) if column.format is Format.MS]
    values = [row.cells[number].value for row in rows for number in numbers]
    ends = [end for value in values for end in (value if isinstance(value, tuple) else (value,))]
    times = [abs(end) for end in ends if isinstance(end, int | float)]
    return 0 < max(times, default=0) < _SHORT_NS


def _use_time_units(column: TableColumn) -> TableColumn:
    if column.format is not Format.MS:
        return column
    head = column.head.removesuffix("ms").rstrip() or "time"
    return column._replace(format=Format.TIME, head=head, total=False)  # pages sum milliseconds


def facts(rows: Iterable[tuple[str, str]]) -> TableBlock:
    """Return a table of names and values, without heads."""
    return table(rows, column("", Format.TEXT, lambda row: row[0]), column("", Format.TEXT, lambda row: row[1]))


def words_table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> TableBlock:
    """Return a table whose cells are words already; the first ``texts`` columns are left-aligned."""
    formats = [Format.NAME if number < texts else Format.FIGURE for number in range(len(heads))]
    return table(rows, *(column(head, formats[at], partial(_cell_at, at)) for at, head in enumerate(heads)))


def rest_sentence(rows_shown: int, total: int) -> Sentence:
    """Return how many rows of a result a notebook leaves out, and where they are; empty where it shows all."""
    return Sentence(f"{total - rows_shown:,} more: .to_polars() has all of them" if total > rows_shown else "")


def _cell_at(number: int, row: Sequence[str]) -> str:
    return row[number]


def _as_table_cell(value: Value | TableCell) -> TableCell:
    return value if isinstance(value, TableCell) else TableCell(value)


_VERDICTS = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.NO_DIFFERENCE: "no difference detected",
    Verdict.UNDECIDABLE: "inconclusive",
    Verdict.WITHHELD: "withheld",
}
_FORMATS: dict[Format, Callable[[float], str]] = {
    Format.COUNT: lambda value: f"{value:,.0f}",
    Format.RATE: units.rate_text,
    Format.LARGE: lambda value: units.count_text(int(value)),
    Format.MS: units.milliseconds_in_table,
    Format.TIME: units.time_text,
    Format.SHARE: units.share_text,
    Format.RATIO: units.ratio_text,
    Format.CHANGE: lambda value: units.signed_share_text(value - 1),
    Format.SIZE: lambda value: units.size_text(int(value)),
}


def verdict_text(verdict: Verdict) -> str:
    """Return a verdict in words."""
    return _VERDICTS[verdict]


def cell_text(cell: TableCell, column: TableColumn) -> str:
    """Return a cell as text, unescaped and without its note."""
    value = cell.value
    if value is None:
        return column.absent
    if isinstance(value, Verdict):
        return verdict_text(value)
    if isinstance(value, str):
        return value
    form = _FORMATS.get(column.format, str)
    if isinstance(value, tuple):
        if column.format is Format.TREND:
            return trend_text(value)
        return units.range_text(form(value[0]), form(value[1]))
    return form(value)


@dataclass(frozen=True)
class Sentence(Block):
    """One or more sentences, as one paragraph."""

    text: str
    tone: Tone = Tone.PLAIN
    wide: bool = False  # whether a terminal does without it


@dataclass(frozen=True)
class Bullets(Block):
    """Sentences, one below the other."""

    items: Sequence[str]
    wide: bool = False  # whether a terminal does without them


@dataclass(frozen=True)
class Messages(Block):
    """Findings, numbered and in full, or notes of one line each; pages fold away those after the first few."""

    messages: Sequence[Message]
    first: int | None = None
    brief: bool = False  # whether Markdown has no more than the first few, a terminal the first without its evidence

    @property
    def rest(self) -> str:
        """Sentence on the findings after the first few; empty if there are none."""
        behind = self.messages[self.first :] if self.first is not None else ()
        rules = ", ".join(dict.fromkeys(message.rule for message in behind))
        return f"{units.counted_text(len(behind), 'more finding')}: {rules}" if behind else ""


@dataclass(frozen=True)
class Picture(Block):
    """Picture, for forms that show any: markup of opscope with escaped names; empty if there is none."""

    draw: Callable[[], str]
    caption: str = ""
    instead: str = ""  # what other forms show in its place


@dataclass(frozen=True)
class Code(Block):
    """Text to be copied into a shell."""

    text: str


class HeadlineFigure(NamedTuple):
    """Figure on the first screen of a page."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Figures(Block):
    """Figures beside one another on a page; other forms have a table in their place."""

    figures: Sequence[HeadlineFigure]
    instead: TableBlock | None = None
    alone: bool = False  # whether nothing else says them, so that other forms list them

    @property
    def listed(self) -> TableBlock:
        """Table of the figures, one row each."""
        return facts((figure.label, f"{figure.value} {figure.note}".strip()) for figure in self.figures)


class MapCell(NamedTuple):
    """Cell of a heat map."""

    text: str
    shade: int = 0  # shade from -5, much worse, to 5, much better; 0 without a colour
    notes: tuple[str, ...] = ()  # below it, in a line each


@dataclass(frozen=True)
class CellMap(Block):
    """Coloured cell for each pair of two kinds of things; pages show any size, Markdown only small ones."""

    label: str  # what it is a map of, for readers who hear a page
    down: str  # what a row is, in the singular
    across: str  # what a column is
    columns: Sequence[str]  # names
    rows: Sequence[tuple[str, Sequence[MapCell]]]  # names, and a cell for each column
    left_out: tuple[int, int] = (0, 0)  # rows and columns that have no room
    elsewhere: str = ""  # where all of it is

    @property
    def size(self) -> str:
        """Rows by columns in words, including those left out."""
        rows, columns = len(self.rows) + self.left_out[0], len(self.columns) + self.left_out[1]
        return f"{units.counted_text(rows, self.down)} by {units.counted_text(columns, self.across)}"


@dataclass(frozen=True)
class Details(Block):
    """Blocks that a page shows only on request."""

    summary: str
    blocks: Sequence[Block]
    instead: str = ""  # a sentence that other forms show in its place; empty: all of it


@dataclass(frozen=True)
class Beside(Block):
    """Two groups of blocks, beside each other if there is room, else one below the other."""

    left: Sequence[Block]
    right: Sequence[Block]


@dataclass(frozen=True)
class Section(Block):
    """Heading and the blocks below it; a page may fold it to one line with its answer."""

    title: str
    blocks: Sequence[Block]
    anchor: str = ""  # by which links find it
    link: str = ""  # what a link to it is called; empty where a page has none
    answer: str = ""  # what it says in a line
    folded: bool = False


def replace_blocks(blocks: Iterable[Block], change: Callable[[Block], Block | None]) -> list[Block]:
    """Return blocks with each of them, at any depth, changed by a function; those that it makes None are left out.

    Sections, details and groups are kept around what is changed in them, unless nothing is left in them.
    """
    return [changed for block in blocks if (changed := _replace_block(block, change)) is not None]


def _replace_block(block: Block, change: Callable[[Block], Block | None]) -> Block | None:
    if isinstance(block, Beside):
        left_blocks, right_blocks = (replace_blocks(side, change) for side in (block.left, block.right))
        return replace(block, left=left_blocks, right=right_blocks) if left_blocks or right_blocks else None
    if isinstance(block, Section | Details):
        changed = replace_blocks(block.blocks, change)
        return replace(block, blocks=changed) if changed else None
    return change(block)


class Document(NamedTuple):
    """Report: its answer first, then what the answer rests on."""

    title: str
    answer: str
    blocks: Sequence[Block]  # blocks of the first screen
    sections: Sequence[Section]
    heading: str = ""  # what it is of, above the answer; empty where the title says it
    grade: str = ""  # of a measurement that must not be acted on, before the answer
    trust: Sequence[Sentence] = ()  # how sure the answer is


_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 60
_STEP, _HEIGHT, _MARGIN = 2, 12, 2
_FEWEST = 2


def trend_text(values: Sequence[float]) -> str:
    """Return values as block characters, from the lowest to the highest; empty for a single value."""
    return "".join(_BLOCKS[min(7, int(8 * height))] for height in _relative_heights(values, flat=3 / 8))


def trend_svg(values: Sequence[float]) -> str:
    """Return values as an SVG line from lowest to highest with a dot at the newest; empty for a single value."""
    heights = [round(_HEIGHT * (1 - height)) for height in _relative_heights(values, flat=1 / 2)]
    if not heights:
        return ""
    points = [(_MARGIN + _STEP * number, _MARGIN + height) for number, height in enumerate(heights)]
    line = " ".join(f"{x},{y}" for x, y in points)
    (x, y), height = points[-1], _HEIGHT + 2 * _MARGIN
    return (
        f'<svg class="spark" viewBox="0 0 {x + _MARGIN} {height}" width="{x + _MARGIN}" height="{height}" '
        f'aria-hidden="true"><polyline points="{line}"/><circle cx="{x}" cy="{y}" r="2"/></svg>'
    )


def _relative_heights(values: Sequence[float], flat: float) -> list[float]:
    """Return values as heights from 0 to 1, ``flat`` if all are equal; many values are binned by medians."""
    if len(values) < _FEWEST:
        return []
    size = -(-len(values) // _WIDEST)
    bins = [sorted(values[start : start + size]) for start in range(0, len(values), size)]
    binned = [sorted_bin[len(sorted_bin) // 2] for sorted_bin in bins]
    low, span = min(binned), max(binned) - min(binned)
    return [(value - low) / span if span > 0 else flat for value in binned]
