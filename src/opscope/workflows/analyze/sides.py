"""The side that a path names: traces, a variant of a bundle, an experiment of the Arm kit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import NotFoundError, UsageError
from opscope.core.table.ticks import OPTION, read_tick_length
from opscope.measurements.trace_sides import trace_side
from opscope.runtimes.side import ProgramFiles

if TYPE_CHECKING:
    from fractions import Fraction

    from opscope.measurements.results import EventsResult
    from opscope.runtimes.side import Side, Warmup


def read(path: str | Path, *, program: str | Path | None = None, etrecord: str | Path | None = None) -> EventsResult:
    """The events of a trace, of all traces in a directory, or of a variant of a bundle (``BUNDLE#variant``).

    A run directory of the Arm kit is read like a bundle; its experiments are ``DIR#experiment``.

    Warm-up is marked: by the plan of a bundle, else where the latencies settle.

    Args:
        path: the trace, the directory, the bundle (its accelerated variant) or ``BUNDLE#variant``.
        program: the .pte that was traced, for the layers of events. A bundle has its own.
        etrecord: of the same export: events then have modules and source lines.

    >>> import opscope
    >>> opscope.read("trace.etdump").inferences().height
    4
    >>> opscope.read("out#baseline").processes
    6

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged or of an unknown format.
        MismatchError: the program or the record is not the trace's.
        UsageError: a record without its program.
    """
    from opscope.measurements.results import EventsResult

    side = side_of(path, None, program_files(program, etrecord))
    table, known = side.table, side.known.attributions.operators if side.known else {}
    return EventsResult(table.traces, table.clock, table.warnings, table.warmup, table.side, str(path), known)


def program_files(program: str | Path | None, etrecord: str | Path | None) -> ProgramFiles | None:
    """The files of a program that the user named, None when there are none."""
    if program is None:
        if etrecord is not None:
            raise UsageError("an export record needs its program", where="--etrecord", hint="add --program")
        return None
    return ProgramFiles(Path(program), Path(etrecord) if etrecord else None)


def side_of(path: str | Path, warmup: Warmup, files: ProgramFiles | None = None, ticks: str | None = None) -> Side:
    """Return the side that a path names; :func:`opscope.analyze` explains the arguments."""
    place, _, variant = str(path).partition("#")
    directory = Path(place)
    tick_ns = read_tick_length(ticks) if ticks is not None else None
    if is_kit(directory):
        _refuse_ticks(place, tick_ns)
        from opscope.kit.sides import kit_side

        return kit_side(directory, variant or None, warmup, files)
    side = _side_of(directory, variant or None, warmup, tick_ns)
    if files is None:
        return side
    from opscope.measurements.attribution import with_program

    return with_program(side, *files)


def _refuse_ticks(directory: str | Path, tick_ns: Fraction | None) -> None:
    if tick_ns is not None:
        hint = f"leave out {OPTION}: it is for traces; those of a bundle are in nanoseconds"
        raise UsageError("a bundle, or a run of the Arm kit", where=directory, hint=hint)


def _side_of(place: Path, variant: str | None, warmup: Warmup, tick_ns: Fraction | None) -> Side:
    """The side of a bundle, or of traces."""
    if place.is_dir():
        from opscope.bundle.bundle import Bundle, is_bundle
        from opscope.measurements.sides import bundle_side

        if is_bundle(place):
            _refuse_ticks(place, tick_ns)
            return bundle_side(Bundle.open(place), variant, warmup)
    if variant:
        raise NotFoundError("neither a bundle nor a run of the Arm kit, so it has no variants", where=place)
    return trace_side(place, warmup, tick_ns)


def is_kit(directory: Path) -> bool:
    """Return whether a path is a run directory of the Arm kit."""
    if not directory.is_dir():
        return False
    from opscope.kit.readers.directory import is_kit_run

    return is_kit_run(directory)
