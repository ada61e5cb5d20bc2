"""Raw trace words of AI Engine tiles, as text in hexadecimal or as little-endian binary.

Which event a slot stands for is not in the words: it comes from the design, so the caller gives the names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table.events import TraceWarning
from opscope.core.table.tiles import SLOTS, UNUSED, SlotTrace, TileTrace, TileTraceSet, Unit
from opscope.npu.devices import event_names
from opscope.npu.readers.events import TooManySpansError, decode_events
from opscope.npu.readers.packets import PACKET, framed, is_header
from opscope.npu.readers.warnings import no_core, unknown_events

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
_AT_ONCE = 1 << 14
_HEAD = re.compile(rb"\s*(?:0[xX])?[0-9a-fA-F]{8}[\s,]+(?:0[xX])?[0-9a-fA-F]{8}(?:[\s,]|\Z)")
_TOKEN = re.compile(rb"(?:0[xX])?([0-9a-fA-F]{1,8})\Z")
_REST = re.compile(rb"[0-9a-fA-F]{0,8}\Z")
_START_BITS, _START = 0xFB00_0000, 0xF000_0000
_DAMAGED = "give the file as it was captured: one word of eight hexadecimal digits a line, or little-endian binary"
_CAPTURE = "the buffer was written while it was traced, or its file was edited; times behind the place are too early"


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
        """All spans of all tiles.

        Raises:
            EmptyTraceError: no unit recorded an event.
            TraceFormatError: it holds no packet, or what are no words.
        """
        return read_words(data, path).table()


def _is_binary(head: bytes) -> bool:
    words = np.frombuffer(head[: len(head) // 4 * 4], "<u4").astype(np.uint32)
    if len(words) < PACKET or not is_header(words[:1])[0]:
        return False
    started = words[1] & np.uint32(_START_BITS) == _START
    return bool(started or is_header(words[PACKET : PACKET + 1]).any())


def read_words(data: bytes | memoryview, path: Path, slots: Slots | None = None) -> TileTraceSet:
    """All tiles of a capture.

    Args:
        data: its bytes, text or binary.
        path: for messages.
        slots: names of the slots of each kind of unit; without one, they are numbered.

    Raises:
        EmptyTraceError: no unit recorded an event.
        TraceFormatError: it holds no packet, or what are no words.
    """
    words, cut = _words(data, path)
    framing = framed(words)
    if not framing.units:
        raise TraceFormatError("no trace packet: no word is a header", where=path, hint=_DAMAGED)
    tiles = tuple(_tile(pid, unit, slots or {}, path) for pid, unit in enumerate(framing.units))
    if not any(tile.spans for tile in tiles):
        hint = "nothing that the slots select happened, or tracing was stopped at once"
        raise EmptyTraceError("the packets hold no events", where=path, hint=hint)
    named = all(unit.unit in (slots or {}) for unit in framing.units)
    unnamed = () if named else (_UNNAMED,)
    warnings = *_warnings(framing, cut=cut), *no_core(tile.unit for tile in tiles), *unnamed
    return TileTraceSet(tiles, FORMAT, warnings)


_UNNAMED = TraceWarning(
    "slots_unnamed", "raw words do not say which event a slot is", "name them in order: --slots NAME,NAME,..."
)


def _words(data: bytes | memoryview, path: Path) -> tuple[Words, bool]:
    """The words, and whether the last one is incomplete."""
    if _is_binary(bytes(data[: 4 * (PACKET + 1)])):
        whole = len(data) // 4 * 4
        return np.frombuffer(data[:whole], "<u4").astype(np.uint32), whole < len(data)
    line = _DIGITS + (2 if bytes(data[_DIGITS : _DIGITS + 1]) == b"\r" else 1)
    final = len(data) // line * line
    rest = bytes(data[final:]).strip()
    regular = _regular(data[:final], line) if _REST.match(rest) else None
    if regular is None:
        return _tokens(bytes(data), path)
    if len(rest) < _DIGITS:
        return regular, bool(rest)
    return np.append(regular, np.uint32(int(rest, 16))), False


def _regular(data: bytes | memoryview, line: int) -> Words | None:
    """The words of a text in which every line has eight digits and the same end; None when one differs."""
    text, end = np.frombuffer(data, np.uint8), line - _DIGITS
    if not len(text):
        return None
    lines = text.reshape(-1, line)
    if (lines[:, -1] != ord("\n")).any() or (end > 1 and (lines[:, -2] != ord("\r")).any()):
        return None
    digits: NDArray[np.uint64] = np.ndarray((len(lines),), "<u8", text, 0, (line,))
    words = np.empty(len(digits), np.uint32)
    for at in range(0, len(digits), _AT_ONCE):
        part = _from_digits(digits[at : at + _AT_ONCE].astype(np.uint64))
        if part is None:
            return None
        words[at : at + _AT_ONCE] = part
    return words


def _eight_times(byte: int) -> np.uint64:
    pattern: np.uint64 = np.uint64(byte * 0x0101010101010101)
    return pattern


def _from_digits(digits: NDArray[np.uint64]) -> Words | None:
    """Words from eight hexadecimal digits each, all eight at once; None when one is no digit.

    A digit's value is its lower four bits, plus nine when it is a letter; written out again it must be itself.
    """
    lower = digits | _eight_times(0x20)
    four = (lower & _eight_times(0x0F)) + (lower >> np.uint64(6) & _eight_times(1)) * np.uint64(9)
    letter = (four + _eight_times(6)) >> np.uint64(4) & _eight_times(1)
    wrong = (four + _eight_times(ord("0")) + letter * np.uint64(ord("a") - ord("0") - 10)) ^ lower
    wrong |= four & _eight_times(0xF0)
    wrong |= ((digits | digits >> np.uint64(1)) & _eight_times(0x20)) ^ _eight_times(0x20)
    if wrong.any():
        return None
    pairs = (four << np.uint64(4) | four >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    halves = (pairs << np.uint64(8) | pairs >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    words: Words = (halves << np.uint64(16) | halves >> np.uint64(32)).astype(np.uint32)
    return words


def _tokens(data: bytes, path: Path) -> tuple[Words, bool]:
    """The words of a text of any layout; a last one that is too short is left out.

    Raises:
        TraceFormatError: naming the first that is no word.
    """
    tokens = data.replace(b",", b" ").split()
    matches = [_TOKEN.match(token) for token in tokens]
    if None in matches:
        wrong = matches.index(None)
        shown = tokens[wrong][:20].decode("ascii", "replace")
        raise TraceFormatError(f"word {wrong + 1:,} is no word: {shown!r}", where=path, hint=_DAMAGED)
    digits = [match[1] for match in matches if match]
    cut = len(digits) > 1 and len(digits[-1]) < len(digits[0]) and not data[-1:].isspace()
    return np.array([int(word, 16) for word in digits[: len(digits) - cut]], np.uint32), cut


def _tile(pid: int, unit: UnitWords, slots: Slots, path: Path) -> TileTrace:
    try:
        events = decode_events(unit.words, unit.lost_before)
    except TooManySpansError as error:
        tile = f"{unit.row},{unit.column}"
        raise TraceFormatError(f"{unit.unit.value} of tile {tile}: {error}", where=path, hint=_DAMAGED) from error
    names = slots.get(unit.unit, ())
    given = [names[number] if number < len(names) else None for number in range(SLOTS)]
    recorded = f"{unit.unit.value}_trace for tile{unit.row},{unit.column}"
    named = [slot for number, name in enumerate(given) if (slot := _slot(number, name, events))]
    unknown = unknown_events(recorded, unit.unit, named) if names else []
    return TileTrace(
        row=unit.row,
        column=unit.column,
        unit=unit.unit,
        pid=pid,
        recorded=recorded,
        slots=tuple(named),
        last=events.last,
        start_timer=events.start_timer,
        warnings=(*_tile_warnings(recorded, events), *unknown),
    )


def _slot(number: int, name: str | None, events: UnitEvents) -> SlotTrace | None:
    spans = events.spans[number]
    if not len(spans.start) and name in {None, UNUSED}:
        return None
    recorded = f"SLOT {number}" if name in {None, UNUSED} else str(name)
    return SlotTrace(number, event_names().current(recorded), recorded, spans)


def _warnings(framing: Framing, *, cut: bool) -> list[TraceWarning]:
    found = []
    if framing.short:
        message = f"{framing.short:,} of {framing.packets:,} packets have fewer than seven words: some were lost"
        found.append(TraceWarning("words_lost", message, _CAPTURE))
    if framing.adopted:
        message = f"{framing.adopted:,} words without a header were taken for the only unit's"
        found.append(TraceWarning("headers_lost", message, _CAPTURE))
    if framing.orphans:
        message = f"{framing.orphans:,} words without a header belong to no unit and were left out"
        found.append(TraceWarning("words_without_unit", message, _CAPTURE))
    if framing.cut or cut:
        message = "the file ends inside a packet: what was recorded behind it is missing"
        found.append(TraceWarning("truncated", message, "copy the whole buffer; what is whole was read"))
    return found


def _tile_warnings(recorded: str, events: UnitEvents) -> list[TraceWarning]:
    found = (
        (events.cut, "commands_cut", "commands are cut off where words are missing, and were left out"),
        (events.unknown, "commands_unknown", "bytes begin no command and were passed over"),
        (events.restarts, "trace_restarted", "further Start commands; the time goes on as if there was none"),
        (events.repeats_lost, "repeats_lost", "repeats have no frame before them and were left out"),
        (events.repeats_of_idle, "repeats_of_idle", "repeats stand behind Event_Sync; the frame before it was taken"),
    )
    return [TraceWarning(code, f"{recorded}: {count:,} {what}", _CAPTURE) for count, code, what in found if count]
