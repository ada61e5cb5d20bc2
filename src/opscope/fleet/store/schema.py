"""Columns of a store: every table, every column, its type and its meaning."""

from __future__ import annotations

import enum
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Row: TypeAlias = tuple[Any, ...]
    """Cells in the order of a table's columns."""

SCHEMA = "opscope.store/4"
"""Of the whole store: its layout and these columns. Columns may be added to a store that is there, whose older rows
then have null in them; any other change is a new version."""
PARTITION = "table_name"
"""Column by which the files of the one Delta table are kept apart: each holds rows of one table."""


class Type(enum.Enum):
    """Types of columns: as SQL, Polars and Delta Lake call them; there moments are instants in UTC."""

    TEXT = ("VARCHAR", pl.String, "string")
    INTEGER = ("BIGINT", pl.Int64, "long")
    NUMBER = ("DOUBLE", pl.Float64, "double")
    TRUTH = ("BOOLEAN", pl.Boolean, "boolean")
    MOMENT = ("TIMESTAMP", pl.Datetime("us"), "timestamp")

    def __init__(self, sql: str, polars: Any, delta: str) -> None:  # noqa: ANN401 - a class or an instance
        self.sql, self.polars, self.delta = sql, polars, delta


class StoreColumn(NamedTuple):
    """A column: its name, its type, and what it means, as one sentence without a full stop."""

    name: str
    type: Type
    meaning: str


