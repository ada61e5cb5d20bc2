"""Inference as an icicle: containment from top to bottom, time from left to right, drawn as SVG.

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
"""Most boxes that are drawn individually; the longest ones."""
_LEAST = 0.0005
"""Smallest share of the whole that is drawn: half a pixel of a wide page."""
_LABELLED = 0.03
"""Smallest share whose box shows its label; a narrower box shows it when zoomed."""
_DEEPEST = 10
_LONGEST = 60
_ORDER = list(Category)


class IcicleBox(NamedTuple):
    """Box of the picture: its label, its time, and the boxes in it."""

    label: str  # text in the box
    detail: str  # further text of its tooltip
    time_ns: float  # per inference, on the scale of the headline; not less than that of its children together
    category: Category | None = None  # category of an operator; None for what holds operators
    children: tuple[IcicleBox, ...] = ()  # children from left to right


def build_program_boxes(analysis: Analysis) -> IcicleBox:
    """Return methods, their instructions (calls of delegates and portable operators), and operators, in order."""
    methods = grouped(analysis.operators, lambda row: row.method)
    parts = [_container_box(f"method {name}", "", _instruction_boxes(rows)) for name, rows in methods.items()]
    return parts[0] if len(parts) == 1 else _container_box("one inference", "", parts)


def build_module_boxes(analysis: Analysis) -> IcicleBox | None:
    """Return the module tree with its operators, in the model's order; None if modules are unknown."""
    if not analysis.modules:
        return None
    types = {module.path: (module.type or "").rpartition(".")[2] for module in analysis.modules}
    top = _ModuleBranch({}, [])
    outside: list[Operator] = []
    for module in analysis.modules:
        _find_branch(top, module.path)
    for row in analysis.operators:
        operators = outside if row.module is None else _find_branch(top, row.module).rows
        operators.append(row)
    loose = _container_box(
        "outside any module", "the framework, and operators of unknown module", map(_operator_box_in_module, outside)
    )
    return _container_box("one inference", "", [*_module_boxes(top, "", types), *([loose] if loose.time_ns else [])])


def draw_icicle(root: IcicleBox, title: str, latency_ns: float | None = None) -> str:
    """Return the picture of a box and its content; empty if it takes no time."""
    if root.time_ns <= 0:
        return ""
    boxes = list(_place_boxes(root, _individual_threshold(root)))
    height = _ROW * (1 + max(depth for _, _, depth in boxes))
    content = "\n".join(_box_svg(*box, root.time_ns, latency_ns or root.time_ns) for box in boxes)
    head = f'<svg class="icicle" role="img" aria-label="{escape(title)}" width="100%" height="{height}">'
    return f"{head}\n{content}\n</svg>"


class _ModuleBranch(NamedTuple):
    """Module while the tree is built: modules below it by name, and its own operators."""

    below: dict[str, _ModuleBranch]
    rows: list[Operator]


def _instruction_boxes(rows: Iterable[Operator]) -> Iterator[IcicleBox]:
    for instruction, operators in grouped(rows, lambda row: row.instruction).items():
        if instruction is None:
            yield from map(_operator_box, operators)
        else:
            backends = dict.fromkeys(row.backend for row in operators if row.position is not None)
            yield _container_box(
                f"{instruction} {', '.join(backends)}".rstrip(),
                "instruction of the program",
                map(_operator_box, operators),
            )


def _operator_box(row: Operator) -> IcicleBox:
    layer = layer_text(row)
    about = ", ".join(dict.fromkeys([row.kind, plain(row.backend, _LONGEST)]))
    detail = f"{plain(row.name)}; {about}" if layer else about
    return IcicleBox(plain(layer or row.name, _LONGEST), detail, row.shown_ns, row.category)


def _operator_box_in_module(row: Operator) -> IcicleBox:
    """Return the box of an operator inside its module, whose name need not be repeated."""
    label = row.name if row.backend == FRAMEWORK_BACKEND else row.kind
    return IcicleBox(
        plain(label, _LONGEST), f"{plain(row.name)}; {plain(row.backend, _LONGEST)}", row.shown_ns, row.category
    )


def _container_box(label: str, detail: str, children: Iterable[IcicleBox]) -> IcicleBox:
    boxes = tuple(child for child in children if child.time_ns > 0)
    return IcicleBox(plain(label, _LONGEST), detail, sum(child.time_ns for child in boxes), None, boxes)


