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
    rows = _with_places(table.frame).join(counted, on=_INFERENCE, how="left", maintain_order="left")
    if not with_warmup:
        rows = rows.filter(pl.col("inference").is_null() | pl.col("counts"))
    rows = _with_run_index(rows)
    first = rows.filter(pl.col("run_index") == 0)
    return [_timeline(rows, model), _timeline(first, model), _statistics(rows, model)]


def _with_places(frame: pl.DataFrame) -> pl.DataFrame:
    """Every event with its place in its inference, in the order of the trace, behind those of loading."""
    loads = pl.col("inference").is_null()
    first = pl.when(loads).then(0).otherwise(loads.sum().over("process"))
    placed = frame.with_columns(place=pl.int_range(pl.len()).over(_INFERENCE) + first)
    return placed.with_columns(parent_place=pl.col("place").gather(pl.col("parent")))


def _with_run_index(frame: pl.DataFrame) -> pl.DataFrame:
    numbers = frame.select(_INFERENCE).drop_nulls().unique().sort(_INFERENCE).with_row_index("run_index")
    joined = frame.join(numbers, on=_INFERENCE, how="left", maintain_order="left")
    first = pl.col("run_index").min().over("process")
    return joined.with_columns(pl.col("run_index").fill_null(first).fill_null(0))


def _timeline(rows: pl.DataFrame, model: str) -> bytes:
    start, duration = pl.col("start"), pl.col("duration")
    since_run = start - start.min().over(_INFERENCE)
    categories = {name: classify(name).category.value for name in rows["name"].unique().cast(pl.String)}
    rows = rows.with_columns(
        since_run=since_run, op_type=pl.col("name").cast(pl.String).replace_strict(categories, return_dtype=pl.String)
    )
    columns = [
        *_identity(model, "name"),
        decimal(start, _TO_US).alias("start_us"),
        decimal(start + duration, _TO_US).alias("end_us"),
        decimal(duration, _TO_MS).alias("duration_ms"),
        _percent(rows),
        pl.col("place").alias("node_id"),
        pl.col("run_index"),
        guard_cells(pl.col("block").cast(pl.String)).alias("block"),
        decimal(pl.col("since_run"), _TO_MS).alias("timestamp_ms"),
        pl.col("parent_place").alias("parent_id"),
        pl.col("op_type"),
        guard_cells(_backend()).alias("backend"),
    ]
    text = io.BytesIO()
    rows.clear().select(columns).write_csv(text)
    for part in rows.iter_slices(_PART):
        part.select(columns).write_csv(text, include_header=False)
    return text.getvalue()