class Table(NamedTuple):
    """A table: its name, what a row is, and its columns. The view of a store has the same name and columns."""

    name: str
    row: str
    columns: tuple[StoreColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def polars(self) -> dict[str, Any]:
        """Names and types of the columns for Polars."""
        return {column.name: column.type.polars for column in self.columns}

    def make_frame(self, rows: Sequence[Row]) -> pl.DataFrame:
        """Return rows as a data frame of exactly these columns."""
        cells = zip(*rows, strict=True) if rows else ((),) * len(self.columns)
        return pl.DataFrame([pl.Series(c.name, own, c.type.polars) for c, own in zip(self.columns, cells, strict=True)])


RUN_ORDER = "placed, created, bundle"
"""Order of histories in SQL: oldest first."""
KEYS = ("bundle", "model", "device", "variant")
_T, _I, _N, _B, _M = Type.TEXT, Type.INTEGER, Type.NUMBER, Type.TRUTH, Type.MOMENT
_KEYS = (
    StoreColumn("bundle", _T, "hash of the bundle's manifest, by which it is known in the store"),
    StoreColumn("model", _T, "name of the model; of a trace of AI Engine tiles, its file"),
    StoreColumn(
        "device",
        _T,
        "machine name from `store add --device` or the configuration, else its CPU, system and address",
    ),
    StoreColumn("variant", _T, "name of the variant"),
)

_TIMES = "arm latency_ns mean_ns p90_ns p95_ns p99_ns ci_low_ns ci_high_ns cv"
METHOD_FIGURES = frozenset(f"{_TIMES} speedup speedup_low speedup_high verdict".split())
"""Columns of ``runs`` whose figures several methods have one by one, since together they are mixed."""

_RUNS = (
    StoreColumn("kind", _T, "`bundle`, or `tiles` for a trace of AI Engine tiles"),
    StoreColumn("created", _M, "when the run began, UTC"),
    StoreColumn("commit", _T, "commit given to `store add --commit`; null without it"),
    StoreColumn("opscope", _T, "version of opscope that measured"),
    StoreColumn("versions", _T, "JSON object: version of each package; `versions->>'executorch'`"),
    StoreColumn("role", _T, "accelerated, baseline, intermediate or candidate"),
    StoreColumn("dtype", _T, "number type of the model; null where it is not known"),
    StoreColumn("threads", _I, "size of the thread pool"),
    StoreColumn("affinity", _T, "CPUs it was pinned to, space-separated; empty for all"),
    StoreColumn("ablated", _T, "feature groups that were switched off, comma-separated; empty for none"),
    StoreColumn("target", _T, "kind of target: local, native, runner and so on"),
    StoreColumn("cpu", _T, "name of the CPU"),
    StoreColumn("system", _T, "operating system"),
    StoreColumn("machine", _T, "architecture"),
    StoreColumn("features", _T, "CPU features, comma-separated"),
    StoreColumn("kernel", _T, "release of the kernel"),
    StoreColumn("release", _T, "of Android"),
    StoreColumn("build", _T, "Android's name for itself"),
    StoreColumn("revision", _T, "of the CPU: its microcode, or its Arm cores"),
    StoreColumn("governor", _T, "of the clock"),
    StoreColumn("power", _T, "Android's power settings"),
    StoreColumn("usable_cpus", _I, "that a process may use"),
    StoreColumn("memory_size", _I, "bytes of the machine"),
    StoreColumn("emulator", _T, "of the CPU"),
    StoreColumn("host", _T, "hash that tells machines apart"),
    StoreColumn("firmware", _T, "version of the BIOS or bootloader"),
    StoreColumn("delegate", _T, "of a LiteRT model"),
    StoreColumn("options", _T, "JSON object, of the session"),
    StoreColumn("variables", _T, "JSON object, such as OMP_NUM_THREADS"),
    StoreColumn("program_sha256", _T, "hash of the program that ran"),
    StoreColumn("source", _T, "where the bundle was when it was added"),
    StoreColumn("status", _T, "complete, incomplete or running"),
    StoreColumn("processes", _I, "repetitions that count, in the arm of `latency_ns`"),
    StoreColumn("failed", _I, "repetitions that failed"),
    StoreColumn("arm", _T, "`untraced` when latency is of runs without event tracing, else `traced`"),
    StoreColumn("latency_ns", _N, "latency of an inference, as the report states it"),
    StoreColumn("mean_ns", _N, "mean latency"),
    StoreColumn("p90_ns", _N, "90th percentile of latency"),
    StoreColumn("p95_ns", _N, "95th percentile"),
    StoreColumn("p99_ns", _N, "99th percentile"),
    StoreColumn("ci_low_ns", _N, "lower end of the median's 95 % interval; null with too few processes"),
    StoreColumn("ci_high_ns", _N, "its upper end"),
    StoreColumn("cv", _N, "standard deviation over mean of the inferences"),
    StoreColumn("load_ns", _N, "load time of the program, median over processes"),
    StoreColumn("memory_bytes", _I, "largest resident memory of a process"),
    StoreColumn("baseline", _T, "variant it is compared with; null for a baseline"),
    StoreColumn("speedup", _N, "ratio of the baseline's latency to its own"),
    StoreColumn("speedup_low", _N, "lower end of its 95 % interval"),
    StoreColumn("speedup_high", _N, "upper end"),
    StoreColumn("verdict", _T, "faster, slower, no_difference, undecidable or withheld"),
    StoreColumn("outputs_agree", _B, "whether its outputs match the baseline's within the tolerance"),
    StoreColumn("grade", _T, "measurement quality of its latency and speedup: good, usable or do_not_trust"),
    StoreColumn("latency_grade", _T, "measurement quality of its latency alone, which needs fewer processes"),
    StoreColumn("placed", _M, "its place in a history, UTC: `created`; when it was added where that is not known"),
)
_LATENCY = (
    StoreColumn("arm", _T, "`untraced` or `traced`"),
    StoreColumn("process", _I, "number of the process within its arm, from 0"),
    StoreColumn("n", _I, "measured inferences"),
    StoreColumn("median_ns", _N, "their median"),
    StoreColumn("mean_ns", _N, "their mean"),
    StoreColumn("load_ns", _I, "loading the program; null where that was not measured"),
    StoreColumn("first_ns", _I, "the first inference"),
)
_METHODS = (
    StoreColumn("method", _T, "method of the program"),
    StoreColumn("phase", _T, "prefill or decode; null for programs that are not language models"),
    StoreColumn("tokens", _I, "that a call reads or makes; null where that is not known"),
    StoreColumn("position", _I, "tokens before them; likewise"),
    StoreColumn("calls_share", _N, "of all measured calls"),
    StoreColumn("share", _N, "of the time of all measured calls"),
    *(column._replace(meaning="see `runs`") for column in _RUNS if column.name in METHOD_FIGURES),
    StoreColumn("tokens_per_second", _N, "by its median; null where it is not known"),
)
_OPERATORS = (
    StoreColumn("method", _T, "method of the program"),
    StoreColumn("instruction", _I, "instruction of its chain; null for the framework's own time"),
    StoreColumn("position", _I, "order among the events of the instruction's call; null likewise"),
    StoreColumn("name", _T, "as recorded"),
    StoreColumn("category", _T, "upper level of the taxonomy"),
    StoreColumn("kind", _T, "lower level"),
    StoreColumn("backend", _T, "the delegate, `portable` or `framework`"),
    StoreColumn("calls", _N, "events per inference"),
    StoreColumn(
        "time_ns", _N, "self time per inference on the scale of the latency; null where only its share is known"
    ),
    StoreColumn("share", _N, "of end-to-end latency, as a fraction"),
    StoreColumn("uncertainty_ns", _N, "most time that truncation may have cut from its duration per traced inference"),
    StoreColumn("module", _T, "the nn.Module; null where it is not known"),
    StoreColumn("aten", _T, "the aten operator; likewise"),
    StoreColumn("dtype", _T, "number type of its first input; likewise"),
    StoreColumn("shape", _T, "of its output, x-separated; likewise"),
    StoreColumn("macs", _I, "multiply-accumulates per inference; likewise"),
    StoreColumn("bytes", _I, "least bytes moved per inference; likewise"),
    StoreColumn("kernel", _T, "the microkernel; likewise"),
    StoreColumn("attribution", _T, "attribution: exact, aligned, ambiguous or name"),
)
_MODULES = (
    StoreColumn("method", _T, "method of the program"),
    StoreColumn("path", _T, "name of the module in the model; empty for the model itself"),
    StoreColumn("type", _T, "its class; null for a container that is never called"),
    StoreColumn("depth", _I, "modules above it"),
    StoreColumn("self_ns", _N, "time per inference of its operators; null likewise"),
    StoreColumn("total_ns", _N, "with those of the modules below it"),
    StoreColumn("share", _N, "`total_ns` of end-to-end latency"),
    StoreColumn("operators", _I, "its own operators"),
    StoreColumn("macs", _I, "of it and everything below; null where one is not known"),
)
_FINDINGS = (
    StoreColumn("rule", _T, "identifier of the rule"),
    StoreColumn("severity", _T, "high, medium or info"),
    StoreColumn("title", _T, "the finding in one sentence"),
    StoreColumn("evidence", _T, "the figures it rests on"),
    StoreColumn("saving_ns", _N, "potential saving per inference; null if unknown"),
    StoreColumn("next_step", _T, "what to do"),
)
_KERNELS = (
    StoreColumn("operator", _T, "as the backend calls it, without its number"),
    StoreColumn("kernel", _T, "the microkernel; null where it is not known"),
    StoreColumn("category", _T, "upper level of the taxonomy"),
    StoreColumn("kind", _T, "lower level"),
    StoreColumn("backend", _T, "that ran it"),
    StoreColumn("operators", _I, "how many operators of the program"),
    StoreColumn("time_ns", _N, "their self time per inference, together; null likewise"),
    StoreColumn("share", _N, "of end-to-end latency"),
    StoreColumn("macs", _I, "multiply-accumulates per inference, together; null where one is not known"),
    StoreColumn("method", _T, "method of the program"),
)
_TILES = (
    StoreColumn("tile", _T, "`ROW,COL`"),
    StoreColumn("unit", _T, "core, mem, memtile or shim"),
    StoreColumn("calls", _I, "calls that were found"),
    StoreColumn("window_cycles", _I, "from the first call's start to the last one's end"),
    StoreColumn("vector_cycles", _I, "of the window: vector instructions"),
    StoreColumn("memory_stall_cycles", _I, "of the window: waiting for memory"),
    StoreColumn("stream_stall_cycles", _I, "of the window: waiting for a stream"),
    StoreColumn("cascade_stall_cycles", _I, "of the window: waiting for the cascade"),
    StoreColumn("lock_stall_cycles", _I, "of the window: waiting for a lock"),
    StoreColumn("other_cycles", _I, "the rest of the window"),
    StoreColumn("mac_per_cycle", _N, "of the window; null where it is not known"),
    StoreColumn("utilisation", _N, "the same as a fraction of the peak"),
    StoreColumn("coverage", _N, "calls in the trace as a fraction of the whole run's"),
    StoreColumn("bound_by", _T, "what limits the call rate; null if unknown"),
    StoreColumn("iterations", _I, "repetitions of the whole product in the trace"),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table("runs", "one variant of one bundle, or one trace of tiles", (*_KEYS, *_RUNS)),
        Table("methods", "one of several methods that a variant calls", (*_KEYS, *_METHODS)),
        Table("latency", "one process of a variant", (*_KEYS, *_LATENCY)),
        Table("operators", "one operator of the program, in one variant", (*_KEYS, *_OPERATORS)),
        Table("modules", "one module of the model, in one variant", (*_KEYS, *_MODULES)),
        Table("findings", "one finding on one variant", (*_KEYS, *_FINDINGS)),
        Table("kernels", "operators of one kind and one microkernel, in one variant", (*_KEYS, *_KERNELS)),
        Table("tiles", "one trace unit of one AI Engine tile", (*_KEYS, *_TILES)),
    )
}

