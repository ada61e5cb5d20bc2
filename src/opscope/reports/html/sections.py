"""What the HTML page has besides what every report shows: style, script and policy, pictures, icicles, kernels.

The change between two variants as steps from one latency to the other.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

import altair as alt

from opscope.core.errors import MemoryLimitError, with_hint
from opscope.core.parts import explained, part
from opscope.core.table.places import by_operator
from opscope.core.units import counted_text, time_text
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import aten_operator
from opscope.reports.content.content import SHORTEST_NS
from opscope.reports.document.template import NOT_DRAWN
from opscope.reports.document.text import plain
from opscope.reports.html import icicle, pictures
from opscope.reports.html.pictures import COLOURS, INK, drawn, rows_of
from opscope.reports.sections.kernel_view import kernel_rows
from opscope.reports.sections.program import bound_text, layer_text, module_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.roofline.operator_ceiling import Placement
    from opscope.program.ceilings.ceilings import Ceilings
    from opscope.reports.content.content import ReportContent
    from opscope.reports.sections.kernel_view import KernelRow

    Rows: TypeAlias = list[dict[str, Any]]

_WIDTH, _HEIGHT = 860, 340
_BOUNDS = ("compute", "memory", "overhead", "below both ceilings", "too short to tell", "not known")
_COLOURS = ("#4c78a8", "#f58518", "#b279a2", "#e45756", "#9d9d9d", "#54a69f")
_MOST_LABELS = 4
MOST_POINTS = 400
"""Operators that are drawn; the longest ones."""
_GIGA = 1e9
_ALIKE, _SAME = 1.3, 1.12
_STEPS = 7
_LEAST = 0.005
"""Steps below this share of the baseline's latency are drawn together: they could not be seen."""
_WHOLE = "latency"
_WATERFALL_WIDTH = 440
_NAME = 44


def roofline_picture(analysis: Analysis) -> str | None:
    """Multiply-accumulates per second over intensity, on logarithmic scales; None without ceilings or such operators.

    Lines are the ceilings that apply to the points: level for arithmetic, rising for memory at two working sets. The
    size of a point is its time.
    """
    if analysis.roofline is None or analysis.ceilings is None:
        return None
    points = _points(analysis)[:MOST_POINTS]
    if not points:
        return None
    left = min(min(point["intensity"] for point in points) / 2, 0.2)
    right = max(max(point["intensity"] for point in points) * 4, 60.0)
    lines = _ceilings(analysis, left, right)
    chart = alt.layer(_lines(lines), *_line_names(lines), _dots(points), _dot_names(points))
    return drawn(chart.properties(width=_WIDTH, height=_HEIGHT))


def _points(analysis: Analysis) -> Rows:
    """Operators that multiply and have a time to divide by, longest first."""
    assert analysis.roofline is not None  # noqa: S101 - the caller has looked
    rows, placed = by_operator(analysis.operators), by_operator(analysis.roofline.operators)
    found = [
        _point(row, one, one.macs_per_s.low)
        for key, one in placed.items()
        if one.macs_per_s and (row := rows.get(key)) and row.macs and row.bytes
    ]
    return sorted(found, key=lambda point: -point["ms"])


def _point(row: Operator, one: Placement, least: float) -> dict[str, Any]:
    """The middle of the possible rates; the least one when the time may be zero."""
    rate = row.macs / (row.shown_ns + row.uncertainty_ns / 2) if row.macs and row.shown_ns else least / _GIGA
    return {
        "intensity": (row.macs or 0) / (row.bytes or 1),
        "gmacs": rate,
        "ms": row.shown_ns / 1e6,
        "bound": bound_text(one.bound),
        "layer": plain(layer_text(row), 40),
    }


