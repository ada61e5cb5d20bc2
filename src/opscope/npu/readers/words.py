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
from opscope.npu.readers.events import (
    PROBLEMS,
    TooManySpansError,
    decode_addresses,
    decode_events,
    is_start,
    trace_mode,
)
from opscope.npu.readers.slots import no_core, unknown_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from opscope.core.table import EventTable
    from opscope.core.table.tiles import Spans
    from opscope.npu.readers.slots import Slots

    Words = NDArray[np.uint32]
    Mask = NDArray[np.bool_]


PACKET = 8
_PAYLOAD = PACKET - 1
_ZERO_BITS = 0x7008_0FE0
_UNITS = (Unit.CORE, Unit.MEM, Unit.SHIM, Unit.MEMTILE)
_UNIT_BITS = 0x7F << 21 | 0x1F << 16 | 3 << 12
"""Bits of a header that name column, row and kind of unit."""


class UnitWords(NamedTuple):
    """The payload of one trace unit."""

    row: int  # of the tile
    column: int  # of the tile
    unit: Unit  # which one
    words: Words  # its payload, in order
    lost_before: Mask  # words before which something is missing
    lost_at: list[int]  # positions among the words at which some of this unit are missing, or may be; ascending


class Framing(NamedTuple):
    """All units of a buffer."""

    units: tuple[UnitWords, ...]  # in order of appearance
    packets: int  # how many have a header
    short: int  # packets that have fewer than seven payload words although others follow them
    loose: int  # words without a header that are not padding: they belong to the only unit there is, else to none
    cut: bool  # whether the last packet is incomplete
    repaired: int  # headers with one wrong bit that stand between two others; read as the one that they must be
    has_room: bool  # whether zero words are left behind the last packet


class _Packet(NamedTuple):
    """A header and its payload, or up to seven words without a header."""

    at: int  # of the header; of words without one, the position before the first
    size: int  # payload words
    header: int | None  # None without one
    is_broken: bool  # whether words are missing before or in it
    is_short: bool = False  # whether words are missing in it


def is_header(words: Words) -> Mask:
    """Return which words can be headers: odd parity, and zero where a header is zero."""
    is_candidate: Mask = (words & np.uint32(_ZERO_BITS)) == 0
    candidates = np.flatnonzero(is_candidate)
    folded = words[candidates]
    for width in (16, 8, 4, 2, 1):
        folded = folded ^ (folded >> np.uint32(width))
    is_candidate[candidates] = (folded & np.uint32(1)) == 1
    return is_candidate


def framed(words: Words) -> Framing:
    """Divide a buffer into its units and their payload; zero words between packets are padding.

    Headers are repaired only where packets do not follow each other: payload may look like a header with a wrong bit.
    """
    packets, repaired = list(_walk_packets(words)), 0
    if any(packet.header is None or packet.is_broken for packet in packets):
        words, repaired = _repair_headers(words)
        packets = list(_walk_packets(words))
    units = dict.fromkeys(packet.header & _UNIT_BITS for packet in packets if packet.header is not None)
    last = packets[-1] if packets else None
    return Framing(
        units=tuple(_unit_words(words, packets, unit, is_only=len(units) == 1) for unit in units),
        packets=sum(packet.header is not None for packet in packets),
        short=sum(packet.is_short for packet in packets),
        loose=sum(packet.size for packet in packets if packet.header is None),
        cut=last is not None and last.header is not None and last.at + PACKET > len(words),
        repaired=repaired,
        has_room=last is not None and last.at + 2 * PACKET <= len(words),
    )


def _repair_headers(words: Words) -> tuple[Words, int]:
    """Return words in which headers with one wrong bit are right again, and how many.

    Such a word stands where a header must: eight words behind one or at the beginning, and eight before one, padding or
    the end. It differs in one bit from exactly one of the headers that were seen.
    """
    header = is_header(words)
    behind, before = np.zeros(len(words), bool), np.ones(len(words), bool)
    behind[:1], behind[PACKET:] = True, header[:-PACKET]
    before[:-PACKET] = header[PACKET:] | (words[PACKET:] == 0)
    known, repaired = np.unique(words[:-PACKET][header[:-PACKET] & header[PACKET:]]), words.copy()
    for at in np.flatnonzero(~header & behind & before & (words > 0)).tolist():
        apart = known ^ words[at]
        near = known[(apart & (apart - np.uint32(1))) == 0]
        if len(near) == 1:
            repaired[at] = near[0]
    return repaired, int((repaired != words).sum())


