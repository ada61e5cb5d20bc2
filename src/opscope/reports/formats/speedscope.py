"""Mean inference as stacks of frames for speedscope: each operator with its calls or its modules.

Weights are self times in whole nanoseconds (or cycles) that add up to the rounded mean latency. The time axis is one
mean inference: operators in program order, laid end to end, which is not where each of them began. The framework's own
time is the self time of the frame that it was spent in. Frames of operators name the line of the model.

Source of the format: ``file-format-schema.json`` of speedscope 1.25.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Literal

import msgspec

from opscope.core.table import Clock
from opscope.core.version import __version__
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator

    _FrameMaker: TypeAlias = "Callable[[Operator], tuple[Frame, ...]]"

_LONGEST = 200
_FRAMEWORK = "framework"


class By(str, enum.Enum):
    """Hierarchy of the stacks: calls of the program, or modules of the model."""

    OPERATOR = "operator"
    MODULE = "module"


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """Frame of a stack: its name, and the file and line of the model that caused it, if known."""

    name: str
    file: str | None = None
    line: int | None = None


def list_stacks(analysis: Analysis, by: By) -> list[tuple[tuple[Frame, ...], int]]:
    """List the frames of each operator, outermost first, and its self time as the weight, in program order."""
    make = _frames_by_module(analysis) if by is By.MODULE else _frames_by_call(analysis)
    weights = _round_to_total([operator.shown_ns for operator in analysis.operators])
    return [(make(operator), weight) for operator, weight in zip(analysis.operators, weights, strict=True)]


def _round_to_total(times: Sequence[float]) -> list[int]:
    """Round times to integers that add up to the rounded sum, each less than 1 from its time."""
    floors = [math.floor(time) for time in times]
    missing = round(math.fsum(times)) - sum(floors)
    order = sorted(range(len(times)), key=lambda number: floors[number] - times[number])
    raised = set(order[:missing])
    return [floor + (number in raised) for number, floor in enumerate(floors)]


def _frames_by_call(analysis: Analysis) -> _FrameMaker:
    """Return a function from an operator to its frames: method, instruction with its backend, operator."""
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
        return (method, call) if _is_framework(operator) else (method, call, _operator_frame(operator))

    return frames


def _frames_by_module(analysis: Analysis) -> _FrameMaker:
    """Return a function from an operator to its frames: method, modules, operator."""
    types = {(module.method, module.path): module.type for module in analysis.modules}

    def frames(operator: Operator) -> tuple[Frame, ...]:
        method = Frame(frame_name(operator.method))
        if _is_framework(operator):
            return (method, *_framework_frames(operator))
        if operator.module is None:
            return method, Frame("module unknown"), _operator_frame(operator)
        parts = operator.module.split(".") if operator.module else []
        paths = [".".join(parts[: count + 1]) for count in range(len(parts))]
        return (
            method,
            *(_module_frame(path, types.get((operator.method, path))) for path in paths),
            _operator_frame(operator),
        )

    return frames


def _module_frame(path: str, module_type: str | None) -> Frame:
    short = module_type.rpartition(".")[2] if module_type else ""
    return Frame(frame_name(f"{path} ({short})" if short else path))


def _framework_frames(operator: Operator) -> tuple[Frame, ...]:
    """Return the frames of framework time; the method's own time has none."""
    return () if operator.name == "Method::execute" else (Frame(frame_name(operator.name)),)


def _is_framework(operator: Operator) -> bool:
    return operator.position is None and operator.kind == _FRAMEWORK


def _operator_frame(operator: Operator) -> Frame:
    file, _, line = (operator.source or "").rpartition(":")
    known = file and line.isdecimal()
    return Frame(frame_name(operator.name), plain(file, _LONGEST) if known else None, int(line) if known else None)


def frame_name(text: str) -> str:
    """Return a name on one line; "unnamed" for an empty one."""
    return plain(text, _LONGEST) or "unnamed"


_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class Profile(msgspec.Struct, frozen=True, tag_field="type", tag="sampled", rename="camel"):
    """Samples, each a stack of frame numbers, and their weights."""

    name: str
    unit: str
    start_value: int
    end_value: int
    samples: list[list[int]]
    weights: list[int]


class SpeedscopeFile(msgspec.Struct, frozen=True, rename="camel"):
    """File of several profiles."""

    schema: str = msgspec.field(name="$schema")
    name: str
    exporter: str
    active_profile_index: int
    shared: dict[Literal["frames"], list[Frame]]  # by number
    profiles: list[Profile]


def speedscope(name: str, results: Sequence[tuple[str, Analysis]], by: By) -> bytes:
    """Return the file with a profile for each analysis, in their order."""
    numbers: dict[Frame, int] = {}
    profiles = [_build_profile(label, analysis, by, numbers) for label, analysis in results]
    file = SpeedscopeFile(
        schema=_SCHEMA,
        name=plain(name),
        exporter=f"opscope {__version__}",
        active_profile_index=0,
        shared={"frames": list(numbers)},
        profiles=profiles,
    )
    return msgspec.json.encode(file) + b"\n"


def _build_profile(label: str, analysis: Analysis, by: By, numbers: dict[Frame, int]) -> Profile:
    """Return one profile; new frames get the next number."""
    stacks = list_stacks(analysis, by)
    return Profile(
        name=f"{plain(label)}: mean inference by {by.value}",
        unit="nanoseconds" if analysis.trace.clock is Clock.NS else "none",
        start_value=0,
        end_value=sum(weight for _, weight in stacks),
        samples=[[numbers.setdefault(frame, len(numbers)) for frame in frames] for frames, _ in stacks],
        weights=[weight for _, weight in stacks],
    )
