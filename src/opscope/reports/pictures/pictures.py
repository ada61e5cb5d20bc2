"""Pictures as SVG, drawn without a browser and legible on light and dark ground."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import altair as alt
import numpy as np
import vl_convert

from opscope.bundle.manifest import TracingMode
from opscope.core.errors import MemoryLimitError
from opscope.core.system.memory import addresses_left
from opscope.reports.pictures.bars import INK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.latency.latency import Latency
    from opscope.reports.content.content import ReportContent

    Rows: TypeAlias = list[dict[str, Any]]

_ROLE_COLOURS = ("#4c78a8", "#e45756", "#54a69f", "#b279a2", "#f58518", "#9d9d9d")
_WIDTH = 440
_ADDRESSES = 66 << 30
"""Address space that V8 in vl-convert 1.9 reserves at its start: 64.5 GiB, half of which it gives back."""
_MOST_POINTS = 240
_MORE_ADDRESSES = "allow more address space (ulimit -v unlimited), and limit memory with --max-memory"
# Fonts of a browser are a little wider than those the labels were measured with.
_PADDING = {"left": 14, "right": 8, "top": 4, "bottom": 4}


def latency_series(content: ReportContent, method: str = "") -> str | None:
    """Return the latency of each inference: the median over processes, and a band from fastest to slowest.

    ``method``: method whose calls are drawn, without warm-up; empty for all calls.
    """
    latencies = [
        (result.variant.name, _latency_of_method(result.analysis, method))
        for result in content.variants
        if result.analysis is not None
    ]
    rows = [row for name, latency in latencies for row in _series_rows(name, latency)]
    if not rows:
        return None
    colour = _colour_by_variant([name for name, _ in latencies])
    x = alt.X("inference:Q", title="inference of its process", axis=alt.Axis(tickMinStep=1))
    base = alt.Chart(rows_of(rows)).encode(x=x, color=colour)
    scale = alt.Scale(type="log", nice=False, padding=6)
    band = base.mark_area(opacity=0.22, line=False).encode(
        y=alt.Y("low:Q", scale=scale, title="ms (logarithmic)"), y2="high:Q"
    )
    line = base.mark_line(strokeWidth=1.6).encode(y=alt.Y("median:Q", scale=scale, title="ms (logarithmic)"))
    layers = [band, line]
    warmup = content.manifest.plan.warmup
    if warmup and not method:
        ends: Rows = [{"inference": warmup - 0.5, "text": "warm-up ends"}]
        rule = alt.Chart(rows_of(ends)).encode(x="inference:Q")
        layers.append(rule.mark_rule(strokeDash=[4, 3], color=INK))
        layers.append(rule.mark_text(align="left", dx=5, y=8, color=INK, fontSize=11).encode(text="text:N"))
    return render_chart(alt.layer(*layers).properties(width=_WIDTH, height=210))


def _latency_of_method(analysis: Analysis, method: str) -> Latency:
    return analysis.by_method.get(method, (analysis.latency, None))[0]


def round_medians(content: ReportContent, method: str = "") -> str | None:
    """Return the median latency of each process by round, the spread that the interval comes from.

    ``method``: method whose calls are drawn; empty for all calls.
    """
    rows: Rows = []
    names = []
    for result in content.variants:
        if result.analysis is None:
            continue
        names.append(result.variant.name)
        arm = TracingMode.TIMED if result.analysis.traced else TracingMode.TRACED
        rounds = [repetition.round for repetition in content.manifest.completed(result.variant.name, arm)]
        rows += [
            {"variant": result.variant.name, "round": number + 1, "ms": process.median_ns / 1e6}
            for number, process in zip(rounds, _latency_of_method(result.analysis, method).processes, strict=False)
        ]
    if not rows:
        return None
    chart = (
        alt.Chart(rows_of(rows))
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1)
        .encode(
            x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False)),
            y=alt.Y("ms:Q", title="median ms of the process", scale=alt.Scale(zero=True)),
            color=_colour_by_variant(names),
        )
        .properties(width=_WIDTH, height=170)
    )
    return render_chart(chart)


def rows_of(rows: Rows) -> alt.Data:
    """Return rows as the data of a chart."""
    return alt.Data(values=rows)  # type: ignore[no-untyped-call] # altair's generated classes are not annotated


def _series_rows(name: str, latency: Latency) -> Rows:
    """Return the rows of the latency picture; long series are binned, so that the picture stays small."""
    runs = [
        np.concatenate([np.asarray(warmup), samples]) / 1e6
        for warmup, samples in zip(latency.warmup_samples_ns, latency.by_process(), strict=False)
    ]
    shortest = min((len(run) for run in runs), default=0)
    if not shortest:
        return []
    table = np.stack([run[:shortest] for run in runs])
    bins = np.array_split(np.arange(shortest), min(shortest, _MOST_POINTS))
    return [_series_point(name, table, part) for part in bins]


def _series_point(
    name: str, table: np.ndarray[Any, np.dtype[np.float64]], part: np.ndarray[Any, Any]
) -> dict[str, Any]:
    values = table[:, part]
    return {
        "variant": name,
        "inference": float(part.mean()),
        "low": float(values.min()),
        "median": float(np.median(values)),
        "high": float(values.max()),
    }


def _colour_by_variant(names: Sequence[str]) -> alt.Color:
    scale = alt.Scale(domain=list(names), range=list(_ROLE_COLOURS[: len(names)]))
    return alt.Color("variant:N", scale=scale, title=None, legend=alt.Legend(orient="top", labelLimit=200))


@lru_cache(maxsize=1)
def undrawable() -> str:
    """Return why this process can draw no picture; empty if it can. The library would end the process by a signal."""
    available = addresses_left()
    if available is None or available >= _ADDRESSES:
        return ""
    return f"pictures need {_ADDRESSES >> 30} GiB of address space (but little memory), more than ulimit -v allows"


def render_chart(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> str:
    """Return a chart as SVG, in the style of all pictures."""
    if problem := undrawable():
        raise MemoryLimitError(problem, hint=_MORE_ADDRESSES)
    styled = (
        chart.configure(background="transparent", font="system-ui, sans-serif", padding=_PADDING)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=INK,
            titleColor=INK,
            labelFontSize=12,
            labelSeparation=6,
            titleFontSize=12,
            titleFontWeight="normal",
            gridColor=INK,
            gridOpacity=0.2,
            domainColor=INK,
            tickColor=INK,
        )
        .configure_legend(labelColor=INK, titleColor=INK, labelFontSize=12)
    )
    return vl_convert.vegalite_to_svg(styled.to_dict(validate=False))
