"""The mean inference as stacks of frames, for tools that draw flame graphs: each operator with what it is part of.

The weights are self times, in whole nanoseconds (or cycles), and add up to the mean latency: the rest of each rounding
is given to those that lost most by it. The framework's own time is the self time of the frame it was spent in.

A speedscope file has one profile an analysis. Its time axis is one mean inference: the operators in program order, laid
end to end, which is not where each of them began. Frames of operators name the line of the model.

Folded stacks are one a line: frames with ``;`` between them, a space, and the weight. ``flamegraph.pl``, inferno and
others draw them. Equal stacks are one line, and what took no time has none.

A profile of pprof holds one variant, since ``go tool pprof`` would add several up. Its first value is the calls, its
second the self time, which the tool shows when nothing is chosen. The framework's own time has no calls.

Source of the formats: ``file-format-schema.json`` of speedscope 1.25, ``stackcollapse`` of Brendan Gregg's FlameGraph,
``proto/profile.proto`` of github.com/google/pprof.
"""

from __future__ import annotations

import enum
import gzip
import math
from typing import TYPE_CHECKING, Literal

import msgspec

from opscope.core.table import Clock
from opscope.core.version import __version__
from opscope.readers.protobuf import BYTES, VARINT
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator

    _Maker: TypeAlias = "Callable[[Operator], tuple[Frame, ...]]"
    from collections.abc import Iterable


_LONGEST = 200
_FRAMEWORK = "framework"


class By(str, enum.Enum):
    """What operators are part of: calls of the program, or modules of the model."""

    OPERATOR = "operator"
    MODULE = "module"


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A frame of a stack: its name, and the file and line of the model that caused it, where they are known."""

    name: str
    file: str | None = None
    line: int | None = None


def stacks(analysis: Analysis, by: By) -> list[tuple[tuple[Frame, ...], int]]:
    """Of each operator, in program order, its frames, the outermost first, and its self time as the weight."""
    make = _by_module(analysis) if by is By.MODULE else _by_call(analysis)
    weights = _whole([operator.shown_ns for operator in analysis.operators])
    return [(make(o), weight) for o, weight in zip(analysis.operators, weights, strict=True)]


def _whole(times: Sequence[float]) -> list[int]:
    """Integers that add up to the rounded sum, none further than 1 from its time."""
    floors = [math.floor(time) for time in times]
    missing = round(math.fsum(times)) - sum(floors)
    order = sorted(range(len(times)), key=lambda number: floors[number] - times[number])
    raised = set(order[:missing])
    return [floor + (number in raised) for number, floor in enumerate(floors)]


def _by_call(analysis: Analysis) -> _Maker:
    """Method, instruction with who computes it, operator."""
    backends = {
        (operator.method, operator.instruction): operator.backend
        for operator in analysis.operators
        if operator.backend != _FRAMEWORK
    }

    def frames(operator: Operator) -> tuple[Frame, ...]:
        method = Frame(frame_name(operator.method))
        if operator.instruction is None:
            return (method, *_framework_frames(operator))
        backend = backends.get((operator.method, operator.instruction), operator.name)
        call = Frame(frame_name(f"{operator.instruction}: {backend}"))
        return (method, call) if _is_framework(operator) else (method, call, _leaf(operator))

    return frames


def _by_module(analysis: Analysis) -> _Maker:
    """Method, module by module, operator."""
    types = {(module.method, module.path): module.type for module in analysis.modules}

    def frames(operator: Operator) -> tuple[Frame, ...]:
        method = Frame(frame_name(operator.method))
        if _is_framework(operator):
            return (method, *_framework_frames(operator))
        if operator.module is None:
            return method, Frame("module unknown"), _leaf(operator)
        parts = operator.module.split(".") if operator.module else []
        paths = [".".join(parts[: count + 1]) for count in range(len(parts))]
        return (method, *(_module(path, types.get((operator.method, path))) for path in paths), _leaf(operator))

    return frames


def _module(path: str, module_type: str | None) -> Frame:
    short = module_type.rpartition(".")[2] if module_type else ""
    return Frame(frame_name(f"{path} ({short})" if short else path))


def _framework_frames(operator: Operator) -> tuple[Frame, ...]:
    """What the framework spent outside of operators: the method's own time has no frame of its own."""
    return () if operator.name == "Method::execute" else (Frame(frame_name(operator.name)),)


def _is_framework(operator: Operator) -> bool:
    return operator.position is None and operator.kind == _FRAMEWORK


def _leaf(operator: Operator) -> Frame:
    file, _, line = (operator.source or "").rpartition(":")
    known = file and line.isdecimal()
    return Frame(frame_name(operator.name), plain(file, _LONGEST) if known else None, int(line) if known else None)


def frame_name(text: str) -> str:
    """A name on one line, and without the sign that separates frames in folded stacks."""
    return plain(text, _LONGEST).replace(";", ",") or "unnamed"


_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class Profile(msgspec.Struct, frozen=True, tag_field="type", tag="sampled", rename="camel"):
    """Samples, each a stack of numbers of frames, and their weights."""

    name: str
    unit: str
    start_value: int
    end_value: int
    samples: list[list[int]]
    weights: list[int]


class SpeedscopeFile(msgspec.Struct, frozen=True, rename="camel"):
    """A file of several profiles."""

    schema: str = msgspec.field(name="$schema")
    name: str
    exporter: str
    active_profile_index: int
    shared: dict[Literal["frames"], list[Frame]]  # by number
    profiles: list[Profile]


def speedscope(name: str, results: Sequence[tuple[str, Analysis]], by: By) -> bytes:
    """The file."""
    numbers: dict[Frame, int] = {}
    profiles = [_profile(label, analysis, by, numbers) for label, analysis in results]
    file = SpeedscopeFile(
        schema=_SCHEMA,
        name=plain(name),
        exporter=f"opscope {__version__}",
        active_profile_index=0,
        shared={"frames": list(numbers)},
        profiles=profiles,
    )
    return msgspec.json.encode(file) + b"\n"


def _profile(label: str, analysis: Analysis, by: By, numbers: dict[Frame, int]) -> Profile:
    """One profile; frames that are new get the next number."""
    found = stacks(analysis, by)
    return Profile(
        name=f"{plain(label)}: mean inference by {by.value}",
        unit="nanoseconds" if analysis.trace.clock is Clock.NS else "none",
        start_value=0,
        end_value=sum(weight for _, weight in found),
        samples=[[numbers.setdefault(frame, len(numbers)) for frame in frames] for frames, _ in found],
        weights=[weight for _, weight in found],
    )


def folded(results: Sequence[tuple[str, Analysis]], by: By) -> bytes:
    """The file."""
    lines: dict[str, int] = {}
    for name, analysis in results:
        outer = (Frame(frame_name(name)),) if len(results) > 1 else ()
        for frames, weight in stacks(analysis, by):
            line = ";".join(frame.name for frame in (*outer, *frames))
            lines[line] = lines.get(line, 0) + weight
    return "".join(f"{line} {weight}\n" for line, weight in lines.items() if weight).encode()


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