def _ceilings(analysis: Analysis, left: float, right: float) -> Rows:
    """Two points a ceiling: those of arithmetic that some operator falls under, and memory at two working sets."""
    assert analysis.roofline is not None  # noqa: S101 - the caller has looked
    assert analysis.ceilings is not None  # noqa: S101 - likewise
    used = {one.ceiling for one in analysis.roofline.operators if one.ceiling}
    level = {
        f"{ceiling.dtype} {ceiling.kernel.value}": ceiling.rate for ceiling in analysis.ceilings.compute if ceiling.rate
    }
    levels = _joined(
        {name: rate.best / _GIGA for name, rate in level.items() if any(name in ceiling for ceiling in used)}
    )
    top = max(levels.values(), default=max((p["gmacs"] for p in _points(analysis)), default=1.0))
    rows: Rows = [
        {"line": name, "intensity": x, "gmacs": rate, "end": x == right, "kind": "arithmetic"}
        for name, rate in levels.items()
        for x in (left, right)
    ]
    for name, bandwidth in _bandwidths(analysis.ceilings, analysis.roofline.footprint_bytes):
        corner = min(right, top / bandwidth)
        for x in (left, corner):
            point = {"line": name, "intensity": x, "gmacs": x * bandwidth, "end": x == corner, "kind": "memory"}
            rows.append(point)
    return rows


def _joined(levels: dict[str, float]) -> dict[str, float]:
    """Levels that lie on one another share a line and a name."""
    found: list[tuple[list[str], float]] = []
    for name, rate in sorted(levels.items(), key=lambda item: -item[1]):
        if found and found[-1][1] < _SAME * rate:
            found[-1][0].append(name)
        else:
            found.append(([name], rate))
    return {", ".join(names): rate for names, rate in found}


def _bandwidths(ceilings: Ceilings, footprint: int) -> list[tuple[str, float]]:
    """GB/s of a cache-sized working set and of that of the whole inference."""
    near, far = ceilings.bandwidth(256 << 10), ceilings.bandwidth(footprint) if footprint else None
    if near and far and near < _ALIKE * far:
        return [("memory", near / _GIGA)]
    found = ("memory in cache, 256 KiB", near), ("memory of the whole inference", far)
    return [(name, rate / _GIGA) for name, rate in found if rate]


def _scales() -> dict[str, Any]:
    log = alt.Scale(type="log", nice=False, padding=18)
    return {
        "x": alt.X("intensity:Q", scale=log, title="multiply-accumulates per byte"),
        "y": alt.Y("gmacs:Q", scale=log, title="GMAC/s"),
    }


def _lines(rows: Rows) -> alt.Chart:
    dash = alt.StrokeDash("kind:N", legend=None)
    lines = alt.Chart(rows_of(rows)).mark_line(color=INK, strokeWidth=1.3)
    chart: alt.Chart = lines.encode(**_scales(), detail="line:N", strokeDash=dash)
    return chart


def _line_names(rows: Rows) -> list[alt.Chart]:
    """Names at the right end of level lines, above and below the lower end of rising ones."""
    level = [row for row in rows if row["kind"] == "arithmetic" and row["end"]]
    rising = [row for row in rows if row["kind"] == "memory" and not row["end"]]
    charts = [alt.Chart(rows_of(level)).mark_text(align="right", baseline="bottom", dy=-3, color=INK, fontSize=11)]
    charts += [
        alt.Chart(rows_of([row])).mark_text(align="left", baseline="middle", dx=8, dy=dy, color=INK, fontSize=11)
        for row, dy in zip(rising, (-18, 14), strict=False)
    ]
    return [chart.encode(**_scales(), text="line:N") for chart in charts]


def _dots(points: Rows) -> alt.Chart:
    colour = alt.Color(
        "bound:N",
        scale=alt.Scale(domain=list(_BOUNDS), range=list(_COLOURS)),
        title=None,
        legend=alt.Legend(orient="top", labelLimit=220, columnPadding=30),
    )
    size = alt.Size("ms:Q", legend=None, scale=alt.Scale(range=[14, 500]))
    chart: alt.Chart = alt.Chart(rows_of(points)).mark_circle(opacity=0.75).encode(**_scales(), color=colour, size=size)
    return chart


def _dot_names(points: Rows) -> alt.Chart:
    names = alt.Chart(rows_of(points[:_MOST_LABELS])).mark_text(align="left", dx=10, color=INK, fontSize=11)
    chart: alt.Chart = names.encode(**_scales(), text="layer:N")
    return chart


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
        "kernels": [row for row in kernels if row.time_ns is None or row.time_ns >= SHORTEST_NS],
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
            "program": lambda: icicle.draw(icicle.by_program(shown), _BY_PROGRAM, shown.headline_ns),
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
    short = [row.time_ns for row in rows if row.time_ns is not None and row.time_ns < SHORTEST_NS]
    if not short:
        return ""
    together = time_text(sum(short))
    return f"{counted_text(len(short), 'further line')} below {SHORTEST_NS // 1_000} µs, {together} together."


