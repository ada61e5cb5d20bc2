"""Raw trace words of AI Engine tiles, as text in hexadecimal or as little-endian binary.

Which event a slot stands for is not in the words: it comes from the design, so the caller gives the names.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table.events import TraceWarning
from opscope.core.table.tiles import UNUSED, LostWords, SlotTrace, TileTrace, TileTraceSet, Unit
from opscope.core.units import counted_text
from opscope.npu.devices import event_names
from opscope.npu.readers.events import TooManySpansError, decode_events
from opscope.npu.readers.json_text import no_core, unknown_events
from opscope.npu.readers.packets import PACKET, framed, is_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from opscope.core.table import EventTable
    from opscope.npu.readers.events import UnitEvents
    from opscope.npu.readers.packets import Framing, UnitWords

    Words = NDArray[np.uint32]
    Slots = Mapping[Unit, Sequence[str]]
    """Names of the eight slots of each kind of unit."""

FORMAT = "aie-words"
_DIGITS = 8
_HEAD = re.compile(rb"\s*(?:0[xX])?[0-9a-fA-F]{8}[\s,]+(?:0[xX])?[0-9a-fA-F]{8}(?:[\s,]|\Z)")
_TOKEN = re.compile(rb"(?:0[xX])?([0-9a-fA-F]{1,8})\Z")
_REST = re.compile(rb"[0-9a-fA-F]{0,8}\Z")
_START_BITS, _START = 0xFB00_0000, 0xF000_0000
_DAMAGED = "give the file as captured: one word of eight hexadecimal digits per line, or little-endian binary"
_CAPTURE = "the buffer was overwritten during tracing, or its file was edited; times after this point are too early"


class AieWordsReader:
    """Reads raw trace words; their slots are called ``SLOT 0`` to ``SLOT 7``."""

    name: ClassVar[str] = FORMAT

    def sniff(self, head: bytes) -> bool:
        """Whether a file starts with hexadecimal words, or with headers of trace packets in binary."""
        return bool(_HEAD.match(head)) or _is_binary(head)

    def read_tiles(self, data: memoryview, path: Path, slots: Slots | None) -> TileTraceSet:
        """The tiles of a trace, with the names of slots that were given; raises as :meth:`read` does."""
        return read_words(data, path, slots)

    def read(self, data: bytes, path: Path) -> EventTable:
        """All spans of all tiles."""
        return read_words(data, path).table()


def _is_binary(head: bytes) -> bool:
    words = np.frombuffer(head[: len(head) // 4 * 4], "<u4").astype(np.uint32)
    if len(words) < PACKET or not is_header(words[:1])[0]:
        return False
    started = words[1] & np.uint32(_START_BITS) == _START
    return bool(started or is_header(words[PACKET : PACKET + 1]).any())


def read_words(data: bytes | memoryview, path: Path, slots: Slots | None = None) -> TileTraceSet:
    """All tiles of a capture."""
    words, cut = _words(data, path)
    framing = framed(words)
    if not framing.units:
        raise TraceFormatError("no trace packet: no header found", where=path, hint=_DAMAGED)
    room = True if framing.room else None
    tiles = tuple(replace(_tile(pid, unit, slots or {}, path), room=room) for pid, unit in enumerate(framing.units))
    if not any(tile.spans for tile in tiles):
        hint = "none of the selected events occurred, or tracing stopped immediately"
        raise EmptyTraceError("the packets hold no events", where=path, hint=hint)
    named = all(unit.unit in (slots or {}) for unit in framing.units)
    unnamed = () if named else (_UNNAMED,)
    warnings = *_warnings(framing, cut=cut), *no_core(tile.unit for tile in tiles), *unnamed
    return TileTraceSet(tiles, FORMAT, warnings)


_UNNAMED = TraceWarning(
    "slots_unnamed", "raw words do not name the events of slots", "name them in order: --slots NAME,NAME,..."
)


def _words(data: bytes | memoryview, path: Path) -> tuple[Words, bool]:
    """The words, and whether the last one is incomplete."""
    if _is_binary(bytes(data[: 4 * (PACKET + 1)])):
        whole = len(data) // 4 * 4
        return np.frombuffer(data[:whole], "<u4").astype(np.uint32), whole < len(data)
    line = _DIGITS + (2 if bytes(data[_DIGITS : _DIGITS + 1]) == b"\r" else 1)
    final = len(data) // line * line
    rest = bytes(data[final:]).strip()
    regular = _regular(bytes(data[:final]), line) if _REST.match(rest) else None
    if regular is None:
        return _tokens(bytes(data), path)
    if len(rest) < _DIGITS:
        return regular, bool(rest)
    return np.append(regular, np.uint32(int(rest, 16))), False


def _regular(text: bytes, line: int) -> Words | None:
    """The words of a text in which every line has eight digits and the same end; None when one differs."""
    count, end = len(text) // line, b"\r\n"[_DIGITS - line :]
    if not count or any(text[_DIGITS + at :: line] != end[at : at + 1] * count for at in range(len(end))):
        return None
    try:
        words = np.frombuffer(bytes.fromhex(text.decode("ascii")), ">u4").astype(np.uint32)
    except ValueError:
        return None
    return words if len(words) == count else None


def _tokens(data: bytes, path: Path) -> tuple[Words, bool]:
    """The words of a text of any layout; a last one that is too short is left out."""
    tokens = data.replace(b",", b" ").split()
    matches = [_TOKEN.match(token) for token in tokens]
    if None in matches:
        wrong = matches.index(None)
        shown = tokens[wrong][:20].decode("ascii", "replace")
        raise TraceFormatError(f"word {wrong + 1:,} is not a word: {shown!r}", where=path, hint=_DAMAGED)
    digits = [match[1] for match in matches if match]
    cut = len(digits) > 1 and len(digits[-1]) < len(digits[0]) and not data[-1:].isspace()
    return np.array([int(word, 16) for word in digits[: len(digits) - cut]], np.uint32), cut


def _tile(pid: int, unit: UnitWords, slots: Slots, path: Path) -> TileTrace:
    try:
        events = decode_events(unit.words, unit.lost_before, unit.lost_at)
    except TooManySpansError as error:
        tile = f"{unit.row},{unit.column}"
        raise TraceFormatError(f"{unit.unit.value} of tile {tile}: {error}", where=path, hint=_DAMAGED) from error
    names = slots.get(unit.unit, ())
    recorded = f"{unit.unit.value}_trace for tile{unit.row},{unit.column}"
    named = list(_named(names, events))
    unknown = unknown_events(recorded, unit.unit, named) if names else []
    return TileTrace(
        row=unit.row,
        column=unit.column,
        unit=unit.unit,
        pid=pid,
        recorded=recorded,
        slots=tuple(named),
        last=events.last,
        start_timer=events.start_timer if events.begun else None,
        warnings=(*_tile_warnings(recorded, events), *unknown),
        lost=(
            *([] if events.begun else [LostWords(0, "its first packet, which holds the Start command, is missing")]),
            *(LostWords(cycle, "words of a packet or its header are missing") for cycle in events.lost),
        ),
    )


def _named(names: Sequence[str], events: UnitEvents) -> Iterator[SlotTrace]:
    """The slots that have a name or spans."""
    for number, spans in enumerate(events.spans):
        name = names[number] if number < len(names) else UNUSED
        if name != UNUSED or len(spans.start):
            recorded = f"SLOT {number}" if name == UNUSED else name
            yield SlotTrace(number, event_names().current(recorded), recorded, spans)


def _warnings(framing: Framing, *, cut: bool) -> list[TraceWarning]:
    short, adopted, orphans = framing.short, framing.adopted, framing.orphans
    few = f"{short:,} of {framing.packets:,} packets have fewer than seven words: some were lost"
    taken = f"{counted_text(adopted, 'word', ',')} without a header assigned to the only unit"
    left = f"skipped {counted_text(orphans, 'word', ',')} without a header or unit"
    mended = f"corrected {counted_text(framing.repaired, 'header', ',')} with a wrong bit to the only possible one"
    counts = (
        (short, "words_lost", few),
        (framing.repaired, "headers_damaged", mended),
        (adopted, "headers_lost", taken),
        (orphans, "words_without_unit", left),
    )
    found = [TraceWarning(code, message, _CAPTURE) for count, code, message in counts if count]
    if framing.cut or cut:
        message = "the file ends inside a packet: everything after it is missing"
        found.append(TraceWarning("truncated", message, "copy the whole buffer; the intact part was read"))
    return found


def _tile_warnings(recorded: str, events: UnitEvents) -> list[TraceWarning]:
    found = (
        (events.cut, "commands_cut", "commands are truncated where words are missing; skipped"),
        (events.unknown, "commands_unknown", "bytes are not part of any command; skipped"),
        (events.restarts, "trace_restarted", "additional Start commands; time continues without them"),
        (events.repeats_lost, "repeats_lost", "repeats have no frame before them; skipped"),
        (events.repeats_of_idle, "repeats_of_idle", "repeats follow Event_Sync; the frame before it was used"),
    )
    return [TraceWarning(code, f"{recorded}: {count:,} {what}", _CAPTURE) for count, code, what in found if count]
