"""The files of a run directory of the Arm kit, so that scripts made for them run on any trace and any profile.

Names and fields are the kit's: ``manifest.json``, ``metrics.json``, ``MODEL_pipeline_summary.json`` and ``.md``,
``analysis_summary.json``, ``operator_analysis.json``, and in the directory of each experiment its
``_robust_stats.json`` and the operator tables. What they mean:

- Latencies are those of Method::execute in traced inferences, without warm-up, in ms.
- Times of operators and categories are self times, so that they never exceed the latency. ``total_ms`` of an operator
  table is of all inferences, ``avg_ms`` of one; in ``operator_details`` of the summary ``total_ms`` is of one inference
  and ``avg_ms`` of one call, as the kit's documents show them.
- Categories are told by whole names. ``category_totals_ms`` adds experiments up, as the kit does: use ``per_etdump``.
- In a comparison the first name is the candidate, so that a speedup above 1 is a gain.

The columns of CSV files are the kit's, name by name, in its order and with its meaning, so that its own tools find the
same figures in these files as in its own:

- ``type`` is the name without its number; ``delegate_backend`` is ``portable`` for all that no delegate ran, the
  framework's own events too; ``node_id`` is the place of an event in its inference, in the order of the trace.
- ``run_index`` counts the inferences of all processes, from 0; what lies outside of any inference, such as loading,
  has the index of its process's first.
- A line of the statistics is all events of one type and backend: ``count`` of them in an inference, ``total_ms`` per
  inference, ``avg_ms`` of one. Warm-up is left out; loading is per process.
- Times of events are exact decimals of the trace's nanoseconds, times per inference are cut off behind the picosecond.

Behind the kit's columns stand those that its documents describe: ``timestamp_ms`` since the first event of the
inference, ``parent_id`` (the ``node_id`` of the event around it; empty for none), ``op_type`` (its category) and
``backend``.

Two columns say more than the kit's. Where that writes ``delegated`` for lack of a record, the name of the delegate
stands; and ``pct_total`` is a share of self time, so that it adds up to 100: the kit counts nested time again.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import polars as pl

from opscope.core.errors import UsageError
from opscope.core.table import Clock, Scope
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify
from opscope.readers.lifecycle import PORTABLE
from opscope.reports.document.text import csv_cell, decimal
from opscope.reports.formats.event_files import guard_cells

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.latency.latency import Latency
    from opscope.analysis.operators.operators import Operator
    from opscope.core.table import EventTable
    from opscope.kit.readers.json import ExperimentKey


FILES = ("exec_all_runs_timeline.csv", "exec_run0_timeline.csv", "exec_ops_stats.csv")
_TO_US, _TO_MS, _PICO = 3, 6, 9
_PART = 1 << 15
_INFERENCE = ["process", "inference"]


def kit_csv(table: EventTable, model: str, *, with_warmup: bool = True) -> list[bytes]:
    """Return the timeline of all runs, that of the first, and the statistics by name, as in ``FILES``.

    Without the warm-up in a directory of the kit, which warms in processes of their own: its medians are of all runs.
    """
    if table.clock is not Clock.NS:
        problem = f"the kit's files are in microseconds, but this trace counts {table.clock.value}"
        raise UsageError(problem, where="--to", hint="csv and parquet keep the clock of the trace")
    counted = table.measured().select(_INFERENCE).unique().with_columns(counts=pl.lit(value=True))
    rows = _with_positions(table.frame).join(counted, on=_INFERENCE, how="left", maintain_order="left")
    if not with_warmup:
        rows = rows.filter(pl.col("inference").is_null() | pl.col("counts"))
    rows = _with_run_index(rows)
    first = rows.filter(pl.col("run_index") == 0)
    return [_timeline_csv(rows, model), _timeline_csv(first, model), _statistics_csv(rows, model)]


def _with_positions(frame: pl.DataFrame) -> pl.DataFrame:
    """Add to each event its position in its inference, in the order of the trace, behind the events of loading."""
    loads = pl.col("inference").is_null()
    first = pl.when(loads).then(0).otherwise(loads.sum().over("process"))
    placed = frame.with_columns(place=pl.int_range(pl.len()).over(_INFERENCE) + first)
    return placed.with_columns(parent_place=pl.col("place").gather(pl.col("parent")))


def _with_run_index(frame: pl.DataFrame) -> pl.DataFrame:
    """Add to each event the number of its inference, counted over all processes."""
    numbers = frame.select(_INFERENCE).drop_nulls().unique().sort(_INFERENCE).with_row_index("run_index")
    joined = frame.join(numbers, on=_INFERENCE, how="left", maintain_order="left")
    first = pl.col("run_index").min().over("process")
    return joined.with_columns(pl.col("run_index").fill_null(first).fill_null(0))


def _timeline_csv(rows: pl.DataFrame, model: str) -> bytes:
    """Return rows as a timeline of the kit."""
    start, duration = pl.col("start"), pl.col("duration")
    since_run = start - start.min().over(_INFERENCE)
    categories = {name: classify(name).category.value for name in rows["name"].unique().cast(pl.String)}
    rows = rows.with_columns(
        since_run=since_run, op_type=pl.col("name").cast(pl.String).replace_strict(categories, return_dtype=pl.String)
    )
    columns = [
        *_identity_columns(model, "name"),
        decimal(start, _TO_US).alias("start_us"),
        decimal(start + duration, _TO_US).alias("end_us"),
        decimal(duration, _TO_MS).alias("duration_ms"),
        _percent_column(rows),
        pl.col("place").alias("node_id"),
        pl.col("run_index"),
        guard_cells(pl.col("block").cast(pl.String)).alias("block"),
        decimal(pl.col("since_run"), _TO_MS).alias("timestamp_ms"),
        pl.col("parent_place").alias("parent_id"),
        pl.col("op_type"),
        guard_cells(_backend_column()).alias("backend"),
    ]
    text = io.BytesIO()
    rows.clear().select(columns).write_csv(text)
    for part in rows.iter_slices(_PART):
        part.select(columns).write_csv(text, include_header=False)
    return text.getvalue()


def _statistics_csv(rows: pl.DataFrame, model: str) -> bytes:
    """Return the statistics of the inferences that count, and of loading, which each process does once."""
    loads = pl.col("scope").is_in([Scope.LOAD.value, Scope.INIT.value])
    counted = rows.filter(loads | pl.col("counts"))
    inferences = max(counted.filter(~loads).select(_INFERENCE).n_unique(), 1)
    processes = max(counted.filter(loads)["process"].n_unique(), 1)
    divisor = pl.when(loads).then(processes).otherwise(inferences)
    nodes = counted.with_columns(type=_type_column(), backend=_backend_column()).group_by(
        "type", "backend", "place", loads.alias("loads"), maintain_order=True
    )
    per_node = nodes.agg(
        *(((pl.col(name) * 1000).sum() // divisor.first()).alias(name) for name in ("duration", "self_time"))
    )
    times = pl.col("duration").sum(), pl.col("self_time").sum(), pl.len().cast(pl.Int64).alias("count")
    frame = per_node.group_by("type", "backend", maintain_order=True).agg(*times)
    columns = [
        *_identity_columns(model, "type"),
        pl.col("count"),
        decimal(pl.col("duration"), _PICO).alias("total_ms"),
        decimal(pl.col("duration") // pl.col("count"), _PICO).alias("avg_ms"),
        _percent_column(frame),
    ]
    return frame.sort("duration", descending=True, maintain_order=True).select(columns).write_csv().encode()


def _type_column() -> pl.Expr:
    """Return the name of an event without its number: ``Convolution (NHWC, F32) IGEMM`` of that with `` #1``."""
    return pl.col("name").cast(pl.String).str.replace(r"(?s)^(.*) #.*$", "${1}")


