"""Build the library that records when the Interpreter calls its operators, once, and use it through ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path

from opscope.core.errors import RunError
from opscope.core.units import counted_text
from opscope.runtimes.litert.tflite import BUILTIN_OPERATORS
from opscope.runtimes.litert.trace import INVOKE, INVOKE_TYPES, EventRow
from opscope.runtimes.native.building import built_library

SOURCE = Path(__file__).with_name("cpp") / "recorder.cpp"
_FLAGS = ("-O2", "-std=c++17", "-shared", "-fPIC", str(SOURCE))


class _Event(ctypes.Structure):
    _fields_ = (
        ("tag", ctypes.c_char_p),
        ("code", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("start", ctypes.c_int64),
        ("duration", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("graph", ctypes.c_int64),
    )


def recorder_library(cache: Path | None = None) -> Path:
    """Build the library, or return the one built from this source with this compiler."""
    return built_library(SOURCE, _FLAGS, "librecorder.so", cache)


class Recorder:
    """Records the operators of one Interpreter of this process."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.opscope_delegate.restype = ctypes.c_void_p
        self._library.opscope_events.restype = ctypes.c_size_t

    def _get_native_delegate_pointer(self) -> int:
        """Return the pointer that the Interpreter asks each of its delegates for."""
        return int(self._library.opscope_delegate())

    def watch(self, graphs: int) -> None:
        """Start watching the operators of all graphs of a file, whose memory must be allocated.

        Raises RunError if LiteRT did not show all graphs to the delegate.
        """
        watched = self._library.opscope_watch()
        if watched != graphs:
            raise RunError(
                f"LiteRT gave a delegate {counted_text(watched, 'graph')} of {graphs}: its operators cannot be "
                "identified"
            )

    def forget(self) -> None:
        """Discard all events."""
        self._library.opscope_forget()

    def events(self) -> list[EventRow]:
        """Return the events since :meth:`forget`, in nanoseconds; an event stands before the events inside it."""
        events_ = ctypes.POINTER(_Event)()
        count = self._library.opscope_events(ctypes.byref(events_))
        return [_event_row(events_[number]) for number in range(count)]


def _event_row(event: _Event) -> EventRow:
    return EventRow(_event_name(event), event.type, event.start, event.duration, event.number, event.graph, 0)


def _event_name(event: _Event) -> str:
    if event.type in INVOKE_TYPES:
        return INVOKE
    if event.tag:
        return str(event.tag.decode("utf-8", "replace"))
    known = 0 <= event.code < len(BUILTIN_OPERATORS)
    return BUILTIN_OPERATORS[event.code] if known else f"BUILTIN_{event.code}"
