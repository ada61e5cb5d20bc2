"""Results as data frames: one row an operator, one column a figure, integers and text in the cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import polars as pl

from opscope.analysis.operators.operators import UNKNOWN_METHOD
from opscope.analysis.work.work import CLASSES
from opscope.core.errors import MissingDependencyError
from opscope.core.table.scope import LEAVES
from opscope.reports.formats.tables import OPERATOR_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd
    from polars._typing import PolarsDataType

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.bisection import Bisection
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.kernels.kernels import KernelView
    from opscope.analysis.operators.operators import OperatorFacts
    from opscope.analysis.preflight.preflight import Preflight
    from opscope.analysis.tuning import Tuning
    from opscope.analysis.work.work import Work
    from opscope.bundle.validation import Validation
    from opscope.core.table.places import OperatorKey
    from opscope.reports.combined.values import CombinedReport
    from opscope.reports.content.content import ReportContent

    Schema: TypeAlias = Mapping[str, PolarsDataType]
    """Names and types of columns."""

_COUNTS = frozenset("instruction position macs flops bytes".split())
_FIGURES = frozenset(
    "calls time_ns p10_ns p90_ns traced_ns uncertainty_ns share baseline_ns candidate_ns saved_ns "
    "ci95_low_ns ci95_high_ns speedup".split()
)
_INTERVAL = ("ci95_low_ns", "ci95_high_ns")
_LIMITS: Schema = {
    "criterion": pl.String,
    "quantity": pl.String,
    "limit": pl.Float64,
    "measured": pl.Float64,
    "ci95_low": pl.Float64,
    "ci95_high": pl.Float64,
    "outcome": pl.String,
    "verdict": pl.String,
    "baseline_ns": pl.Float64,
    "candidate_ns": pl.Float64,
    "operators": pl.Int64,
    "reason": pl.String,
}
_CHECKS: Schema = dict.fromkeys("check area status message action".split(), pl.String) | {"problems": pl.Int64}
_GROUPS: Schema = dict.fromkeys("operators macs bytes unknown".split(), pl.Int64)
_WORK: Schema = {"method": pl.String, "category": pl.String, "delegated": pl.Boolean, **_GROUPS}
_WORK_COUNTS = "instructions bytes_loaded bytes_stored outer_products mac_capacity macs".split()
_COUNTED: Schema = {
    "method": pl.String,
    **dict.fromkeys("instruction position".split(), pl.Int64),
    **dict.fromkeys("name layer category kind".split(), pl.String),
    **dict.fromkeys([*_WORK_COUNTS, *CLASSES], pl.Int64),
}
_KERNELS: Schema = {
    **dict.fromkeys("kernel isa library operator types tile variant evidence path state".split(), pl.String),
    "amount": pl.Int64,
}
_STATES: Schema = {
    **dict.fromkeys("state level".split(), pl.String),
    **dict.fromkeys("latency_ns ratio low high".split(), pl.Float64),
    **dict.fromkeys("operators instructions".split(), pl.Int64),
    "outputs_agree": pl.Boolean,
    **dict.fromkeys("wheel sha256".split(), pl.String),
}
_BUNDLES: Schema = {
    **dict.fromkeys("bundle path model dtype platform cpu target".split(), pl.String),
    "threads": pl.Int64,
    "variant": pl.String,
    "baseline": pl.String,
    "processes": pl.Int64,
    "arm": pl.String,
    **dict.fromkeys("latency_ns baseline_ns speedup ci95_low ci95_high".split(), pl.Float64),
    **dict.fromkeys("verdict method".split(), pl.String),
}
LAYER_COLUMNS = "module module_type aten source attribution".split()
"""Columns that say which layer an event belongs to; null where that is not known, and for the framework's own time."""
CHANGE_COLUMNS = (
    "method instruction position name category kind backend baseline_ns candidate_ns saved_ns ci95_low_ns ci95_high_ns "
    "speedup verdict module aten"
).split()
"""Columns of a frame of operators' changes; the interval is of the saving."""


def operator_frame(analysis: Analysis) -> pl.DataFrame:
    """The operators of an analysis, in program order; columns are those of ``operators.csv``."""
    return _frame(analysis.operators, OPERATOR_COLUMNS)


def content_frame(content: ReportContent) -> pl.DataFrame:
    """The operators of every variant that was measured, with the variant's name in the first column."""
    frames = [
        operator_frame(result.analysis).select(pl.lit(result.variant.name).alias("variant"), pl.all())
        for result in content.variants
        if result.analysis is not None
    ]
    return pl.concat(frames) if frames else _frame([], ["variant", *OPERATOR_COLUMNS])