def _backend_column() -> pl.Expr:
    """Return the backend of an event, portable for all that no delegate ran."""
    return pl.col("backend").cast(pl.String).fill_null(PORTABLE)


def _identity_columns(model: str, name: str) -> list[pl.Expr]:
    """Return the columns that both kinds of file begin with."""
    name_column = pl.col(name).cast(pl.String)
    return [
        pl.lit(csv_cell(model)).alias("model_id"),
        guard_cells(name_column).alias("name"),
        guard_cells(_type_column() if name == "name" else name_column).alias("type"),
        guard_cells(_backend_column()).alias("delegate_backend"),
    ]


def _percent_column(rows: pl.DataFrame) -> pl.Expr:
    """Return the share of the file's self time.

    Empty when there is none at all, since nothing is not a share of nothing.
    """
    total = int(rows["self_time"].sum())
    share = pl.col("self_time") / total * 100 if total else pl.lit(None, pl.Float64)
    return share.alias("pct_total")


Json: TypeAlias = Any
"""Of a document with the kit's fields."""

TIMELINE, RUN0, STATS = (f"_{name}" for name in FILES)
_TABLES = {
    Category.CONVOLUTION: "CONV",
    Category.GEMM: "GEMM",
    Category.DATA_MOVEMENT: "DATA_MOVEMENT",
    Category.ELEMENTWISE: "ELEMENTWISE",
    Category.OTHER: "OTHER",
}
"""Categories as the kit's operator tables call them."""
_FENCE = 1.5
_OTHERS = 2
_OF_NAMES = ("name", "operator", "model_name")


