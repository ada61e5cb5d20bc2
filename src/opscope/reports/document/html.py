"""Documents as self-contained pages: no network, no font, and no script but the one that folds and sorts.

A page's policy allows its own style and script, by their hashes, and nothing else: a name can thus neither run nor load
anything, even if it were taken for markup. So there are no style attributes; classes stand for widths and colours.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text
from opscope.program.operators.kinds import Category
from opscope.reports.document.blocks import (
    LEFT,
    Beside,
    Block,
    Bullets,
    CellMap,
    Code,
    Details,
    Figures,
    Format,
    Messages,
    Picture,
    Section,
    Sentence,
    TableBlock,
    Tone,
    cell_text,
    replace_blocks,
    trend_svg,
)
from opscope.reports.document.messages import finding_parts, sentence
from opscope.reports.document.template import NOT_DRAWN, WRITTEN_BY, drawers, environment
from opscope.reports.document.text import LONG, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from opscope.analysis.findings.message import Message
    from opscope.reports.document.blocks import Document, MapCell, Row, TableCell, TableColumn

COLOURS = {
    Category.CONVOLUTION: "#4c78a8",
    Category.GEMM: "#54a69f",
    Category.DATA_MOVEMENT: "#f58518",
    Category.ELEMENTWISE: "#b279a2",
    Category.OTHER: "#9d9d9d",
}
"""Colour of each category, on every page and in every picture."""
_PERCENT = 100
_LONG_CELL = 36
"""Letters from which on a cell counts as a sentence."""
_DEEPEST = 12
_LOWEST = 6
_FIRST_ROWS, _FEW_ROWS = 20, 30
"""Rows of a heat map that are shown at once, and up to which all of them are."""
_SIDES = {False: "loss", True: "gain"}
"""Classes of a heat map's shades, by whether they are better."""
_DRAWN = ('class="marks"', NOT_DRAWN)
"""Beginnings of a picture that the library drew, or of the note in its place."""
_SCRIPTED = ('<table class="', 'class="icicle"', 'class="part closed"')
"""Beginnings of elements that the script sorts, filters, folds, widens or opens."""


def html_document(document: Document, *, styles: Sequence[str] = ()) -> str:
    """Return a document as a page; ``styles`` name further style sheets of this package."""
    links = [section for section in document.sections if section.link]
    first, sections = _join_blocks(document.blocks, 2), _join_blocks(document.sections, 2)
    style = style_sheet(*styles)
    code = template_text("report.js") if _has_mark(_SCRIPTED, first, sections) else None
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            document=document,
            title=plain(document.title, LONG),
            links=[(section.anchor, section.link) for section in links],
            trust=_join_blocks(document.trust, 2),
            first=first,
            sections=sections,
            style=_trust_markup(style),
            script=_trust_markup(code or ""),
            policy=policy(style, code),
            drawn_by=drawers() if _has_mark(_DRAWN, first, sections) else "",
            written_by=WRITTEN_BY,
        )
    )


def html_fragment(document: Document) -> str:
    """Return the first screen of a document as a piece of HTML without style or script, as a notebook shows it.

    What needs the style sheet of a page is replaced: figures become a table, and pictures are left out.
    """
    head = Markup("<p><b>{}</b><br>{}</p>").format(plain(document.answer, LONG), plain(document.title, LONG))
    blocks = replace_blocks(document.blocks, _replace_styled)
    fragment = Markup("<div>\n{}\n{}\n{}\n</div>").format(
        head, _join_blocks(document.trust, 4), _join_blocks(blocks, 4)
    )
    return str(fragment)


def _replace_styled(block: Block) -> Block | None:
    """Return a block that is legible without a style sheet. None for a picture, which is not."""
    if isinstance(block, Figures):
        return block.listed
    return None if isinstance(block, Picture) else block


def _has_mark(marks: Sequence[str], *parts: Markup) -> bool:
    return any(mark in part for mark in marks for part in parts)


def _join_blocks(blocks: Iterable[Block], level: int) -> Markup:
    """Return blocks as markup, their texts escaped; what a page does not show is left out."""
    return Markup("\n").join(filter(None, (_WRITERS[type(block)](block, level) for block in blocks)))


def _figures_html(block: Figures) -> Markup:
    tile = Markup('<div class="tile"><span>{}</span><b>{}</b><span>{}</span></div>')
    return Markup('<div class="tiles">{}</div>').format(
        Markup("").join(tile.format(*figure) for figure in block.figures)
    )


def _beside_html(block: Beside, level: int) -> Markup:
    sides = (_join_blocks(side, level) for side in (block.left, block.right))
    return Markup('<div class="columns"><div>{}</div>\n<div>{}</div></div>').format(*sides)


