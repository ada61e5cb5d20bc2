"""A trace or a bundle in another format, for other tools or for reading it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from opscope.bundle.files import write_atomically
from opscope.errors import BundleError, UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.api.sides import ProgramFiles, Warmup

Content: TypeAlias = "bytes | Iterable[bytes]"
_SUFFIXES = {
    "csv": ".csv",
    "parquet": ".parquet",
    "perfetto": ".perfetto.json",
    "speedscope": ".speedscope.json",
    "folded": ".folded.txt",
    "openmetrics": ".openmetrics.txt",
}
_SEVERAL = {
    "model-explorer": None,
    "tables": ("_operators.csv", "_categories.csv"),
    "kit-csv": ("_exec_all_runs_timeline.csv", "_exec_run0_timeline.csv", "_exec_ops_stats.csv"),
}
"""Formats of several files, and the ends of their names; None: the variants decide."""
_BY_DEFAULT = "operator"
_STACKS = ("speedscope", "folded")
_OF_PROGRAMS = ("model-explorer", "perfetto", "tables", *_STACKS)
_PACKED = (".gz", ".zst")
CONVERT_FORMATS = (*_SUFFIXES, *_SEVERAL)


class ConvertOptions(NamedTuple):
    """What else is said about a conversion.

    Attributes:
        program: the .pte of a trace; a bundle has its own.
        etrecord: of the same export.
        by: what flame graphs are built from, ``operator`` or ``module``; None: operators.
    """

    program: str | Path | None = None
    etrecord: str | Path | None = None
    by: str | None = None


class Request(NamedTuple):
    """A conversion that was asked for.

    Attributes:
        path: what to convert.
        to: the format.
        stem: what the files are called, without what follows from the format.
        warmup: as in :func:`opscope.api.analyze`.
        files: the program that the user named.
        by: what flame graphs are built from.
    """

    path: str
    to: str
    stem: str
    warmup: Warmup
    files: ProgramFiles | None
    by: str


def convert(
    path: str | Path,
    to: str,
    *,
    out: str | Path | None = None,
    warmup: Warmup = None,
    force: bool = False,
    options: ConvertOptions | None = None,
) -> list[Path]:
    """Write a trace or a bundle in another format.

    Of a bundle without ``#variant``, ``csv``, ``parquet`` and ``kit-csv`` hold the accelerated variant, the others all.

    Args:
        path: whatever :func:`opscope.api.read` takes; for ``model-explorer`` also a .pte alone.
        to: one of ``CONVERT_FORMATS``.
        out: the file, for formats of several files the directory; None: beside the trace, with the format's suffix.
        warmup: inferences of each process to mark as warm-up; as in :func:`opscope.api.analyze`.
        force: replace files that are there.
        options: what only some formats need; None: nothing.

    Returns:
        The files that were written.

    Raises:
        UsageError: the format or an option is unknown, or cannot say what the trace holds.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged or of an unknown format.
        MismatchError: the program or the record is not the trace's.
        BundleError: an output file exists.
        StorageError: the output cannot be written.
    """
    request = _request(path, to, warmup, options)
    place = None if out is None else Path(out)
    known = (_SUFFIXES[to],) if to in _SUFFIXES else _SEVERAL[to]
    if not force:
        _check_new([_target(request, suffix, place) for suffix in known or ()])
    contents = _contents(request)
    targets = [_target(request, suffix, place) for suffix in contents]
    if not force:
        _check_new(targets)
    for target, content in zip(targets, contents.values(), strict=True):
        write_atomically(target, content)
    return targets


def converted(
    path: str | Path, to: str, *, warmup: Warmup = None, options: ConvertOptions | None = None
) -> Iterable[bytes]:
    """The content of the one file that :func:`convert` would write, in parts.

    Raises:
        UsageError: the format is unknown, or has several files.
    """
    request = _request(path, to, warmup, options)
    if to in _SEVERAL:
        raise UsageError(f"{to} is several files", where="--out", hint="give a directory")
    (content,) = _contents(request).values()
    return [content] if isinstance(content, bytes) else content


def _request(path: str | Path, to: str, warmup: Warmup, options: ConvertOptions | None) -> Request:
    """What was asked for, checked as far as that goes without reading.

    Raises:
        UsageError: the format is unknown, or an option makes no sense with it.
    """
    from opscope.api.analyses import program_files

    given = options or ConvertOptions()
    if to not in CONVERT_FORMATS:
        raise UsageError(f"no format {to!r}", where="--to", hint=did_you_mean(to, CONVERT_FORMATS))
    if given.by is not None:
        _check_by(to, given.by)
    if to not in _OF_PROGRAMS and (given.program or given.etrecord):
        hint = f"the formats that show it: {', '.join(_OF_PROGRAMS)}"
        raise UsageError(f"{to} says nothing about the program", where="--program", hint=hint)
    files = program_files(given.program, given.etrecord)
    return Request(str(path), to, _stem(str(path)), warmup, files, given.by or _BY_DEFAULT)


def _check_by(to: str, by: str) -> None:
    known = (_BY_DEFAULT, "module")
    if to not in _STACKS:
        raise UsageError(f"{to} is no flame graph", where="--by", hint=f"it is for {' and '.join(_STACKS)}")
    if by not in known:
        raise UsageError(f"no flame graph by {by!r}", where="--by", hint=did_you_mean(by, known))


def _contents(request: Request) -> dict[str, Content]:
    from opscope.api.conversion_content import contents

    return contents(request)


def _stem(path: str) -> str:
    """What the trace is called: the name of its file without suffix, or of its directory, and the variant."""
    name, _, variant = path.partition("#")
    place = Path(name)
    if not place.name or place.is_dir():
        stem = place.resolve().name
    else:
        stem = (place.with_suffix("") if place.suffix in _PACKED else place).stem
    return f"{stem}-{variant}" if variant else stem


def _target(request: Request, suffix: str, out: Path | None) -> Path:
    """The file with this end of its name."""
    beside = Path(request.path.partition("#")[0]).resolve().parent
    if request.to in _SEVERAL:
        return (out or beside) / f"{request.stem}{suffix}"
    return out or beside / f"{request.stem}{suffix}"


def _check_new(targets: list[Path]) -> None:
    for target in targets:
        if target.exists():
            hint = "replace it with --force, or choose another place with --out"
            raise BundleError("the output exists", where=target, hint=hint)