BUNDLES = Table(
    "bundles",
    "one bundle",
    (
        *_KEYS[:3],
        StoreColumn("kind", _T, "`bundle`, or `tiles` for a trace of AI Engine tiles"),
        StoreColumn("origin", _T, "hash of what stays the same when a run resumes"),
        StoreColumn("repetitions", _I, "that succeeded"),
        StoreColumn("variants", _T, "JSON array: names of its variants"),
        StoreColumn("created", _M, "when the run began, UTC"),
        StoreColumn("added", _M, "when it was added, UTC"),
        StoreColumn("placed", _M, "see `runs`"),
        StoreColumn("source", _T, "where the bundle was when it was added"),
        StoreColumn("checked", _B, "whether its figures were compared with its traces, or computed from them"),
    ),
)
REPLACED = Table(
    "replaced", "one bundle replaced by a more complete one of the same run: it does not count", (*_KEYS[:1],)
)
ENTRY_MOMENTS = ("created", "added", "placed")
"""Columns of ``bundles`` that are text in the entry of a bundle."""
EVERY = {**TABLES, BUNDLES.name: BUNDLES, REPLACED.name: REPLACED}
"""The tables that have views, and those by which the store knows what it holds."""


def _find_stored_types() -> dict[str, Type]:
    """Return the types of the columns of all tables together; of a name with two numeric types the wider one."""
    types: dict[str, Type] = {}
    for column in (column for table in EVERY.values() for column in table.columns):
        if types.setdefault(column.name, column.type) is not column.type:
            types[column.name] = Type.NUMBER
    return types


