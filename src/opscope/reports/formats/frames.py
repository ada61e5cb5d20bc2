"""Results as data frames: a row per operator, a column per figure, integers and text in the cells."""

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
"""Columns of an event's layer; null if unknown, and for the framework's own time."""
CHANGE_COLUMNS = (
    "method instruction position name category kind backend baseline_ns candidate_ns saved_ns ci95_low_ns ci95_high_ns "
    "speedup verdict module aten"
).split()
"""Columns of a frame of operators' changes; the interval is of the saving."""


def operator_frame(analysis: Analysis) -> pl.DataFrame:
    """Return the operators of an analysis, in program order, with the columns of ``operators.csv``."""
    return _frame_of_fields(analysis.operators, OPERATOR_COLUMNS)


def content_frame(content: ReportContent) -> pl.DataFrame:
    """Return the operators of every measured variant, with the variant's name in the first column."""
    frames = [
        operator_frame(result.analysis).select(pl.lit(result.variant.name).alias("variant"), pl.all())
        for result in content.variants
        if result.analysis is not None
    ]
    return pl.concat(frames) if frames else _frame_of_fields([], ["variant", *OPERATOR_COLUMNS])


def layer_frame(events: pl.DataFrame, known: Mapping[OperatorKey, OperatorFacts]) -> pl.DataFrame:
    """Return every event with its layer: the columns of ``LAYER_COLUMNS`` follow those of the events."""
    rows = (
        (*key, facts.module, facts.module_type, facts.aten, facts.source, facts.attribution)
        for key, facts in known.items()
    )
    key_types = {"method": pl.String, "instruction": pl.Int32, "position": pl.Int32}
    layers = typed_frame({**key_types, **dict.fromkeys(LAYER_COLUMNS, pl.String)}, rows)
    # A call of a delegate has an instruction and a position as well, which are not those of an operator in it.
    work = pl.col("scope").cast(pl.String).is_in(list(LEAVES))
    method = pl.col("method").cast(pl.String).fill_null(UNKNOWN_METHOD)
    keys = [pl.when(work).then(column).alias(f"_{name}") for name, column in (("method", method), *_number_columns())]
    joined = events.with_columns(keys).join(
        layers, how="left", left_on=[f"_{name}" for name in key_types], right_on=list(key_types), maintain_order="left"
    )
    return joined.select(*events.columns, *LAYER_COLUMNS)


def layer_times(events: pl.DataFrame) -> pl.DataFrame:
    """Return the self time of every layer in every inference, by process, inference and first event."""
    keys = ["process", "inference", "warmup", "method", "module", "module_type"]
    measured = events.filter(pl.col("inference").is_not_null())
    return measured.group_by(keys, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("events"), pl.col("self_time").sum()
    )


def _number_columns() -> list[tuple[str, pl.Expr]]:
    return [(name, pl.col(name)) for name in ("instruction", "position")]


def change_frame(comparison: Comparison) -> pl.DataFrame:
    """Return the operators of both sides of a comparison, matched."""
    plain = _frame_of_fields(comparison.operators, [name for name in CHANGE_COLUMNS if name not in _INTERVAL])
    intervals = [change.ci95_saved_ns or (None, None) for change in comparison.operators]
    columns = [_typed_series(name, [interval[end] for interval in intervals]) for end, name in enumerate(_INTERVAL)]
    return plain.with_columns(columns).select(CHANGE_COLUMNS)


def gate_frame(decision: Decision[Any]) -> pl.DataFrame:
    """Return the limits of a gate, the end-to-end slowdown first; figures are in the unit of their quantity."""
    rows = (
        (
            *(
                criterion.name,
                criterion.quantity,
                criterion.limit,
                criterion.measured,
                *(criterion.ci95 or (None, None)),
                criterion.outcome,
                criterion.verdict,
            ),
            *(criterion.baseline_ns, criterion.candidate_ns, criterion.operators, criterion.reason),
        )
        for criterion in decision.criteria
    )
    return typed_frame(_LIMITS, rows)


def validation_frame(validation: Validation) -> pl.DataFrame:
    """Return the checks of a bundle in their order; ``problems`` is the number that each found."""
    rows = (
        (check.name, check.area, check.status, check.message, check.action, check.total) for check in validation.checks
    )
    return typed_frame(_CHECKS, rows)


def preflight_frame(preflight: Preflight) -> pl.DataFrame:
    """Return the work of each method by category, delegated and portable.

    Operators whose work is unknown count in ``unknown`` and ``operators`` only.
    """
    rows = (
        (method.name, row.category, delegated, *msgspec.structs.astuple(group))
        for method in preflight.methods
        for row in method.work
        for delegated, group in ((True, row.delegated), (False, row.portable))
        if group.operators
    )
    return typed_frame(_WORK, rows)


def work_frame(work: Work) -> pl.DataFrame:
    """Return the operators in their order, with what they execute; a column per class of instructions."""
    rows = (
        (
            *(
                operator.method,
                operator.instruction,
                operator.position,
                operator.name,
                operator.layer,
                operator.category,
                operator.kind,
            ),
            *(getattr(operator, name) for name in _WORK_COUNTS),
            *(operator.classes.get(name, 0) for name in CLASSES),
        )
        for operator in work.operators
    )
    return typed_frame(_COUNTED, rows)


def bisection_frame(bisection: Bisection) -> pl.DataFrame:
    """Return the states of a bisection from the good end to the bad one."""
    rows = (
        (
            *(state.name, state.level.value, bisection.latency_ns(state), state.ratio),
            *(state.ci95 or (None, None)),
            *(state.operators, state.instructions, state.outputs_agree, state.wheel, state.sha256),
        )
        for state in bisection.states
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
    """Return what each source says of each kernel, a row per pair.

    ``amount`` counts calls or samples, depending on ``evidence``.
    """
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
    """Return the bundles at each of their thread counts, in their order."""
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
    """Return rows as a frame whose types do not depend on its content; enums become their text."""
    return pl.DataFrame([tuple(map(_cell_value, row)) for row in rows], schema=dict(schema), orient="row")


def pandas_frame(frame: pl.DataFrame) -> pd.DataFrame:
    """Return a frame as a DataFrame of pandas; missing values are ``pandas.NA`` (of dates ``NaT``), never a number."""
    try:
        import pandas as pd  # noqa: PLC0415 - a notebook that wants it has it; nothing else needs it
    except ImportError:
        hint = "install it with: pip install pandas; or use .to_polars()"
        raise MissingDependencyError("pandas is not installed", where=".to_pandas()", hint=hint) from None
    columns = {column.name: _pandas_array(column) for column in frame}
    return pd.DataFrame({name: pd.array(values, dtype=kind) for name, (values, kind) in columns.items()})


def _frame_of_fields(rows: Sequence[object], columns: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame([_typed_series(name, [_cell_value(getattr(row, name)) for row in rows]) for name in columns])


def _typed_series(name: str, values: list[Any]) -> pl.Series:
    kind = pl.Int64 if name in _COUNTS else pl.Float64 if name in _FIGURES else pl.String
    return pl.Series(name, values, kind)


def _cell_value(value: Any) -> Any:  # noqa: ANN401 - any field of a result
    """Return the text of an enum, and any other value unchanged."""
    return str(value.value) if isinstance(value, str) and hasattr(value, "value") else value


def _pandas_array(column: pl.Series) -> tuple[list[Any], Any]:
    """Return the values of a column and the type of pandas that holds them exactly."""
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
