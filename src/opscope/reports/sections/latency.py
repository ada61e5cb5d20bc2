"""Times of a report: latencies and verdicts, methods, thread counts, memory, preparation and the run."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.analysis.latency.latency import latency_effect
from opscope.core.parts import part
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, interval_text, ratio_text, share_text, size_text, time_text
from opscope.reports.content.content import (
    NOT_KNOWN,
    latency_ns,
    off_text,
    resources,
    side_latencies,
    speedup_text,
)
from opscope.reports.content.ranking import ranked_variants, runtime_title
from opscope.reports.document.blocks import (
    Beside,
    Bullets,
    Details,
    Format,
    HeadlineFigure,
    Section,
    Sentence,
    Tone,
    column,
    table,
)
from opscope.reports.document.template import picture
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison, EndToEnd
    from opscope.analysis.latency.latency import Latency
    from opscope.analysis.latency.methods import MethodTime
    from opscope.bundle.manifest import Manifest, Variant
    from opscope.reports.content.content import ReportContent, VariantResult
    from opscope.reports.document.blocks import Block, TableBlock, TableColumn


_SEVERAL = 3
_EFFICIENT = 0.5
_SLOWER = 1.02


class ThreadSweepRow(NamedTuple):
    """Latency of a variant at one thread count."""

    configuration: Variant  # the variant
    headline_ns: float  # its latency
    speedup: float  # over the smallest pool with the same features
    efficiency: float  # `speedup` for each time that the pool is larger; 1 is ideal

    @property
    def variant(self) -> str:
        """Name of the variant."""
        return self.configuration.name


def sweep_threads(content: ReportContent) -> tuple[list[ThreadSweepRow], str, list[str]] | None:
    """Return the rows of the sweep over thread counts, its answer and its notes; None with one thread count."""
    analyses = [
        (result.variant, result.analysis)
        for result in content.variants
        if result.analysis is not None and result.variant.threads
    ]
    latencies_ns = [(variant, analysis.headline_ns) for variant, analysis in analyses]
    if len({variant.threads for variant, _ in latencies_ns}) < 2:  # noqa: PLR2004 - one is not a sweep
        return None
    smallest: dict[tuple[str, ...], tuple[int, float]] = {}
    for variant, headline_ns in sorted(latencies_ns, key=lambda pair: pair[0].threads or 0):
        smallest.setdefault(tuple(variant.cleared), (variant.threads or 1, headline_ns))
    rows = []
    for variant, headline_ns in latencies_ns:
        threads, reference = smallest[tuple(variant.cleared)]
        speedup = reference / headline_ns if headline_ns else 1.0
        rows.append(ThreadSweepRow(variant, headline_ns, speedup, speedup / ((variant.threads or 1) / threads)))
    latencies = {variant.name: analysis.latency for variant, analysis in analyses}
    return rows, _sweep_answer(rows, latencies), _scaling_notes(rows, _find_slower_variants(latencies_ns, latencies))


def _sweep_answer(rows: Sequence[ThreadSweepRow], latencies: Mapping[str, Latency]) -> str:
    """Return the fastest variant if it is shown to beat every other one, else which ones may be the fastest."""
    least = min(rows, key=lambda row: row.headline_ns)
    threads = counted_text(least.configuration.threads or 1, "thread")
    text = f"{least.variant}: {time_text(least.headline_ns)} with {threads}"
    slower_rows = [row for row in rows if row.variant != least.variant]
    rivals = [
        row for row in slower_rows if not _has_verdict(latencies[row.variant], latencies[least.variant], Verdict.FASTER)
    ]
    if not rivals:
        return f"Best: {text}"
    names = ", ".join(row.variant for row in rivals)
    return f"Lowest latency: {text}; no difference detected to {names}"


def _find_slower_variants(latencies_ns: Sequence[tuple[Variant, float]], latencies: Mapping[str, Latency]) -> set[str]:
    """Find variants that are shown to be slower than the smallest pool with the same features."""
    smallest: dict[tuple[str, ...], str] = {}
    for variant, _ in sorted(latencies_ns, key=lambda pair: pair[0].threads or 0):
        smallest.setdefault(tuple(variant.cleared), variant.name)
    return {
        variant.name
        for variant, _ in latencies_ns
        if (first := smallest[tuple(variant.cleared)]) != variant.name
        and _has_verdict(latencies[first], latencies[variant.name], Verdict.SLOWER)
    }


def _has_verdict(before: Latency, after: Latency, verdict: Verdict) -> bool:
    return latency_effect(before, after).verdict() is verdict


def _scaling_notes(rows: Sequence[ThreadSweepRow], slower: AbstractSet[str]) -> list[str]:
    """Return notes on pools that do not pay: slower than the smallest one, or far from ideal scaling."""
    notes = []
    for row in rows:
        if row.variant in slower and row.speedup * _SLOWER < 1:
            notes.append(
                f"{row.variant} is slower than with fewer threads ({ratio_text(row.speedup)}): threads contend"
            )
        elif row.efficiency < _EFFICIENT:
            notes.append(f"{row.variant} reaches {share_text(row.efficiency)} of ideal scaling")
    return notes


class TimeSpent(NamedTuple):
    """Activity of a run's processes, all together, as a part of their wall time."""

    activity: str
    time_ns: float
    share: float


