"""What teams collect of every run, in the forms that their collectors read: one list of figures, written three ways.

``github_benchmark``: the JSON of github-action-benchmark's tool ``customSmallerIsBetter`` (``BenchmarkResult`` in its
``src/extract.ts``). ``bencher``: Bencher Metric Format (``AdapterResults`` of its ``bencher_adapter``): benchmark,
measure, value with bounds. ``model_card``: the ``model-index`` of a card of the Hugging Face Hub, and a table.

Every figure is smaller where it is better. Ratios are not in these files: a collector compares runs itself, and none of
them can say that a ratio is withheld.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.bundle.manifest import device_text
from opscope.core.units import size_text, time_text
from opscope.reports.content.content import resources
from opscope.reports.document.text import distinct, markdown, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analysis.analysis import Analysis
    from opscope.bundle.manifest import Manifest, PlannedInput
    from opscope.reports.content.content import ReportContent, Resources

_MILLI = 1e6
_NANOSECONDS, _BYTES = "ns", "bytes"
UNITS = {_NANOSECONDS: ("ms", _MILLI), _BYTES: (_BYTES, 1.0)}
"""As github-action-benchmark shows a unit, and what a figure is divided by for it."""


class Measure(NamedTuple):
    """A measure: its name for programs, its name for people, and its unit."""

    name: str
    title: str
    unit: str


LATENCY = Measure("latency", "latency", _NANOSECONDS)
P90 = Measure("latency-p90", "90th percentile of latency", _NANOSECONDS)
MEMORY = Measure("peak-memory", "peak memory", _BYTES)
LOAD = Measure("load-time", "load time", _NANOSECONDS)
FIRST = Measure("first-inference", "first inference", _NANOSECONDS)


class Figure(NamedTuple):
    """A figure of a variant, in the unit of its measure."""

    measure: Measure
    value: float
    bounds: tuple[float, float] | None = None  # 95 % interval; None where there is none


class CollectedVariant(NamedTuple):
    """The figures of a variant."""

    name: str  # of the variant, unique among those of its run
    model: str  # name of the program that it ran
    figures: list[Figure]
    about: str  # what else is to be known of them, in one sentence

    @property
    def title(self) -> str:
        """Model and variant."""
        return f"{self.model}/{self.name}" if self.name else self.model


class Collected(NamedTuple):
    """A run as collectors keep it."""

    model: str
    device: str  # what it ran on; empty where that is not known
    inputs: str  # what the program was given
    variants: list[CollectedVariant]


def collected(content: ReportContent) -> Collected:
    """The figures of everything that a report shows."""
    manifest = content.manifest
    shown = [pair for pair in zip(content.variants, resources(content), strict=True) if pair[0].analysis]
    names = distinct(plain(result.variant.name) for result, _ in shown)
    variants = [
        _variant(name, plain(manifest.model_of(result.variant.name).name), result.analysis, row, manifest)
        for name, (result, row) in zip(names, shown, strict=True)
        if result.analysis
    ]
    return Collected(plain(manifest.model.name), plain(device_text(manifest), 300), _inputs(manifest), variants)


def collected_of(analysis: Analysis, model: str, manifest: Manifest | None = None) -> Collected:
    """The figures of one analysis."""
    name = plain(analysis.variant or "")
    variant = _variant(name, plain(model), analysis, None, manifest)
    device = plain(device_text(manifest), 300) if manifest else ""
    return Collected(plain(model), device, _inputs(manifest), [variant])


def _inputs(manifest: Manifest | None) -> str:
    texts = [_input(one) for one in manifest.plan.inputs] if manifest else []
    return plain(", ".join(texts), 300)


def _input(one: PlannedInput) -> str:
    if one.source or one.shape is None:
        return one.source or f"{one.dtype} {one.value}"
    return f"{one.dtype}[{','.join(map(str, one.shape))}]"


def _variant(
    name: str, model: str, analysis: Analysis, row: Resources | None, manifest: Manifest | None
) -> CollectedVariant:
    latency = analysis.latency
    figures = []
    for method, (own, _) in analysis.by_method.items():
        figures.append(Figure(_measure(LATENCY, method), own.median_ns, own.ci95_median_ns))
        figures.append(Figure(_measure(P90, method), own.p90_ns))
    known = ((MEMORY, row.peak_rss_bytes), (LOAD, row.load_ns), (FIRST, row.first_ns)) if row else ()
    figures += [Figure(measure, value) for measure, value in known if value is not None]
    about = [f"{latency.source}, {latency.n} inferences in {len(latency.processes)} processes"]
    about += [f"quality: {analysis.quality.grade.value}"] if analysis.quality else []
    about += [plain(device_text(manifest), 300)] if manifest else []
    return CollectedVariant(name, model, figures, "; ".join(about))


def _measure(of_all: Measure, method: str) -> Measure:
    """The measure of one of several methods; of all calls where it is empty."""
    if not method:
        return of_all
    return Measure(f"{of_all.name}-{plain(method)}", f"{of_all.title} of {plain(method)}", of_all.unit)


def github_benchmark(found: Collected) -> bytes:
    """The file for github-action-benchmark, which compares a figure with the one of the same name before."""
    entries = [_entry(variant, figure) for variant in found.variants for figure in variant.figures]
    return msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n"


def _entry(variant: CollectedVariant, figure: Figure) -> dict[str, Any]:
    unit, divisor = UNITS[figure.measure.unit]
    entry: dict[str, Any] = {
        "name": f"{variant.title}: {figure.measure.title}",
        "unit": unit,
        "value": figure.value / divisor,
    }
    if figure.bounds:  # the collector knows one number on both sides: the larger one
        entry["range"] = f"± {max(figure.value - figure.bounds[0], figure.bounds[1] - figure.value) / divisor:.6g}"
    return entry | {"extra": variant.about}


def bencher(found: Collected) -> bytes:
    """The file for Bencher, whose measure ``latency`` is in nanoseconds, as here."""
    entries = {variant.title: dict(map(_metric, variant.figures)) for variant in found.variants}
    return msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n"


def _metric(figure: Figure) -> tuple[str, dict[str, float]]:
    metric = {"value": figure.value}
    if figure.bounds:
        metric |= {"lower_value": figure.bounds[0], "upper_value": figure.bounds[1]}
    return figure.measure.name, metric


def model_card(found: Collected) -> bytes:
    """A model card's front matter with the figures, and a table of them: a fragment to merge into a card."""
    results = [_result(found, variant) for variant in found.variants]
    index = {"model-index": [{"name": found.model, "results": results}]}
    return "\n".join(["---", *_yaml(index), "---", "", *_table(found), ""]).encode()


