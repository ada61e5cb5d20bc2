"""One inference as an icicle: what holds what from top to bottom, time from left to right, drawn as SVG.

Boxes are placed in per cent, so that the picture is as wide as its page and a script can zoom by these attributes
alone. Text is cut off at the edge of its box. What is too short to be seen is drawn together, so that the picture of
thousands of operators stays a picture.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.operators.operators import FRAMEWORK_BACKEND
from opscope.core.grouping import grouped
from opscope.core.units import milliseconds, share_text
from opscope.program.operators.kinds import Category
from opscope.reports.content.places import layer_text
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator

_ROW = 22
_MOST = 400
"""Boxes that are drawn by themselves; the longest ones."""
_LEAST = 0.0005
"""Smallest share of the whole that is drawn: half a pixel of a wide page."""
_LABELLED = 0.03
"""Smallest share that is given its label; a narrower box shows it when it is zoomed."""
_DEEPEST = 10
_LONGEST = 60
_ORDER = list(Category)


class IcicleBox(NamedTuple):
    """A box: what it is, how long it takes, and what it holds."""

    label: str  # what stands in it
    detail: str  # what else is known of it
    time_ns: float  # per inference, on the scale of the headline; not less than that of its children together
    category: Category | None = None  # of an operator; None for what holds operators
    children: tuple[IcicleBox, ...] = ()  # from left to right


def by_program(analysis: Analysis) -> IcicleBox:
    """Methods, their instructions (calls of delegates and of portable operators), and operators, in program order."""
    methods = grouped(analysis.operators, lambda row: row.method)
    parts = [_holder(f"method {name}", "", _calls(rows)) for name, rows in methods.items()]
    return parts[0] if len(parts) == 1 else _holder("one inference", "", parts)


def by_module(analysis: Analysis) -> IcicleBox | None:
    """The module tree with its operators, in the model's order; None where modules are not known."""
    if not analysis.modules:
        return None
    types = {module.path: (module.type or "").rpartition(".")[2] for module in analysis.modules}
    top = _Branch({}, [])
    outside: list[Operator] = []
    for module in analysis.modules:
        _branch(top, module.path)
    for row in analysis.operators:
        operators = outside if row.module is None else _branch(top, row.module).rows
        operators.append(row)
    loose = _holder("outside any module", "the framework, and operators of unknown module", map(_bare, outside))
    return _holder("one inference", "", [*_inside(top, "", types), *([loose] if loose.time_ns else [])])


def draw(root: IcicleBox, title: str, latency_ns: float | None = None) -> str:
    """The picture of a part; empty when it takes no time."""
    if root.time_ns <= 0:
        return ""
    boxes = list(_boxes(root, _threshold(root)))
    height = _ROW * (1 + max(depth for _, _, depth in boxes))
    inside = "\n".join(_svg(*box, root.time_ns, latency_ns or root.time_ns) for box in boxes)
    return (
        f'<svg class="icicle" role="img" aria-label="{escape(title)}" width="100%" height="{height}">\n{inside}\n</svg>'
    )


class _Branch(NamedTuple):
    """A module while the tree is built: modules below it by name, and its own operators."""

    below: dict[str, _Branch]
    rows: list[Operator]


def _calls(rows: Iterable[Operator]) -> Iterator[IcicleBox]:
    for instruction, operators in grouped(rows, lambda row: row.instruction).items():
        if instruction is None:
            yield from map(_leaf, operators)
        else:
            backends = dict.fromkeys(row.backend for row in operators if row.position is not None)
            yield _holder(
                f"{instruction} {', '.join(backends)}".rstrip(), "instruction of the program", map(_leaf, operators)
            )


def _leaf(row: Operator) -> IcicleBox:
    layer = layer_text(row)
    about = ", ".join(dict.fromkeys([row.kind, plain(row.backend, _LONGEST)]))
    detail = f"{plain(row.name)}; {about}" if layer else about
    return IcicleBox(plain(layer or row.name, _LONGEST), detail, row.shown_ns, row.category)


def _bare(row: Operator) -> IcicleBox:
    """An operator inside of its module, which need not be said again."""
    label = row.name if row.backend == FRAMEWORK_BACKEND else row.kind
    return IcicleBox(
        plain(label, _LONGEST), f"{plain(row.name)}; {plain(row.backend, _LONGEST)}", row.shown_ns, row.category
    )