def time_spent(manifest: Manifest) -> list[TimeSpent]:
    """Return how processes spent their time, from starting to writing traces; empty if they did not report it."""
    reps = [(rep.seconds, rep.measurement) for rep in manifest.repetitions if rep.measurement]
    timed = [(seconds, measured) for seconds, measured in reps if measured.start_ns is not None]
    total_ns = sum((seconds or 0.0) * 1e9 for seconds, _ in timed)
    if not total_ns:
        return []
    warmup = manifest.plan.warmup or 0
    parts = {
        "starting the runtime": float(sum(measurement.start_ns or 0 for _, measurement in timed)),
        "loading the program": float(sum(measurement.load_ns or 0 for _, measurement in timed)),
        "warming up": float(sum(sum(measurement.wall_ns[:warmup]) for _, measurement in timed)),
        "measuring": float(sum(sum(measurement.wall_ns[warmup:]) for _, measurement in timed)),
        "writing traces and outputs": float(sum(measurement.write_ns or 0 for _, measurement in timed)),
    }
    parts["ending, and all else"] = max(0.0, total_ns - sum(parts.values()))
    return [TimeSpent(activity, time_ns, time_ns / total_ns) for activity, time_ns in parts.items()]


_HOW = (
    "For traced runs, latency is the outermost event of an inference (ExecuTorch: Method::execute; LiteRT: "
    "LiteRtRunCompiledModel or Interpreter.Invoke; ONNX Runtime: model_run). For untraced runs, it is the call as "
    "timed by the caller. Nested events are never added."
)
_COUNTED = "Outliers are counted but kept; preempted untraced inferences are excluded."
_COMPARED = (
    "Each latency is the typical process median, and the speedup is their ratio; the table above has medians of "
    "all calls."
)
_PLANNED = (
    "Medians over processes. The program plans {} for its tensors; delegate payloads take {}, excluding weights in "
    "separate segments of the file."
)


