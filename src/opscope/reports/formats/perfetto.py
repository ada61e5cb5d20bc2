"""All events as Chrome trace-event JSON, which ui.perfetto.dev and chrome://tracing open.

A process of the trace is a process there, with up to three tracks: the framework with the portable kernels, the
delegate's operators, and the delegate's operators whose start times were not measured but laid end to end. Those are
apart and named so, since only their durations are true. Several parts, as the variants of a bundle, follow each other
process by process.

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

from opscope.analysis.findings.message import warning
from opscope.analysis.operators.operators import OperatorFacts
from opscope.core.table import Clock, Scope
from opscope.program.operators.taxonomy import FRAMEWORK, classify
from opscope.reports.document.messages import sentence
from opscope.reports.document.text import decimal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.core.table import EventTable
    from opscope.core.table.places import OperatorKey

_PART = 1 << 15
_TO_US = 3
# Numbers of processes are multiples of this and those of tracks lie between, so that no viewer confuses the two.
_PROCESS = 1000
_OPERATORS = (Scope.DELEGATE_OP.value, Scope.KERNEL.value)
_PLACE = ["method", "instruction", "position"]
_KEY = ["warmup", "scope", "name", "backend", "resolution", "synthetic_start", "fact"]
_SYNTHETIC = "start times of delegate operators are synthetic, only their durations are measured"
_NO_FACTS = OperatorFacts()


class TrackGroup(NamedTuple):
    """Processes that belong together, such as those of one variant."""

    table: EventTable  # one process or more, warm-up marked
    processes: Sequence[str]  # what each process is called
    # what the program says about its operators; empty: names are all there is
    facts: Mapping[OperatorKey, OperatorFacts] = {}
    label: str = ""  # what all its processes are, as `avx512 off, 1 thread`; empty for nothing


class Track(NamedTuple):
    """Track of a process: its number within the process, its name and its events."""

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


def perfetto(parts: Sequence[TrackGroup]) -> Iterator[bytes]:
    """Yield the file in pieces; at most one process is laid out at a time."""
    origins: list[int] = []
    yield b'{"displayTimeUnit":"ns","otherData":{"generator":"opscope"},"traceEvents":['
    for part in parts:
        facts = _FactTable(part.facts)
        for process, name in enumerate(part.processes):
            frame = part.table.with_processes([process]).frame
            number = len(origins)
            origins.append(int(frame["start"].min() or 0) if len(frame) else 0)  # type: ignore[arg-type] # integers
            names = ",\n".join(_compact_json(record) for record in _name_events(part, name, number, frame))
            yield f"{',' if number else ''}\n{names}\n".encode()
            yield from _event_lines(
                frame, part.table.clock, origins[-1], _LinePrefixes(facts.known, _process_number(number)), facts
            )
    yield f'],"otherData":{_compact_json(_file_metadata(parts, origins))}}}\n'.encode()


def _file_metadata(parts: Sequence[TrackGroup], origins: Sequence[int]) -> dict[str, object]:
    """Return the clock, the origins of processes and the warnings of the whole file."""
    clock = parts[0].table.clock
    warnings = dict.fromkeys(
        sentence(warning(trace_warning)) for part in parts for trace_warning in part.table.warnings
    )
    return {
        "clock": clock.value,
        "shown_as": "1 µs is 1 µs" if clock is Clock.NS else "1 cycle is 1 µs",
        "origin": list(origins),
        "warnings": list(warnings),
    }


def _name_events(part: TrackGroup, name: str, number: int, frame: pl.DataFrame) -> Iterator[dict[str, object]]:
    """Yield metadata events of one process: its name and the names of its tracks that hold events."""
    present = [track for track in TRACKS if frame.select(track.events.any()).item()]
    yield _metadata_event("process_name", number, 0, {"name": name})
    yield _metadata_event("process_sort_index", number, 0, {"sort_index": number})
    labels = [part.label, *(_SYNTHETIC for track in present if track.number == _SYNTHETIC_TRACK)]
    if any(labels):
        yield _metadata_event("process_labels", number, 0, {"labels": ", ".join(filter(None, labels))})
    for track in present:
        yield _metadata_event("thread_name", number, track.number, {"name": track.name})
        yield _metadata_event("thread_sort_index", number, track.number, {"sort_index": track.number})


def _metadata_event(name: str, process: int, track: int, args: dict[str, object]) -> dict[str, object]:
    return {
        "ph": "M",
        "name": name,
        "pid": _process_number(process),
        "tid": _process_number(process) + track,
        "args": args,
    }


def _process_number(process: int) -> int:
    return (process + 1) * _PROCESS


class _FactTable:
    """Facts of operators, by number, with the number of each operator's place."""

    def __init__(self, facts: Mapping[OperatorKey, OperatorFacts]) -> None:
        self.known = list(facts.values())
        schema = {"method": pl.String, "instruction": pl.Int32, "position": pl.Int32}
        rows = [tuple(key) for key in facts]
        self._fact_numbers = pl.DataFrame(rows, schema=schema, orient="row").with_row_index("fact")

    def join_facts(self, piece: pl.DataFrame) -> pl.DataFrame:
        """Return events with the number of their facts; null for operators that are known by name only."""
        keyed = piece.with_columns(pl.col("method").cast(pl.String))
        frame = keyed.join(self._fact_numbers, on=_PLACE, how="left", maintain_order="left")
        return frame.with_columns(pl.when(pl.col("scope").is_in(_OPERATORS)).then("fact"))