def _walk_packets(words: Words) -> Iterator[_Packet]:
    """Go through a buffer from packet to packet.

    A packet ends after seven words, or before when the next one comes too early. Zero words at its end are padding
    where padding or nothing follows it.
    """
    header = is_header(words)
    known = set(words[:-PACKET][header[:-PACKET] & header[PACKET:]].tolist())
    listed, headers, length = words.tolist(), header.tolist(), len(words)

    def can_end(at: int) -> bool:
        """Return whether a packet may end here: at a header, padding, or the end of the buffer."""
        return at >= length or headers[at] or not listed[at]

    def is_trusted(at: int) -> bool:
        """Return whether a word is a header as far as what follows and what came before can tell."""
        return headers[at] and (can_end(at + PACKET) or listed[at] in known)

    def find_end(at: int) -> int:
        """Return where the packet of a header ends: after seven words, or before when the next one comes too early."""
        end = min(at + PACKET, length)
        if can_end(at + PACKET):
            return end
        early = (header for header in range(at + 1, end) if headers[header])
        return next(
            (
                header
                for header in early
                if listed[header] in known or any(headers[header + PACKET : header + PACKET + 1])
            ),
            end,
        )

    at, is_broken, is_expected = 0, False, False
    while at < length:
        if not listed[at]:
            at, is_expected = at + 1, False
        elif is_expected or is_trusted(at):
            known.add(listed[at])
            end = find_end(at)
            is_short = end < min(at + PACKET, length)
            is_followed = end < length and listed[end]
            size = end - at - 1 if is_followed else _count_filled(listed, at, end - at - 1)
            yield _Packet(at, size, listed[at], is_broken or is_short, is_short)
            is_expected = end == at + PACKET and end < length and headers[end]
            at, is_broken = end, is_short
        else:
            begin, is_broken = at, True
            while at < length and not is_trusted(at):
                at += 1
            for before in range(begin - 1, at - 1, _PAYLOAD):
                yield _Packet(
                    before, _count_filled(listed, before, min(_PAYLOAD, at - 1 - before)), None, is_broken=True
                )


def _count_filled(words: Sequence[int], at: int, size: int) -> int:
    """Count the words behind one, without zero words at their end."""
    while size and not words[at + size]:
        size -= 1
    return size


def _unit_words(words: Words, packets: Iterable[_Packet], unit: int, *, is_only: bool) -> UnitWords:
    """Put the payload of a unit together.

    Words may be lost behind short packets, and wherever words without a header stand, which may be of any unit. The
    only unit gets all of them, so that seven in a row lack nothing.
    """
    parts, count = [np.empty(0, np.uint32)], 0
    lost_before, lost_at = list[int](), set[int]()
    for packet in packets:
        if packet.header is None and not (is_only and packet.size == _PAYLOAD):
            lost_at.add(count)
        if is_only if packet.header is None else packet.header & _UNIT_BITS == unit:
            if packet.is_broken and packet.size:
                lost_before.append(count)
            parts.append(words[packet.at + 1 : packet.at + 1 + packet.size])
            count += packet.size
            if packet.is_short:
                lost_at.add(count)
    lost = np.zeros(count, bool)
    lost[lost_before] = True
    kind = _UNITS[unit >> 12 & 3]
    return UnitWords(unit >> 16 & 0x1F, unit >> 21 & 0x7F, kind, np.concatenate(parts), lost, sorted(lost_at))


FORMAT = "aie-words"
_HEAD = re.compile(rb"\s*(?:0[xX])?[0-9a-fA-F]{8}[\s,]+(?:0[xX])?[0-9a-fA-F]{8}(?:[\s,]|\Z)")
_TOKEN = re.compile(rb"(?:0[xX])?[0-9a-fA-F]{1,8}\Z")
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
        """Return the tiles of a trace, with the names of slots that were given; raises as :meth:`read` does."""
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
    words, is_cut = parse_words(data, path)
    framing, names = framed(words), slots or {}
    if not framing.units:
        raise TraceFormatError("no trace packet: no header found", where=path, hint=_DAMAGED)
    room = True if framing.has_room else None
    tiles = tuple(
        replace(_read_tile(pid, unit, names.get(unit.unit, ()), path), room=room)
        for pid, unit in enumerate(framing.units)
    )
    if not any(tile.events or tile.mode is not TraceMode.EVENT_TIME for tile in tiles):
        hint = "none of the selected events occurred, or tracing stopped immediately"
        raise EmptyTraceError("the packets hold no events", where=path, hint=hint)
    warnings = [*_file_warnings(framing, is_cut=is_cut), *no_core(tile.unit for tile in tiles)]
    if not all(tile.unit in names for tile in tiles):
        hint = "name them in order: --slots NAME,NAME,..."
        warnings.append(TraceWarning("slots_unnamed", "raw words do not name the events of slots", hint))
    return TileTraceSet(tiles, FORMAT, tuple(warnings))