def _statistics(rows: pl.DataFrame, model: str) -> bytes:
    """Of the inferences that count, and of loading, which each process does once."""
    loads = pl.col("scope").is_in([Scope.LOAD.value, Scope.INIT.value])
    kept = rows.filter(loads | pl.col("counts"))
    inferences = max(kept.filter(~loads).select(_INFERENCE).n_unique(), 1)
    processes = max(kept.filter(loads)["process"].n_unique(), 1)
    of = pl.when(loads).then(processes).otherwise(inferences)
    nodes = kept.with_columns(type=_type(), backend=_backend()).group_by(
        "type", "backend", "place", loads.alias("loads"), maintain_order=True
    )
    each = nodes.agg(*(((pl.col(name) * 1000).sum() // of.first()).alias(name) for name in ("duration", "self_time")))
    times = pl.col("duration").sum(), pl.col("self_time").sum(), pl.len().cast(pl.Int64).alias("count")
    frame = each.group_by("type", "backend", maintain_order=True).agg(*times)
    columns = [
        *_identity(model, "type"),
        pl.col("count"),
        decimal(pl.col("duration"), _PICO).alias("total_ms"),
        decimal(pl.col("duration") // pl.col("count"), _PICO).alias("avg_ms"),
        _percent(frame),
    ]
    return frame.sort("duration", descending=True, maintain_order=True).select(columns).write_csv().encode()


def _type() -> pl.Expr:
    """The name of an event without its number: ``Convolution (NHWC, F32) IGEMM`` of that with `` #1``."""
    return pl.col("name").cast(pl.String).str.replace(r"(?s)^(.*) #.*$", "${1}")


def _backend() -> pl.Expr:
    return pl.col("backend").cast(pl.String).fill_null(PORTABLE)


def _identity(model: str, name: str) -> list[pl.Expr]:
    """The columns that both kinds of file begin with."""
    own = pl.col(name).cast(pl.String)
    return [
        pl.lit(csv_cell(model)).alias("model_id"),
        guard_cells(own).alias("name"),
        guard_cells(_type() if name == "name" else own).alias("type"),
        guard_cells(_backend()).alias("delegate_backend"),
    ]


def _percent(rows: pl.DataFrame) -> pl.Expr:
    """Share of the file's self time; empty when there is none at all, since nothing is not a share of nothing."""
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
        """Path of one of its files, from the directory of the run; in it where the name is no directory's."""
        return f"{self.directory}/{self.stem}{end}".lstrip("/")

    @property
    def latency(self) -> Latency:
        """Of Method::execute."""
        return self.analysis.traced or self.analysis.latency


def run_files(
    model: tuple[str, str],
    created: str,
    experiments: Sequence[KitOutput],
    pairs: Sequence[tuple[KitOutput, KitOutput]],
) -> dict[str, bytes]:
    """The content of each file by its name, but for the timelines and their statistics.

    ``model`` is what the files are called after, and the path of the program; ``created`` when the run began; ``pairs``
    are candidates with their baselines.
    """
    (stem, program), results = model, [_result(output) for output in experiments]
    manifest = {"generated_at": created, "config": None, "model": program, "results": results}
    summary = {"model": program, "generated_at": created, "runs": [_run(output) for output in experiments]}
    files = {
        "manifest.json": _json(manifest),
        "metrics.json": _json({"results": results}),
        "analysis_summary.json": _json(_analysis_summary(program, experiments)),
        "operator_analysis.json": _json(_operator_analysis(program, experiments)),
        f"{stem}_pipeline_summary.json": _json(summary),
        f"{stem}_pipeline_summary.md": _markdown(stem, created, experiments).encode(),
    }
    for output in experiments:
        files[_robust_name(output)] = _json(_robust_stats(output))
        files |= {output.file(f"_{name}.csv"): table for name, table in _operator_tables(output).items()}
    for candidate, baseline in pairs:
        files[f"{candidate.stem}_comparison.csv"] = _comparison(candidate, baseline)
    return files


def _json(value: Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _robust_name(output: KitOutput) -> str:
    return output.file(f"{TIMELINE.removesuffix('.csv')}_robust_stats.json")


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _result(output: KitOutput) -> Json:
    latency = output.latency
    metrics = {
        "runs": latency.n,
        "threads": output.key.threads,
        "latency_ms": [_ms(sample) for sample in latency.samples_ns],
        "median_ms": _ms(latency.median_ns),
        "min_ms": _ms(latency.min_ns),
        "max_ms": _ms(latency.max_ns),
        "etdump": output.trace,
        "log": None,
    }
    return {"experiment": output.key.experiment, "metrics": metrics}


def _run(output: KitOutput) -> Json:
    latency = output.latency
    return {
        "experiment": output.key.experiment,
        "threads": output.key.threads,
        "mode": "timing",
        "status": "ok",
        "paths": {"etdump": output.trace, "timeline_all": output.file(TIMELINE), "timeline_run0": output.file(RUN0)},
        "metrics": {
            "median_ms": _ms(latency.median_ns),
            "mean_ms": _ms(latency.mean_ns),
            "cv_percent": None if latency.cv is None else 100 * latency.cv,
            "robust_stats_path": _robust_name(output),
        },
        "runs": output.runs,
        "warmup": output.warmup,
    }


def _robust_stats(output: KitOutput) -> Json:
    """Of all measured inferences, and of those within the fences of Tukey."""
    latency = output.latency
    samples = np.asarray(latency.samples_ns, np.float64) / 1e6
    low, high = np.percentile(samples, (25, 75))
    lower, upper = float(low - _FENCE * (high - low)), float(high + _FENCE * (high - low))
    inside = (samples >= lower) & (samples <= upper)
    outside = samples[~inside].tolist()
    whole = _spread(samples)
    return {
        **whole,
        "min_ms": _ms(latency.min_ns),
        "max_ms": _ms(latency.max_ns),
        "percentiles": {f"p{part}": _ms(getattr(latency, f"p{part}_ns")) for part in (50, 75, 90, 95, 99)},
        "outliers": {
            "count": len(outside),
            "percentage": 100 * len(outside) / len(samples),
            "values": outside,
            "bounds": {"lower": lower, "upper": upper},
        },
        "trimmed_mean_5_ms": _ms(latency.trimmed_mean_5_ns),
        "trimmed_mean_10_ms": _ms(latency.trimmed_mean_10_ns),
        "robust_stats": _spread(samples[inside]) if inside.any() else whole,
        "latencies_ms": samples.tolist(),
        "run_indices": list(range(len(samples))),
        "name": output.key.text,
    }


def _spread(samples: np.ndarray[Any, np.dtype[np.float64]]) -> Json:
    mean = float(samples.mean())
    deviation = float(samples.std(ddof=1)) if len(samples) > 1 else None
    return {
        "count": len(samples),
        "mean_ms": mean,
        "median_ms": float(np.median(samples)),
        "std_dev_ms": deviation,
        "cv_percent": None if deviation is None or not mean else 100 * deviation / mean,
    }


def _operators(output: KitOutput) -> list[Operator]:
    """Without the framework's own time and that of the calls of delegates and kernels, the longest first."""
    operators = [operator for operator in output.analysis.operators if operator.position is not None]
    return sorted(operators, key=lambda operator: -operator.traced_ns)


def _categories(output: KitOutput) -> dict[Category, float]:
    """Return the milliseconds of an inference by category, longest first; Other is what the named ones leave of it."""
    times: dict[Category, float] = defaultdict(float)
    for operator in _operators(output):
        times[operator.category] += operator.traced_ns / 1e6
    times.pop(Category.OTHER, None)
    rest = output.latency.mean_ns / 1e6 - sum(times.values())
    if rest > 0:
        times[Category.OTHER] = rest
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _operator_tables(output: KitOutput) -> dict[str, bytes]:
    latency, runs = output.latency, output.latency.n
    mean = latency.mean_ns / 1e6
    operators: list[dict[str, Any]] = []
    for (name, category), alike in _grouped(output, lambda operator: operator.name).items():
        each, calls = sum(one.traced_ns for one in alike) / 1e6, sum(one.calls for one in alike)
        times = {"total_ms": each * runs, "avg_ms": each, "pct_of_e2e": 100 * each / mean}
        operators.append({"operator": name, "category": category, **times, "event_count": round(calls * runs)})
    operators.sort(key=lambda row: -row["avg_ms"])
    categories: list[dict[str, Any]] = []
    for category, each in _categories(output).items():
        name = _TABLES[category]
        times = {"total_ms": each * runs, "avg_ms": each, "pct_of_e2e": 100 * each / mean}
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
    others = [row for row in operators if row["category"] == _TABLES[Category.OTHER]][:_OTHERS]
    tables = {"category_summary": categories, "operator_details": operators, "e2e_latency": [end]}
    return {name: _table(rows) for name, rows in {**tables, "other_top_ops": others}.items() if rows}


def _grouped(output: KitOutput, name: Callable[[Operator], str]) -> dict[tuple[str, str], list[Operator]]:
    """Operators of one name and category, as the kit's tables call it."""
    groups: dict[tuple[str, str], list[Operator]] = defaultdict(list)
    for operator in _operators(output):
        groups[name(operator), _TABLES[operator.category]].append(operator)
    return groups


def _comparison(candidate: KitOutput, baseline: KitOutput) -> bytes:
    """Categories of two experiments."""
    first, second = _categories(candidate), _categories(baseline)
    ends = candidate.latency.mean_ns / 1e6, baseline.latency.mean_ns / 1e6
    rows = []
    for category in sorted({*first, *second}, key=lambda own: _TABLES[own]):
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
    return _table(rows)


def _table(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(csv_cell(name) for name in rows[0])
    for row in rows:
        writer.writerow(csv_cell(value) if name in _OF_NAMES else value for name, value in row.items())
    return text.getvalue().encode()


def _analysis_summary(program: str, experiments: Sequence[KitOutput]) -> Json:
    totals: dict[str, float] = defaultdict(float)
    for output in experiments:
        for category, each in _categories(output).items():
            totals[category.value] += each
    record = next((info.etrecord for output in experiments if (info := output.analysis.program)), None)
    kernels = [operator.kernel for output in experiments for operator in _operators(output) if operator.kernel]
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
        "operator_details": _details(experiments[0]) if experiments else [],
    }


def _operator_analysis(program: str, experiments: Sequence[KitOutput]) -> Json:
    """Return the operators of every experiment by type, the longest first, as in the summary's ``operator_details``."""
    analyses = [{"experiment": output.key.text, "operators": _details(output)} for output in experiments]
    return {"model": program, "per_etdump": analyses}


def _per_etdump(output: KitOutput) -> Json:
    return {
        "experiment": output.key.text,
        "etdump": output.trace,
        "categories_ms": {category.value: each for category, each in _categories(output).items()},
        "rows": len(_operators(output)),
        "csv_timeline": output.file(RUN0),
        "csv_stats": output.file(STATS),
        "operator_details": _details(output),
    }


def _details(output: KitOutput) -> list[Json]:
    """Operators by type: those of one name but for its number."""
    details = []
    for (name, _), alike in _grouped(
        output, lambda operator: operator.name.rpartition(" #")[0] or operator.name
    ).items():
        total, calls = sum(one.traced_ns for one in alike) / 1e6, sum(one.calls for one in alike)
        kernels = list(dict.fromkeys(one.kernel for one in alike if one.kernel))
        detail = {
            "name": name,
            "category": alike[0].category.value,
            "avg_ms": total / calls if calls else None,
            "count": int(calls) if calls % 1 == 0 else calls,
            "total_ms": total,
        }
        details.append({**detail, "kernel_hint": kernels[0]} if len(kernels) == 1 else detail)
    return sorted(details, key=lambda detail: -detail["total_ms"])


def _markdown(stem: str, created: str, experiments: Sequence[KitOutput]) -> str:
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
