"""The documented table, made of segments: every row written out, for those who ask their own questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from opscope.core.table.schema import SCHEMA
from opscope.core.table.segment import TEXTS, Coded, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.segment import Inferences

_MINUS_ONE_IS_NULL = ("inference", "chain", "instruction", "position", "delegate_id", "bundled_input", "parent")
_TILED = ("chain", "instruction", "delegate_id", "bundled_input", "resolution", "synthetic_start")


def frame_of(traces: Sequence[Sequence[Segment]], warmup: Sequence[int]) -> pl.DataFrame:
    """All rows of all traces, with columns as in ``opscope.core.table.schema.COLUMNS``."""
    frames, rows = [], 0
    for process, (trace, aside) in enumerate(zip(traces, warmup, strict=True)):
        for segment in trace:
            frames.append(_frame(segment, process, aside, rows))
            rows += segment.repeats * segment.events
    return pl.concat(frames, rechunk=True) if frames else pl.DataFrame(schema=SCHEMA)


def inference_frame(found: Inferences) -> pl.DataFrame:
    """Inferences as a table."""
    columns = {name: getattr(found, name) for name in ("process", "inference", "warmup", "start", "duration")}
    frame = pl.DataFrame({name: pl.Series(values) for name, values in columns.items()})
    method = _text(found.method, found.method.codes, pl.Categorical())
    wanted = ["process", "inference", "warmup", "method", "start", "duration"]
    typed = [pl.col(name).cast(SCHEMA[name]) for name in ("process", "inference")]
    return frame.with_columns(*typed, method.alias("method")).select(wanted)


def _frame(segment: Segment, process: int, warmup: int, first_row: int) -> pl.DataFrame:
    tile, repeat = segment.repeats, np.repeat(np.arange(segment.repeats), segment.events)
    inference = _inference(segment, repeat)
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
        values[name] = _text(column, np.tile(column.codes, tile), SCHEMA[name])
    frame = pl.DataFrame([values[name].alias(name).cast(dtype) for name, dtype in SCHEMA.items()])
    return frame.with_columns(pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in _MINUS_ONE_IS_NULL)


def _inference(segment: Segment, repeat: Ints) -> Ints:
    within = np.tile(segment.inference, segment.repeats)
    number = within + repeat * len(segment.roots) + segment.first_inference
    return np.where(within >= 0, number, -1)


def _text(column: Coded, codes: Ints, dtype: pl.DataType) -> pl.Series:
    """Texts by their codes; the code past the last is nothing."""
    texts = pl.Series([*column.texts, None], dtype=dtype)
    return texts[np.where(codes < 0, len(column.texts), codes)]