def _sentence_html(block: Sentence) -> Markup:
    if not block.text:
        return Markup("")
    tone = "" if block.tone is Tone.PLAIN else Markup(' class="{}"').format(block.tone.value)
    return Markup("<p{}>{}</p>").format(tone, plain(block.text, LONG))


def _bullets_html(items: Iterable[str]) -> Markup:
    listed = Markup("").join(Markup("<li>{}</li>").format(plain(item, LONG)) for item in items)
    return Markup("<ul>{}</ul>").format(listed) if listed else Markup("")


def _messages_html(block: Messages) -> Markup:
    listed = list(block.messages)
    first = len(listed) if block.first is None else block.first
    first_html, rest = (Markup("\n").join(map(_message_html, part)) for part in (listed[:first], listed[first:]))
    if not first_html:
        return Markup("")
    tag = "ol" if any(finding_parts(message) for message in listed) else "ul"
    below = Markup('<details class="more"><summary>{} more</summary><{} class="findings" start="{}">{}</{}></details>')
    return Markup('<{} class="findings">{}</{}>{}').format(
        tag, first_html, tag, below.format(len(listed) - first, tag, first + 1, rest, tag) if rest else ""
    )


def _message_html(message: Message) -> Markup:
    parts = finding_parts(message)
    if parts is None:
        return Markup("<li>{}</li>").format(plain(sentence(message), LONG))
    title, evidence, step, details = (
        plain(text, LONG) for text in (parts.title, parts.evidence, parts.next_step, parts.details)
    )
    behind = Markup("").join(
        Markup(' <span class="dim">({})</span>').format(plain(remark, LONG))
        for remark in (parts.place, parts.saving)
        if remark
    )
    below = Markup('<details class="more"><summary>details</summary>{}</details>').format(details) if details else ""
    return Markup('<li><span class="{}">{}</span>{}<br><span class="dim">{}.</span><br>Next: {}.{}</li>').format(
        message.severity.value, title, behind, evidence, step, below
    )


def _picture_html(block: Picture) -> Markup:
    drawn = block.draw()
    caption = Markup('\n<p class="dim">{}</p>').format(block.caption) if block.caption and drawn else ""
    library = any(mark in drawn for mark in _DRAWN)
    frame = Markup('<div class="wide">{}</div>') if library else Markup("{}")
    return Markup("{}{}").format(frame.format(_trust_markup(drawn)), caption)


def _details_html(block: Details, level: int) -> Markup:
    return _fold_html(block.summary, _join_blocks(block.blocks, level))


def _fold_html(summary: str, content: Markup) -> Markup:
    if not content:
        return Markup("")
    return Markup('<details class="more"><summary>{}</summary>\n{}\n</details>').format(plain(summary, LONG), content)


def _section_html(block: Section, level: int) -> Markup:
    content, tag = _join_blocks(block.blocks, level + 1), f"h{min(level, _LOWEST)}"
    heading = Markup("<{}>{}</{}>").format(tag, plain(block.title, LONG), tag)
    anchor = Markup(' id="{}"').format(block.anchor) if block.anchor else ""
    if block.folded:
        answer = Markup(" <span>{}</span>").format(plain(block.answer, LONG)) if block.answer else ""
        return Markup('<details class="part closed"{}><summary>{}{}</summary>\n{}\n</details>').format(
            anchor, heading, answer, content
        )
    if not anchor:
        return Markup("{}\n{}").format(heading, content)
    return Markup('<section class="part"{}>\n{}\n{}\n</section>').format(anchor, heading, content)


def _table_html(block: TableBlock) -> Markup:
    if block.fold is not None:
        first, most = block.fold.first, block.fold.most
        first_rows = replace(block, rows=block.rows[:first], fold=None)
        behind = replace(block, rows=block.rows[first:most], closing=(), label=f"{block.label}, continued", fold=None)
        rest = _join_blocks([behind, Sentence(block.rest(most), Tone.DIM)], _LOWEST)
        return Markup("{}{}").format(_table_html(first_rows), _fold_html(f"{len(behind.rows)} more", rest))
    if not block.all_rows:
        return Markup("")
    names = ["sortable" * block.sortable, "filterable" * block.filterable, "tree" * block.tree]
    kind = Markup(' class="{}"').format(" ".join(filter(None, names))) if any(names) else ""
    head = Markup("<thead><tr>{}</tr></thead>").format(_heads_html(block)) if block.has_heads else ""
    rows, below = (Markup("\n").join(_row_html(row, block) for row in part) for part in (block.rows, block.closing))
    foot = Markup("<tfoot>{}</tfoot>").format(below) if below else ""
    stop = "" if block.filterable else Markup(' tabindex="0"')  # filterable ones get it with their controls
    label = Markup('{} role="region" aria-label="{}"').format(stop, block.label) if block.label else ""
    return Markup('<div class="wide{}"{}><table{}>{}<tbody>\n{}\n</tbody>{}</table></div>').format(
        " tall" if block.filterable else "", label, kind, head, rows, foot
    )


