"""The mean inference as a profile of pprof: operators under the modules that they belong to, with calls and time.

``go tool pprof`` and what else reads ``profile.proto`` sums and draws it. A sample is an operator; its stack is that of
the flame graphs. Its first value is the calls, its second the self time, which the tool shows when nothing is chosen.
The framework's own time has no calls. A profile holds one variant, since the tool would add several up.

Source of the format: ``proto/profile.proto`` of github.com/google/pprof.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from opscope.core.table import Clock
from opscope.readers.protobuf import BYTES, VARINT
from opscope.reports.formats.stacks import stacks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.analysis.analysis import Analysis
    from opscope.reports.formats.stacks import By, Frame

_SEVEN, _MORE = 7, 0x80


def pprof(analysis: Analysis, by: By) -> bytes:
    """The file, compressed as the format asks for."""
    profile = _Profile()
    unit = "nanoseconds" if analysis.trace.clock is Clock.NS else "cycles"
    profile.kinds(("calls", "count"), ("time", unit))
    total = 0
    for (frames, weight), operator in zip(stacks(analysis, by), analysis.operators, strict=True):
        calls = round(operator.calls) if operator.position is not None else 0
        profile.sample(frames, (calls, weight))
        total += weight
    return gzip.compress(profile.finished(total if unit == "nanoseconds" else 0), mtime=0)


class _Profile:
    """A message `Profile` that is being written: texts, functions and locations are numbered as they appear."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {"": 0}
        self._frames: dict[Frame, int] = {}
        self._parts: list[bytes] = []
        self._default = 0

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def kinds(self, *kinds: tuple[str, str]) -> None:
        """What the values of a sample are: name and unit of each; the last one is shown first."""
        for name, unit in kinds:
            self._default = self._text(name)
            self._parts.append(_message(1, _number(1, self._default), _number(2, self._text(unit))))

    def sample(self, frames: Iterable[Frame], values: Iterable[int]) -> None:
        """A stack, outermost first, and its values."""
        numbers = [self._frames.setdefault(frame, len(self._frames) + 1) for frame in frames]
        self._parts.append(_message(2, _packed(1, reversed(numbers)), _packed(2, values)))

    def finished(self, duration_ns: int) -> bytes:
        """The whole message."""
        for frame, number in self._frames.items():
            line = _message(4, _number(1, number), _number(2, frame.line or 0))
            self._parts.append(_message(4, _number(1, number), line))
            name, file = self._text(frame.name), self._text(frame.file or "")
            self._parts.append(_message(5, _number(1, number), _number(2, name), _number(3, name), _number(4, file)))
        texts = [_field(6, text.encode("utf-8", "replace")) for text in self._texts]
        return b"".join([*self._parts, *texts, _number(10, duration_ns), _number(14, self._default)])


def _message(number: int, *parts: bytes) -> bytes:
    return _field(number, b"".join(parts))


def _packed(number: int, values: Iterable[int]) -> bytes:
    return _field(number, b"".join(map(_varint, values)))


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | VARINT) + _varint(value) if value else b""


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """A number from 0 on, seven bits a byte."""
    found = bytearray()
    while value >= _MORE:
        found.append(value & _MORE - 1 | _MORE)
        value >>= _SEVEN
    return bytes([*found, value])
