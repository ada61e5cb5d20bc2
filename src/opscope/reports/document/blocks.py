"""What a report is made of: blocks, and tables whose cells keep their values until they are written.

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
    """What the cells of a column are, and so how they become text."""

    NAME = "name"
    """Of any origin: cut in the middle where it is too long."""
    TEXT = "text"
    """A sentence of any origin, or words of ours."""
    VERDICT = "verdict"
    COUNT = "count"
    """A whole number."""
    LARGE = "large"
    """A count with three significant digits: ``1.81 G``."""
    MS = "ms"
    """Nanoseconds, as milliseconds without a unit; of a table of short times as :attr:`TIME`."""
    TIME = "time"
    """Nanoseconds with the unit that fits."""
    SHARE = "share"
    RATIO = "ratio"
    CHANGE = "change"
    """A ratio, as a signed change in per cent."""
    RATE = "rate"
    """In the unit of its column, with three significant digits."""
    SIZE = "size"
    """Bytes."""
    FIGURE = "figure"
    """A figure in words, which stands to the right like others."""
    BAR = "bar"
    """A share as a bar, or a pair of them behind each other; pages only."""
    TREND = "trend"
    """Values in order, as a small line."""


LEFT = {Format.NAME, Format.TEXT, Format.VERDICT, Format.BAR, Format.TREND}
"""Whose cells stand to the left."""

Value: TypeAlias = "str | float | Verdict | tuple[float, ...] | None"
"""What a cell holds: a value in its column's unit, two ends of an interval or a trend in it, words, or nothing."""


class Tone(enum.Enum):
    """How a text is meant."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    """It explains, and can be skipped."""
    BAD = "bad"
    """It must not be overlooked."""
    BETTER = "faster"
    """A change for the better; its value is the class that faster verdicts have."""
    WORSE = "slower"
    """Likewise for the worse."""


class TableCell(NamedTuple):
    """A cell that says more than its value."""

    value: Value
    note: str = ""  # in small letters behind it
    category: Category | None = None  # whose colour it has
    depth: int | None = None  # in a tree
    tone: Tone = Tone.PLAIN


def changed_ratio(ratio: float, *, better: bool) -> TableCell:
    """A cell of a :attr:`Format.CHANGE` column in the colour of its verdict."""
    return TableCell(ratio, tone=Tone.BETTER if better else Tone.WORSE)


class TableColumn(NamedTuple):
    """A column, and how it takes its cells from what a row is of."""

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
"""Begins a line of a table's columns."""


class Row(NamedTuple):
    """The cells of a row; ``whole`` of one that is the sum of all."""

    cells: tuple[TableCell, ...]
    whole: bool = False


class Fold(NamedTuple):
    """How much of a long table is shown: by pages at once, and on request; other forms show no more than the first."""

    first: int
    most: int
    elsewhere: str  # where all of it is


_SHORT_NS = 10_000
NOTEBOOK_ROWS = 10
"""Rows of a long table in a notebook; the data frame has all of them."""


class Block:
    """A part of a document."""


@dataclass(frozen=True)
class TableBlock(Block):
    """A table: rows, and below them what leads to their sum."""

    columns: tuple[TableColumn, ...]
    rows: Sequence[Row]
    closing: Sequence[Row] = ()
    sortable: bool = False
    filterable: bool = False
    tree: bool = False
    label: str = ""  # what it is a table of, for readers who hear a page
    fold: Fold | None = None

    def folded(self, fold: Fold) -> TableBlock:
        """The same, which shows no more than a few rows at once."""
        return replace(self, fold=fold)

    def rest(self, most: int) -> str:
        """What is said of the rows behind the first ``most``; nothing where there are none."""
        more = len(self.rows) - most
        elsewhere = self.fold.elsewhere if self.fold else "see the HTML report or JSON"
        return f"The table has {units.counted_text(more, 'more row')}: {elsewhere}." if more > 0 else ""

    @property
    def every(self) -> list[Row]:
        """Rows and what stands below them."""
        return [*self.rows, *self.closing]

    @property
    def worded(self) -> list[int]:
        """Numbers of the columns that any form can show, which bars are not."""
        return [number for number, column in enumerate(self.columns) if column.format is not Format.BAR]

    @property
    def headed(self) -> bool:
        """Whether any column has a head."""
        return any(column.head for column in self.columns)