def _event_lines(
    frame: pl.DataFrame, clock: Clock, origin: int, prefixes: _LinePrefixes, facts: _FactTable
) -> Iterator[bytes]:
    """Yield the lines of one process."""
    for piece in frame.iter_slices(_PART):
        text = io.BytesIO()
        lines = _json_lines(facts.join_facts(piece), clock, origin, prefixes)
        lines.write_csv(text, include_header=False, quote_style="never")
        yield text.getvalue()


def _json_lines(part: pl.DataFrame, clock: Clock, origin: int, prefixes: _LinePrefixes) -> pl.DataFrame:
    """Return a line of JSON for each event, as the only column."""
    digits = _TO_US if clock is Clock.NS else 0
    line = pl.concat_str(
        pl.col("constant"),
        _optional_argument("instruction"),
        _optional_argument("position"),
        _optional_argument("inference"),
        pl.lit(f',"self_{clock.value}":'),
        pl.col("self_time"),
        pl.lit('},"ts":'),
        decimal(pl.col("start") - origin, digits),
        pl.lit(',"dur":'),
        decimal(pl.col("duration"), digits),
        pl.lit("}"),
    )
    constants = prefixes.of(part)
    return part.join(constants, on=_KEY, how="left", nulls_equal=True, maintain_order="left").select(line)


def _optional_argument(column: str) -> pl.Expr:
    """Return a number as an argument; nothing if it is null."""
    return pl.concat_str(pl.lit(f',"{column}":'), pl.col(column)).fill_null("")


class _LinePrefixes:
    """Prefixes of lines, made once for all events that agree in the columns of the key.

    ``facts``: what is known of operators, by number; ``process``: number of the process in the file.
    """

    def __init__(self, facts: Sequence[OperatorFacts], process: int) -> None:
        self._facts = facts
        self._process = process

    def of(self, part: pl.DataFrame) -> pl.DataFrame:
        """Return the columns of the key, and the prefix as ``constant``."""
        distinct = part.select(_KEY).unique()
        held = distinct.with_columns(track.events.alias(f"track{track.number}") for track in TRACKS)
        texts = [self._line_prefix(row) for row in held.iter_rows(named=True)]
        return distinct.with_columns(pl.Series("constant", texts, dtype=pl.String))

    def _line_prefix(self, row: dict[str, object]) -> str:
        """Return the start of a line, up to the arguments that differ between events."""
        name, scope, warmup = str(row["name"]), str(row["scope"]), bool(row["warmup"])
        facts = _NO_FACTS if row["fact"] is None else self._facts[int(str(row["fact"]))]
        is_operator = scope in _OPERATORS
        kind = (facts.operator_class or classify(name)) if is_operator else FRAMEWORK
        track = next(track.number for track in TRACKS if row[f"track{track.number}"])
        categories = [scope, *([kind.category.value] if is_operator else []), *(["warmup"] if warmup else [])]
        event = {
            "ph": "X",
            "name": name,
            "cat": ",".join(categories),
            "pid": self._process,
            "tid": self._process + track,
            **({"cname": "grey"} if warmup else {}),
        }
        args = {
            "category": kind.category.value,
            "kind": kind.kind,
            "backend": row["backend"] or FRAMEWORK.kind,
            "resolution": row["resolution"],
            "synthetic_start": row["synthetic_start"],
            "warmup": warmup,
            **(_known_facts(facts) if row["fact"] is not None else {}),
        }
        return f',{_compact_json(event)[:-1]},"args":{_compact_json(args)[:-1]}'


def _known_facts(facts: OperatorFacts) -> dict[str, object]:
    """Return what the program says about an operator, without what is unknown."""
    facts_by_name = {
        "attribution": facts.attribution.value,
        "layer": facts.module,
        "aten": facts.aten,
        "candidates": list(facts.candidates),
    }
    return {name: value for name, value in facts_by_name.items() if value not in (None, [])}


def _compact_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
