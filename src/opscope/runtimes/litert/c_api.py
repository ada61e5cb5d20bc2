"""Call the C API of LiteRT's library through ctypes: a compiled model, its buffers, and its profiler.

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
"""Name that LiteRT gives the signature of a model that has none."""
DELEGATE = "xnnpack"
"""Default delegate."""
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
    """A signature that can be called, with its buffers."""

    number: int  # of the signature
    inputs: tuple[str, ...]  # names, in the order of the runtime
    outputs: tuple[str, ...]
    run: Callable[[], int]  # calls it, with the buffers below; anything but 0 is a failure
    input_buffers: Buffers  # one for each input
    output_buffers: Buffers  # one for each output
    # of each output, where inputs were given other sizes than the file has; else empty
    output_sizes: tuple[tuple[int, ...], ...] = ()


class CompiledModel:
    """A .tflite, ready to be called. Raises RunError if the runtime refuses it.

    ``delegate`` is ``xnnpack``, or ``none`` for LiteRT's own kernels. ``profiled``: with the profiler, which
    :meth:`profile` starts.
    """

    def __init__(self, library: Path, program: str, delegate: str, threads: int, *, profiled: bool) -> None:
        self._library = ctypes.CDLL(str(library))
        self._kept: list[Any] = []  # what the runtime keeps pointers to
        self._buffers_made: list[int | None] = []
        self._environment = self._make_handle("LiteRtCreateEnvironment", 0, None)
        self._model = self._make_handle("LiteRtCreateModelFromFile", self._environment, program.encode())
        options = self._make_options(
            f"num_threads = {threads}\nkernel_mode = {_KERNELS[delegate]}\n", profiled=profiled
        )
        self._compiled = self._make_handle("LiteRtCreateCompiledModel", self._environment, self._model, options)
        self._profiler = self._make_handle("LiteRtCompiledModelGetProfiler", self._compiled) if profiled else None

    def _make_options(self, cpu: str, *, profiled: bool) -> ctypes.c_void_p:
        options = self._make_handle("LiteRtCreateOptions")
        self._call_library("LiteRtSetOptionsHardwareAccelerators", options, _CPU)
        if profiled:
            self._add_option(options, "runtime_options_string", "enable_profiling = true\n")
        self._add_option(options, "xnnpack", cpu)
        return options

    def _add_option(self, options: ctypes.c_void_p, name: str, text: str) -> None:
        content = ctypes.create_string_buffer(text.encode())
        freed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_keep_option_text)
        self._kept += [content, freed]
        option = self._make_handle("LiteRtCreateOpaqueOptions", name.encode(), content, freed)
        self._call_library("LiteRtAddOpaqueOptions", options, option)

    def close(self) -> None:
        """Free all memory; nothing of the model may be called afterwards."""
        for buffer in self._buffers_made:
            self._library.LiteRtDestroyTensorBuffer(ctypes.c_void_p(buffer))
        self._library.LiteRtDestroyCompiledModel(self._compiled)
        self._library.LiteRtDestroyModel(self._model)
        self._library.LiteRtDestroyEnvironment(self._environment)

    def calls(self, sizes: Mapping[str, Mapping[str, Sequence[int]]] | None = None) -> dict[str, Call]:
        """Return all signatures by name; that of a model without any has an empty name.

        ``sizes`` are the sizes of open inputs, by signature and input.
        """
        count = ctypes.c_size_t()
        self._call_library("LiteRtGetNumModelSignatures", self._model, ctypes.byref(count))
        requested = sizes or {}
        only = next(iter(requested.values()), {}) if count.value == 1 else {}
        named_calls = (self._prepare_signature(number, requested, only) for number in range(count.value))
        return dict(named_calls)

    def _prepare_signature(
        self, number: int, sizes: Mapping[str, Mapping[str, Sequence[int]]], only: Mapping[str, Sequence[int]]
    ) -> tuple[str, Call]:
        signature = self._make_handle("LiteRtGetModelSignature", self._model, ctypes.c_size_t(number))
        name = self._read_text("LiteRtGetSignatureKey", signature)
        inputs, outputs = (self._tensor_names(signature, side) for side in ("Input", "Output"))
        input_sizes = sizes.get(name, only)
        sizes_in_order = [tuple(input_sizes.get(input_name, ())) for input_name in inputs]
        output_sizes = self._resize_inputs(number, sizes_in_order, len(outputs)) if any(sizes_in_order) else []
        filled = self._make_buffers(signature, number, "Input", sizes_in_order)
        read = self._make_buffers(signature, number, "Output", output_sizes or [()] * len(outputs))
        for cache in caches_in_place(inputs, outputs, resized=bool(output_sizes)):
            input_buffer, output_index = filled[inputs.index(cache)], outputs.index(cache)
            if self._buffer_size(input_buffer) == self._buffer_size(read[output_index]):
                read[output_index] = input_buffer
        function = self._library.LiteRtRunCompiledModel
        function.restype = ctypes.c_int
        numbers = [ctypes.c_size_t(value) for value in (number, len(inputs), len(outputs))]

        def run() -> int:
            return int(function(self._compiled, numbers[0], numbers[1], filled, numbers[2], read))

        return "" if name == PLACEHOLDER else name, Call(
            number, inputs, outputs, run, filled, read, tuple(output_sizes)
        )

    def _resize_inputs(self, number: int, requested: Sequence[tuple[int, ...]], outputs: int) -> list[tuple[int, ...]]:
        """Resize inputs, and return the sizes of the outputs, which follow from them."""
        signature = ctypes.c_size_t(number)
        for index, sizes in enumerate(requested):
            if sizes:
                dimensions = (ctypes.c_int * len(sizes))(*sizes)
                size_arguments = (ctypes.c_size_t(index), dimensions, ctypes.c_size_t(len(sizes)))
                self._call_library("LiteRtCompiledModelResizeInputTensor", self._compiled, signature, *size_arguments)
        layouts = (_Layout * outputs)()
        layout_arguments = (ctypes.c_size_t(outputs), layouts, ctypes.c_bool(True))  # noqa: FBT003 - of C
        self._call_library("LiteRtGetCompiledModelOutputTensorLayouts", self._compiled, signature, *layout_arguments)
        return [layout.sizes() for layout in layouts]

    def _tensor_names(self, signature: ctypes.c_void_p, side: str) -> tuple[str, ...]:
        count = ctypes.c_size_t()
        self._call_library(f"LiteRtGetNumSignature{side}s", signature, ctypes.byref(count))
        indices = range(count.value)
        return tuple(self._read_text(f"LiteRtGetSignature{side}Name", signature, ctypes.c_size_t(at)) for at in indices)

    def _make_buffers(
        self, signature: ctypes.c_void_p, number: int, side: str, sizes: Sequence[tuple[int, ...]]
    ) -> Buffers:
        buffers = (ctypes.c_void_p * len(sizes))()
        for at, tensor_sizes in enumerate(sizes):
            c_index = ctypes.c_size_t(at)
            needs = self._make_handle(
                f"LiteRtGetCompiledModel{side}BufferRequirements", self._compiled, ctypes.c_size_t(number), c_index
            )
            tensor = self._make_handle(f"LiteRtGetSignature{side}TensorByIndex", signature, c_index)
            kind = (ctypes.c_uint8 * _TENSOR_TYPE_BYTES)()
            self._call_library("LiteRtGetRankedTensorType", tensor, ctypes.byref(kind))
            if tensor_sizes:
                dimensions = (ctypes.c_int32 * _MOST_DIMENSIONS)(*tensor_sizes)
                layout = _Layout(len(tensor_sizes), dimensions)
                ctypes.memmove(ctypes.byref(kind, _ELEMENT_TYPE_BYTES), ctypes.byref(layout), ctypes.sizeof(layout))
            made = "LiteRtCreateManagedTensorBufferFromRequirements"
            buffers[at] = self._make_handle(made, self._environment, ctypes.byref(kind), needs).value
            self._buffers_made.append(buffers[at])
        return buffers

    def fill(self, buffer: int | None, values: Array) -> None:
        """Copy an array into a buffer. Raises RunError if the buffer has another size."""
        data = np.ascontiguousarray(values)
        address, size = self._lock_buffer(buffer, _WRITE)
        if size != data.nbytes:
            self._unlock_buffer(buffer)
            raise RunError(f"an input takes {size} bytes, its declared sizes are {data.nbytes}")
        ctypes.memmove(address, data.ctypes.data, size)
        self._unlock_buffer(buffer)

    def content(self, buffer: int | None) -> bytes:
        """Return a copy of the bytes of a buffer."""
        address, size = self._lock_buffer(buffer, _READ)
        data = ctypes.string_at(address, size)
        self._unlock_buffer(buffer)
        return data

    def profile(self) -> None:
        """Discard all events, and record new ones."""
        self._call_library("LiteRtResetProfiler", self._profiler)
        self._call_library("LiteRtStartProfiler", self._profiler)

    def events(self) -> list[EventRow]:
        """Return the events since :meth:`profile`, in the order of the runtime."""
        count = ctypes.c_int()
        self._call_library("LiteRtGetNumProfilerEvents", self._profiler, ctypes.byref(count))
        if not 0 <= count.value <= _MOST_EVENTS:
            raise RunError(f"LiteRT's profiler reports {counted_text(count.value, 'event')}")
        rows = (_Event * count.value)()
        self._call_library("LiteRtGetProfilerEvents", self._profiler, count, rows)
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

    def _buffer_size(self, buffer: int | None) -> int:
        size = ctypes.c_size_t()
        self._call_library("LiteRtGetTensorBufferPackedSize", ctypes.c_void_p(buffer), ctypes.byref(size))
        return size.value

    def _lock_buffer(self, buffer: int | None, mode: int) -> tuple[ctypes.c_void_p, int]:
        size, address = self._buffer_size(buffer), ctypes.c_void_p()
        self._call_library("LiteRtLockTensorBuffer", ctypes.c_void_p(buffer), ctypes.byref(address), mode)
        return address, size

    def _unlock_buffer(self, buffer: int | None) -> None:
        self._call_library("LiteRtUnlockTensorBuffer", ctypes.c_void_p(buffer))

    def _make_handle(self, function: str, *arguments: Any) -> ctypes.c_void_p:  # noqa: ANN401 - whatever C takes
        handle = ctypes.c_void_p()
        self._call_library(function, *arguments, ctypes.byref(handle))
        return handle

    def _read_text(self, function: str, *arguments: Any) -> str:  # noqa: ANN401 - likewise
        text = ctypes.c_char_p()
        self._call_library(function, *arguments, ctypes.byref(text))
        return (text.value or b"").decode("utf-8", "replace")

    def _call_library(self, function: str, *arguments: Any) -> None:  # noqa: ANN401 - likewise
        try:
            function_ = getattr(self._library, function)
        except AttributeError as error:
            raise RunError(f"LiteRT's library has no function {function}") from error
        function_.restype = ctypes.c_int
        check_status(function_(*arguments), function)


def check_status(status: int, function: str) -> None:
    """Raise RunError with the status that a function of the API returned, if it is an error."""
    if status:
        raise RunError(f"LiteRT rejected the model: {function} returned {status} ({_STATUS.get(status, 'unknown')})")


def check_events(events: Sequence[EventRow], wall_ns: int, unit_ns: int = MICRO) -> None:
    """Raise RunError for events that do not fit the expected structures.

    Times of events count ``unit_ns`` nanoseconds.
    """
    if not any(row.type in INVOKE_TYPES for row in events):
        raise RunError("LiteRT's profiler recorded no model call: opscope does not know this event format")
    longest = wall_ns // unit_ns + _SLACK * MICRO // unit_ns
    for row in events:
        known = row.type in _EVENT_TYPES and row.tag.isprintable() and 0 <= row.source <= _MOST_SOURCES
        if not known or (row.type != _TELEMETRY and row.duration > longest):
            problem = f"an event {row.tag!r} of type {row.type} takes {row.duration} of {longest}"
            raise RunError(f"opscope does not know this LiteRT event format: {problem}")


_EVENT_TYPES, _TELEMETRY, _MOST_SOURCES = frozenset((1, 2, 4, 8, 16, 32, 64)), 32, 16


def _keep_option_text(_: int | None) -> None:
    """Do nothing, since the text of an option is owned by Python and lives as long as the process."""