def layer_frame(events: pl.DataFrame, known: Mapping[OperatorKey, OperatorFacts]) -> pl.DataFrame:
    """Every event with the layer that it belongs to: the columns of ``LAYER_COLUMNS`` behind those of the events."""
    rows = (
        (*key, facts.module, facts.module_type, facts.aten, facts.source, facts.attribution)
        for key, facts in known.items()
    )
    place = {"method": pl.String, "instruction": pl.Int32, "position": pl.Int32}
    layers = typed_frame({**place, **dict.fromkeys(LAYER_COLUMNS, pl.String)}, rows)
    # A call of a delegate has an instruction and a position as well, which are not those of an operator in it.
    work = pl.col("scope").cast(pl.String).is_in(list(LEAVES))
    method = pl.col("method").cast(pl.String).fill_null(UNKNOWN_METHOD)
    keys = [pl.when(work).then(column).alias(f"_{name}") for name, column in (("method", method), *_numbers())]
    joined = events.with_columns(keys).join(
        layers, how="left", left_on=[f"_{name}" for name in place], right_on=list(place), maintain_order="left"
    )
    return joined.select(*events.columns, *LAYER_COLUMNS)


def layer_times(events: pl.DataFrame) -> pl.DataFrame:
    """Self time of every layer in every inference, in order of process, inference and first event."""
    place = ["process", "inference", "warmup", "method", "module", "module_type"]
    inside = events.filter(pl.col("inference").is_not_null())
    return inside.group_by(place, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("events"), pl.col("self_time").sum()
    )


def _numbers() -> list[tuple[str, pl.Expr]]:
    return [(name, pl.col(name)) for name in ("instruction", "position")]


def change_frame(comparison: Comparison) -> pl.DataFrame:
    """The operators of both sides of a comparison, matched."""
    plain = _frame(comparison.operators, [name for name in CHANGE_COLUMNS if name not in _INTERVAL])
    intervals = [change.ci95_saved_ns or (None, None) for change in comparison.operators]
    columns = [_series(name, [own[end] for own in intervals]) for end, name in enumerate(_INTERVAL)]
    return plain.with_columns(columns).select(CHANGE_COLUMNS)


def gate_frame(decision: Decision[Any]) -> pl.DataFrame:
    """The limits of a gate, the end-to-end slowdown first; figures are in the unit of their quantity."""
    rows = (
        (
            *(one.name, one.quantity, one.limit, one.measured, *(one.ci95 or (None, None)), one.outcome, one.verdict),
            *(one.baseline_ns, one.candidate_ns, one.operators, one.reason),
        )
        for one in decision.criteria
    )
    return typed_frame(_LIMITS, rows)


def validation_frame(validation: Validation) -> pl.DataFrame:
    """The checks of a bundle in their order; ``problems`` is how many each found."""
    rows = ((one.name, one.area, one.status, one.message, one.action, one.total) for one in validation.checks)
    return typed_frame(_CHECKS, rows)


def preflight_frame(preflight: Preflight) -> pl.DataFrame:
    """The work of each method by category, delegated and portable; ``unknown`` operators are in no other figure."""
    rows = (
        (method.name, row.category, delegated, *msgspec.structs.astuple(group))
        for method in preflight.methods
        for row in method.work
        for delegated, group in ((True, row.delegated), (False, row.portable))
        if group.operators
    )
    return typed_frame(_WORK, rows)


def work_frame(work: Work) -> pl.DataFrame:
    """Operators in their order, with what they execute; a column for each class of instructions."""
    rows = (
        (
            *(one.method, one.instruction, one.position, one.name, one.layer, one.category, one.kind),
            *(getattr(one, name) for name in _WORK_COUNTS),
            *(one.classes.get(name, 0) for name in CLASSES),
        )
        for one in work.operators
    )
    return typed_frame(_COUNTED, rows)


def bisection_frame(bisection: Bisection) -> pl.DataFrame:
    """States from the good end to the bad one."""
    rows = (
        (
            *(one.name, one.level.value, bisection.latency_ns(one), one.ratio),
            *(one.ci95 or (None, None)),
            *(one.operators, one.instructions, one.outputs_agree, one.wheel, one.sha256),
        )
        for one in bisection.states
    )
    return typed_frame(_STATES, rows)


