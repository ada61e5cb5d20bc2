"""Raw trace words of AI Engine tiles, as text in hexadecimal or as little-endian binary.

Which event a slot stands for is not in the words: it comes from the design, so the caller gives the names.

A packet is a header and seven payload words. A header is recognised by its parity and its fixed zero bits, and only
where another one stands eight words on, or the data end there, or the same word is a header elsewhere. So a lost or an
additional word costs the packet it stands in and nothing behind it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table.events import TraceWarning
from opscope.core.table.tiles import (
    NO_SPANS,
    SLOTS,
    UNUSED,
    LostWords,
    SlotTrace,
    TileTrace,
    TileTraceSet,
    TraceMode,
    Unit,
)
from opscope.core.units import counted_text
from opscope.npu.devices import event_names
from opscope.npu.readers.events import TooManySpansError, decode_addresses, decode_events, is_start, trace_mode
from opscope.npu.readers.json_text import no_core, unknown_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from opscope.core.table import EventTable
    from opscope.core.table.nesting import Ints
    from opscope.npu.readers.events import UnitEvents

    Words = NDArray[np.uint32]
    Slots = Mapping[Unit, Sequence[str]]
    """Names of the eight slots of each kind of unit."""
    Mask = NDArray[np.bool_]


PACKET = 8
_PAYLOAD = PACKET - 1
_ZERO_BITS = 0x7008_0FE0
_UNITS = (Unit.CORE, Unit.MEM, Unit.SHIM, Unit.MEMTILE)
_NOBODY = -1


class UnitWords(NamedTuple):
    """The payload of one trace unit."""

    row: int  # of the tile
    column: int  # of the tile
    unit: Unit  # which one
    words: Words  # its payload, in order
    lost_before: Mask  # words before which something is missing
    lost_at: Ints  # places among the words at which some of this unit are missing, or may be; ascending


class Framing(NamedTuple):
    """All units of a buffer."""

    units: tuple[UnitWords, ...]  # in order of appearance
    packets: int  # how many have a header
    short: int  # packets that have fewer than seven payload words although others follow them
    orphans: int  # words that belong to no packet, and are not padding
    adopted: int  # words without a header that were given to the only unit there is
    cut: bool  # whether the last packet is incomplete
    repaired: int  # headers with one wrong bit that stand between two others; read as the one that they must be
    room: bool  # whether zero words are left behind the last packet


class _Span(NamedTuple):
    """Words in a row that are framed alike."""

    at: int  # of the first header; of words without a header, the place before the first
    packets: int  # whole packets that follow each other from there
    size: int  # payload words of the one packet; seven unless `packets` is 1
    headed: bool  # whether there is a header
    broken: bool  # whether words are missing before or in it
    short: bool = False  # whether words are missing in it


def is_header(words: Words) -> Mask:
    """Return which words can be headers: odd parity, and zero where a header is zero."""
    found: Mask = (words & np.uint32(_ZERO_BITS)) == 0
    candidates = np.flatnonzero(found)
    folded = words[candidates]
    for width in (16, 8, 4, 2, 1):
        folded = folded ^ (folded >> np.uint32(width))
    found[candidates] = (folded & np.uint32(1)) == 1
    return found


def framed(words: Words) -> Framing:
    """The units of a buffer and their payload; zero words between packets are padding.

    Headers are repaired only where packets do not follow each other: payload may look like a header with a wrong bit.
    """
    spans = list(_Walk(words).stretches())
    if all(span.headed and not span.broken and not span.short for span in spans):
        return _assign_units(words, spans)
    words, repaired = _repair_headers(words)
    return _assign_units(words, list(_Walk(words).stretches()))._replace(repaired=repaired)


def _repair_headers(words: Words) -> tuple[Words, int]:
    """Words in which headers with one wrong bit are right again, and how many.

    Such a word stands where a header must: eight words behind one or at the beginning, and eight before one, padding or
    the end. It differs in one bit from exactly one of the headers that were seen.
    """
    header = is_header(words)
    behind, before = np.zeros(len(words), bool), np.ones(len(words), bool)
    behind[:1], behind[PACKET:] = True, header[:-PACKET]
    before[:-PACKET] = header[PACKET:] | (words[PACKET:] == 0)
    wrong = np.flatnonzero(~header & behind & before & (words > 0))
    known = np.unique(words[:-PACKET][header[:-PACKET] & header[PACKET:]])
    found = [(int(at), near) for at in wrong for near in [_one_bit_off(words[at], known)] if near is not None]
    if not found:
        return words, 0
    words = words.copy()
    for at, near in found:
        words[at] = near
    return words, len(found)


def _one_bit_off(word: np.uint32, known: Words) -> int | None:
    """The only header that differs in one bit; None where there is none, or several."""
    apart = known ^ word
    near = known[(apart & (apart - np.uint32(1))) == 0]
    return int(near[0]) if len(near) == 1 else None


class _Walk:
    """One pass through a buffer, from stretch to stretch."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._header = is_header(words)
        self._candidates = np.flatnonzero(self._header)
        self._filled = np.flatnonzero(words)
        self._ends: dict[int, Ints] = {}
        followed = words[:-PACKET][self._header[:-PACKET] & self._header[PACKET:]]
        self._known = set(np.unique(followed).tolist())

    def stretches(self) -> Iterator[_Span]:
        at, broken = 0, False
        while (at := self._next_word(at)) < len(self._words):
            if not self._is_trusted(at):
                begin, at = at, self._next_header(at)
                yield from self._words_without_header(begin, at)
                broken = True
                continue
            whole = self._packets_in_row(at)
            self._known.add(int(self._words[at]))
            if whole > 1:
                self._known.add(int(self._words[at + (whole - 1) * PACKET]))
                yield _Span(at, whole - 1, _PAYLOAD, headed=True, broken=broken)
                at, broken = at + (whole - 1) * PACKET, False
            following = self._packet_end(at)
            size = self._payload_size(at, following)
            short = following < at + PACKET and following < len(self._words)
            yield _Span(at, 1, size, headed=True, broken=broken or short, short=short)
            at, broken = following, short

    def _next_word(self, at: int) -> int:
        place = int(np.searchsorted(self._filled, at))
        return int(self._filled[place]) if place < len(self._filled) else len(self._words)

    def _next_header(self, at: int) -> int:
        place = int(np.searchsorted(self._candidates, at, side="right"))
        while place < len(self._candidates) and not self._is_trusted(int(self._candidates[place])):
            place += 1
        return int(self._candidates[place]) if place < len(self._candidates) else len(self._words)

    def _is_trusted(self, at: int) -> bool:
        """Return whether a word is a header as far as what follows and what came before can tell."""
        if not self._header[at]:
            return False
        after = at + PACKET
        if after >= len(self._words) or self._header[after] or not self._words[after]:
            return True
        return int(self._words[at]) in self._known

    def _packets_in_row(self, at: int) -> int:
        place, phase = divmod(at, PACKET)
        if phase not in self._ends:
            self._ends[phase] = np.flatnonzero(~self._header[phase::PACKET])
        ends = self._ends[phase]
        found = int(np.searchsorted(ends, place))
        end = int(ends[found]) if found < len(ends) else len(self._header[phase::PACKET])
        return end - place

    def _packet_end(self, at: int) -> int:
        """Return where the packet of a header ends: after seven words, or before when the next one comes too early."""
        after = at + PACKET
        if after >= len(self._words) or self._header[after] or not self._words[after]:
            return min(after, len(self._words))
        place = int(np.searchsorted(self._candidates, at, side="right"))
        for early in self._candidates[place : place + PACKET].tolist():
            if early < after and self._is_followed(early):
                return int(early)
        return after

    def _is_followed(self, at: int) -> bool:
        after = at + PACKET
        known = int(self._words[at]) in self._known
        return known or (after < len(self._words) and bool(self._header[after]))

    def _payload_size(self, at: int, following: int) -> int:
        """Payload words of a packet, without the padding at its end when more of it follows."""
        size = following - at - 1
        if following >= len(self._words) or not self._words[following]:
            while size and not self._words[at + size]:
                size -= 1
        return size

    def _words_without_header(self, begin: int, end: int) -> Iterator[_Span]:
        for at in range(begin - 1, end - 1, _PAYLOAD):
            size = min(_PAYLOAD, end - 1 - at)
            while size and not self._words[at + size]:
                size -= 1
            yield _Span(at, 1, size, headed=False, broken=True)


