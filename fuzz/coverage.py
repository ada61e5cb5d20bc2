"""Which lines of the readers have run, at a cost that falls as fewer are left to be seen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

_PACKAGE = "/opscope/read/"


class Lines:
    """Lines of ``opscope.read`` that have run; :meth:`taken` tells how many were new since the last call.

    Python 3.12 reports each line once and never again. Before, functions all of whose lines were seen run untraced.
    """

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self._counted = 0
        self._missing: dict[CodeType, set[int]] = {}

    def start(self) -> None:
        """Watch from now on."""
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "opscope fuzz")
            monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self._line)
            monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
        else:
            sys.settrace(self._call)

    def stop(self) -> None:
        """Watch no longer."""
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, 0)
            sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
        else:
            sys.settrace(None)

    def taken(self) -> int:
        """Number of lines that are new since the last call."""
        new = len(self.seen) - self._counted
        self._counted = len(self.seen)
        return new

    def _line(self, code: CodeType, line: int) -> object:
        if _of_a_reader(code):
            self.seen.add((code.co_filename, line))
        return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore] # from Python 3.12

    def _call(self, frame: FrameType, _event: str, _value: object) -> Callable[..., Any] | None:
        code = frame.f_code
        missing = self._missing.get(code)
        if missing is None:
            lines = {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}
            missing = self._missing[code] = lines if _of_a_reader(code) else set()
        return self._trace if missing else None

    def _trace(self, frame: FrameType, event: str, _value: object) -> Callable[..., Any]:
        if event == "line":
            self._missing[frame.f_code].discard(frame.f_lineno)
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace


def _of_a_reader(code: CodeType) -> bool:
    return _PACKAGE in code.co_filename
