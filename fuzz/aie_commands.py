"""Raw trace words of AI Engine tiles as packets of commands, for fuzzing.

What is changed: packets, their headers, timers, commands with the slots and cycles that they name, and how words are
laid out in the file. Lost and additional words are among it; a capture shows both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fuzz.aie_tiles import tiles
from fuzz.structure import Structure

if TYPE_CHECKING:
    from random import Random

_PACKET_WORDS = 7
_MOST_PACKETS, _MOST_COMMANDS = 400, 3000
_PAD = b"\xfe"
_IDLE = (0, 1, 15, 16, 17, 1022, 1023, 1024, 262_142, 262_143)
_COUNTS = (0, 1, 2, 15, 16, 1022, 1023)
_TIMERS = (0, 1, 1 << 40, (1 << 56) - 1)
_MASKS = (0, 1, 2, 3, 0x80, 0x81, 0x7F, 0xFE, 0xFF)
_HEADER_BITS = (0, 4, 5, 11, 12, 13, 14, 15, 16, 19, 20, 21, 27, 28, 30, 31)
_KINDS = ("single", "multiple", "repeat", "sync", "start", "skipped", "pad", "bytes")
_LAYOUTS = ("text", "crlf", "upper", "prefixed", "commas", "short", "binary", "cut")
_STRAY = (0, 1, 0xFFFFFFFF, 0x80000001, 0x00220001, 0xF0000000, 0xE1E1DBFF)


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        kind: of ``single``, ``multiple``, ``repeat``, ``sync``, ``start``, ``skipped``, ``pad``, ``bytes``.
        mask: slots that it names.
        number: idle cycles, repeats, or the timer.
        width: which of its lengths is used, from the shortest; a longer one holds small numbers, too.
        raw: the bytes of what is no command.
    """

    kind: str
    mask: int = 1
    number: int = 0
    width: int = 0
    raw: bytes = b""


@dataclass(frozen=True)
class Packets:
    """A trace unit: what its headers say, and its commands.

    Attributes:
        unit: kind of unit, as in a header.
        row: of the tile.
        column: of the tile.
        commands: in order.
        crossing: whether commands cross from word to word.
    """

    unit: int
    row: int
    column: int
    commands: tuple[Command, ...]
    crossing: bool = False


@dataclass(frozen=True)
class Capture:
    """A buffer.

    Attributes:
        units: that write to it in turn.
        edits: of the words: what (``drop``, ``stray``, ``flip``, ``swap``, ``zeros``), place, value.
        layout: of the file.
    """

    units: tuple[Packets, ...]
    edits: tuple[tuple[str, int, int], ...] = ()
    layout: str = "text"


def encoded(command: Command) -> bytes:
    """The bytes of a command."""
    kind, number, mask = command.kind, command.number, command.mask & 0xFF
    if kind == "single":
        slot = mask.bit_length() - 1 if mask else 0
        forms = ((0, 4, 4, 1), (0b100, 3, 10, 2), (0b101, 3, 18, 3))
        prefix, _, bits, size = forms[_width(forms, command)]
        return (prefix << (8 * size - 3) | slot << bits | number & (1 << bits) - 1).to_bytes(size, "big")
    if kind == "multiple":
        many = ((0b1100, 4, 4, 2), (0b110100, 6, 10, 3), (0b110101, 6, 18, 4))
        prefix, length, bits, size = many[_width(many, command)]
        return (prefix << (8 * size - length) | mask << bits | number & (1 << bits) - 1).to_bytes(size, "big")
    if kind == "repeat":
        short = number < 1 << 4 and command.width == 0
        return bytes([0xE0 | number]) if short else (0xD800 | number & 0x3FF).to_bytes(2, "big")
    fixed = {
        "sync": b"\xff",
        "start": bytes([0xF0 | (command.width & 1) << 2]) + (number % (1 << 56)).to_bytes(7, "big"),
        "skipped": (0xDC000000 | number & 0x3FFFFFF).to_bytes(4, "big"),
        "pad": _PAD,
    }
    return fixed.get(kind, command.raw)


def _width(forms: tuple[tuple[int, int, int, int], ...], command: Command) -> int:
    """The form that was chosen, or the first one from it on that the number fits into."""
    fitting = [at for at, form in enumerate(forms) if command.number < 1 << form[2]]
    return max(min(command.width, len(forms) - 1), fitting[0] if fitting else len(forms) - 1)


def _starts() -> list[Capture]:
    """The tiles of the hand-written seeds, and one unit with a command of every kind."""
    from aie_traces import UNITS

    units = tuple(
        Packets(UNITS[tile.unit], tile.row, tile.column, (Command("start", number=tile.timer), *_spelled(tile)))
        for tile in tiles()
    )
    every = [Command(kind, mask, number, width) for kind in _KINDS[:7] for mask, number, width in _SAMPLES]
    alone = Packets(0, 2, 1, (Command("start", number=7), *every), crossing=True)
    return [Capture(units), Capture(units[:1], layout="binary"), Capture((alone,)), Capture((*units, alone))]


_SAMPLES = ((1, 0, 0), (4, 3, 0), (0x41, 20, 1), (0x80, 2000, 2))


def _spelled(tile: object) -> tuple[Command, ...]:
    """The spans of a tile in commands: what the plain encoder says, read back one by one."""
    from aie_traces import commands, plain_command

    found = []
    for part in commands(tile.spans):  # type: ignore[attr-defined] # a tile of the tests, which are not typed
        name, _, mask, number = plain_command(part[:8].ljust(8, b"\0"))
        kind = {"frame": "single" if mask.bit_count() == 1 else "multiple"}.get(name, name)
        found.append(Command(kind if kind in _KINDS else "pad", mask, number))
    return tuple(found[1:])