def _assign_units(words: Words, stretches: list[_Span]) -> Framing:
    counts = np.array([stretch.packets for stretch in stretches], np.int64)
    begins = np.cumsum(counts) - counts
    total = int(counts.sum())
    within = np.arange(total) - np.repeat(begins, counts)
    at = np.repeat(np.array([stretch.at for stretch in stretches], np.int64), counts) + within * PACKET
    size = np.repeat(np.array([stretch.size for stretch in stretches], np.int64), counts)
    headed = np.repeat(np.array([stretch.headed for stretch in stretches], bool), counts)
    broken = np.zeros(total, bool)
    broken[begins] = [stretch.broken for stretch in stretches]
    short = np.zeros(total, bool)
    short[begins] = [stretch.short for stretch in stretches]
    unit = np.full(total, _NOBODY, np.int64)
    unit[headed] = _unit_of(words[at[headed]])
    owners = list(dict.fromkeys(unit[headed].tolist()))
    loose = int(size[~headed].sum())
    least = _PAYLOAD if len(owners) == 1 else PACKET
    if len(owners) == 1:
        unit[~headed] = owners[0]
    last = stretches[-1] if stretches else None
    return Framing(
        units=tuple(
            _unit_words(words, (at, size, broken), owner, unit == owner)._replace(
                lost_at=_lost_at(size, unit == owner, (unit == owner) & short, ~headed & (size < least))
            )
            for owner in owners
        ),
        packets=int(headed.sum()),
        short=sum(stretch.short for stretch in stretches),
        orphans=loose if len(owners) != 1 else 0,
        adopted=loose if len(owners) == 1 else 0,
        cut=last is not None and last.headed and last.at + PACKET > len(words),
        repaired=0,
        room=last is not None and last.at + last.packets * PACKET + PACKET <= len(words),
    )