class Closing(NamedTuple):
    """A line below a table: its name in the first column, and its values by the heads of others."""

    name: str
    values: Mapping[str, Value]
    whole: bool = False


def table(
    rows: Iterable[Any],
    *columns: TableColumn | None,
    closing: Iterable[Closing] = (),
    sortable: bool = False,
    filterable: bool = False,
    tree: bool = False,
    label: str = "",
) -> TableBlock:
    """Return a table of what the rows are of; a column that is None is left out.

    Where no time reaches 10 µs, columns of milliseconds have times with their units instead: ``300 ns``.
    """
    kept = tuple(column for column in columns if column is not None)
    listed = [Row(tuple(_cell(column.of(row)) for column in kept)) for row in rows]
    below = [
        Row((TableCell(one.name), *(TableCell(one.values.get(column.head, "")) for column in kept[1:])), one.whole)
        for one in closing
    ]
    columns_shown = tuple(map(_in_own_units, kept)) if _are_times_short(kept, [*listed, *below]) else kept
    return TableBlock(columns_shown, listed, below, sortable, filterable, tree, label)


def _are_times_short(columns: Sequence[TableColumn], rows: Sequence[Row]) -> bool:
    """Return whether a table has times in columns of milliseconds, none of which reaches 10 µs."""
    numbers = [number for number, column in enumerate(columns) if column.format is Format.MS]
    values = [row.cells[number].value for row in rows for number in numbers]
    ends = [end for value in values for end in (value if isinstance(value, tuple) else (value,))]
    times = [abs(end) for end in ends if isinstance(end, int | float)]
    return 0 < max(times, default=0) < _SHORT_NS


def _in_own_units(column: TableColumn) -> TableColumn:
    if column.format is not Format.MS:
        return column
    head = column.head.removesuffix("ms").rstrip() or "time"
    return column._replace(format=Format.TIME, head=head, total=False)  # pages sum milliseconds


def facts(rows: Iterable[tuple[str, str]]) -> TableBlock:
    """Names and what they are, without heads."""
    return table(rows, column("", Format.TEXT, lambda row: row[0]), column("", Format.TEXT, lambda row: row[1]))


def words_table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> TableBlock:
    """A table whose cells are words already; the first ``texts`` columns stand to the left."""
    formats = [Format.NAME if number < texts else Format.FIGURE for number in range(len(heads))]
    return table(rows, *(column(head, formats[at], partial(_at, at)) for at, head in enumerate(heads)))


def rest_sentence(shown: int, total: int) -> Sentence:
    """Return how many rows of a result a notebook leaves out, and where they are; empty where it shows all."""
    return Sentence(f"{total - shown:,} more: .to_polars() has all of them" if total > shown else "")


def _at(number: int, row: Sequence[str]) -> str:
    return row[number]


def _cell(value: Value | TableCell) -> TableCell:
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
    """A verdict in words."""
    return _VERDICTS[verdict]


def cell_text(cell: TableCell, column: TableColumn) -> str:
    """A cell as text, without its note; nothing in it is escaped."""
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
    """Findings, numbered and in full, or remarks in a line each; pages fold away those behind the first few."""

    messages: Sequence[Message]
    first: int | None = None
    brief: bool = False  # whether Markdown has no more than the first few, a terminal the first without its evidence

    @property
    def rest(self) -> str:
        """What is said of the findings behind the first few; nothing where there are none."""
        behind = self.messages[self.first :] if self.first is not None else ()
        rules = ", ".join(dict.fromkeys(message.rule for message in behind))
        return f"{units.counted_text(len(behind), 'more finding')}: {rules}" if behind else ""


@dataclass(frozen=True)
class Picture(Block):
    """A picture, for forms that show any: markup of ours whose names are escaped; empty where there is none."""

    draw: Callable[[], str]
    caption: str = ""
    instead: str = ""  # what other forms show in its place


@dataclass(frozen=True)
class Code(Block):
    """What is to be copied into a shell."""

    text: str


