"""The columns of an EventTable, defined once: names, types, meaning, from which the column reference is generated.

Segments are written out as frames with these columns for those who ask their own questions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from opscope.core.table.scope import Scope
from opscope.core.table.segment import TEXTS, Coded, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polars._typing import PolarsDataType

    from opscope.core.table.nesting import Ints
    from opscope.core.table.segment import Inferences


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
    """Return the columns as a Markdown table, for the reference pages."""
    head = ["| column | type | null | unit | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(_reference_row(column) for column in COLUMNS)]) + "\n"


def _reference_row(column: Column) -> str:
    dtype = "Enum" if isinstance(column.dtype, pl.Enum) else str(column.dtype).partition("(")[0]
    null = "yes" if column.nullable else "no"
    return f"| `{column.name}` | {dtype} | {null} | {column.unit} | {column.meaning} |"


_MINUS_ONE_IS_NULL = ("inference", "chain", "instruction", "position", "delegate_id", "bundled_input", "parent")
_TILED = ("chain", "instruction", "delegate_id", "bundled_input", "resolution", "synthetic_start")


def frame_of(traces: Sequence[Sequence[Segment]], warmup: Sequence[int]) -> pl.DataFrame:
    """Return all rows of all traces, with columns as in ``opscope.core.table.schema.COLUMNS``."""
    frames, rows = [], 0
    for process, (trace, aside) in enumerate(zip(traces, warmup, strict=True)):
        for segment in trace:
            frames.append(_segment_frame(segment, process, aside, rows))
            rows += segment.repeats * segment.events
    return pl.concat(frames, rechunk=True) if frames else pl.DataFrame(schema=SCHEMA)


def inference_frame(inferences: Inferences) -> pl.DataFrame:
    """Return inferences as a table."""
    columns = {name: getattr(inferences, name) for name in ("process", "inference", "warmup", "start", "duration")}
    frame = pl.DataFrame({name: pl.Series(values) for name, values in columns.items()})
    method = _text_series(inferences.method, inferences.method.codes, pl.Categorical())
    names = ["process", "inference", "warmup", "method", "start", "duration"]
    typed = [pl.col(name).cast(SCHEMA[name]) for name in ("process", "inference")]
    return frame.with_columns(*typed, method.alias("method")).select(names)


def _segment_frame(segment: Segment, process: int, warmup: int, first_row: int) -> pl.DataFrame:
    tile, repeat = segment.repeats, np.repeat(np.arange(segment.repeats), segment.events)
    inference = _number_inferences(segment, repeat)
    within = np.tile(segment.parent, segment.repeats)
    values: dict[str, pl.Series] = {
        "process": pl.Series(np.full(len(repeat), process)),
        "run": pl.Series(np.tile(segment.columns["run"], tile) + repeat * segment.runs + segment.first_run),
        "inference": pl.Series(inference),
        "warmup": pl.Series((inference >= 0) & (inference < warmup)),
        "position": pl.Series(np.tile(segment.position, tile)),
        "start": pl.Series(segment.start.ravel()),
        "duration": pl.Series(segment.duration.ravel()),
        "self_time": pl.Series(segment.self_time().ravel()),
        "parent": pl.Series(np.where(within >= 0, within + repeat * segment.events + first_row, -1)),
        "depth": pl.Series(np.tile(segment.depth, tile)),
        "metadata": pl.Series(list(segment.columns["metadata"]) * tile, dtype=pl.Binary),
    }
    values |= {name: pl.Series(np.tile(segment.columns[name], tile)) for name in _TILED}
    for name in TEXTS:
        column: Coded = segment.columns[name]
        values[name] = _text_series(column, np.tile(column.codes, tile), SCHEMA[name])
    frame = pl.DataFrame([values[name].alias(name).cast(dtype) for name, dtype in SCHEMA.items()])
    return frame.with_columns(pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in _MINUS_ONE_IS_NULL)


def _number_inferences(segment: Segment, repeat: Ints) -> Ints:
    within = np.tile(segment.inference, segment.repeats)
    number = within + repeat * len(segment.roots) + segment.first_inference
    return np.where(within >= 0, number, -1)


def _text_series(column: Coded, codes: Ints, dtype: pl.DataType) -> pl.Series:
    """Return texts by their codes; -1 is null."""
    texts = pl.Series([*column.texts, None], dtype=dtype)
    return texts[np.where(codes < 0, len(column.texts), codes)]
