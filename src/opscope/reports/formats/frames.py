"""Results as data frames: one row an operator, one column a figure, integers and text in the cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from opscope.core.errors import MissingDependencyError
from opscope.reports.formats.tables import OPERATOR_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.reports.content.content import ReportContent

_COUNTS = frozenset("instruction position macs flops bytes".split())
_FIGURES = frozenset(
    "calls time_ns uncertainty_ns share baseline_ns candidate_ns saved_ns ci95_low_ns ci95_high_ns speedup".split()
)
_INTERVAL = ("ci95_low_ns", "ci95_high_ns")
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


def change_frame(comparison: Comparison) -> pl.DataFrame:
    """The operators of both sides of a comparison, matched."""
    plain = _frame(comparison.operators, [name for name in CHANGE_COLUMNS if name not in _INTERVAL])
    intervals = [change.ci95_saved_ns or (None, None) for change in comparison.operators]
    columns = [_series(name, [own[end] for own in intervals]) for end, name in enumerate(_INTERVAL)]
    return plain.with_columns(columns).select(CHANGE_COLUMNS)


def pandas_frame(frame: pl.DataFrame) -> pd.DataFrame:
    """The same as a DataFrame of pandas; what is missing is ``pandas.NA``, never a number.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
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
    if kind.is_integer():
        return values, "Int64"
    if kind.is_float():
        return values, "Float64"
    if kind == pl.Boolean:
        return values, "boolean"
    return (values, object) if kind == pl.Binary else (values, "string")
