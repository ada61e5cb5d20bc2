"""AI Engine traces for tests: spans encoded as JSON or as raw words, and plain decoders of both to compare with."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SLOTS = 8
PACKET_WORDS = 7
PAD = 0xFE
SYNC = 0xFF
SYNC_CYCLES = 1 << 18
TIMER_BITS = 56
UNITS = {"core": 0, "mem": 1, "shim": 2, "memtile": 3}


class Span(NamedTuple):
    """Cycles in which a slot is active, from start up to and without end; None without an end."""

    slot: int
    start: int
    end: int | None


class Tile(NamedTuple):
    """A trace unit with the names of its slots and its spans."""

    unit: str
    row: int
    column: int
    names: Sequence[str]
    spans: Sequence[Span]
    timer: int = 0

    @property
    def label(self) -> str:
        """As tools name it."""
        return f"{self.unit}_trace for tile{self.row},{self.column}"


class Event(NamedTuple):
    """A begin or end; sorted as units report them."""

    time: int
    begin: bool
    slot: int


def events_of(spans: Iterable[Span]) -> list[Event]:
    """Begins and ends in stream order."""
    found = [Event(span.start, begin=True, slot=span.slot) for span in spans]
    found += [Event(span.end, begin=False, slot=span.slot) for span in spans if span.end is not None]
    return sorted(found)


def records(tiles: Iterable[Tile]) -> Iterator[dict]:
    """The records of a trace in JSON, as mlir-aie orders them."""
    listed = list(tiles)
    for pid, tile in enumerate(listed):
        yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": tile.label}}
        for tid, name in enumerate(tile.names):
            yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
    for pid, tile in enumerate(listed):
        for time, begin, slot in events_of(tile.spans):
            phase = "B" if begin else "E"
            yield {"name": tile.names[slot], "ts": time, "ph": phase, "pid": pid, "tid": slot, "args": {}}


def json_text(tiles: Iterable[Tile]) -> Iterator[bytes]:
    """A trace in JSON as mlir-aie lays it out: one record a line."""
    before = b"["
    for record in records(tiles):
        yield before + json.dumps(record).encode()
        before = b",\n"
    yield b"]\n"


def commands(spans: Iterable[Span], timer: int = 0) -> Iterator[bytes]:
    """Event-time commands of a unit's spans; adjacent spans of a slot become one, and all have an end."""
    yield bytes([0xF0]) + timer.to_bytes(7, "big")
    now, held = 0, 0
    for start, end, mask in _levels(spans):
        idle = start - now - 1
        while idle >= SYNC_CYCLES:
            yield bytes([SYNC])
            idle -= SYNC_CYCLES
        yield frame(mask, idle)
        held = end - start - 1
        if idle and held:  # a repeat of a frame with idle cycles would repeat these as well
            yield frame(mask, 0)
            held -= 1
        for count in _counts(held):
            yield repeat(count)
        now = end - 1


def _levels(spans: Iterable[Span]) -> Iterator[tuple[int, int, int]]:
    """Cycles in which some slots are active: start, end and mask."""
    mask, since = 0, 0
    for time, begin, slot in events_of(spans):
        if time > since and mask:
            yield since, time, mask
        since = time
        mask = mask | 1 << slot if begin else mask & ~(1 << slot)


def _counts(held: int) -> Iterator[int]:
    while held > 0:
        yield min(held, 1023)
        held -= 1023


def frame(mask: int, idle: int) -> bytes:
    """The shortest command for a frame: these slots, after so many cycles without any."""
    if mask.bit_count() == 1:
        return single(mask.bit_length() - 1, idle)
    if idle < 1 << 4:
        return (0xC000 | mask << 4 | idle).to_bytes(2, "big")
    if idle < 1 << 10:
        return (0xD00000 | mask << 10 | idle).to_bytes(3, "big")
    return (0xD4000000 | mask << 18 | idle).to_bytes(4, "big")


