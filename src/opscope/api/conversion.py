"""A trace in another format, for other tools or for reading it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.api.sides import side_of
from opscope.bundle.files import write_atomically
from opscope.errors import BundleError, UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.api.sides import Side, Warmup

_SUFFIXES = {"csv": ".csv", "parquet": ".parquet", "perfetto": ".perfetto.json"}
_KIT = "kit-csv"
_LATER = ("model-explorer",)
_PACKED = (".gz", ".zst")
CONVERT_FORMATS = (*_SUFFIXES, _KIT)


def convert(
    path: str | Path, to: str, *, out: str | Path | None = None, warmup: Warmup = None, force: bool = False
) -> list[Path]:
    """Write the events of a trace in another format.

    Args:
        path: whatever :func:`opscope.api.read` takes.
        to: one of ``CONVERT_FORMATS``.
        out: the file, for ``kit-csv`` the directory; None: beside the trace, with the format's suffix.
        warmup: inferences of each process to mark as warm-up; as in :func:`opscope.api.analyze`.
        force: replace files that are there.

    Returns:
        The files that were written.

    Raises:
        UsageError: the format is unknown, or cannot say what the trace holds.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged or of an unknown format.
        BundleError: an output file exists.
        StorageError: the output cannot be written.
    """
    _check_format(to)
    targets = _targets(str(path), to, None if out is None else Path(out))
    if not force:
        _check_new(targets)
    side = side_of(path, warmup)
    for target, content in zip(targets, _rendered(side, to, _stem(str(path))), strict=True):
        write_atomically(target, content)
    return targets


def converted(path: str | Path, to: str, *, warmup: Warmup = None) -> Iterable[bytes]:
    """The content of the one file that :func:`convert` would write, in parts.

    Raises:
        UsageError: the format is unknown, or has several files.
    """
    _check_format(to)
    if to == _KIT:
        raise UsageError(f"{_KIT} is several files", where="--out", hint="give a directory")
    content = _rendered(side_of(path, warmup), to, _stem(str(path)))[0]
    return [content] if isinstance(content, bytes) else content


def _check_format(to: str) -> None:
    if to in _LATER:
        raise UsageError(f"the format {to} is not available yet", where="--to", hint=did_you_mean("", CONVERT_FORMATS))
    if to not in CONVERT_FORMATS:
        raise UsageError(f"no format {to!r}", where="--to", hint=did_you_mean(to, CONVERT_FORMATS))


def _stem(path: str) -> str:
    """What the trace is called: the name of its file without suffix, or of its directory, and the variant."""
    name, _, variant = path.partition("#")
    place = Path(name)
    if not place.name or place.is_dir():
        stem = place.resolve().name
    else:
        stem = (place.with_suffix("") if place.suffix in _PACKED else place).stem
    return f"{stem}-{variant}" if variant else stem


def _targets(path: str, to: str, out: Path | None) -> list[Path]:
    """The files to write, in the order in which they are rendered."""
    beside = Path(path.partition("#")[0]).resolve().parent if out is None else out
    if to == _KIT:
        from opscope.report.kit_csv import FILES

        return [beside / f"{_stem(path)}_{name}" for name in FILES]
    return [out or beside / f"{_stem(path)}{_SUFFIXES[to]}"]


def _check_new(targets: list[Path]) -> None:
    for target in targets:
        if target.exists():
            hint = "replace it with --force, or choose another place with --out"
            raise BundleError("the output exists", where=target, hint=hint)


def _rendered(side: Side, to: str, stem: str) -> list[bytes | Iterable[bytes]]:
    """Content of each file."""
    if to == "csv":
        from opscope.report.events_csv import events_csv

        return [events_csv(side.table)]
    if to == "parquet":
        from opscope.report.parquet import parquet

        return [parquet(side.table)]
    if to == "perfetto":
        from opscope.report.perfetto import perfetto

        return [perfetto(side.table, _processes(side, stem))]
    from opscope.report.kit_csv import kit_csv

    return [*kit_csv(side.table, stem)]


def _processes(side: Side, stem: str) -> list[str]:
    """What each process is called: its file, or its number where one file holds several."""
    if len(side.files) == side.table.processes:
        return [file for file, _ in side.files]
    return [f"{stem}, process {number}" for number in range(side.table.processes)]