def latency_section(content: ReportContent) -> Section:
    """Return the section on latencies: every variant, all statistics, verdicts, and the scatter of processes."""
    blocks: list[Block] = [variants_table(content)]
    if content.comparisons:
        blocks += [comparisons_table(content.comparisons), Sentence(_COMPARED, Tone.DIM)]
    blocks += [
        Details("All latency statistics", [_statistics_table(content)]),
        Sentence(_timing_note(content), Tone.DIM),
    ]
    if content.shown:
        method = content.shown.largest_method
        method_suffix = f", {plain(method, 60)}" if method else ""
        blocks.append(
            Beside(
                [
                    Section(
                        f"Latency per inference{method_suffix}",
                        [picture("latency per inference", lambda: _draw_series(content, method), _BAND)],
                    ),
                ],
                [
                    Section(
                        f"Median per process{method_suffix}",
                        [picture("median per process", lambda: _draw_rounds(content, method), _DIFFER)],
                    ),
                ],
            )
        )
    answer = counted_text(len(content.variants), "variant")
    return Section("Latency Comparison", blocks, "latency", "Latency", answer, folded=True)


_BAND = "Median over processes; the band spans the fastest to the slowest process."
_DIFFER = "Identical processes differ; the interval is at least as wide as their spread implies."


def _draw_series(content: ReportContent, method: str) -> str | None:
    from opscope.reports.pictures.pictures import latency_series

    return latency_series(content, method)


def _draw_rounds(content: ReportContent, method: str) -> str | None:
    from opscope.reports.pictures.pictures import round_medians

    return round_medians(content, method)


class _TimedVariant(NamedTuple):
    """Variant and a latency of it: of all its calls, or of one of several methods."""

    variant: Variant
    analysis: Analysis | None
    method: str = ""  # empty for all calls
    latency: Latency | None = None


def _list_timed_variants(results: Iterable[VariantResult]) -> list[_TimedVariant]:
    return [
        _TimedVariant(result.variant, result.analysis, method, latency)
        for result in results
        for method, (latency, _) in (result.analysis.by_method if result.analysis else {"": (None, None)}).items()
    ]


def variants_table(content: ReportContent, *, brief: bool = False) -> TableBlock:
    """Return the latency of every variant, in plan order, with several methods one by one.

    ``brief``: only the columns of a first screen, the fastest variant first.
    """
    full, rows = not brief, _list_timed_variants(_order_variants(content) if brief else content.variants)

    def absence_text(row: _TimedVariant) -> str:
        """Return why there is no latency."""
        return NOT_KNOWN if content.has_lost(row.variant.name) else "not measured"

    return table(
        rows,
        column("variant", Format.NAME, lambda row: row.variant.name),
        column("method", Format.NAME, lambda row: row.method) if any(row.method for row in rows) else None,
        column("features", Format.TEXT, _features_of_row(content)) if full else None,
        column("threads", Format.COUNT, lambda row: row.variant.threads, absent=NOT_KNOWN) if full else None,
        column(
            "latency ms", Format.MS, lambda row: latency_ns(content, row.variant.name, row.method) or absence_text(row)
        ),
        *(_comparison_columns(content) if brief else ()),
        column("median ms", Format.MS, _latency_field("median_ns")) if full else None,
        column("mean ms", Format.MS, _latency_field("mean_ns")) if full else None,
        column("p90 ms", Format.MS, _latency_field("p90_ns")),
        column("95 % of the median", Format.MS, _latency_field("ci95_median_ns"), absent="too few") if full else None,
        column("inferences", Format.COUNT, _latency_field("n")) if full else None,
        column("processes", Format.COUNT, lambda row: len(row.latency.processes) if row.latency else 0),
        column("timed", Format.TEXT, lambda row: row.latency.source if row.latency else "") if full else None,
        column("tracing", Format.FIGURE, _tracing_cost, absent=NOT_KNOWN) if full else None,
        column("features", Format.TEXT, _features_of_row(content)) if brief else None,
    )


def _features_of_row(content: ReportContent) -> Callable[[_TimedVariant], str]:
    return lambda row: off_text(row.variant, runtime_title(content.manifest, row.variant))


def _order_variants(content: ReportContent) -> Sequence[VariantResult]:
    """Return the variants in plan order; the fastest first if they were ranked."""
    ranks = {name: rank for rank, name in enumerate(content.fastest)}
    return sorted(content.variants, key=lambda row: ranks.get(row.variant.name, len(ranks)))