def single(slot: int, idle: int) -> bytes:
    """The shortest Single."""
    if idle < 1 << 4:
        return bytes([slot << 4 | idle])
    if idle < 1 << 10:
        return (0x8000 | slot << 10 | idle).to_bytes(2, "big")
    return (0xA00000 | slot << 18 | idle).to_bytes(3, "big")


def repeat(count: int) -> bytes:
    """The shortest Repeat."""
    return bytes([0xE0 | count]) if count < 1 << 4 else (0xD800 | count).to_bytes(2, "big")


def payload(parts: Iterable[bytes]) -> list[int]:
    """Commands as words; none but Start crosses into the next word, as in captures."""
    data = bytearray()
    for part in parts:
        room = -len(data) % 4
        if len(part) > room and room:
            data += bytes([PAD]) * room
        data += part
    data += bytes([PAD]) * (-len(data) % (4 * PACKET_WORDS))
    return [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]


def header(unit: str, row: int, column: int, packet: int = 1) -> int:
    """A packet header with its parity."""
    word = column << 21 | row << 16 | UNITS[unit] << 12 | packet
    return word | (0 if word.bit_count() % 2 else 1 << 31)


def packets(tile: Tile) -> list[list[int]]:
    """The packets of a unit."""
    words = payload(commands(tile.spans, tile.timer))
    first = header(tile.unit, tile.row, tile.column)
    return [[first, *words[at : at + PACKET_WORDS]] for at in range(0, len(words), PACKET_WORDS)]


def words_of(tiles: Sequence[Tile]) -> list[int]:
    """A buffer into which all units write in turn."""
    queues = [packets(tile) for tile in tiles]
    longest = max(map(len, queues), default=0)
    return [word for turn in range(longest) for queue in queues if turn < len(queue) for word in queue[turn]]


def words_text(tiles: Sequence[Tile]) -> bytes:
    """The same as text: one word of eight digits a line."""
    return text_of(words_of(tiles))


def text_of(words: Iterable[int]) -> bytes:
    """Words as text."""
    return "".join(f"{word:08x}\n" for word in words).encode()


def plain_events(data: bytes) -> list[Event]:
    """The events of a unit's payload, command by command, as the rules say them; what is not a command is passed over."""
    at, now, active, events = 0, 0, 0, []
    last: tuple[int, int] | None = None

    def step(mask: int, idle: int) -> None:
        nonlocal now, active
        now += 1
        closing = active if idle else active & ~mask
        events.extend(Event(now, begin=False, slot=slot) for slot in range(SLOTS) if closing >> slot & 1)
        active &= ~closing
        now += idle
        events.extend(Event(now, begin=True, slot=slot) for slot in range(SLOTS) if (mask & ~active) >> slot & 1)
        active |= mask

    while at < len(data):
        name, length, mask, number = plain_command(data[at : at + 8].ljust(8, b"\0"))
        if at + length > len(data):
            break
        at += length
        if name == "frame":
            step(mask, number)
            last = mask, number
        elif name == "sync":
            step(0, SYNC_CYCLES - 1)
        elif name == "repeat" and last:
            if last[1] == 0:
                now += number
            for _ in range(number if last[1] else 0):
                step(*last)
    return events


def plain_command(data: bytes) -> tuple[str, int, int, int]:  # noqa: PLR0911 - one for each kind
    """Kind, length, slot mask and number of the command at the start of some bytes."""
    bits = int.from_bytes(data[:4], "big")
    text = f"{bits:032b}"
    if text.startswith("0"):
        return "frame", 1, 1 << int(text[1:4], 2), int(text[4:8], 2)
    for prefix, length in (("100", 2), ("101", 3)):
        if text.startswith(prefix):
            return "frame", length, 1 << int(text[3:6], 2), int(text[6 : 8 * length], 2)
    for prefix, length in (("1100", 2), ("110100", 3), ("110101", 4)):
        if text.startswith(prefix):
            first = len(prefix)
            return "frame", length, int(text[first : first + 8], 2), int(text[first + 8 : 8 * length], 2)
    for prefix, length in (("1110", 1), ("110110", 2)):
        if text.startswith(prefix):
            return "repeat", length, 0, int(text[len(prefix) : 8 * length], 2)
    if text.startswith(("11110000", "11110100")):
        return "start", 8, 0, 0
    if text.startswith("110111"):
        return "skipped", 4, 0, 0
    return ("sync" if text.startswith("11111111") else "nothing"), 1, 0, 0


