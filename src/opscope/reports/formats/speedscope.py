"""The mean inference as a speedscope file: one profile an analysis, its operators in program order.

Samples are stacks of frames with their weights in nanoseconds. The time axis of a profile is one mean inference: the
operators laid end to end, which is not where each of them began. Frames of operators name the line of the model.

Source of the format: ``file-format-schema.json`` of speedscope 1.25.

Folded stacks, one a line: frames with ``;`` between them, a space, and the weight.

``flamegraph.pl``, inferno and others draw them. Weights are whole nanoseconds (or cycles) of the mean inference. Equal
stacks are one line, and what took no time has none.

Source of the format: ``stackcollapse`` of Brendan Gregg's FlameGraph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.table import Clock
from opscope.core.version import __version__
from opscope.reports.document.text import plain
from opscope.reports.formats.stacks import Frame, frame_name, stacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.reports.formats.stacks import By


_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class Shared(msgspec.Struct, frozen=True):
    """Frames by number."""

    frames: list[Frame]


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
    shared: Shared
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
        shared=Shared(list(numbers)),
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
