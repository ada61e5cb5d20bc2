"""Which lines of opscope have run, at a cost that falls as fewer are left to be seen."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import opscope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

_PACKAGE = str(Path(opscope.__file__).parent)


class Lines:
    """Lines of the package that have run; :meth:`taken` tells how many were new since the last call.

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
            monitoring.restart_events()  # lines that an earlier watch saw are reported again
        else:
            sys.settrace(self._call)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not watch meanwhile, where watching costs time for lines that are not ours, too."""
        watch = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(watch)

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
        if _of_the_package(code):
            self.seen.add((code.co_filename, line))
        return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore] # from Python 3.12

    def _call(self, frame: FrameType, _event: str, _value: object) -> Callable[..., Any] | None:
        code = frame.f_code
        missing = self._missing.get(code)
        if missing is None:
            lines = {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}
            missing = self._missing[code] = lines if _of_the_package(code) else set()
        return self._trace if missing else None

    def _trace(self, frame: FrameType, event: str, _value: object) -> Callable[..., Any]:
        if event == "line":
            self._missing[frame.f_code].discard(frame.f_lineno)
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace


def _of_the_package(code: CodeType) -> bool:
    return code.co_filename.startswith(_PACKAGE)
