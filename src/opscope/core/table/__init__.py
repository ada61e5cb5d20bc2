"""One documented columnar table for every trace, whatever its format and clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opscope.core.table.events import Clock, EventTable, TraceWarning
from opscope.core.table.scope import Scope
from opscope.core.table.segment import Coded, Inferences, Segment

if TYPE_CHECKING:
    from opscope.core.table.schema import COLUMNS, Column, column_reference

__all__ = [
    "COLUMNS",
    "Clock",
    "Coded",
    "Column",
    "EventTable",
    "Inferences",
    "Scope",
    "Segment",
    "TraceWarning",
    "column_reference",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute may be anything
    if name in {"COLUMNS", "Column", "column_reference"}:
        from opscope.core.table import schema  # noqa: PLC0415 - the schema needs polars, an analysis does not

        return getattr(schema, name)
    raise AttributeError(f"module 'opscope.core.table' has no attribute {name!r}")