def is_whole(value: object) -> bool:
    """What counts as a time or a number of a slot."""
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def plain_spans(listed: list) -> dict[tuple, list[tuple]]:
    """Spans of every pid, tid and name that a list of records holds, one record after the other."""
    last: dict[int, int] = defaultdict(int)
    final: dict[int, tuple] = {}
    events: dict[tuple, list[tuple[int, bool]]] = defaultdict(list)
    for record in listed:
        if not isinstance(record, dict) or record.get("ph") not in ("B", "E"):
            continue
        numbers = [record.get(key) for key in ("pid", "tid", "ts")]
        if not all(is_whole(number) and abs(number) <= 1 << 62 for number in numbers):
            continue
        pid, tid, ts = map(int, numbers)
        if not isinstance(record.get("name"), str) or not 0 <= ts < 1 << TIMER_BITS:
            continue
        last[pid] = max(last[pid], ts) if pid in last else ts
        events[pid, tid, record["name"]].append((ts, record["ph"] == "B"))
        final[pid] = pid, tid, record["name"]
    for pid in last:
        _drop_padding(pid, events, final, last)
    found: dict[tuple, list[tuple]] = {}
    for key, own in events.items():
        spans, opened = [], None
        for ts, begin in own:
            if opened is not None:
                spans.append((opened, ts, begin))
                opened = None
            opened = ts if begin else None
        if opened is not None:
            spans.append((opened, max(opened, last[key[0]]), True))
        found[key] = [span for span in spans if span[0] <= span[1]]
    return {key: spans for key, spans in found.items() if spans}


def _drop_padding(pid: int, events: dict[tuple, list[tuple[int, bool]]], final: dict[int, tuple], last: dict) -> None:
    """A last event that is a begin of slot 0, alone in its cycle with ends, one after all else, was never traced."""
    time = last[pid]
    own = [event for key, listed in events.items() if key[0] == pid for event in listed]
    ends_so = final[pid][1] == 0 and events[final[pid]][-1] == (time, True) and own.count((time, True)) == 1
    if ends_so and any(ts == time - 1 for ts, _ in own):
        events[final[pid]].pop()
        last[pid] = max(ts for key, listed in events.items() if key[0] == pid for ts, _ in listed)


def spans_read(tiles: Iterable) -> dict[tuple, list[tuple]]:
    """The same of tiles that were read."""
    return {
        (tile.pid, slot.number, slot.recorded): list(
            zip(slot.spans.start.tolist(), slot.spans.end.tolist(), slot.spans.open.tolist(), strict=True)
        )
        for tile in tiles
        for slot in tile.slots
        if len(slot.spans.start)
    }


def flat(slots: Iterable) -> list[tuple[str, int, bool, int]]:
    """The begins and ends of slots that were read, in stream order: name, time, whether it is a begin, number."""
    found = []
    for slot in slots:
        spans = slot.spans
        begins = zip(spans.begin_order.tolist(), spans.start.tolist(), strict=True)
        found += [(order, (slot.name, time, True, slot.number)) for order, time in begins]
        ends = zip(spans.end_order.tolist(), spans.end.tolist(), spans.open.tolist(), strict=True)
        found += [(order, (slot.name, time, False, slot.number)) for order, time, is_open in ends if not is_open]
    return [event for _, event in sorted(found)]