class KitOutput(NamedTuple):
    """An experiment that is written."""

    key: ExperimentKey
    directory: str  # of its files, in that of the run; empty for a name of dots alone
    stem: str  # of its files
    trace: str  # the file that was read
    analysis: Analysis
    runs: int | None  # that were asked for
    warmup: int | None

    def file(self, end: str) -> str:
        """Return the path of one of its files, from the directory of the run."""
        return f"{self.directory}/{self.stem}{end}".lstrip("/")

    @property
    def latency(self) -> Latency:
        """Return the latency of Method::execute."""
        return self.analysis.traced or self.analysis.latency


def run_files(
    model: tuple[str, str],
    created: str,
    experiments: Sequence[KitOutput],
    pairs: Sequence[tuple[KitOutput, KitOutput]],
) -> dict[str, bytes]:
    """Return the content of each file by its name, but for the timelines and their statistics.

    ``model`` is what the files are called after, and the path of the program; ``created`` when the run began;
    ``pairs``
    are candidates with their baselines.
    """
    (stem, program), results = model, [_metrics_entry(output) for output in experiments]
    manifest = {"generated_at": created, "config": None, "model": program, "results": results}
    summary = {"model": program, "generated_at": created, "runs": [_summary_entry(output) for output in experiments]}
    files = {
        "manifest.json": _json_bytes(manifest),
        "metrics.json": _json_bytes({"results": results}),
        "analysis_summary.json": _json_bytes(_analysis_summary(program, experiments)),
        "operator_analysis.json": _json_bytes(_operator_analysis(program, experiments)),
        f"{stem}_pipeline_summary.json": _json_bytes(summary),
        f"{stem}_pipeline_summary.md": _summary_markdown(stem, created, experiments).encode(),
    }
    for output in experiments:
        files[_robust_name(output)] = _json_bytes(_robust_stats(output))
        files |= {output.file(f"_{name}.csv"): table for name, table in _operator_tables(output).items()}
    for candidate, baseline in pairs:
        files[f"{candidate.stem}_comparison.csv"] = _comparison_csv(candidate, baseline)
    return files


def _json_bytes(value: Json) -> bytes:
    """Return a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _robust_name(output: KitOutput) -> str:
    """Return the name of the file with the robust statistics of an experiment."""
    return output.file(f"{TIMELINE.removesuffix('.csv')}_robust_stats.json")


def _to_ms(ns: float | None) -> float | None:
    """Return nanoseconds as milliseconds."""
    return None if ns is None else ns / 1e6


def _metrics_entry(output: KitOutput) -> Json:
    """Return the entry of an experiment in the manifest and the metrics."""
    latency = output.latency
    metrics = {
        "runs": latency.n,
        "threads": output.key.threads,
        "latency_ms": [_to_ms(sample) for sample in latency.samples_ns],
        "median_ms": _to_ms(latency.median_ns),
        "min_ms": _to_ms(latency.min_ns),
        "max_ms": _to_ms(latency.max_ns),
        "etdump": output.trace,
        "log": None,
    }
    return {"experiment": output.key.experiment, "metrics": metrics}


def _summary_entry(output: KitOutput) -> Json:
    """Return the entry of an experiment in the pipeline summary."""
    latency = output.latency
    return {
        "experiment": output.key.experiment,
        "threads": output.key.threads,
        "mode": "timing",
        "status": "ok",
        "paths": {"etdump": output.trace, "timeline_all": output.file(TIMELINE), "timeline_run0": output.file(RUN0)},
        "metrics": {
            "median_ms": _to_ms(latency.median_ns),
            "mean_ms": _to_ms(latency.mean_ns),
            "cv_percent": None if latency.cv is None else 100 * latency.cv,
            "robust_stats_path": _robust_name(output),
        },
        "runs": output.runs,
        "warmup": output.warmup,
    }


def _robust_stats(output: KitOutput) -> Json:
    """Return the statistics of all measured inferences, and of those within the fences of Tukey."""
    latency = output.latency
    samples = np.asarray(latency.samples_ns, np.float64) / 1e6
    low, high = np.percentile(samples, (25, 75))
    lower, upper = float(low - _FENCE * (high - low)), float(high + _FENCE * (high - low))
    within = (samples >= lower) & (samples <= upper)
    outliers = samples[~within].tolist()
    overall = _spread_fields(samples)
    return {
        **overall,
        "min_ms": _to_ms(latency.min_ns),
        "max_ms": _to_ms(latency.max_ns),
        "percentiles": {f"p{part}": _to_ms(getattr(latency, f"p{part}_ns")) for part in (50, 75, 90, 95, 99)},
        "outliers": {
            "count": len(outliers),
            "percentage": 100 * len(outliers) / len(samples),
            "values": outliers,
            "bounds": {"lower": lower, "upper": upper},
        },
        "trimmed_mean_5_ms": _to_ms(latency.trimmed_mean_5_ns),
        "trimmed_mean_10_ms": _to_ms(latency.trimmed_mean_10_ns),
        "robust_stats": _spread_fields(samples[within]) if within.any() else overall,
        "latencies_ms": samples.tolist(),
        "run_indices": list(range(len(samples))),
        "name": output.key.text,
    }


def _spread_fields(samples: np.ndarray[Any, np.dtype[np.float64]]) -> Json:
    """Return the mean, the median and the spread of samples."""
    mean = float(samples.mean())
    deviation = float(samples.std(ddof=1)) if len(samples) > 1 else None
    return {
        "count": len(samples),
        "mean_ms": mean,
        "median_ms": float(np.median(samples)),
        "std_dev_ms": deviation,
        "cv_percent": None if deviation is None or not mean else 100 * deviation / mean,
    }


def _sorted_operators(output: KitOutput) -> list[Operator]:
    """Return operators, longest first, without the framework's own time and that of calls of delegates and kernels."""
    operators = [operator for operator in output.analysis.operators if operator.position is not None]
    return sorted(operators, key=lambda operator: -operator.traced_ns)


