"""The columns of a store: every table, every column, its type and its meaning. Said here and nowhere else."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import polars as pl

from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row: TypeAlias = tuple[Any, ...]
    Rows: TypeAlias = Mapping[str, Sequence[Row]]
    """Rows of each table by its name; cells in the order of the table's columns."""

SCHEMA = "opscope.store/1"
"""Of the whole store: its layout and these columns. A change of either is a new version with a migration."""


class Type(enum.Enum):
    """Types of columns: as SQL and as Polars call them."""

    TEXT = ("VARCHAR", pl.String)
    INTEGER = ("BIGINT", pl.Int64)
    NUMBER = ("DOUBLE", pl.Float64)
    TRUTH = ("BOOLEAN", pl.Boolean)
    MOMENT = ("TIMESTAMP", pl.Datetime("us"))

    @property
    def sql(self) -> str:
        """Its name in SQL."""
        return str(self.value[0])

    @property
    def polars(self) -> Any:  # noqa: ANN401 - a class or an instance, as Polars takes both
        """Its type in Polars."""
        return self.value[1]


class Column(NamedTuple):
    """A column: its name, its type, and what it means, as one sentence without a full stop."""

    name: str
    type: Type
    meaning: str


class Table(NamedTuple):
    """A table: its name, what a row is, and its columns. The view of a store has the same name and columns."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def polars(self) -> dict[str, Any]:
        """Names and types as Polars takes them."""
        return {column.name: column.type.polars for column in self.columns}

    def frame(self, rows: Sequence[Row]) -> pl.DataFrame:
        """Rows as a data frame of exactly these columns."""
        return pl.DataFrame(list(rows), schema=self.polars, orient="row")


def framed(rows: Rows, where: str) -> dict[str, pl.DataFrame]:
    """Rows as data frames, by the names of their tables; tables without rows are left out.

    Args:
        rows: of each table.
        where: they are from, for the error.

    Raises:
        TraceFormatError: a number or a text is none that a column can hold.
    """
    try:
        return {name: TABLES[name].frame(own) for name, own in rows.items() if own}
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise TraceFormatError(f"it holds a value that no table can hold: {error}", where=where) from error


KEYS = ("bundle", "model", "device", "variant")
PARTITION = KEYS[1:]
"""What files are kept apart by."""
_T, _I, _N, _B, _M = Type.TEXT, Type.INTEGER, Type.NUMBER, Type.TRUTH, Type.MOMENT
_KEYS = (
    Column("bundle", _T, "hash of the bundle's manifest, by which it is known in the store"),
    Column("model", _T, "name of the model; of a trace of AI Engine tiles, its file"),
    Column("device", _T, "CPU, system and address of the machine, or what `store add --device` called it"),
    Column("variant", _T, "name of the variant"),
)

_RUNS = (
    Column("kind", _T, "`bundle`, or `tiles` for a trace of AI Engine tiles"),
    Column("created", _M, "when the run began, UTC"),
    Column("commit", _T, "what `store add --commit` said; null where it said nothing"),
    Column("opscope", _T, "version of opscope that measured"),
    Column("versions", _T, "JSON object: version of each package; `versions->>'executorch'`"),
    Column("role", _T, "accelerated, baseline, intermediate or candidate"),
    Column("dtype", _T, "number type of the model; null where it is not known"),
    Column("threads", _I, "size of the thread pool"),
    Column("affinity", _T, "CPUs it stayed on, with spaces between; empty for all"),
    Column("ablated", _T, "feature groups that were switched off, with commas between; empty for none"),
    Column("target", _T, "kind of target: local, native, runner and so on"),
    Column("cpu", _T, "name of the CPU"),
    Column("system", _T, "operating system"),
    Column("machine", _T, "architecture"),
    Column("features", _T, "CPU features, with commas between"),
    Column("program_sha256", _T, "hash of the program that ran"),
    Column("source", _T, "where the bundle was when it was added"),
    Column("status", _T, "complete, incomplete or running"),
    Column("processes", _I, "repetitions that count, in the arm of `latency_ns`"),
    Column("failed", _I, "repetitions that failed"),
    Column("arm", _T, "`untraced` when latency is of runs without event tracing, else `traced`"),
    Column("latency_ns", _N, "median latency of an inference"),
    Column("mean_ns", _N, "mean latency"),
    Column("p90_ns", _N, "latency that nine inferences in ten stay below"),
    Column("p95_ns", _N, "likewise 95 in 100"),
    Column("p99_ns", _N, "likewise 99 in 100"),
    Column("ci_low_ns", _N, "lower end of the 95 % interval of the median; null with too few processes"),
    Column("ci_high_ns", _N, "its upper end"),
    Column("cv", _N, "standard deviation over mean of the inferences"),
    Column("load_ns", _N, "median over processes of the time to load the program"),
    Column("memory_bytes", _I, "largest resident memory of a process"),
    Column("baseline", _T, "variant that it is compared with; null for a baseline"),
    Column("speedup", _N, "latency of the baseline over its own"),
    Column("speedup_low", _N, "lower end of its 95 % interval"),
    Column("speedup_high", _N, "upper end"),
    Column("verdict", _T, "faster, slower, no_difference or undecidable"),
    Column("outputs_agree", _B, "whether its outputs are those of the baseline within the tolerance"),
    Column("grade", _T, "how far its latencies can be trusted, by the measurement itself"),
)
_LATENCY = (
    Column("arm", _T, "`untraced` or `traced`"),
    Column("process", _I, "number of the process within its arm, from 0"),
    Column("n", _I, "measured inferences"),
    Column("median_ns", _N, "their median"),
    Column("mean_ns", _N, "their mean"),
    Column("load_ns", _I, "loading the program; null where that was not measured"),
    Column("first_ns", _I, "the first inference"),
)
_OPERATORS = (
    Column("method", _T, "method of the program"),
    Column("instruction", _I, "instruction of its chain; null for the framework's own time"),
    Column("position", _I, "order among the events of the instruction's call; null likewise"),
    Column("name", _T, "as recorded"),
    Column("category", _T, "upper level of the taxonomy"),
    Column("kind", _T, "lower level"),
    Column("backend", _T, "the delegate, `portable` or `framework`"),
    Column("calls", _N, "events per inference"),
    Column("time_ns", _N, "mean self time per inference"),
    Column("share", _N, "of end-to-end latency, as a fraction"),
    Column("uncertainty_ns", _N, "the true time is less than that above `time_ns`"),
    Column("module", _T, "the nn.Module; null where it is not known"),
    Column("aten", _T, "the aten operator; likewise"),
    Column("dtype", _T, "number type of its first input; likewise"),
    Column("shape", _T, "of its output, with x between; likewise"),
    Column("macs", _I, "multiply-accumulates per inference; likewise"),
    Column("bytes", _I, "least bytes moved per inference; likewise"),
    Column("kernel", _T, "the microkernel; likewise"),
    Column("attribution", _T, "how it is known what it is: exact, aligned, ambiguous or name"),
)
_MODULES = (
    Column("method", _T, "method of the program"),
    Column("path", _T, "name of the module in the model; empty for the model itself"),
    Column("type", _T, "its class; null for a container that is never called"),
    Column("depth", _I, "modules above it"),
    Column("self_ns", _N, "mean time per inference of its own operators"),
    Column("total_ns", _N, "with those of the modules below it"),
    Column("share", _N, "`total_ns` of end-to-end latency"),
    Column("operators", _I, "its own operators"),
    Column("macs", _I, "of it and everything below; null where one is not known"),
)
_FINDINGS = (
    Column("rule", _T, "identifier of the rule"),
    Column("severity", _T, "high, medium or info"),
    Column("title", _T, "the finding in one sentence"),
    Column("evidence", _T, "the figures it rests on"),
    Column("saving_ns", _N, "what acting on it would save per inference; null where that cannot be said"),
    Column("next_step", _T, "what to do"),
)
_KERNELS = (
    Column("operator", _T, "as the backend calls it, without its number"),
    Column("kernel", _T, "the microkernel; null where it is not known"),
    Column("category", _T, "upper level of the taxonomy"),
    Column("kind", _T, "lower level"),
    Column("backend", _T, "that ran it"),
    Column("operators", _I, "how many operators of the program"),
    Column("time_ns", _N, "their mean self time per inference, together"),
    Column("share", _N, "of end-to-end latency"),
    Column("macs", _I, "multiply-accumulates per inference, together; null where one is not known"),
)
_TILES = (
    Column("tile", _T, "`ROW,COL`"),
    Column("unit", _T, "core, mem, memtile or shim"),
    Column("calls", _I, "calls that were found"),
    Column("window_cycles", _I, "from the first call's start to the last one's end"),
    Column("vector_cycles", _I, "of the window: vector instructions"),
    Column("memory_stall_cycles", _I, "of the window: waiting for memory"),
    Column("stream_stall_cycles", _I, "of the window: waiting for a stream"),
    Column("cascade_stall_cycles", _I, "of the window: waiting for the cascade"),
    Column("lock_stall_cycles", _I, "of the window: waiting for a lock"),
    Column("other_cycles", _I, "the rest of the window"),
    Column("mac_per_cycle", _N, "of the window; null where it is not known"),
    Column("utilisation", _N, "the same as a fraction of the peak"),
    Column("coverage", _N, "calls in the trace as a fraction of the whole run's"),
    Column("bound_by", _T, "what sets the pace of calls; null where it is not known"),
    Column("iterations", _I, "repetitions of the whole product in the trace"),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table("runs", "one variant of one bundle, or one trace of tiles", (*_KEYS, *_RUNS)),
        Table("latency", "one process of a variant", (*_KEYS, *_LATENCY)),
        Table("operators", "one operator of the program, in one variant", (*_KEYS, *_OPERATORS)),
        Table("modules", "one module of the model, in one variant", (*_KEYS, *_MODULES)),
        Table("findings", "one finding on one variant", (*_KEYS, *_FINDINGS)),
        Table("kernels", "operators of one sort and one microkernel, in one variant", (*_KEYS, *_KERNELS)),
        Table("tiles", "one trace unit of one AI Engine tile", (*_KEYS, *_TILES)),
    )
}
