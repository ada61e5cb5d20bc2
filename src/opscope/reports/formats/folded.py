"""Folded stacks, one a line: frames with ``;`` between them, a space, and the weight.

``flamegraph.pl``, inferno and others draw them. Weights are whole nanoseconds (or cycles) of the mean inference. Equal
stacks are one line, and what took no time has none.

Source of the format: ``stackcollapse`` of Brendan Gregg's FlameGraph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.reports.formats.stacks import Frame, frame_name, stacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.reports.formats.stacks import By


def folded(results: Sequence[tuple[str, Analysis]], by: By) -> bytes:
    """The file."""
    lines: dict[str, int] = {}
    for name, analysis in results:
        outer = (Frame(frame_name(name)),) if len(results) > 1 else ()
        for stack in stacks(analysis, by):
            line = ";".join(frame.name for frame in (*outer, *stack.frames))
            lines[line] = lines.get(line, 0) + stack.weight
    return "".join(f"{line} {weight}\n" for line, weight in lines.items() if weight).encode()