def _category_times(output: KitOutput) -> dict[Category, float]:
    """Return the milliseconds of an inference by category, longest first; Other is what the named ones leave of it."""
    times: dict[Category, float] = defaultdict(float)
    for operator in _sorted_operators(output):
        times[operator.category] += operator.traced_ns / 1e6
    times.pop(Category.OTHER, None)
    rest = output.latency.mean_ns / 1e6 - sum(times.values())
    if rest > 0:
        times[Category.OTHER] = rest
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _operator_tables(output: KitOutput) -> dict[str, bytes]:
    """Return the kit's operator tables of an experiment by name."""
    latency, runs = output.latency, output.latency.n
    mean = latency.mean_ns / 1e6
    operators: list[dict[str, Any]] = []
    for (name, category), grouped in _group_operators(output, lambda operator: operator.name).items():
        operator_ms, calls = (
            sum(operator.traced_ns for operator in grouped) / 1e6,
            sum(operator.calls for operator in grouped),
        )
        times = {"total_ms": operator_ms * runs, "avg_ms": operator_ms, "pct_of_e2e": 100 * operator_ms / mean}
        operators.append({"operator": name, "category": category, **times, "event_count": round(calls * runs)})
    operators.sort(key=lambda row: -row["avg_ms"])
    categories: list[dict[str, Any]] = []
    for category, category_ms in _category_times(output).items():
        name = _TABLES[category]
        times = {"total_ms": category_ms * runs, "avg_ms": category_ms, "pct_of_e2e": 100 * category_ms / mean}
        kinds = sum(row["category"] == name for row in operators)
        categories.append({"category": name, **times, "operator_count": kinds})
    end = {
        "model_name": output.stem,
        "num_runs": runs,
        "total_ms": sum(latency.samples_ns) / 1e6,
        "avg_ms": mean,
        "min_ms": latency.min_ns / 1e6,
        "max_ms": latency.max_ns / 1e6,
    }
    top_others = [row for row in operators if row["category"] == _TABLES[Category.OTHER]][:_OTHERS]
    tables = {"category_summary": categories, "operator_details": operators, "e2e_latency": [end]}
    return {name: _table_csv(rows) for name, rows in {**tables, "other_top_ops": top_others}.items() if rows}


def _group_operators(output: KitOutput, name: Callable[[Operator], str]) -> dict[tuple[str, str], list[Operator]]:
    """Group operators by name and category, as the kit's tables call it."""
    groups: dict[tuple[str, str], list[Operator]] = defaultdict(list)
    for operator in _sorted_operators(output):
        groups[name(operator), _TABLES[operator.category]].append(operator)
    return groups