def _heads_html(block: TableBlock) -> Markup:
    sorted_by = next((n for n, column in enumerate(block.columns) if column.total), None) if block.sortable else None
    return Markup("").join(
        _head_html(column, is_order=number == sorted_by) for number, column in enumerate(block.columns)
    )


def _head_html(column: TableColumn, *, is_order: bool) -> Markup:
    attributes = _class_attribute(column)
    attributes += Markup(' data-pick="{}"').format(column.head) if column.pick else ""
    attributes += Markup(' data-total="{}"').format(column.format.value) if column.total else ""
    attributes += Markup(' aria-sort="descending"') if is_order else ""
    return Markup("<th{}>{}</th>").format(attributes, plain(column.head))


def _class_attribute(column: TableColumn, *more: str) -> Markup:
    unit = {Format.NAME: "name", Format.BAR: "bars"}.get(column.format, "" if column.format in LEFT else "n")
    names = [name for name in (unit, "spare" * column.spare, *more) if name]
    return Markup(' class="{}"').format(" ".join(names)) if names else Markup("")


def _row_html(row: Row, block: TableBlock) -> Markup:
    depth = Markup(' data-depth="{}"').format(row.cells[0].depth) if block.tree else ""
    sum_class = Markup(' class="sum"') if row.is_total else ""
    cells = zip(row.cells, block.columns, strict=True)
    cell_htmls = (
        _cell_html(cell, column, "td" if number or block.has_heads else "th")
        for number, (cell, column) in enumerate(cells)
    )
    return Markup("<tr{}{}>{}</tr>").format(sum_class, depth, Markup("").join(cell_htmls))


def _cell_html(cell: TableCell, column: TableColumn, tag: str) -> Markup:
    if column.format is Format.BAR:
        return Markup("<td{}>{}</td>").format(_class_attribute(column), _bars_html(cell))
    if column.format is Format.TREND and isinstance(cell.value, tuple):
        return Markup("<td>{}</td>").format(_trust_markup(trend_svg(cell.value)))
    text = Markup("{}").format(plain(cell_text(cell, column), *(() if column.format is Format.NAME else (LONG,))))
    if cell.depth is not None:
        pad = Markup('<span class="pad d{}"></span><span class="label">{}</span>')
        text = pad.format(min(cell.depth, _DEEPEST), text)
    if cell.category is not None:
        text = Markup('<i class="chip {}"></i>{}').format(category_class(cell.category), text)
    if cell.note:
        text = Markup('{} <span class="dim">{}</span>').format(text, plain(cell.note, LONG))
    return Markup("<{}{}{}>{}</{}>").format(
        tag,
        _class_attribute(column, *_tone_classes(cell), *_width_classes(cell, column)),
        _exact_value_attribute(cell, column),
        text,
        tag,
    )


def _tone_classes(cell: TableCell) -> Iterator[str]:
    if isinstance(cell.value, Verdict):
        yield cell.value.value
    if cell.tone is not Tone.PLAIN:
        yield cell.tone.value


def _width_classes(cell: TableCell, column: TableColumn) -> Iterator[str]:
    """Yield the class that keeps a narrow screen from breaking a sentence at every word."""
    if column.format in {Format.TEXT, Format.NAME} and len(cell_text(cell, column)) > _LONG_CELL:
        yield "long"


def _exact_value_attribute(cell: TableCell, column: TableColumn) -> Markup:
    """Return the exact value, by which the page's script sorts and sums, if the text is rounded."""
    if column.format in {Format.NAME, Format.TEXT} or not isinstance(cell.value, (int, float)):
        return Markup("")
    value = f"{cell.value:.6g}" if column.format is Format.SHARE else round(cell.value, 3)
    return Markup(' data-v="{}"').format(value)


def _bars_html(cell: TableCell) -> Markup:
    shares = cell.value if isinstance(cell.value, tuple) else (cell.value,)
    bars = (
        Markup('<span class="{} {}"></span>').format(name, width_class(float(share)))
        for name, share in zip(("bar", "below"), shares, strict=False)
        if isinstance(share, (int, float))
    )
    return Markup("").join(bars)