def _comparison_columns(content: ReportContent) -> list[TableColumn]:
    """Return how each of three or more variants compares with the fastest or its baseline; empty for two."""
    head = "time / fastest"
    verdicts = {(ranked.name, ""): (ranked.end, ranked.verdict) for ranked in ranked_variants(content)}
    if not verdicts:
        head, comparisons = "speedup", content.comparisons[::-1]
        verdicts = {
            (comparison.candidate.label, method): (end, end.verdict)
            for comparison in comparisons
            for method, end in comparison.verdicts.items()
        }
    if len(content.variants) < _SEVERAL or not verdicts:
        return []
    return [
        column(
            head,
            Format.RATIO,
            lambda row: (result := verdicts.get((row.variant.name, row.method))) and result[0].speedup,
        ),
        column(
            "95 % interval",
            Format.RATIO,
            lambda row: (result := verdicts.get((row.variant.name, row.method))) and result[0].ci95,
        ),
        column(
            "verdict",
            Format.VERDICT,
            lambda row: (result := verdicts.get((row.variant.name, row.method))) and result[1],
        ),
    ]


def _latency_field(name: str) -> Callable[[_TimedVariant], Any]:
    return lambda row: getattr(row.latency, name) if row.latency else None


def _tracing_cost(row: _TimedVariant) -> str | None:
    """Return how much longer traced inferences took; None if that is unknown or they took less."""
    analysis = row.analysis
    return share_text(analysis.factor - 1) if analysis and analysis.tracing and analysis.factor > 1 else None


def _statistics_table(content: ReportContent) -> TableBlock:
    ms = (
        "min_ns",
        "max_ns",
        "trimmed_mean_5_ns",
        "trimmed_mean_10_ns",
        "stdev_ns",
        "mad_ns",
        "p75_ns",
        "p95_ns",
        "p99_ns",
    )
    heads = ("min", "max", "mean, 5 % trimmed", "10 % trimmed", "stdev", "MAD", "p75", "p95", "p99")
    return table(
        [row for row in _list_timed_variants(content.variants) if row.latency],
        column("variant, in ms", Format.NAME, lambda row: ", ".join(filter(None, (row.variant.name, row.method)))),
        *(
            column(head, Format.MS, _latency_field(name), absent="not measured")
            for head, name in zip(heads, ms, strict=True)
        ),
        column("CV", Format.SHARE, _latency_field("cv"), absent="not measured"),
        column("outliers", Format.COUNT, lambda row: row.latency.outliers.count),
        column("outlier limits", Format.MS, _outlier_bounds),
    )


def _outlier_bounds(row: _TimedVariant) -> tuple[float, float] | None:
    outliers = row.latency.outliers if row.latency else None
    return (outliers.low_ns, outliers.high_ns) if outliers else None


def comparisons_table(comparisons: Sequence[Comparison], *, brief: bool = False) -> TableBlock:
    """Return verdicts on pairs of variants, by method; ``brief`` leaves out the names of the variants."""
    rows = [(comparison, method, end) for comparison in comparisons for method, end in comparison.verdicts.items()]
    return table(
        rows,
        None if brief else column("baseline", Format.NAME, lambda row: row[0].baseline.label),
        None if brief else column("candidate", Format.NAME, lambda row: row[0].candidate.label),
        column("method", Format.NAME, lambda row: row[1]) if any(method for _, method, _ in rows) else None,
        column("baseline ms", Format.MS, lambda row: side_latencies(row[2])[0]),
        column("candidate ms", Format.MS, lambda row: side_latencies(row[2])[1]),
        column("speedup", Format.FIGURE, lambda row: speedup_text(row[2])),
        column("95 % interval", Format.RATIO, lambda row: row[2].ci95, absent="none"),
        column("verdict", Format.VERDICT, lambda row: row[2].verdict),
        column("minimum detectable change", Format.SHARE, lambda row: row[2].minimum_detectable, absent="unknown"),
    )


