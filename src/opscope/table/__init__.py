"""One documented columnar table for every trace, whatever its format and clock."""

from opscope.table.events import Clock, EventTable, TraceWarning
from opscope.table.schema import COLUMNS, Column, Scope, column_reference

__all__ = ["COLUMNS", "Clock", "Column", "EventTable", "Scope", "TraceWarning", "column_reference"]