def _find_branch(top: _ModuleBranch, path: str) -> _ModuleBranch:
    """Return the branch of a module; below the deepest drawn row, the rest of the path is one name."""
    names = path.split(".", _DEEPEST - 1) if path else []
    branch = top
    for name in names:
        branch = branch.below.setdefault(name, _ModuleBranch({}, []))
    return branch


def _module_boxes(branch: _ModuleBranch, path: str, types: dict[str, str]) -> Iterator[IcicleBox]:
    """Yield the content of a module; a module that holds only another module joins its name."""
    for name, below in branch.below.items():
        label, module_path = name, f"{path}.{name}".lstrip(".")
        while len(below.below) == 1 and not below.rows:
            [(step, below)] = below.below.items()  # noqa: PLW2901 - the chain is followed to its end
            label, module_path = f"{label}.{step}", f"{module_path}.{step}"
        yield _container_box(label, types.get(module_path, ""), _module_boxes(below, module_path, types))
    yield from map(_operator_box_in_module, branch.rows)


def _individual_threshold(root: IcicleBox) -> float:
    """Return the longest time in ns that is not drawn individually."""
    times = sorted((part.time_ns for part in _walk_boxes(root)), reverse=True)
    return max(_LEAST * root.time_ns, times[_MOST] if len(times) > _MOST else 0.0)


def _walk_boxes(part: IcicleBox) -> Iterator[IcicleBox]:
    yield part
    for child in part.children:
        yield from _walk_boxes(child)


def _place_boxes(root: IcicleBox, threshold: float) -> Iterator[tuple[IcicleBox, float, int]]:
    """Yield every drawn box with its start in ns and its depth, parents before children.

    Neighbours that are too short are merged into one box.
    """
    pending = [(root, 0.0, 0)]
    while pending:
        box, start_ns, depth = pending.pop()
        yield box, start_ns, depth
        placed = []
        for part in _merge_short_boxes(box.children, threshold, root.time_ns * _LEAST):
            if part.time_ns > root.time_ns * _LEAST:
                placed.append((part, start_ns, depth + 1))
            start_ns += part.time_ns
        pending += reversed(placed)


def _merge_short_boxes(parts: Sequence[IcicleBox], threshold: float, least: float) -> Iterator[IcicleBox]:
    short: list[IcicleBox] = []
    for part in parts:
        if part.time_ns > threshold:
            yield from _merge_boxes(short, least)
            yield part
            short = []
        else:
            short.append(part)
    yield from _merge_boxes(short, least)


def _merge_boxes(parts: Sequence[IcicleBox], least: float) -> Iterator[IcicleBox]:
    """Yield neighbours as one box; a single visible box stays itself, without its content."""
    if len(parts) == 1 and parts[0].time_ns > least:
        yield parts[0]._replace(children=())
    elif parts:
        most = _largest_category(parts)
        detail = f"each too short to draw; mostly {most.value}"
        yield IcicleBox(f"{len(parts)} shorter", detail, sum(part.time_ns for part in parts), most)


def _largest_category(parts: Sequence[IcicleBox]) -> Category:
    """Return the category with the most time among boxes and their content."""
    times = dict.fromkeys(_ORDER, 0.0)
    for part in parts:
        for box in _walk_boxes(part):
            if box.category is not None:
                times[box.category] += box.time_ns
    return max(_ORDER, key=lambda category: times[category])


def _box_svg(part: IcicleBox, start_ns: float, depth: int, total: float, latency: float) -> str:
    share = part.time_ns / total
    kind = "hold" if part.category is None else f"c{_ORDER.index(part.category)}"
    small = "" if share >= _LABELLED else " small"
    about = f"{part.label}: {milliseconds(part.time_ns)} ms, {share_text(part.time_ns / latency)}"
    title = escape(f"{about}\n{part.detail}" if part.detail else about)
    position = (
        f'x="{_percent_text(start_ns / total)}" y="{depth * _ROW}" width="{_percent_text(share)}" height="{_ROW - 1}"'
    )
    return (
        f'<svg class="{kind}{small}" {position}><title>{title}</title><rect/>'
        f'<text x="5" y="15">{escape(part.label)}</text></svg>'
    )


def _percent_text(share: float) -> str:
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"
