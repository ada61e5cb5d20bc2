"""How much work Python code does, counted and not timed: the same on the slowest and the busiest machine."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def count_opcodes(run: Callable[[], object]) -> int:
    """Count the instructions of Python that a call executes; those of extension modules are not seen."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count
