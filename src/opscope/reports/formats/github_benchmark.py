"""Figures of a run for github-action-benchmark: the JSON of its tool ``customSmallerIsBetter``.

Source of the format: ``BenchmarkResult`` in ``src/extract.ts`` of github-action-benchmark. Every figure is smaller
where it is better. Ratios are not in the file: the action compares runs itself, and cannot show that one is withheld.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from opscope.bundle.manifest import device_text
from opscope.reports.content.content import resources
from opscope.reports.document.messages import LATENCY, grade_text
from opscope.reports.document.text import distinct, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analysis.analysis import Analysis
    from opscope.bundle.manifest import Manifest
    from opscope.reports.content.content import ReportContent, Resources

_NANOSECONDS_PER_MS = 1e6
_LONGEST_DEVICE = 300


def bundle_benchmark(content: ReportContent) -> bytes:
    """Return the file for everything that a report shows: latencies, peak memory, load time, first inference."""
    manifest = content.manifest
    rows = [pair for pair in zip(content.variants, resources(content), strict=True) if pair[0].analysis]
    names = distinct(plain(result.variant.name) for result, _ in rows)
    entries: list[dict[str, Any]] = []
    for name, (result, usage) in zip(names, rows, strict=True):
        if result.analysis:
            title = f"{plain(manifest.model_of(result.variant.name).name)}/{name}"
            entries += _benchmark_entries(title, result.analysis, usage, manifest)
    return _encode_entries(entries)


def analysis_benchmark(analysis: Analysis, model: str, manifest: Manifest | None = None) -> bytes:
    """Return the file for one analysis, of a model of this name."""
    variant = plain(analysis.variant or "")
    title = f"{plain(model)}/{variant}" if variant else plain(model)
    return _encode_entries(list(_benchmark_entries(title, analysis, None, manifest)))


def _benchmark_entries(
    title: str, analysis: Analysis, usage: Resources | None, manifest: Manifest | None
) -> Iterator[dict[str, Any]]:
    latency = analysis.latency
    about = [f"{latency.source}, {latency.n} inferences in {len(latency.processes)} processes"]
    about += [f"{LATENCY} quality: {grade_text(analysis.quality.grade)}"] if analysis.quality else []
    about += [plain(device_text(manifest), _LONGEST_DEVICE)] if manifest else []
    extra = {"extra": "; ".join(about)}
    for method, (summary, _) in analysis.by_method.items():
        of_method = f" of {plain(method)}" if method else ""
        headline_ns = analysis.headline_of(method)
        entry = _time_entry(f"{title}: latency{of_method}", headline_ns)
        if summary.ci95_median_ns:  # the action knows one number on both sides: the larger one
            low, high = summary.ci95_median_ns
            widest_ns = max(high - headline_ns, headline_ns - low)
            entry["range"] = f"± {widest_ns / _NANOSECONDS_PER_MS:.6g}"
        yield entry | extra
        yield _time_entry(f"{title}: 90th percentile of latency{of_method}", summary.p90_ns) | extra
    if usage is None:
        return
    if usage.peak_rss_bytes is not None:
        yield {"name": f"{title}: peak memory", "unit": "bytes", "value": float(usage.peak_rss_bytes)} | extra
    for name, time_ns in (("load time", usage.load_ns), ("first inference", usage.first_ns)):
        if time_ns is not None:
            yield _time_entry(f"{title}: {name}", time_ns) | extra


def _time_entry(name: str, time_ns: float) -> dict[str, Any]:
    return {"name": name, "unit": "ms", "value": time_ns / _NANOSECONDS_PER_MS}


def _encode_entries(entries: list[dict[str, Any]]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n"