def method_figures(comparison: Comparison) -> list[HeadlineFigure]:
    """Return the speedup of each method, with its interval and the times of both sides."""
    return [
        HeadlineFigure(
            f"{plain(method, 60)}, speedup",
            _method_speedup(end),
            f"{time_text(end.candidate_ns)} against {time_text(end.baseline_ns)}",
        )
        for method, end in comparison.verdicts.items()
    ]


def _timing_note(content: ReportContent) -> str:
    analysis = content.shown
    if analysis is None:
        return f"{_HOW} {_COUNTED}"
    first = time_text(median(process.first_ns for process in analysis.latency.processes))
    loaded = (
        f"Loading took {_load_text(analysis)}, the first inference {first} (median over processes); "
        "warm-up is not included."
    )
    return f"{_HOW} {loaded} {_COUNTED}"


def _load_text(analysis: Analysis) -> str:
    """Return the median load time: from traces if they have it, else as timed without tracing."""
    arms = list(filter(None, (analysis.traced, analysis.latency)))
    load_times = ([latency.load_ns for latency in arm.processes if latency.load_ns is not None] for arm in arms)
    known = next(filter(None, load_times), [])
    return time_text(median(known)) if known else "an unknown time"


def _method_verdicts(content: ReportContent) -> dict[str, EndToEnd]:
    """Return the verdicts on methods of the shown variant; a single method gets the verdict on all calls."""
    if content.primary is None or content.shown is None:
        return {}
    known = {change.method: change.end_to_end for change in content.primary.methods}
    return known or {row.method: content.primary.end_to_end for row in content.shown.methods}


def methods_section(content: ReportContent) -> Section | None:
    """Return the section on methods; None if the program has a single one and no tokens are known."""
    rows = content.shown.methods if content.shown else []
    if not rows:
        return None
    text = (
        f"{order_sentence(content.manifest.plan.calls)} These figures are for each method's own calls; figures for all "
    )
    calls = [
        f"A call of {row.method}: "
        + ", ".join(f"{share.category.value} {share_text(share.share)}" for share in row.categories if share.share)
        for row in rows
    ]
    blocks = [
        methods_table(rows, _method_verdicts(content), compared=bool(content.comparisons)),
        Bullets(calls),
        Sentence(f"{text}calls together mix them.".strip(), Tone.DIM),
    ]
    return Section("Methods", blocks, "methods", "Methods", counted_text(len(rows), "method"), folded=True)


def methods_table(
    rows: Sequence[MethodTime], verdicts: Mapping[str, EndToEnd] | None = None, *, compared: bool = False
) -> TableBlock:
    """Return the times of methods, with their verdicts if there is a baseline."""

    def verdict_value(figure: Callable[[EndToEnd], Any]) -> Callable[[MethodTime], Any]:
        return lambda row: figure(verdicts[row.method]) if verdicts and row.method in verdicts else None

    return table(
        rows,
        column("method", Format.NAME, lambda row: row.method),
        column("calls", Format.COUNT, lambda row: row.calls),
        column("share of time", Format.SHARE, lambda row: row.share),
        column("median ms", Format.MS, lambda row: row.latency.median_ns),
        column("p90 ms", Format.MS, lambda row: row.latency.p90_ns),
        column("baseline ms", Format.MS, verdict_value(lambda end: end.baseline_ns), absent=NOT_KNOWN)
        if compared
        else None,
        column("speedup", Format.FIGURE, verdict_value(_method_speedup), absent=NOT_KNOWN) if compared else None,
        column("verdict", Format.VERDICT, verdict_value(lambda end: end.verdict), absent=NOT_KNOWN)
        if compared
        else None,
        column("tokens per call", Format.COUNT, lambda row: row.phase.tokens if row.phase else None, absent="-"),
        column("tokens per second", Format.FIGURE, tokens_text),
    )


