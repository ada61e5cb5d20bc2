"""Files of AI Engine traces, by content: what ``opscope aie`` reads, with the arrays that its analyses work on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.files import sha256_of
from opscope.core.system.memory import limited
from opscope.core.table.events import TraceWarning
from opscope.npu.readers.json import read_json
from opscope.readers.compressed import inflated_part, is_compressed, mapped_file
from opscope.readers.registry import reader_for

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.core.table.tiles import TileTraceSet
    from opscope.npu.readers.slots import Slots

_HEAD = 64
_HINT = "give the JSON that mlir-aie's trace parser writes, or raw trace words: text in hexadecimal, or binary"


@runtime_checkable
class TilesReader(Protocol):
    """A reader, of this package or another, of traces of AI Engine tiles: ``opscope aie`` reads what it does."""

    def read_tiles(self, data: memoryview, path: Path, slots: Slots | None) -> TileTraceSet:
        """Return the tiles of a trace."""
        ...


_CUT = TraceWarning(
    "truncated", "the compressed file is truncated", "write or copy the file again; the intact part was read"
)


def read_tiles(path: Path, slots: Slots | None = None) -> tuple[TileTraceSet, str]:
    """Return the tiles of a trace in JSON or raw words, compressed or not, and the hash of its file as it is stored."""
    stored, is_cut = mapped_file(path), False
    if not len(stored):
        raise EmptyTraceError("the file is empty", where=path, hint="the capture failed; run it again")
    with limited(path):
        content = stored
        if is_compressed(stored):
            inflated, is_cut = inflated_part(stored, path)
            content = memoryview(inflated)
            if is_cut and len(content) < _HEAD:
                raise TraceFormatError(_CUT.message, where=path, offset=len(stored), hint=_CUT.hint)
        traces = _decode_content(content, path, slots)
    if is_cut and all(warning.code != _CUT.code for warning in traces.warnings):
        traces = replace(traces, warnings=(_CUT, *traces.warnings))
    return traces, sha256_of(path)


def _decode_content(data: memoryview, path: Path, slots: Slots | None) -> TileTraceSet:
    head = bytes(data[:_HEAD])
    try:
        reader = reader_for(head, path)
    except EmptyTraceError:
        return read_json(data, path)  # an empty list names no tile: the published files say so
    except TraceFormatError:
        raise TraceFormatError("neither a trace in JSON nor raw trace words", where=path, hint=_HINT) from None
    if not isinstance(reader, TilesReader):
        hint = "use opscope analyze; AI Engine traces are JSON or raw words"
        raise TraceFormatError(f"a trace of the format {reader.name}, not an AI Engine trace", where=path, hint=hint)
    return reader.read_tiles(data, path, slots)
