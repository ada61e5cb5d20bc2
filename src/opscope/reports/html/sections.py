"""What the HTML page has besides what every report shows: style, script and policy, pictures, icicles, kernels."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from opscope.core.errors import MemoryLimitError, with_hint
from opscope.core.parts import explained, part
from opscope.core.units import counted_text, time_text
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import aten_operator
from opscope.reports.content.content import SHORTEST_NS, headline_ns
from opscope.reports.content.written_by import NOT_DRAWN
from opscope.reports.html import icicle, pictures
from opscope.reports.html.html_sections import shift_steps
from opscope.reports.html.roofline_picture import MOST_POINTS, roofline_picture
from opscope.reports.sections.kernel_view import kernel_rows
from opscope.reports.sections.program import module_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.reports.content.content import ReportContent
    from opscope.reports.sections.kernel_view import KernelRow

_MOST_MODULES = 400
_DEEPEST = 12
_PERCENT = 100
_BY_PROGRAM = "One inference by instruction and operator"
_EXPORTED = re.compile(r"^native_|_legit.*$|_with_indices$")


def html_values(content: ReportContent) -> dict[str, Any]:
    """Values that only the template of the page needs; style, script and pictures are markup with escaped names."""
    style, script = style_sheet(), template_text("report.js")
    shown = content.shown
    kernels: list[KernelRow] = part("the table of kernels", lambda: kernel_rows(content), [])
    return {
        "style": style,
        "script": script,
        "policy": policy(style, script),
        "drawn_by": pictures.drawn_by(),
        "pictures": {name: _drawn(name, draw) for name, draw in _pictures(content, shown).items()},
        "categories_in_order": list(Category),
        "roofline_points": MOST_POINTS,
        "kernels": [row for row in kernels if row.time_ns >= SHORTEST_NS],
        "short_kernels": _short_kernels(kernels),
        "modules": part("the tree of modules", lambda: module_rows(shown.modules, _MOST_MODULES), None)
        if shown
        else None,
    }


def _pictures(content: ReportContent, shown: Analysis | None) -> dict[str, Callable[[], str | None]]:
    """What draws each picture of the page, by the name that the templates know it by."""
    found: dict[str, Callable[[], str | None]] = {
        "shift": lambda: pictures.category_shift(content),
        "series": lambda: pictures.latency_series(content),
        "rounds": lambda: pictures.round_medians(content),
        "steps": lambda: shift_steps(content.primary) if content.primary else None,
    }
    if shown is not None:
        found |= {
            "roofline": lambda: roofline_picture(shown),
            "program": lambda: icicle.draw(icicle.by_program(shown), _BY_PROGRAM, headline_ns(shown)),
            "layers": lambda: _layers(shown),
        }
    return found


def _drawn(name: str, draw: Callable[[], str | None]) -> str:
    """A picture as markup, or why it is not there; empty where there is nothing to draw."""
    try:
        picture = explained(f"the picture {name}", draw, lambda failure: f"<p>{html.escape(failure.sentence)}</p>")
    except MemoryLimitError as error:
        return f"{NOT_DRAWN}{html.escape(with_hint(error))}</p>"
    return picture or ""


def _short_kernels(rows: Sequence[KernelRow]) -> str:
    short = [row for row in rows if row.time_ns < SHORTEST_NS]
    if not short:
        return ""
    together = time_text(sum(row.time_ns for row in short))
    return f"{counted_text(len(short), 'further line')} below {SHORTEST_NS // 1_000} µs, {together} together."


def policy(style: str, script: str | None = None) -> str:
    """A page's Content-Security-Policy: this style and this script by their hashes, and nothing else.

    A name can thus neither run nor load anything, even if it were taken for markup.

    Args:
        style: the page's one style sheet.
        script: its one script; None when it has none.
    """
    scripts = _hash(script) if script is not None else "'none'"
    allowed = f"style-src {_hash(style)}; script-src {scripts}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"


def width_class(share: float) -> str:
    """Class of a bar of that share of its cell; what is not nothing is seen as a line, nothing is not seen."""
    return f"w{min(_PERCENT, round(share * _PERCENT))}" if share > 0 else "empty"


def depth_class(depth: int) -> str:
    """Class of the space before a name of that depth."""
    return f"d{min(depth, _DEEPEST)}"


def category_class(category: Category) -> str:
    """Class that gives a mark the colour of its category, the same as in the pictures."""
    return f"c{list(Category).index(category)}"


def fused_text(names: Sequence[str]) -> str:
    """Aten operators that were fused into another one, without what only the exporter's form of them adds."""
    return ", ".join(_EXPORTED.sub("", aten_operator(name)) for name in names)


def _layers(shown: Analysis) -> str:
    modules = icicle.by_module(shown)
    return icicle.draw(modules, "One inference by module and operator", headline_ns(shown)) if modules else ""


def style_sheet(*more: str) -> str:
    """The style sheet of all pages, with the classes that stand for widths, depths and colours.

    They take the place of style attributes, which the policy does not allow.

    Args:
        more: templates with what only one page needs.
    """
    widths = [f".w{percent} {{ width: {percent}%; }}" for percent in range(1, _PERCENT + 1)]
    depths = [f".d{depth} {{ width: {depth * 0.9:.1f}rem; }}" for depth in range(_DEEPEST + 1)]
    colours = [
        f".chip.{category_class(category)} {{ background: {colour}; }} "
        f".icicle .{category_class(category)} > rect {{ fill: {colour}; }}"
        for category, colour in pictures.COLOURS.items()
    ]
    return "\n".join([template_text("report.css"), *colours, *depths, *widths, *map(template_text, more), ""])


def template_text(name: str) -> str:
    """A file of the templates' directory as it is."""
    return (files("opscope.reports") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