def _lost_at(size: Ints, own: Mask, short: Mask, headless: Mask) -> Ints:
    """Places among a unit's words: behind its short packets, and where words stand that some packet has lost.

    Words without a header may be of any unit. The only unit gets all of them, so that seven in a row lack nothing.
    """
    before = np.cumsum(size * own) - size * own
    places: Ints = np.unique(np.concatenate([(before + size)[short], before[headless]]))
    return places


def _unit_of(headers: Words) -> Ints:
    row, column, kind = headers >> 16 & 0x1F, headers >> 21 & 0x7F, headers >> 12 & 3
    return (kind << 12 | row << 7 | column).astype(np.int64)


def _unit_words(words: Words, packets: tuple[Ints, Ints, Mask], owner: int, own: Mask) -> UnitWords:
    at, size, broken = packets[0][own], packets[1][own], packets[2][own]
    column = np.arange(_PAYLOAD)
    parts: Words = words[(at[:, None] + 1 + column)[column < size[:, None]]]
    lost = np.zeros(len(parts), bool)
    begins = np.cumsum(size) - size
    lost[begins[broken & (size > 0)]] = True
    return UnitWords(owner >> 7 & 0x1F, owner & 0x7F, _UNITS[owner >> 12], parts, lost, np.empty(0, np.int64))


FORMAT = "aie-words"
_DIGITS = 8
_HEAD = re.compile(rb"\s*(?:0[xX])?[0-9a-fA-F]{8}[\s,]+(?:0[xX])?[0-9a-fA-F]{8}(?:[\s,]|\Z)")
_TOKEN = re.compile(rb"(?:0[xX])?([0-9a-fA-F]{1,8})\Z")
_REST = re.compile(rb"[0-9a-fA-F]{0,8}\Z")
_START_BITS, _START = 0xF800_0000, 0xF000_0000
_DAMAGED = "give the file as captured: one word of eight hexadecimal digits per line, or little-endian binary"
_CAPTURE = "capture again: the buffer was overwritten, or its file was edited; times after this point are too early"
_ALONE = "give the trace alone, if other data stand before it in the buffer; else capture again"