STORED = _find_stored_types()
"""Columns as the files hold them. The tables are parts of one Delta table, where a name has one type."""


def make_stored_frame(frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return rows of several tables, by the tables' names, as rows of the one Delta table."""
    parts = [
        frame.select(pl.lit(name).alias(PARTITION), *(_stored_column(frame, *column) for column in STORED.items()))
        for name, frame in frames.items()
    ]
    return pl.concat(parts)


def _stored_column(frame: pl.DataFrame, name: str, kind: Type) -> pl.Expr:
    column = pl.col(name).cast(kind.polars) if name in frame.columns else pl.lit(None, kind.polars).alias(name)
    return column.dt.replace_time_zone("UTC") if kind is Type.MOMENT else column


def column_as_sql(column: StoreColumn) -> str:
    """Return a column of a table's files as SQL selects it, with the type of the table."""
    if column.type is Type.MOMENT:  # without a time zone, for which DuckDB would need an extension
        return f'make_timestamp(epoch_us("{column.name}")) AS "{column.name}"'
    return f'"{column.name}"::{column.type.sql} AS "{column.name}"'


def parse_moment(text: str | None) -> datetime | None:
    """Return a time in ISO 8601 as one in UTC without a zone, as tables hold it; None for what is no time."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
    except ValueError:
        return None
    return found.astimezone(timezone.utc).replace(tzinfo=None) if found and found.tzinfo else found


class StoreEntry(msgspec.Struct, frozen=True):
    """A bundle that the store holds.

    Attributes:
        bundle: its hash, by which it is known.
        origin: hash of what stays the same when a run is resumed: of two bundles of one origin the fuller one counts.
        repetitions: that succeeded.
        model: its name.
        device: its name.
        variants: their names.
        created: when the run began, ISO 8601; empty where that is not known.
        added: when it was added, ISO 8601.
        source: where it was.
        kind: ``bundle`` or ``tiles``.
        placed: its place in a history, ISO 8601: when it began, or was added where that is not known.
        checked: whether its figures were compared with its traces, or computed from them, when it was added.
    """

    bundle: str
    origin: str
    repetitions: int
    model: str
    device: str
    variants: tuple[str, ...]
    created: str
    added: str
    source: str
    kind: str = "bundle"
    placed: str | None = None
    checked: bool = False


def entries_frame(entries: Iterable[StoreEntry]) -> pl.DataFrame:
    """Return bundles as rows of the store's table of them; times in UTC."""
    rows = []
    for entry in entries:
        fields = msgspec.structs.asdict(entry) | {"variants": msgspec.json.encode(entry.variants).decode()}
        fields |= {name: parse_moment(fields[name]) for name in ENTRY_MOMENTS}
        rows.append(tuple(fields[name] for name in BUNDLES.names))
    return BUNDLES.make_frame(rows)
