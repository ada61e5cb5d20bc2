"""The columns of an EventTable, defined once: names, types, meaning. The column reference is generated from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from opscope.core.table.scope import Scope

if TYPE_CHECKING:
    from polars._typing import PolarsDataType


class Column(NamedTuple):
    """One column: its name, type, whether it may be null, its unit and what it means."""

    name: str
    dtype: PolarsDataType
    meaning: str
    unit: str = ""
    nullable: bool = False


SCOPES = pl.Enum([scope.value for scope in Scope])

COLUMNS: tuple[Column, ...] = (
    Column("process", pl.Int32, "Which trace file, or tile of one, the event comes from, from 0."),
    Column("run", pl.Int32, "Block of the file the event is in, from 0, in file order."),
    Column("inference", pl.Int32, "Inference of its process, from 0; null for loading.", nullable=True),
    Column("warmup", pl.Boolean, "True for events of inferences that are excluded as warm-up."),
    Column("method", pl.Categorical(), "Method of the program; null where the trace does not say.", nullable=True),
    Column("scope", SCOPES, "What the event represents: " + ", ".join(s.value for s in Scope) + "."),
    Column("name", pl.Categorical(), "Name as the runtime or the delegate recorded it."),
    Column("backend", pl.Categorical(), "Delegate's name, or portable; null for framework events.", nullable=True),
    Column("chain", pl.Int32, "Chain of the program's instructions; null for framework events.", nullable=True),
    Column("instruction", pl.Int32, "Instruction within the chain; null for framework events.", nullable=True),
    Column("position", pl.Int32, "Order among the events of the same parent, from 0; null for roots.", nullable=True),
    Column("delegate_id", pl.Int64, "The delegate's integer debug identifier, or null.", nullable=True),
    Column("delegate_label", pl.Categorical(), "The delegate's textual identifier, where it gives one.", nullable=True),
    Column("metadata", pl.Binary, "What the delegate attached to the event, uninterpreted.", nullable=True),
    Column("block", pl.Categorical(), "Name of the block of the file that holds the event."),
    Column("bundled_input", pl.Int32, "Bundled input the block was run with; null without.", nullable=True),
    Column("start", pl.Int64, "Start, in the clock of the file.", unit="clock"),
    Column("duration", pl.Int64, "End minus start, nested events included.", unit="clock"),
    Column("self_time", pl.Int64, "Duration minus the durations of the direct children.", unit="clock"),
    Column("resolution", pl.Int64, "The true duration is in [duration, duration + resolution).", unit="clock"),
    Column("synthetic_start", pl.Boolean, "True where the start was laid end to end, not measured."),
    Column("parent", pl.Int64, "Row of the enclosing event; null for roots.", nullable=True),
    Column("depth", pl.Int32, "Number of enclosing events."),
)

SCHEMA = pl.Schema({column.name: column.dtype for column in COLUMNS})


def column_reference() -> str:
    """The columns as a Markdown table, for the reference pages."""
    head = ["| column | type | null | unit | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(_row(column) for column in COLUMNS)]) + "\n"


def _row(column: Column) -> str:
    dtype = "Enum" if isinstance(column.dtype, pl.Enum) else str(column.dtype).partition("(")[0]
    null = "yes" if column.nullable else "no"
    return f"| `{column.name}` | {dtype} | {null} | {column.unit} | {column.meaning} |"
