"""Damage to files: blind, as a bad disk or an interrupted copy does it, and aimed at offsets, lengths and repeats."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    Mutation: TypeAlias = Callable[[Random, bytearray, bytes], None]

SMALL = 1 << 17
"""Damaged inputs do not grow beyond this many bytes, so that many are read."""
LARGEST = 1 << 20
"""Nor do those that repeat a part of theirs until they are large, which show how time and memory follow the size."""

_WORD = 4
_AT_ONCE = (1, 1, 1, 1, 2, 2, 3, 5)
_SPECIAL = (0, 1, 2, 3, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFF0, 0x10000, 0xFFFF)
_SPECIAL_16 = (0, 1, 2, 4, 6, 8, 12, 0x7FFF, 0x8000, 0xFFFF)
_SNIPPET = 12
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_NUMBERS = (b"0", b"-1", b"1e308", b"1e-400", b"nan", b"inf", b"", b"9" * 40, b"0.5", b"9223372036854775808", b"0x10")


def mutated(rng: Random, data: bytes, other: bytes, tokens: Sequence[bytes] = ()) -> bytes:
    """A damaged copy of an input.

    Args:
        rng: decides everything.
        data: what to damage.
        other: an input to take parts from.
        tokens: pieces of the format to insert.
    """
    out = bytearray(data)
    for _ in range(rng.choice(_AT_ONCE)):
        if tokens and rng.random() < 0.2:  # noqa: PLR2004 - one change in five is a piece of the format
            at = rng.randrange(len(out) + 1)
            out[at : at + rng.choice((0, 0, 1, 8))] = rng.choice(tokens)
        elif out:
            rng.choice(MUTATIONS)(rng, out, other)
        else:
            out += other[: rng.randrange(len(other) + 1)]
    return bytes(out[:SMALL])


def enlarged(rng: Random, data: bytes) -> bytes:
    """A copy that repeats a part of an input, often whole lines, until it is large."""
    size = rng.choice((LARGEST >> 2, LARGEST))
    first, length = _run(rng, bytearray(data or b"\0"))
    if rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
        last = data.find(b"\n", first + length - 1) + 1 or len(data)
        first = data.rfind(b"\n", 0, first) + 1
        length = max(1, last - first)
    part = data[first : first + length] or b"\0"
    times = max(0, size - len(data)) // len(part)
    return data[: first + length] + part * times + data[first + length :]


def _flip_bits(rng: Random, data: bytearray, _: bytes) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite_run(rng: Random, data: bytearray, _: bytes) -> None:
    first, length = _run(rng, data)
    data[first : first + length] = rng.choice((b"\0", b"\xff", bytes([rng.randrange(256)]))) * length


def _truncate(rng: Random, data: bytearray, _: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def _remove(rng: Random, data: bytearray, _: bytes) -> None:
    first, length = _run(rng, data)
    del data[first : first + length]


def _grow(rng: Random, data: bytearray, _: bytes) -> None:
    at = rng.choice((len(data), rng.randrange(len(data))))
    data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))


def _duplicate_block(rng: Random, data: bytearray, _: bytes) -> None:
    first, length = _run(rng, data)
    at = rng.choice((first, len(data), rng.randrange(len(data))))
    data[at:at] = bytes(data[first : first + length]) * rng.choice((1, 1, 2, 16))


def _move_block(rng: Random, data: bytearray, _: bytes) -> None:
    first, length = _run(rng, data)
    at = rng.randrange(len(data)) & -_WORD
    block = bytes(data[first : first + length])[: len(data) - at]
    data[at : at + len(block)] = block


def _splice(rng: Random, data: bytearray, other: bytes) -> None:
    if other:
        at, source = rng.randrange(len(data)), rng.randrange(len(other))
        end = rng.choice((len(data), min(len(data), at + rng.randrange(1, 256))))
        data[at:end] = other[source : source + rng.choice((len(other), max(1, end - at)))]


def _rewrite_word(rng: Random, data: bytearray, _: bytes) -> None:
    """An aligned word becomes an extreme, the distance to itself or another place, or a copy of another word."""
    at = _word(rng, data)
    if at is not None:
        struct.pack_into("<I", data, at, _value(rng, data, at))


def _rewrite_offset(rng: Random, data: bytearray, _: bytes) -> None:
    """As above, of words that could be offsets or small lengths."""
    found = [at for at in range(0, len(data) - 3, _WORD) if 0 < _read(data, at) < len(data)]
    if found:
        at = rng.choice(found)
        struct.pack_into("<I", data, at, _value(rng, data, at))


def _rewrite_half(rng: Random, data: bytearray, _: bytes) -> None:
    """A half word, as layouts are made of."""
    if len(data) >= _WORD:
        at = rng.randrange(len(data) - 1) & -2
        near = struct.unpack_from("<H", data, at)[0] + rng.choice((-4, -2, 2, 4, 8))
        struct.pack_into("<H", data, at, rng.choice((*_SPECIAL_16, near)) & 0xFFFF)


def _rewrite_in_every_repeat(rng: Random, data: bytearray, _: bytes) -> None:
    """The same change wherever the same bytes follow each other at a constant distance."""
    at = _word(rng, data)
    if at is None or len(data) < at + _SNIPPET:
        return
    snippet = bytes(data[at : at + _SNIPPET])
    step = data.find(snippet, at + _WORD) - at
    value = struct.pack("<I", _value(rng, data, at))
    for place in range(at % step if step > 0 else at, len(data) - _WORD, step if step > 0 else len(data)):
        if data[place : place + _WORD] == snippet[:_WORD]:
            data[place : place + _WORD] = value


def _rewrite_number(rng: Random, data: bytearray, _: bytes) -> None:
    """A decimal number, where the input has any."""
    found = list(_NUMBER.finditer(data))
    if found:
        place = rng.choice(found)
        data[place.start() : place.end()] = rng.choice((*_NUMBERS, rng.choice(found)[0]))


def _swap_lines(rng: Random, data: bytearray, _: bytes) -> None:
    lines = bytes(data).split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    data[:] = b"\n".join(lines)


MUTATIONS: tuple[Mutation, ...] = (
    _flip_bits,
    _overwrite_run,
    _truncate,
    _remove,
    _grow,
    _duplicate_block,
    _move_block,
    _splice,
    _rewrite_word,
    _rewrite_offset,
    _rewrite_offset,
    _rewrite_half,
    _rewrite_in_every_repeat,
    _rewrite_number,
    _swap_lines,
)


def _run(rng: Random, data: bytearray) -> tuple[int, int]:
    """First byte and length of a stretch; often aligned, mostly short."""
    first = rng.randrange(len(data))
    length = rng.choice((1, 4, 8, 16, 64, rng.randrange(1, len(data) + 1)))
    return (first & -_WORD if rng.random() < 0.5 else first), length  # noqa: PLR2004 - a fair coin


def _word(rng: Random, data: bytearray) -> int | None:
    return rng.randrange(len(data) // _WORD) * _WORD if len(data) >= _WORD else None


def _read(data: bytearray, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _value(rng: Random, data: bytearray, at: int) -> int:
    target = rng.randrange(0, len(data), _WORD)
    aimed = rng.choice((target - at, at - target, 0, -at, len(data) - at, len(data) - at - _WORD))
    copied = _read(data, _word(rng, data) or 0)
    near = _read(data, at) + rng.choice((-8, -4, -1, 1, 4, 8))
    return int(rng.choice((rng.choice(_SPECIAL), aimed, aimed, copied, near)) & 0xFFFFFFFF)
