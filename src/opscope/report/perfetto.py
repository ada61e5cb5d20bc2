"""All events as Chrome trace-event JSON, which ui.perfetto.dev and chrome://tracing open.

A process of the trace is a process there, with up to three tracks: the framework with the portable kernels, the
delegate's operators, and the delegate's operators whose start times were not measured but laid end to end. Those are
apart and named so, since only their durations are true.

Every event is a complete event (``"ph": "X"``). ``ts`` and ``dur`` are exact decimals of µs; a trace in cycles shows
one cycle as one µs and says so. Each process starts at 0: viewers keep times as floating point, and a clock that has
run for a month would lose the nanosecond in which nested events fit into each other. ``otherData`` holds the clock's
value there, under ``origin``, process by process.

Source of the format: the Trace Event Format document of the Chromium project.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from opscope.program.taxonomy import FRAMEWORK, classify
from opscope.report.decimals import decimal
from opscope.table import Clock, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.table import EventTable

_PART = 1 << 15
_TO_US = 3
# Numbers of processes are multiples of this and those of tracks lie between, so that no viewer confuses the two.
_PROCESS = 1000
_OPERATORS = (Scope.DELEGATE_OP.value, Scope.KERNEL.value)
_KEY = ["process", "warmup", "scope", "name", "backend", "resolution", "synthetic_start"]
_SYNTHETIC = "start times of delegate operators are synthetic, only their durations are measured"


class Track(NamedTuple):
    """A track of a process: its number there, its name, and which events it holds."""

    number: int
    name: str
    events: pl.Expr


_SYNTHETIC_TRACK = 3
_DELEGATE = pl.col("scope") == Scope.DELEGATE_OP.value
TRACKS = (
    Track(1, "framework and portable kernels", ~_DELEGATE),
    Track(2, "delegate operators", _DELEGATE & ~pl.col("synthetic_start")),
    Track(
        _SYNTHETIC_TRACK,
        "delegate operators (synthetic start times, laid end to end)",
        _DELEGATE & pl.col("synthetic_start"),
    ),
)


def perfetto(table: EventTable, processes: Sequence[str]) -> Iterator[bytes]:
    """The file, in parts.

    Args:
        table: one process or more, warm-up marked.
        processes: what each process is called.
    """
    frame = table.frame
    origins = frame.group_by("process").agg(pl.col("start").min().alias("origin")).sort("process")
    yield _head(table, processes, origins["origin"].to_list())
    for part in frame.iter_slices(_PART):
        lines = _lines(part.join(origins, on="process", how="left", maintain_order="left"), table.clock)
        text = io.BytesIO()
        lines.write_csv(text, include_header=False, quote_style="never")
        yield text.getvalue()
    yield b"]}\n"


def _head(table: EventTable, processes: Sequence[str], origins: Sequence[int]) -> bytes:
    """Everything before the events, whose lines begin with a comma: what is said of the file and of its processes."""
    other = {
        "clock": table.clock.value,
        "shown_as": "1 µs is 1 µs" if table.clock is Clock.NS else "1 cycle is 1 µs",
        "origin": list(origins),
        "warnings": [f"{warning.message}; {warning.hint}" for warning in table.warnings],
    }
    lines = ",\n".join(_json(record) for record in _names(table.frame, processes))
    return f'{{"displayTimeUnit":"ns","otherData":{_json(other)},"traceEvents":[\n{lines}\n'.encode()


def _names(frame: pl.DataFrame, processes: Sequence[str]) -> Iterator[dict[str, object]]:
    """Metadata events: the names of processes and of those tracks that hold events."""
    present = {track.number: set(frame.filter(track.events)["process"].unique()) for track in TRACKS}
    for process, name in enumerate(processes):
        yield _metadata("process_name", process, 0, {"name": name})
        yield _metadata("process_sort_index", process, 0, {"sort_index": process})
        if process in present[_SYNTHETIC_TRACK]:
            yield _metadata("process_labels", process, 0, {"labels": _SYNTHETIC})
        for track in (track for track in TRACKS if process in present[track.number]):
            yield _metadata("thread_name", process, track.number, {"name": track.name})
            yield _metadata("thread_sort_index", process, track.number, {"sort_index": track.number})


def _metadata(name: str, process: int, track: int, args: dict[str, object]) -> dict[str, object]:
    return {"ph": "M", "name": name, "pid": _pid(process), "tid": _pid(process) + track, "args": args}


def _pid(process: int) -> int:
    return (process + 1) * _PROCESS


def _lines(part: pl.DataFrame, clock: Clock) -> pl.DataFrame:
    """One line of JSON for each event, as the only column."""
    digits = _TO_US if clock is Clock.NS else 0
    line = pl.concat_str(
        pl.col("constant"),
        _optional("instruction"),
        _optional("position"),
        _optional("inference"),
        pl.lit(f',"self_{clock.value}":'),
        pl.col("self_time"),
        pl.lit('},"ts":'),
        decimal(pl.col("start") - pl.col("origin"), digits),
        pl.lit(',"dur":'),
        decimal(pl.col("duration"), digits),
        pl.lit("}"),
    )
    return part.join(_constants(part), on=_KEY, how="left", nulls_equal=True, maintain_order="left").select(line)


def _optional(column: str) -> pl.Expr:
    """A number among the arguments, or nothing where it is null."""
    return pl.concat_str(pl.lit(f',"{column}":'), pl.col(column)).fill_null("")


def _constants(part: pl.DataFrame) -> pl.DataFrame:
    """The beginning of the lines, made once for all events that agree in the columns of the key."""
    distinct = part.select(_KEY).unique()
    held = distinct.with_columns(track.events.alias(f"track{track.number}") for track in TRACKS)
    texts = [_constant(row) for row in held.iter_rows(named=True)]
    return distinct.with_columns(pl.Series("constant", texts, dtype=pl.String))


def _constant(row: dict[str, object]) -> str:
    """The beginning of a line, up to the arguments that differ from event to event."""
    name, scope, process, warmup = str(row["name"]), str(row["scope"]), int(str(row["process"])), bool(row["warmup"])
    track = next(track.number for track in TRACKS if row[f"track{track.number}"])
    event = {
        "ph": "X",
        "name": name,
        "cat": f"{scope},warmup" if warmup else scope,
        "pid": _pid(process),
        "tid": _pid(process) + track,
        **({"cname": "grey"} if warmup else {}),
    }
    operator = classify(name) if scope in _OPERATORS else FRAMEWORK
    args = {
        "category": operator.category.value,
        "kind": operator.kind,
        "backend": row["backend"] or FRAMEWORK.kind,
        "resolution": row["resolution"],
        "synthetic_start": row["synthetic_start"],
        "warmup": warmup,
    }
    return f',{_json(event)[:-1]},"args":{_json(args)[:-1]}'


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