def _holder(label: str, detail: str, children: Iterable[IcicleBox]) -> IcicleBox:
    boxes = tuple(child for child in children if child.time_ns > 0)
    return IcicleBox(plain(label, _LONGEST), detail, sum(child.time_ns for child in boxes), None, boxes)


def _branch(top: _Branch, path: str) -> _Branch:
    """The branch of a module; below the deepest row that is drawn, the rest of the path is one name."""
    names = path.split(".", _DEEPEST - 1) if path else []
    branch = top
    for name in names:
        branch = branch.below.setdefault(name, _Branch({}, []))
    return branch


def _inside(branch: _Branch, path: str, types: dict[str, str]) -> Iterator[IcicleBox]:
    """What a module holds; a module that holds but one other module is written as a part of its name."""
    for name, below in branch.below.items():
        label, place = name, f"{path}.{name}".lstrip(".")
        while len(below.below) == 1 and not below.rows:
            [(step, below)] = below.below.items()  # noqa: PLW2901 - the chain is followed to its end
            label, place = f"{label}.{step}", f"{place}.{step}"
        yield _holder(label, types.get(place, ""), _inside(below, place, types))
    yield from map(_bare, branch.rows)


def _threshold(root: IcicleBox) -> float:
    """Longest time that is not drawn by itself."""
    times = sorted((part.time_ns for part in _walk(root)), reverse=True)
    return max(_LEAST * root.time_ns, times[_MOST] if len(times) > _MOST else 0.0)


def _walk(part: IcicleBox) -> Iterator[IcicleBox]:
    yield part
    for child in part.children:
        yield from _walk(child)


def _boxes(root: IcicleBox, threshold: float) -> Iterator[tuple[IcicleBox, float, int]]:
    """Every box that is drawn, with its start in ns and its depth, parents before children.

    Neighbours that are too short are one box.
    """
    pending = [(root, 0.0, 0)]
    while pending:
        box, at, depth = pending.pop()
        yield box, at, depth
        inside = []
        for part in _joined(box.children, threshold, root.time_ns * _LEAST):
            if part.time_ns > root.time_ns * _LEAST:
                inside.append((part, at, depth + 1))
            at += part.time_ns
        pending += reversed(inside)


def _joined(parts: Sequence[IcicleBox], threshold: float, least: float) -> Iterator[IcicleBox]:
    short: list[IcicleBox] = []
    for part in parts:
        if part.time_ns > threshold:
            yield from _together(short, least)
            yield part
            short = []
        else:
            short.append(part)
    yield from _together(short, least)


def _together(parts: Sequence[IcicleBox], least: float) -> Iterator[IcicleBox]:
    """Neighbours as one box; a single one stays itself where it can be seen."""
    if len(parts) == 1 and parts[0].time_ns > least:
        yield parts[0]._replace(children=())
    elif parts:
        most = _most(parts)
        detail = f"each too short to draw; mostly {most.value}"
        yield IcicleBox(f"{len(parts)} shorter", detail, sum(part.time_ns for part in parts), most)


def _most(parts: Sequence[IcicleBox]) -> Category:
    """The category that takes most of the time of parts."""
    times = dict.fromkeys(_ORDER, 0.0)
    for part in parts:
        for each in _walk(part):
            if each.category is not None:
                times[each.category] += each.time_ns
    return max(_ORDER, key=lambda category: times[category])


def _svg(part: IcicleBox, start_ns: float, depth: int, total: float, latency: float) -> str:
    share = part.time_ns / total
    kind = "hold" if part.category is None else f"c{_ORDER.index(part.category)}"
    small = "" if share >= _LABELLED else " small"
    about = f"{part.label}: {milliseconds(part.time_ns)} ms, {share_text(part.time_ns / latency)}"
    title = escape(f"{about}\n{part.detail}" if part.detail else about)
    place = f'x="{_percent(start_ns / total)}" y="{depth * _ROW}" width="{_percent(share)}" height="{_ROW - 1}"'
    return (
        f'<svg class="{kind}{small}" {place}><title>{title}</title><rect/>'
        f'<text x="5" y="15">{escape(part.label)}</text></svg>'
    )


def _percent(share: float) -> str:
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"