def _yaml(value: Any) -> Iterator[str]:  # noqa: ANN401 - whatever JSON can hold
    """The lines of a value in YAML's block style; texts are quoted as in JSON, which YAML reads as they are."""
    if isinstance(value, dict):
        for key, own in value.items():
            if isinstance(own, (dict, list)):
                yield f"{key}:"
                yield from (f"  {line}" for line in _yaml(own))
            else:
                yield f"{key}: {json.dumps(own)}"
    else:
        for own in value:
            first, *rest = _yaml(own)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _result(found: Collected, variant: CollectedVariant) -> dict[str, Any]:
    metrics = [
        {
            "type": figure.measure.name,
            "name": f"{figure.measure.title} ({UNITS[figure.measure.unit][0]}), {variant.name or 'measured'}",
            "value": figure.value / UNITS[figure.measure.unit][1],
        }
        for figure in variant.figures
    ]
    return {
        "task": {"type": "other", "name": "on-device inference"},
        "dataset": {"type": "synthetic", "name": found.inputs or "inputs of the measurement"},
        "metrics": metrics,
    }


def _table(found: Collected) -> Iterator[str]:
    yield "## Latency"
    yield ""
    where = f" on {markdown(found.device, 300)}" if found.device else ""
    yield f"Measured with opscope{where}."
    yield ""
    measures = list(dict.fromkeys(figure.measure for variant in found.variants for figure in variant.figures))
    yield f"| variant | {' | '.join(measure.title for measure in measures)} |"
    yield f"|---|{'---:|' * len(measures)}"
    for variant in found.variants:
        cells = {figure.measure: _cell(figure) for figure in variant.figures}
        yield f"| {markdown(variant.name or variant.model)} | {' | '.join(cells.get(m, '') for m in measures)} |"


def _cell(figure: Figure) -> str:
    text = time_text if figure.measure.unit == _NANOSECONDS else _whole_size
    told = text(figure.value)
    return f"{told} ({text(figure.bounds[0])} to {text(figure.bounds[1])})" if figure.bounds else told


def _whole_size(value: float) -> str:
    return size_text(round(value))