def policy(style: str, script: str | None = None) -> str:
    """A page's Content-Security-Policy: this style and this script by their hashes, and nothing else.

    A name can thus neither run nor load anything, even if it were taken for markup.
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
    return icicle.draw(modules, "One inference by module and operator", shown.headline_ns) if modules else ""


def style_sheet(*more: str) -> str:
    """The style sheet of all pages, with the classes that stand for widths, depths and colours.

    They take the place of style attributes, which the policy does not allow.
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


def shift_steps(comparison: Comparison) -> str | None:
    """:func:`shift_chart` as SVG; None without operators."""
    return drawn(shift_chart(comparison)) if comparison.kinds else None


def shift_chart(comparison: Comparison) -> alt.LayerChart:
    """A waterfall: latency of the baseline, what each kind of operator takes away or adds, latency of the candidate.

    The kinds that change most are named, the rest is one step, so that the steps add up.
    """
    rows = _rows(comparison)
    order = [row["step"] for row in rows]
    colours = {category.value: COLOURS[category] for category in Category} | {_WHOLE: INK}
    shown = [name for name in colours if any(row["category"] == name for row in rows)]
    scale = alt.Scale(domain=shown, range=[colours[name] for name in shown])
    steps = alt.Y("step:N", sort=order, title=None, axis=alt.Axis(labelLimit=250, labelPadding=6))
    base = alt.Chart(rows_of(rows)).encode(y=steps)
    bars = base.mark_bar(height=16).encode(
        x=alt.X("low:Q", title="ms per inference"),
        x2="high:Q",
        color=alt.Color(
            "category:N", scale=scale, title=None, legend=alt.Legend(orient="top", labelLimit=200, columnPadding=14)
        ),
    )
    texts = base.mark_text(align="left", dx=5, color=INK, fontSize=11).encode(x="high:Q", text="text:N")
    chart: alt.LayerChart = alt.layer(bars, texts).properties(width=_WATERFALL_WIDTH, height=24 * len(rows))
    return chart


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    changed = sorted(comparison.kinds, key=lambda change: -abs(change.saved_ns))
    large = sum(abs(change.saved_ns) >= _LEAST * comparison.baseline.headline_ns for change in changed)
    named, rest = changed[: min(_STEPS, large)], changed[min(_STEPS, large) :]
    start, end = comparison.baseline.headline_ns / 1e6, comparison.candidate.headline_ns / 1e6
    rows = [_bar(f"{plain(comparison.baseline.label, _NAME)}: latency", 0, start, _WHOLE, f"{start:.3f}")]
    level = start
    for change in sorted(named, key=lambda change: -change.saved_ns):
        label = plain(f"{change.kind} ({change.backend})", _NAME)
        level = _add(rows, label, change.category, change.saved_ns / 1e6, level)
    if rest:
        left = sum(change.saved_ns for change in rest) / 1e6
        level = _add(rows, f"{len(rest)} other kinds" if named else "all kinds", Category.OTHER, left, level)
    for row in comparison.shift.outside:
        if abs(row.saved_ns) >= _LEAST * comparison.baseline.headline_ns:
            level = _add(rows, row.name, row.category or Category.OTHER, row.saved_ns / 1e6, level)
    rows.append(_bar(f"{plain(comparison.candidate.label, _NAME)}: latency", 0, end, _WHOLE, f"{end:.3f}"))
    return rows


def _add(rows: list[dict[str, Any]], label: str, category: Category, saved: float, level: float) -> float:
    """Add a step down, or up, from a level; the level behind it."""
    rows.append(_bar(label, min(level, level - saved), max(level, level - saved), category.value, f"{-saved:+.3f}"))
    return level - saved


def _bar(step: str, low: float, high: float, category: str, text: str) -> dict[str, Any]:
    return {"step": step, "low": low, "high": high, "category": category, "text": text}