def _comparison_csv(candidate: KitOutput, baseline: KitOutput) -> bytes:
    """Return a table of the categories of two experiments."""
    first, second = _category_times(candidate), _category_times(baseline)
    ends = candidate.latency.mean_ns / 1e6, baseline.latency.mean_ns / 1e6
    rows = []
    for category in sorted({*first, *second}, key=lambda category_key: _TABLES[category_key]):
        times = first.get(category, 0.0), second.get(category, 0.0)
        rows.append(
            {
                "category": _TABLES[category],
                f"{candidate.key.text}_ms": times[0],
                f"{baseline.key.text}_ms": times[1],
                "speedup": times[1] / times[0] if times[0] else 0,
                f"{candidate.key.text}_pct": 100 * times[0] / ends[0],
                f"{baseline.key.text}_pct": 100 * times[1] / ends[1],
            }
        )
    return _table_csv(rows)


def _table_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    """Return rows as a CSV table."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(csv_cell(name) for name in rows[0])
    for row in rows:
        writer.writerow(csv_cell(value) if name in _OF_NAMES else value for name, value in row.items())
    return text.getvalue().encode()


def _analysis_summary(program: str, experiments: Sequence[KitOutput]) -> Json:
    """Return the fields of the analysis summary."""
    totals: dict[str, float] = defaultdict(float)
    for output in experiments:
        for category, category_ms in _category_times(output).items():
            totals[category.value] += category_ms
    record = next((info.etrecord for output in experiments if (info := output.analysis.program)), None)
    kernels = [operator.kernel for output in experiments for operator in _sorted_operators(output) if operator.kernel]
    return {
        "run_dir": ".",
        "model": program,
        "etrecord": record,
        "etdump_count": len(experiments),
        "category_totals_ms": dict(totals),
        "kernel_hints": dict(Counter(kernel.rpartition("__")[2].partition("_")[0] for kernel in kernels)),
        "per_etdump": [_per_etdump(output) for output in experiments],
        "csv_dir": ".",
        "csv_files": [output.file(end) for output in experiments for end in (TIMELINE, STATS)],
        "operator_details": _details_by_type(experiments[0]) if experiments else [],
    }


def _operator_analysis(program: str, experiments: Sequence[KitOutput]) -> Json:
    """Return the operators of every experiment by type, the longest first, as in the summary's ``operator_details``."""
    analyses = [{"experiment": output.key.text, "operators": _details_by_type(output)} for output in experiments]
    return {"model": program, "per_etdump": analyses}


def _per_etdump(output: KitOutput) -> Json:
    """Return the analysis of one experiment, as the analysis summary lists it."""
    return {
        "experiment": output.key.text,
        "etdump": output.trace,
        "categories_ms": {category.value: category_ms for category, category_ms in _category_times(output).items()},
        "rows": len(_sorted_operators(output)),
        "csv_timeline": output.file(RUN0),
        "csv_stats": output.file(STATS),
        "operator_details": _details_by_type(output),
    }


def _details_by_type(output: KitOutput) -> list[Json]:
    """Return operators by type: those of one name but for its number."""
    details = []
    for (name, _), grouped in _group_operators(
        output, lambda operator: operator.name.rpartition(" #")[0] or operator.name
    ).items():
        total, calls = (
            sum(operator.traced_ns for operator in grouped) / 1e6,
            sum(operator.calls for operator in grouped),
        )
        kernels = list(dict.fromkeys(operator.kernel for operator in grouped if operator.kernel))
        detail = {
            "name": name,
            "category": grouped[0].category.value,
            "avg_ms": total / calls if calls else None,
            "count": int(calls) if calls % 1 == 0 else calls,
            "total_ms": total,
        }
        details.append({**detail, "kernel_hint": kernels[0]} if len(kernels) == 1 else detail)
    return sorted(details, key=lambda detail: -detail["total_ms"])


def _summary_markdown(stem: str, created: str, experiments: Sequence[KitOutput]) -> str:
    """Return the pipeline summary as Markdown."""
    lines = [f"# Pipeline Summary: {stem}", "", f"- Generated: {created}", "", "## Timing Results"]
    lines.append("| Experiment | Threads | Runs | Warmup | Median (ms) | Mean (ms) | CV (%) | Robust Stats |")
    lines.append("|---|---|---|---|---|---|---|---|")
    for output in experiments:
        latency = output.latency
        cells = [
            *(output.key.experiment, output.key.threads, output.runs, output.warmup),
            *(f"{latency.median_ns / 1e6:.2f}", f"{latency.mean_ns / 1e6:.2f}"),
            *(None if latency.cv is None else f"{100 * latency.cv:.2f}", f"`{_robust_name(output)}`"),
        ]
        lines.append(f"| {' | '.join('n/a' if cell is None else str(cell) for cell in cells)} |")
    return "\n".join([*lines, ""])