class HeadlineFigure(NamedTuple):
    """A figure of the first screen of a page."""

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
        """The figures below each other."""
        return facts((one.label, f"{one.value} {one.note}".strip()) for one in self.figures)


class MapCell(NamedTuple):
    """A cell of a heat map."""

    text: str
    shade: int = 0  # from -5, much worse, to 5, much better; 0 without a colour
    notes: tuple[str, ...] = ()  # below it, in a line each


@dataclass(frozen=True)
class CellMap(Block):
    """A coloured cell for each pair of two things, on a page of any size, in Markdown where it is small."""

    label: str  # what it is a map of, for readers who hear a page
    down: str  # what a row is, in the singular
    across: str  # what a column is
    columns: Sequence[str]  # names
    rows: Sequence[tuple[str, Sequence[MapCell]]]  # names, and a cell for each column
    left_out: tuple[int, int] = (0, 0)  # rows and columns that have no room
    elsewhere: str = ""  # where all of it is

    @property
    def size(self) -> str:
        """Of all of it, in words."""
        rows, columns = len(self.rows) + self.left_out[0], len(self.columns) + self.left_out[1]
        return f"{units.counted_text(rows, self.down)} by {units.counted_text(columns, self.across)}"


@dataclass(frozen=True)
class Details(Block):
    """What is closed on a page until somebody asks for it."""

    summary: str
    blocks: Sequence[Block]
    instead: str = ""  # a sentence that other forms show in its place; empty: all of it


@dataclass(frozen=True)
class Beside(Block):
    """Two groups that stand beside each other where there is room, else one below the other."""

    left: Sequence[Block]
    right: Sequence[Block]


@dataclass(frozen=True)
class Section(Block):
    """A heading and what stands below it; a page folds some, with their answer in a line."""

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
        left, right = (replace_blocks(side, change) for side in (block.left, block.right))
        return replace(block, left=left, right=right) if left or right else None
    if isinstance(block, Section | Details):
        changed = replace_blocks(block.blocks, change)
        return replace(block, blocks=changed) if changed else None
    return change(block)


class Document(NamedTuple):
    """A report: its answer first, then what it rests on."""

    title: str
    answer: str
    blocks: Sequence[Block]  # of the first screen
    sections: Sequence[Section]
    heading: str = ""  # what it is of, above the answer; empty where the title says it
    grade: str = ""  # of a measurement that must not be acted on, before the answer
    trust: Sequence[Sentence] = ()  # how sure the answer is


_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 60
_STEP, _HEIGHT, _MARGIN = 2, 12, 2
_FEWEST = 2


def trend_text(values: Sequence[float]) -> str:
    """The values as blocks, from the lowest to the highest; nothing for a single value."""
    return "".join(_BLOCKS[min(7, int(8 * height))] for height in _heights(values, flat=3 / 8))


def trend_svg(values: Sequence[float]) -> str:
    """The values as a line from their lowest to their highest, with a dot at the newest; nothing for a single value."""
    heights = [round(_HEIGHT * (1 - height)) for height in _heights(values, flat=1 / 2)]
    if not heights:
        return ""
    places = [(_MARGIN + _STEP * number, _MARGIN + height) for number, height in enumerate(heights)]
    line = " ".join(f"{x},{y}" for x, y in places)
    (x, y), height = places[-1], _HEIGHT + 2 * _MARGIN
    return (
        f'<svg class="spark" viewBox="0 0 {x + _MARGIN} {height}" width="{x + _MARGIN}" height="{height}" '
        f'aria-hidden="true"><polyline points="{line}"/><circle cx="{x}" cy="{y}" r="2"/></svg>'
    )


def _heights(values: Sequence[float], flat: float) -> list[float]:
    """From 0 to 1, or ``flat`` where all are equal; many values are binned by medians."""
    if len(values) < _FEWEST:
        return []
    size = -(-len(values) // _WIDEST)
    bins = [sorted(values[at : at + size]) for at in range(0, len(values), size)]
    binned = [one[len(one) // 2] for one in bins]
    low, span = min(binned), max(binned) - min(binned)
    return [(value - low) / span if span > 0 else flat for value in binned]