class AieWordsReader:
    """Reads raw trace words; their slots are called ``SLOT 0`` to ``SLOT 7``."""

    name: ClassVar[str] = FORMAT

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts with hexadecimal words, or with headers of trace packets in binary."""
        return bool(_HEAD.match(head)) or _is_binary(head)

    def read_tiles(self, data: memoryview, path: Path, slots: Slots | None) -> TileTraceSet:
        """The tiles of a trace, with the names of slots that were given; raises as :meth:`read` does."""
        return read_words(data, path, slots)

    def read(self, data: bytes, path: Path) -> EventTable:
        """Read the spans of every tile into one table."""
        return read_words(data, path).table()


def _is_binary(head: bytes) -> bool:
    words = np.frombuffer(head[: len(head) // 4 * 4], "<u4").astype(np.uint32)
    if len(words) < PACKET or not is_header(words[:1])[0]:
        return False
    started = words[1] & np.uint32(_START_BITS) == _START
    return bool(started or is_header(words[PACKET : PACKET + 1]).any())


def read_words(data: bytes | memoryview, path: Path, slots: Slots | None = None) -> TileTraceSet:
    """Read the tiles of a capture in raw words."""
    words, cut = _read_words(data, path)
    framing = framed(words)
    if not framing.units:
        raise TraceFormatError("no trace packet: no header found", where=path, hint=_DAMAGED)
    room = True if framing.room else None
    tiles = tuple(
        replace(_read_tile(pid, unit, slots or {}, path), room=room) for pid, unit in enumerate(framing.units)
    )
    if not any(tile.events or tile.mode is not TraceMode.EVENT_TIME for tile in tiles):
        hint = "none of the selected events occurred, or tracing stopped immediately"
        raise EmptyTraceError("the packets hold no events", where=path, hint=hint)
    named = all(unit.unit in (slots or {}) for unit in framing.units)
    unnamed = () if named else (_UNNAMED,)
    warnings = *_file_warnings(framing, cut=cut), *no_core(tile.unit for tile in tiles), *unnamed
    return TileTraceSet(tiles, FORMAT, warnings)


_UNNAMED = TraceWarning(
    "slots_unnamed", "raw words do not name the events of slots", "name them in order: --slots NAME,NAME,..."
)


def _read_words(data: bytes | memoryview, path: Path) -> tuple[Words, bool]:
    """The words, and whether the last one is incomplete."""
    if _is_binary(bytes(data[: 4 * (PACKET + 1)])):
        whole = len(data) // 4 * 4
        return np.frombuffer(data[:whole], "<u4").astype(np.uint32), whole < len(data)
    line = _DIGITS + (2 if bytes(data[_DIGITS : _DIGITS + 1]) == b"\r" else 1)
    final = len(data) // line * line
    rest = bytes(data[final:]).strip()
    regular = _regular_words(bytes(data[:final]), line) if _REST.match(rest) else None
    if regular is None:
        return _token_words(bytes(data), path)
    if len(rest) < _DIGITS:
        return regular, bool(rest)
    return np.append(regular, np.uint32(int(rest, 16))), False


def _regular_words(text: bytes, line: int) -> Words | None:
    """The words of a text in which every line has eight digits and the same end; None when one differs."""
    count, end = len(text) // line, b"\r\n"[_DIGITS - line :]
    if not count or any(text[_DIGITS + at :: line] != end[at : at + 1] * count for at in range(len(end))):
        return None
    try:
        words = np.frombuffer(bytes.fromhex(text.decode("ascii")), ">u4").astype(np.uint32)
    except ValueError:
        return None
    return words if len(words) == count else None


def _token_words(data: bytes, path: Path) -> tuple[Words, bool]:
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


def _read_tile(pid: int, unit: UnitWords, slots: Slots, path: Path) -> TileTrace:
    mode = trace_mode(unit.words)
    if mode is not TraceMode.EVENT_TIME:
        return _tile_without_times(pid, unit, slots, mode)
    # nothing of a unit stands before its Start: words there are of something else
    lost_at = unit.lost_at[unit.lost_at > 0] if is_start(unit.words) else unit.lost_at
    try:
        events = decode_events(unit.words, unit.lost_before, lost_at)
    except TooManySpansError as error:
        tile = f"{unit.row},{unit.column}"
        raise TraceFormatError(f"{unit.unit.value} of tile {tile}: {error}", where=path, hint=_DAMAGED) from error
    names = slots.get(unit.unit, ())
    recorded = f"{unit.unit.value}_trace for tile{unit.row},{unit.column}"
    named = list(_named_slots(names, events))
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


def _tile_without_times(pid: int, unit: UnitWords, slots: Slots, mode: TraceMode) -> TileTrace:
    """Return a unit that recorded addresses, or what this reader does not know."""
    addressed = decode_addresses(unit.words) if mode is TraceMode.EVENT_PC else None
    used = set() if addressed is None else set(addressed.slot.tolist())
    names = dict(enumerate(slots.get(unit.unit, ())))
    named = [(number, names.get(number, UNUSED)) for number in range(SLOTS)]
    traced = [
        SlotTrace(number, name if name != UNUSED else f"SLOT {number}", name, NO_SPANS)
        for number, name in named
        if name != UNUSED or number in used
    ]
    return TileTrace(
        row=unit.row,
        column=unit.column,
        unit=unit.unit,
        pid=pid,
        recorded=f"{unit.unit.value}_trace for tile{unit.row},{unit.column}",
        slots=tuple(traced),
        last=0,
        mode=mode,
        addressed=addressed,
    )


def _named_slots(names: Sequence[str], events: UnitEvents) -> Iterator[SlotTrace]:
    """The slots that have a name or spans."""
    for number, spans in enumerate(events.spans):
        name = names[number] if number < len(names) else UNUSED
        if name != UNUSED or len(spans.start):
            recorded = f"SLOT {number}" if name == UNUSED else name
            yield SlotTrace(number, event_names().current(recorded), recorded, spans)


def _file_warnings(framing: Framing, *, cut: bool) -> list[TraceWarning]:
    few = f"{framing.short:,} of {framing.packets:,} packets have fewer than seven words: some were lost"
    mended = f"corrected {counted_text(framing.repaired, 'header', ',')} with a wrong bit to the only possible one"
    taken = f"{counted_text(framing.adopted, 'word', ',')} without a header assigned to the only unit"
    skipped = f"skipped {counted_text(framing.orphans, 'word', ',')} without a header or unit"
    counts = (
        (framing.short, "words_lost", few, _CAPTURE),
        (framing.repaired, "headers_damaged", mended, _CAPTURE),
        (framing.adopted, "headers_lost", taken, _CAPTURE),
        (framing.orphans, "words_without_unit", skipped, _ALONE),
    )
    warnings = [TraceWarning(code, message, hint) for count, code, message, hint in counts if count]
    if framing.cut or cut:
        message = "the file ends inside a packet: everything after it is missing"
        warnings.append(TraceWarning("truncated", message, "copy the whole buffer; the intact part was read"))
    return warnings


def _tile_warnings(recorded: str, events: UnitEvents) -> list[TraceWarning]:
    found = (
        (events.cut, "commands_cut", "commands are truncated where words are missing; skipped"),
        (events.unknown, "commands_unknown", "bytes are not part of any command; skipped"),
        (events.restarts, "trace_restarted", "additional Start commands; time continues without them"),
        (events.repeats_lost, "repeats_lost", "repeats have no frame before them; skipped"),
        (events.repeats_of_idle, "repeats_of_idle", "repeats follow Event_Sync; the frame before it was used"),
    )
    return [TraceWarning(code, f"{recorded}: {count:,} {what}", _CAPTURE) for count, code, what in found if count]