def parse_words(data: bytes | memoryview, path: Path) -> tuple[Words, bool]:
    """Return the words of a capture, and whether the last one is incomplete; that one is left out."""
    if _is_binary(bytes(data[: 4 * (PACKET + 1)])):
        size = len(data) // 4 * 4
        return np.frombuffer(data[:size], "<u4").astype(np.uint32), size < len(data)
    tokens = bytes(data).replace(b",", b" ").split()
    wrong = next((number for number, token in enumerate(tokens) if not _TOKEN.match(token)), None)
    if wrong is not None:
        text = tokens[wrong][:20].decode("ascii", "replace")
        raise TraceFormatError(f"word {wrong + 1:,} is not a word: {text!r}", where=path, hint=_DAMAGED)
    is_cut = len(tokens) > 1 and len(tokens[-1]) < min(map(len, tokens[:-1]))
    number = len(tokens) - is_cut
    return np.fromiter((int(token, 16) for token in tokens[:number]), np.uint32, number), is_cut


def _read_tile(pid: int, unit: UnitWords, names: Sequence[str], path: Path) -> TileTrace:
    recorded = f"{unit.unit.value}_trace for tile{unit.row},{unit.column}"
    tile = TileTrace(unit.row, unit.column, unit.unit, pid, recorded, (), 0, mode=trace_mode(unit.words))
    if tile.mode is TraceMode.EVENT_PC:
        addressed = decode_addresses(unit.words)
        slots = _name_slots(names, dict.fromkeys(addressed.slot.tolist(), NO_SPANS))
        return replace(tile, slots=slots, addressed=addressed)
    if tile.mode is not TraceMode.EVENT_TIME:
        return replace(tile, slots=_name_slots(names, {}))
    # nothing of a unit stands before its Start: words there are of something else
    lost_at = [position for position in unit.lost_at if position or not is_start(unit.words)]
    try:
        events = decode_events(unit.words, unit.lost_before, lost_at)
    except TooManySpansError as error:
        raise TraceFormatError(f"{unit.unit.value} of tile {tile.tile}: {error}", where=path, hint=_DAMAGED) from error
    slots = _name_slots(names, {slot: spans for slot, spans in enumerate(events.spans) if len(spans.start)})
    lost = [LostWords(cycle, "words of a packet or its header are missing") for cycle in events.lost]
    if not events.has_start:
        lost.insert(0, LostWords(0, "its first packet, which holds the Start command, is missing"))
    warnings = [
        TraceWarning(code, f"{recorded}: {events.problems[code]:,} {problem}", _CAPTURE)
        for code, problem in PROBLEMS.items()
        if events.problems[code]
    ]
    return replace(
        tile,
        slots=slots,
        last=events.last,
        start_timer=events.start_timer,
        warnings=(*warnings, *(unknown_events(recorded, unit.unit, slots) if names else [])),
        lost=tuple(lost),
    )


def _name_slots(names: Sequence[str], used: Mapping[int, Spans]) -> tuple[SlotTrace, ...]:
    """Return the slots that have a name or were used."""
    slots = []
    for number in range(SLOTS):
        name = names[number] if number < len(names) else UNUSED
        if name != UNUSED or number in used:
            recorded = f"SLOT {number}" if name == UNUSED else name
            slots.append(SlotTrace(number, event_names().current(recorded), recorded, used.get(number, NO_SPANS)))
    return tuple(slots)


def _file_warnings(framing: Framing, *, is_cut: bool) -> list[TraceWarning]:
    few = f"{framing.short:,} of {framing.packets:,} packets have fewer than seven words: some were lost"
    mended = f"corrected {counted_text(framing.repaired, 'header', ',')} with a wrong bit to the only possible one"
    loose = f"{counted_text(framing.loose, 'word', ',')} without a header"
    belongs = len(framing.units) == 1
    counts = (
        (framing.short, "words_lost", few, _CAPTURE),
        (framing.repaired, "headers_damaged", mended, _CAPTURE),
        (framing.loose * belongs, "headers_lost", f"{loose} assigned to the only unit", _CAPTURE),
        (framing.loose * (not belongs), "words_without_unit", f"skipped {loose} or unit", _ALONE),
    )
    warnings = [TraceWarning(code, message, hint) for count, code, message, hint in counts if count]
    if framing.cut or is_cut:
        message = "the file ends inside a packet: everything after it is missing"
        warnings.append(TraceWarning("truncated", message, "copy the whole buffer; the intact part was read"))
    return warnings
