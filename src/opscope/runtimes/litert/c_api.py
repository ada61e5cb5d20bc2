"""The C API of LiteRT's library through ctypes: a compiled model, its buffers, and its profiler.

The wheel's Python bindings do not offer the profiler. The structures below are those of
:data:`opscope.runtimes.litert.installed.KNOWN`; :func:`check_events` refuses events that do not fit them.
Source of the layout: ``litert/c`` of LiteRT 2.3.0.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from opscope.core.errors import RunError
from opscope.core.units import counted_text
from opscope.runtimes.litert.signatures import caches_in_place
from opscope.runtimes.litert.trace import INVOKE_TYPES, MICRO, EventRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from opscope.experiment.tensors import Array

    Buffers: TypeAlias = "ctypes.Array[ctypes.c_void_p]"

_CPU = 1
_READ, _WRITE = 0, 1
_TENSOR_TYPE_BYTES = 256  # more than the structure has in any version
_ELEMENT_TYPE_BYTES, _MOST_DIMENSIONS = 4, 8
_MOST_EVENTS = 1 << 20
_KERNELS = {"xnnpack": 0, "none": 2}
_STATUS = {1: "an argument is invalid", 2: "out of memory", 3: "a runtime failure", 5: "unsupported", 6: "not found"}
PLACEHOLDER = "<placeholder signature>"
"""What LiteRT calls the signature that it makes for a model without any."""
DELEGATE = "xnnpack"
"""Unless another one is asked for."""
# A clock of whole microseconds may be one behind at either end.
_SLACK = 2


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_size_t), ("in_use", ctypes.c_size_t), ("private", ctypes.c_size_t))


class _Event(ctypes.Structure):
    _fields_ = (
        ("tag", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("start", ctypes.c_uint64),
        ("duration", ctypes.c_uint64),
        ("memory_before", _Memory),
        ("memory_after", _Memory),
        ("metadata1", ctypes.c_uint64),
        ("metadata2", ctypes.c_uint64),
        ("source", ctypes.c_int),
    )


class _Layout(ctypes.Structure):
    """Sizes of a tensor; the lowest seven bits of the first field are the number of its dimensions."""

    _fields_ = (
        ("rank", ctypes.c_uint),
        ("dimensions", ctypes.c_int32 * _MOST_DIMENSIONS),
        ("strides", ctypes.c_uint32 * _MOST_DIMENSIONS),
    )

    def sizes(self) -> tuple[int, ...]:
        return tuple(self.dimensions[: min(self.rank & 0x7F, _MOST_DIMENSIONS)])


class Call(NamedTuple):
    """A signature that can be called."""

    number: int  # of the signature
    inputs: tuple[str, ...]  # names, in the order of the runtime
    outputs: tuple[str, ...]
    run: Callable[[], int]  # calls it, with the buffers below; anything but 0 is a failure
    input_buffers: Buffers  # one for each input
    output_buffers: Buffers  # one for each output
    # of each output, where inputs were given other sizes than the file has; else empty
    output_sizes: tuple[tuple[int, ...], ...] = ()


class CompiledModel:
    """A .tflite, ready to be called; a RunError where the runtime refuses it.

    ``delegate`` is ``xnnpack``, or ``none`` for LiteRT's own kernels; ``profiled``: with the profiler, which
    :meth:`profile` starts.
    """

    def __init__(self, library: Path, program: str, delegate: str, threads: int, *, profiled: bool) -> None:
        self._library = ctypes.CDLL(str(library))
        self._kept: list[Any] = []  # what the runtime keeps pointers to
        self._buffers_made: list[int | None] = []
        self._environment = self._made("LiteRtCreateEnvironment", 0, None)
        self._model = self._made("LiteRtCreateModelFromFile", self._environment, program.encode())
        options = self._options(f"num_threads = {threads}\nkernel_mode = {_KERNELS[delegate]}\n", profiled=profiled)
        self._compiled = self._made("LiteRtCreateCompiledModel", self._environment, self._model, options)
        self._profiler = self._made("LiteRtCompiledModelGetProfiler", self._compiled) if profiled else None

    def _options(self, cpu: str, *, profiled: bool) -> ctypes.c_void_p:
        options = self._made("LiteRtCreateOptions")
        self._call("LiteRtSetOptionsHardwareAccelerators", options, _CPU)
        if profiled:
            self._add_option(options, "runtime_options_string", "enable_profiling = true\n")
        self._add_option(options, "xnnpack", cpu)
        return options

    def _add_option(self, options: ctypes.c_void_p, name: str, text: str) -> None:
        content = ctypes.create_string_buffer(text.encode())
        freed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_left_alone)
        self._kept += [content, freed]
        option = self._made("LiteRtCreateOpaqueOptions", name.encode(), content, freed)
        self._call("LiteRtAddOpaqueOptions", options, option)

    def close(self) -> None:
        """Give all memory back; nothing of the model may be called any more."""
        for buffer in self._buffers_made:
            self._library.LiteRtDestroyTensorBuffer(ctypes.c_void_p(buffer))
        self._library.LiteRtDestroyCompiledModel(self._compiled)
        self._library.LiteRtDestroyModel(self._model)
        self._library.LiteRtDestroyEnvironment(self._environment)

    def calls(self, sizes: Mapping[str, Mapping[str, Sequence[int]]] | None = None) -> dict[str, Call]:
        """All signatures, by name; the one that LiteRT makes for a model without any is named as the empty text."""
        count = ctypes.c_size_t()
        self._call("LiteRtGetNumModelSignatures", self._model, ctypes.byref(count))
        given = sizes or {}
        only = next(iter(given.values()), {}) if count.value == 1 else {}
        found = (self._callable(number, given, only) for number in range(count.value))
        return dict(found)

    def _callable(
        self, number: int, sizes: Mapping[str, Mapping[str, Sequence[int]]], only: Mapping[str, Sequence[int]]
    ) -> tuple[str, Call]:
        signature = self._made("LiteRtGetModelSignature", self._model, ctypes.c_size_t(number))
        name = self._text("LiteRtGetSignatureKey", signature)
        inputs, outputs = (self._names(signature, side) for side in ("Input", "Output"))
        own = sizes.get(name, only)
        asked = [tuple(own.get(one, ())) for one in inputs]
        left = self._resized(number, asked, len(outputs)) if any(asked) else []
        filled = self._buffers(signature, number, "Input", asked)
        read = self._buffers(signature, number, "Output", left or [()] * len(outputs))
        for cache in caches_in_place(inputs, outputs, resized=bool(left)):
            given, place = filled[inputs.index(cache)], outputs.index(cache)
            if self._size(given) == self._size(read[place]):
                read[place] = given
        function = self._library.LiteRtRunCompiledModel
        function.restype = ctypes.c_int
        numbers = [ctypes.c_size_t(value) for value in (number, len(inputs), len(outputs))]

        def run() -> int:
            return int(function(self._compiled, numbers[0], numbers[1], filled, numbers[2], read))

        return "" if name == PLACEHOLDER else name, Call(number, inputs, outputs, run, filled, read, tuple(left))

    def _resized(self, number: int, asked: Sequence[tuple[int, ...]], outputs: int) -> list[tuple[int, ...]]:
        """Give inputs other sizes; those of the outputs follow from them."""
        signature = ctypes.c_size_t(number)
        for place, sizes in enumerate(asked):
            if sizes:
                dimensions = (ctypes.c_int * len(sizes))(*sizes)
                places = (ctypes.c_size_t(place), dimensions, ctypes.c_size_t(len(sizes)))
                self._call("LiteRtCompiledModelResizeInputTensor", self._compiled, signature, *places)
        layouts = (_Layout * outputs)()
        wanted = (ctypes.c_size_t(outputs), layouts, ctypes.c_bool(True))  # noqa: FBT003 - of C
        self._call("LiteRtGetCompiledModelOutputTensorLayouts", self._compiled, signature, *wanted)
        return [layout.sizes() for layout in layouts]

    def _names(self, signature: ctypes.c_void_p, side: str) -> tuple[str, ...]:
        count = ctypes.c_size_t()
        self._call(f"LiteRtGetNumSignature{side}s", signature, ctypes.byref(count))
        places = range(count.value)
        return tuple(self._text(f"LiteRtGetSignature{side}Name", signature, ctypes.c_size_t(at)) for at in places)

    def _buffers(self, signature: ctypes.c_void_p, number: int, side: str, sizes: Sequence[tuple[int, ...]]) -> Buffers:
        buffers = (ctypes.c_void_p * len(sizes))()
        for at, own in enumerate(sizes):
            place = ctypes.c_size_t(at)
            needs = self._made(
                f"LiteRtGetCompiledModel{side}BufferRequirements", self._compiled, ctypes.c_size_t(number), place
            )
            tensor = self._made(f"LiteRtGetSignature{side}TensorByIndex", signature, place)
            kind = (ctypes.c_uint8 * _TENSOR_TYPE_BYTES)()
            self._call("LiteRtGetRankedTensorType", tensor, ctypes.byref(kind))
            if own:
                dimensions = (ctypes.c_int32 * _MOST_DIMENSIONS)(*own)
                layout = _Layout(len(own), dimensions)
                ctypes.memmove(ctypes.byref(kind, _ELEMENT_TYPE_BYTES), ctypes.byref(layout), ctypes.sizeof(layout))
            made = "LiteRtCreateManagedTensorBufferFromRequirements"
            buffers[at] = self._made(made, self._environment, ctypes.byref(kind), needs).value
            self._buffers_made.append(buffers[at])
        return buffers

    def fill(self, buffer: int | None, values: Array) -> None:
        """Copy an array into a buffer."""
        data = np.ascontiguousarray(values)
        place, size = self._locked(buffer, _WRITE)
        if size != data.nbytes:
            self._unlock(buffer)
            raise RunError(f"an input takes {size} bytes, its declared sizes are {data.nbytes}")
        ctypes.memmove(place, data.ctypes.data, size)
        self._unlock(buffer)

    def content(self, buffer: int | None) -> bytes:
        """A copy of the bytes of a buffer."""
        place, size = self._locked(buffer, _READ)
        found = ctypes.string_at(place, size)
        self._unlock(buffer)
        return found

    def profile(self) -> None:
        """Forget all events and record new ones."""
        self._call("LiteRtResetProfiler", self._profiler)
        self._call("LiteRtStartProfiler", self._profiler)

    def events(self) -> list[EventRow]:
        """The events since :meth:`profile`, in the order of the runtime."""
        count = ctypes.c_int()
        self._call("LiteRtGetNumProfilerEvents", self._profiler, ctypes.byref(count))
        if not 0 <= count.value <= _MOST_EVENTS:
            raise RunError(f"LiteRT's profiler reports {counted_text(count.value, 'event')}")
        rows = (_Event * count.value)()
        self._call("LiteRtGetProfilerEvents", self._profiler, count, rows)
        return [
            EventRow(
                (row.tag or b"").decode("utf-8", "replace"),
                row.type,
                row.start,
                row.duration,
                row.metadata1,
                row.metadata2,
                row.source,
            )
            for row in rows
        ]

    def _size(self, buffer: int | None) -> int:
        size = ctypes.c_size_t()
        self._call("LiteRtGetTensorBufferPackedSize", ctypes.c_void_p(buffer), ctypes.byref(size))
        return size.value

    def _locked(self, buffer: int | None, mode: int) -> tuple[ctypes.c_void_p, int]:
        size, place = self._size(buffer), ctypes.c_void_p()
        self._call("LiteRtLockTensorBuffer", ctypes.c_void_p(buffer), ctypes.byref(place), mode)
        return place, size

    def _unlock(self, buffer: int | None) -> None:
        self._call("LiteRtUnlockTensorBuffer", ctypes.c_void_p(buffer))

    def _made(self, function: str, *arguments: Any) -> ctypes.c_void_p:  # noqa: ANN401 - whatever C takes
        found = ctypes.c_void_p()
        self._call(function, *arguments, ctypes.byref(found))
        return found

    def _text(self, function: str, *arguments: Any) -> str:  # noqa: ANN401 - likewise
        found = ctypes.c_char_p()
        self._call(function, *arguments, ctypes.byref(found))
        return (found.value or b"").decode("utf-8", "replace")

    def _call(self, function: str, *arguments: Any) -> None:  # noqa: ANN401 - likewise
        try:
            called = getattr(self._library, function)
        except AttributeError as error:
            raise RunError(f"LiteRT's library has no function {function}") from error
        called.restype = ctypes.c_int
        check_status(called(*arguments), function)


def check_status(status: int, function: str) -> None:
    """Raise what a function of the API reports."""
    if status:
        raise RunError(f"LiteRT rejected the model: {function} returned {status} ({_STATUS.get(status, 'unknown')})")


def check_events(events: Sequence[EventRow], wall_ns: int, unit_ns: int = MICRO) -> None:
    """Refuse events that do not fit the structures that they were read by; their times count so many nanoseconds."""
    if not any(row.type in INVOKE_TYPES for row in events):
        raise RunError("LiteRT's profiler recorded no model call: opscope does not know this event format")
    longest = wall_ns // unit_ns + _SLACK * MICRO // unit_ns
    for row in events:
        known = row.type in _EVENT_TYPES and row.tag.isprintable() and 0 <= row.source <= _MOST_SOURCES
        if not known or (row.type != _TELEMETRY and row.duration > longest):
            problem = f"an event {row.tag!r} of type {row.type} takes {row.duration} of {longest}"
            raise RunError(f"opscope does not know this LiteRT event format: {problem}")


_EVENT_TYPES, _TELEMETRY, _MOST_SOURCES = frozenset((1, 2, 4, 8, 16, 32, 64)), 32, 16


def _left_alone(_: int | None) -> None:
    """The text of an option is ours, and lives as long as the process."""