def _method_speedup(end_to_end: EndToEnd) -> str:
    between = f" {interval_text(end_to_end.ci95, ratio_text)}" if end_to_end.ci95 else ""
    return f"{speedup_text(end_to_end)}{between}"


def tokens_text(row: MethodTime) -> str:
    """Return tokens per second with their interval; a dash if a call produces none."""
    if row.tokens_per_second is None:
        return "-"
    interval = row.tokens_ci95
    between = f" {interval_text(interval, _rate_text)}" if interval else ""
    return f"{_rate_text(row.tokens_per_second)}{between}"


def calls_text(calls: Sequence[str]) -> str:
    """Return an order of calls as the option takes it: ``prefill,decode:16``."""
    runs = [(name, len(list(group))) for name, group in groupby(calls)]
    return ",".join(name if count == 1 else f"{name}:{count}" for name, count in runs)


def order_sentence(calls: Sequence[str]) -> str:
    """Return in which order methods were called, in one sentence; empty if it is unknown."""
    if not calls:
        return ""
    runs = [(plain(name, 60), len(list(group))) for name, group in groupby(calls)]
    text = ", then ".join(name if count == 1 else f"{name} {count} times" for name, count in runs)
    return f"Every process calls {text} repeatedly; each call of a method gets the same inputs."


def _rate_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits are enough


def threads_section(content: ReportContent) -> Section | None:
    """Return the section on the sweep of thread counts; None with a single count."""
    sweep = part("the sweep of thread counts", lambda: sweep_threads(content), None)
    if sweep is None:
        return None
    swept, answer, notes = sweep
    rows = table(
        swept,
        column("variant", Format.NAME, lambda row: row.variant),
        column("threads", Format.COUNT, lambda row: row.configuration.threads),
        column("latency ms", Format.MS, lambda row: row.headline_ns),
        column("speedup", Format.RATIO, lambda row: row.speedup),
        column("of ideal scaling", Format.SHARE, lambda row: row.efficiency),
        sortable=True,
    )
    sentence = Sentence(". ".join([answer, *notes, ""]).strip())
    return Section("Threads", [sentence, rows], "threads", "Threads", answer, folded=True)


def memory_section(content: ReportContent) -> Section:
    """Return the section on memory, preparation, and where the experiment's time went."""
    model, variant_resources = content.manifest.model, resources(content)
    planned = (
        "an unknown amount" if count is None else size_text(count)
        for count in (model.planned_bytes, model.delegate_bytes)
    )
    blocks: list[Block] = [
        table(
            variant_resources,
            column("variant", Format.NAME, lambda row: row.variant.name),
            column("peak resident memory", Format.SIZE, lambda row: row.peak_rss_bytes, absent=NOT_KNOWN),
            column("starting the runtime", Format.TIME, lambda row: row.start_ns, absent=NOT_KNOWN),
            column("loading the program", Format.TIME, lambda row: row.load_ns, absent=NOT_KNOWN),
            column("first inference", Format.TIME, lambda row: row.first_ns, absent=NOT_KNOWN),
        ),
        Sentence(_PLANNED.format(*planned), Tone.DIM),
    ]
    spent = part("where the run's time went", lambda: time_spent(content.manifest), list[TimeSpent]())
    if spent:
        rows = table(
            spent,
            column("part", Format.TEXT, lambda row: row.activity),
            column("time", Format.TIME, lambda row: row.time_ns),
            column("share", Format.SHARE, lambda row: row.share),
        )
        blocks.append(Section("Where the experiment's time went", [rows]))
    known = [row.peak_rss_bytes for row in variant_resources if row.peak_rss_bytes is not None]
    answer = f"peak resident memory {size_text(int(median(known)))}" if known else NOT_KNOWN
    return Section("Memory and preparation", blocks, "memory", answer=answer, folded=True)