_SETTINGS = {
    "setting": pl.String,
    "outcome": pl.String,
    "seen": pl.Float64,
    "speedup": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "outputs": pl.String,
    "max_rel_error": pl.Float64,
    "cpu_ratio": pl.Float64,
    "latency_ns": pl.Float64,
    "peak_bytes": pl.Int64,
    "load_ns": pl.Int64,
}


def tuning_frame(tuning: Tuning) -> pl.DataFrame:
    """Return the settings of a search, the default first, then finalists; gains are null where none were measured."""
    rows = (
        (
            *(row.candidate.name, row.outcome, row.seen),
            *((row.confirmed.speedup, row.confirmed.low, row.confirmed.high) if row.confirmed else (None, None, None)),
            row.outputs.value if row.outputs else None,
            *(row.max_rel_error, row.cpu_ratio, row.latency_ns, row.peak_bytes, row.load_ns),
        )
        for row in (tuning.base, *tuning.candidates)
    )
    return typed_frame(_SETTINGS, rows)


def kernel_frame(view: KernelView) -> pl.DataFrame:
    """What each source says of each kernel, a row a pair; ``amount`` is of calls or samples, as ``evidence`` tells."""
    rows = (
        (
            *(line.name, line.isa, line.library, line.operator, line.types, line.tile),
            *(source.variant, source.kind, source.path, cell.state, cell.amount),
        )
        for line in view.kernels
        for source, cell in zip(view.columns, line.cells, strict=True)
    )
    return typed_frame(_KERNELS, rows)


def combined_frame(report: CombinedReport) -> pl.DataFrame:
    """Bundles at each of their thread counts, in their order."""
    rows = (
        (
            *(bundle.label, bundle.path, bundle.model, bundle.dtype, bundle.platform, bundle.cpu, bundle.target),
            *(
                configuration.threads,
                configuration.variant,
                configuration.baseline,
                configuration.processes,
                configuration.arm,
                configuration.latency_ns,
                configuration.baseline_ns,
            ),
            *(
                configuration.speedup,
                *(configuration.ci95 or (None, None)),
                configuration.verdict,
                configuration.method,
            ),
        )
        for bundle in report.bundles
        for configuration in bundle.configurations
    )
    return typed_frame(_BUNDLES, rows)


def typed_frame(schema: Schema, rows: Iterable[Sequence[object]]) -> pl.DataFrame:
    """Rows as a frame whose types do not depend on what is in them; enums become their text."""
    return pl.DataFrame([tuple(map(_cell, row)) for row in rows], schema=dict(schema), orient="row")


def pandas_frame(frame: pl.DataFrame) -> pd.DataFrame:
    """The same as a DataFrame of pandas; what is missing is ``pandas.NA`` (of dates ``NaT``), never a number."""
    try:
        import pandas as pd  # noqa: PLC0415 - a notebook that wants it has it; nothing else needs it
    except ImportError:
        hint = "install it with: pip install pandas; or use .to_polars()"
        raise MissingDependencyError("pandas is not installed", where=".to_pandas()", hint=hint) from None
    columns = {column.name: _array(column) for column in frame}
    return pd.DataFrame({name: pd.array(values, dtype=kind) for name, (values, kind) in columns.items()})


def _frame(rows: Sequence[object], columns: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame([_series(name, [_cell(getattr(row, name)) for row in rows]) for name in columns])


def _series(name: str, values: list[Any]) -> pl.Series:
    kind = pl.Int64 if name in _COUNTS else pl.Float64 if name in _FIGURES else pl.String
    return pl.Series(name, values, kind)


def _cell(value: Any) -> Any:  # noqa: ANN401 - any field of a result
    """Enums are their text."""
    return str(value.value) if isinstance(value, str) and hasattr(value, "value") else value


def _array(column: pl.Series) -> tuple[list[Any], Any]:
    """The values of a column and the type of pandas that can hold them and nothing beside them."""
    values, kind = column.to_list(), column.dtype
    if kind in {pl.UInt64, pl.Int128}:
        return values, object  # may be larger than what pandas holds with missing values
    if kind.is_integer():
        return values, "Int64"
    if kind.is_float():
        return values, "Float64"
    if kind == pl.Boolean:
        return values, "boolean"
    if isinstance(kind, pl.Datetime):
        return values, "datetime64[us]"
    return values, "string" if isinstance(kind, pl.String | pl.Categorical | pl.Enum) else object