def _changed(rng: Random, capture: Capture, other: Capture) -> Capture:
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        capture = rng.choice(_CHANGES)(rng, capture, other)
    return capture


def _command(rng: Random) -> Command:
    kind = rng.choice(_KINDS)
    number = rng.choice({"repeat": _COUNTS, "start": _TIMERS}.get(kind, _IDLE))
    return Command(kind, rng.choice(_MASKS), number, rng.randrange(3), rng.randbytes(rng.choice((1, 2, 3, 4, 8))))


def _change_commands(rng: Random, capture: Capture, other: Capture) -> Capture:
    """Commands of one unit are put in, left out, repeated, exchanged, altered, or taken from another unit."""
    if not capture.units:
        return capture
    place = rng.randrange(len(capture.units))
    commands = list(capture.units[place].commands)
    at, size = rng.randrange(len(commands) + 1), rng.choice((1, 1, 2, 8, 64))
    taken = rng.choice(other.units).commands if other.units else ()
    action = rng.randrange(6)
    if action == 0 or not commands:
        commands[at:at] = [_command(rng) for _ in range(size)]
    elif action == 1:
        del commands[at : at + size]
    elif action == 2:  # noqa: PLR2004 - one of the actions
        commands[at:at] = commands[at : at + size] * rng.choice((1, 2, 16))
    elif action == 3 and taken:  # noqa: PLR2004 - one of the actions
        begin = rng.randrange(len(taken))
        commands[at : at + size] = taken[begin : begin + size]
    else:
        at %= len(commands)
        commands[at] = _altered(rng, commands[at])
    unit = replace(capture.units[place], commands=tuple(commands[:_MOST_COMMANDS]))
    return replace(capture, units=(*capture.units[:place], unit, *capture.units[place + 1 :]))


def _altered(rng: Random, command: Command) -> Command:
    fresh = _command(rng)
    field = rng.choice(("mask", "number", "width", "kind"))
    return replace(command, **{field: getattr(fresh, field), "raw": fresh.raw})


def _change_units(rng: Random, capture: Capture, other: Capture) -> Capture:
    """A unit comes, goes, has another place, or lets its commands cross words."""
    units = list(capture.units)
    action = rng.randrange(4)
    if action == 0 or not units:
        units.insert(rng.randrange(len(units) + 1), rng.choice(other.units or capture.units or _starts()[0].units))
    elif action == 1:
        del units[rng.randrange(len(units))]
    else:
        place = rng.randrange(len(units))
        field, values = rng.choice((("unit", (0, 1, 2, 3)), ("row", (0, 1, 2, 31)), ("column", (0, 1, 4, 127))))
        changed = replace(units[place], **{field: rng.choice(values)})
        units[place] = replace(changed, crossing=rng.random() < 0.5)  # noqa: PLR2004 - a fair coin
    return replace(capture, units=tuple(units[:8]))


def _change_words(rng: Random, capture: Capture, _: Capture) -> Capture:
    what = rng.choice(("drop", "stray", "flip", "swap", "zeros", "header"))
    edit = what, rng.randrange(1 << 16), rng.choice((*_STRAY, *_HEADER_BITS, rng.getrandbits(32)))
    return replace(capture, edits=(*capture.edits[-7:], edit))


def _change_layout(rng: Random, capture: Capture, _: Capture) -> Capture:
    return replace(capture, layout=rng.choice(_LAYOUTS))


_CHANGES = (*[_change_commands] * 6, _change_units, _change_units, _change_words, _change_words, _change_layout)


def _written(capture: Capture) -> bytes:
    queues = [_packets(unit) for unit in capture.units]
    longest = max(map(len, queues), default=0)
    turns = [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
    words = [word for packet in turns[:_MOST_PACKETS] for word in packet]
    for what, place, value in capture.edits:
        _edit(words, what, place % (len(words) + 1), value)
    return _laid_out(words, capture.layout)


def _packets(unit: Packets) -> list[list[int]]:
    from aie_traces import payload

    parts = [encoded(command) for command in unit.commands]
    data = b"".join(parts)
    filled = data + _PAD * (-len(data) % (4 * _PACKET_WORDS))
    whole = [int.from_bytes(filled[at : at + 4], "big") for at in range(0, len(filled), 4)]
    words = whole if unit.crossing else payload(parts)
    header = _header(unit)
    return [[header, *words[at : at + _PACKET_WORDS]] for at in range(0, len(words), _PACKET_WORDS)]


def _header(unit: Packets) -> int:
    word = unit.column << 21 | unit.row << 16 | unit.unit << 12 | 1
    return word | (0 if word.bit_count() % 2 else 1 << 31)


def _edit(words: list[int], what: str, at: int, value: int) -> None:
    if what == "drop":
        del words[at : at + 1]
    elif what == "stray":
        words.insert(at, value)
    elif what == "zeros":
        words[at:at] = [0] * (value % 16)
    elif what == "swap" and at + 8 < len(words):
        words[at], words[at + 8] = words[at + 8], words[at]
    elif at < len(words):
        at = at - at % 8 if what == "header" else at
        words[at] ^= 1 << value % 32


def _laid_out(words: list[int], layout: str) -> bytes:
    if layout == "binary":
        return b"".join(word.to_bytes(4, "little") for word in words)
    form = {"upper": "{:08X}", "prefixed": "0x{:08x}", "short": "{:x}"}.get(layout, "{:08x}")
    end = {"crlf": "\r\n", "commas": ", "}.get(layout, "\n")
    text = "".join(form.format(word) + end for word in words)
    return (text[:-5] if layout == "cut" else text).encode()


STRUCTURE = Structure(_starts, _changed, _written)
