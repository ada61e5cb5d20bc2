"""Framing of raw trace words: which payload words belong to which trace unit.

A packet is a header and seven payload words. A header is recognised by its parity and its fixed zero bits, and only
where another one stands eight words on, or the data end there, or the same word is a header elsewhere. So a lost or an
additional word costs the packet it stands in and nothing behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.table.tiles import Unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints

    Words = NDArray[np.uint32]
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
    """Which words can be headers: odd parity, and zero where a header is zero."""
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
        return _framing(words, spans)
    words, repaired = _repaired(words)
    return _framing(words, list(_Walk(words).stretches()))._replace(repaired=repaired)


def _repaired(words: Words) -> tuple[Words, int]:
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
            if not self._trusted(at):
                begin, at = at, self._next_header(at)
                yield from self._loose(begin, at)
                broken = True
                continue
            whole = self._run(at)
            self._known.add(int(self._words[at]))
            if whole > 1:
                self._known.add(int(self._words[at + (whole - 1) * PACKET]))
                yield _Span(at, whole - 1, _PAYLOAD, headed=True, broken=broken)
                at, broken = at + (whole - 1) * PACKET, False
            following = self._following(at)
            size = self._size(at, following)
            short = following < at + PACKET and following < len(self._words)
            yield _Span(at, 1, size, headed=True, broken=broken or short, short=short)
            at, broken = following, short

    def _next_word(self, at: int) -> int:
        """The first word from here on that is not zero."""
        place = int(np.searchsorted(self._filled, at))
        return int(self._filled[place]) if place < len(self._filled) else len(self._words)

    def _next_header(self, at: int) -> int:
        place = int(np.searchsorted(self._candidates, at, side="right"))
        while place < len(self._candidates) and not self._trusted(int(self._candidates[place])):
            place += 1
        return int(self._candidates[place]) if place < len(self._candidates) else len(self._words)

    def _trusted(self, at: int) -> bool:
        """Whether a word is a header as far as what follows and what came before can tell."""
        if not self._header[at]:
            return False
        after = at + PACKET
        if after >= len(self._words) or self._header[after] or not self._words[after]:
            return True
        return int(self._words[at]) in self._known

    def _run(self, at: int) -> int:
        """How many packets follow each other from a header on."""
        place, phase = divmod(at, PACKET)
        if phase not in self._ends:
            self._ends[phase] = np.flatnonzero(~self._header[phase::PACKET])
        ends = self._ends[phase]
        found = int(np.searchsorted(ends, place))
        end = int(ends[found]) if found < len(ends) else len(self._header[phase::PACKET])
        return end - place

    def _following(self, at: int) -> int:
        """Where the packet of a header ends: after seven words, or before when the next one comes too early."""
        after = at + PACKET
        if after >= len(self._words) or self._header[after] or not self._words[after]:
            return min(after, len(self._words))
        place = int(np.searchsorted(self._candidates, at, side="right"))
        for early in self._candidates[place : place + PACKET].tolist():
            if early < after and self._followed(early):
                return int(early)
        return after

    def _followed(self, at: int) -> bool:
        after = at + PACKET
        known = int(self._words[at]) in self._known
        return known or (after < len(self._words) and bool(self._header[after]))

    def _size(self, at: int, following: int) -> int:
        """Payload words of a packet, without the padding at its end when more of it follows."""
        size = following - at - 1
        if following >= len(self._words) or not self._words[following]:
            while size and not self._words[at + size]:
                size -= 1
        return size

    def _loose(self, begin: int, end: int) -> Iterator[_Span]:
        for at in range(begin - 1, end - 1, _PAYLOAD):
            size = min(_PAYLOAD, end - 1 - at)
            while size and not self._words[at + size]:
                size -= 1
            yield _Span(at, 1, size, headed=False, broken=True)


def _framing(words: Words, stretches: list[_Span]) -> Framing:
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
            _unit(words, (at, size, broken), owner, unit == owner)._replace(
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
    """Number of the unit that each header names."""
    row, column, kind = headers >> 16 & 0x1F, headers >> 21 & 0x7F, headers >> 12 & 3
    return (kind << 12 | row << 7 | column).astype(np.int64)


def _unit(words: Words, packets: tuple[Ints, Ints, Mask], owner: int, own: Mask) -> UnitWords:
    at, size, broken = packets[0][own], packets[1][own], packets[2][own]
    column = np.arange(_PAYLOAD)
    parts: Words = words[(at[:, None] + 1 + column)[column < size[:, None]]]
    lost = np.zeros(len(parts), bool)
    begins = np.cumsum(size) - size
    lost[begins[broken & (size > 0)]] = True
    return UnitWords(owner >> 7 & 0x1F, owner & 0x7F, _UNITS[owner >> 12], parts, lost, np.empty(0, np.int64))