def _map_html(block: CellMap) -> Markup:
    """Return a heat map; of many rows the first ones, with all rows behind a click."""
    line = Markup('<tr><th scope="row" title="{0}">{0}</th>{1}</tr>')
    rows = [line.format(plain(name), Markup("").join(map(_map_cell_html, cells))) for name, cells in block.rows]
    first = _FIRST_ROWS if len(rows) > _FEW_ROWS else len(rows)
    grid, rest = _map_grid_html(block, rows[:first], block.label), ""
    if first < len(rows):
        full_map = Markup('<div class="whole">{}</div>').format(_map_grid_html(block, rows, f"{block.label}, all"))
        rest = _fold_html(f"All {replace(block, left_out=(0, 0)).size}", full_map)
    signs = {cell.shade > 0 for _, cells in block.rows for cell in cells if cell.shade}
    key = Markup('<span class="key {0}1"></span><span class="key {0}3"></span><span class="key {0}5"></span> {1}')
    keys = Markup(", ").join(key.format(_SIDES[sign], "better" if sign else "worse") for sign in sorted(signs))
    below = Markup('<p class="dim">{}</p>').format(keys) if keys else ""
    missing = [
        counted_text(count, name)
        for count, name in zip(block.left_out, (block.down, block.across), strict=True)
        if count
    ]
    text = f"No room on this page for {' and '.join(missing)}: {block.elsewhere}." if missing else ""
    return Markup("{}{}{}{}").format(grid, rest, below, _sentence_html(Sentence(text, Tone.DIM)))


def _map_grid_html(block: CellMap, rows: Sequence[Markup], label: str) -> Markup:
    head = Markup('<th class="up" scope="col" title="{0}"><span>{0}</span></th>')
    heads = Markup("").join(head.format(plain(name)) for name in block.columns)
    return Markup(
        '<div class="wide map" tabindex="0" role="region" aria-label="{}"><table>'
        "<thead><tr><th>{}</th>{}</tr></thead><tbody>\n{}\n</tbody></table></div>"
    ).format(label, block.down, heads, Markup("\n").join(rows))


def _map_cell_html(cell: MapCell) -> Markup:
    """Return a cell without an end tag, because a map has thousands."""
    shade = Markup(" class={}{}").format(_SIDES[cell.shade > 0], abs(cell.shade)) if cell.shade else ""
    notes = Markup("").join(map(Markup("<span>{}</span>").format, cell.notes))
    return Markup("<td{}>{}{}").format(shade, cell.text, notes)


_WRITERS: dict[type[Block], Callable[[Any, int], Markup]] = {
    Sentence: lambda block, _: _sentence_html(block),
    Bullets: lambda block, _: _bullets_html(block.items),
    Messages: lambda block, _: _messages_html(block),
    TableBlock: lambda block, _: _table_html(block),
    Picture: lambda block, _: _picture_html(block),
    CellMap: lambda block, _: _map_html(block),
    Code: lambda block, _: Markup('<p><code class="command">{}</code></p>').format(block.text),
    Figures: lambda block, _: _figures_html(block),
    Details: _details_html,
    Beside: _beside_html,
    Section: _section_html,
}


def width_class(share: float) -> str:
    """Return the class of a bar of this share of its cell; a share above zero is at least a line."""
    return f"w{min(_PERCENT, round(share * _PERCENT))}" if share > 0 else "empty"


def category_class(category: Category) -> str:
    """Return the class that gives a mark the colour of its category."""
    return f"c{list(Category).index(category)}"


def legend(names: Iterable[tuple[str, Category]]) -> Markup:
    """Return the legend of a picture's colours."""
    item_html = Markup('<span><i class="chip {}"></i>{}</span>')
    listed = Markup("").join(item_html.format(category_class(category), name) for name, category in names)
    return Markup('<div class="legend">{}</div>').format(listed)


def policy(style: str, script: str | None = None) -> str:
    """Return a page's Content-Security-Policy: it allows this style and script by their hashes, nothing else."""
    scripts = _csp_hash(script) if script is not None else "'none'"
    allowed = f"style-src {_csp_hash(style)}; script-src {scripts}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"


def style_sheet(*more: str) -> str:
    """Return the style sheet of all pages, with the classes for widths, depths and colours, and further sheets."""
    widths = [f".w{percent} {{ width: {percent}%; }}" for percent in range(1, _PERCENT + 1)]
    depths = [f".d{depth} {{ width: {depth * 0.9:.1f}rem; }}" for depth in range(_DEEPEST + 1)]
    colours = [
        f".chip.{category_class(category)} {{ background: {colour}; }} "
        f".icicle .{category_class(category)} > rect {{ fill: {colour}; }}"
        for category, colour in COLOURS.items()
    ]
    return "\n".join([template_text("report.css"), *colours, *depths, *widths, *map(template_text, more), ""])


def template_text(name: str) -> str:
    """Return a file of the templates' directory unchanged."""
    return (files("opscope.reports") / "templates" / name).read_text(encoding="utf-8")


def _trust_markup(markup: str) -> Markup:
    return Markup(markup)  # noqa: S704 - a file of this package, or a picture whose names are escaped


def _csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
