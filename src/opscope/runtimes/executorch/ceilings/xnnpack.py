"""XNNPACK's subgraph API by ctypes, as far as measuring ceilings needs it.

The library that runs models exports the whole API. Signatures and numbers of types are those of
``include/xnnpack.h`` of google/XNNPACK (2026), which has kept them for years. Neither torch nor the executorch package
is imported.
"""

from __future__ import annotations

import ctypes
import enum
import math
from ctypes import c_float, c_int, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from opscope.runtimes.ceilings.probes import RefusedError
from opscope.runtimes.executorch.installed import BACKEND, THREADPOOL, library_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


_STATUS = (
    "success",
    "uninitialised",
    "invalid parameter",
    "invalid state",
    "unsupported parameter",
    "unsupported hardware",
    "out of memory",
    "reallocation required",
    "deprecated",
)


class Datatype(enum.IntEnum):
    """``xnn_datatype``; ``QC`` has a scale per channel, ``QB`` per block, ``QD`` is quantised at run time."""

    FP32 = 1
    FP16 = 2
    QINT8 = 3
    QCINT8 = 6
    QCINT4 = 8
    QDINT8 = 9
    QBINT4 = 12

    @property
    def bits(self) -> int:
        """Width of one element."""
        return _BITS[self]


_BITS = {
    Datatype.FP32: 32,
    Datatype.FP16: 16,
    Datatype.QINT8: 8,
    Datatype.QCINT8: 8,
    Datatype.QCINT4: 4,
    Datatype.QDINT8: 8,
    Datatype.QBINT4: 4,
}


_VALUE = [c_size_t, c_void_p, c_void_p, c_uint32, c_uint32, c_void_p]
_CHANNELWISE = [c_void_p, c_int, ctypes.c_int32, c_void_p, c_size_t, c_size_t]
_WINDOW = [c_uint32] * 11
_RANGE = [c_float] * 2
_UNARY = [c_void_p, c_uint32, c_uint32, c_uint32]
_BINARY = [c_void_p, *_RANGE, *[c_uint32] * 4]
_PROTOTYPES: dict[str, list[Any]] = {
    "xnn_initialize": [c_void_p],
    "xnn_create_subgraph": [c_uint32, c_uint32, c_void_p],
    "xnn_delete_subgraph": [c_void_p],
    "xnn_create_runtime_v2": [c_void_p, c_void_p, c_uint32, c_void_p],
    "xnn_reshape_runtime": [c_void_p],
    "xnn_setup_runtime_v2": [c_void_p, c_size_t, c_void_p],
    "xnn_invoke_runtime": [c_void_p],
    "xnn_delete_runtime": [c_void_p],
    "xnn_get_runtime_profiling_info": [c_void_p, c_int, c_size_t, c_void_p, c_void_p],
    "xnn_define_tensor_value": [c_void_p, c_int, *_VALUE],
    "xnn_define_quantized_tensor_value": [c_void_p, c_int, ctypes.c_int32, c_float, *_VALUE],
    "xnn_define_dynamically_quantized_tensor_value": [
        *(c_void_p, c_int, c_size_t, c_size_t),
        *(c_void_p, c_uint32, c_uint32, c_void_p),
    ],
    "xnn_define_channelwise_quantized_tensor_value_v2": [*_CHANNELWISE, *_VALUE[1:]],
    "xnn_define_blockwise_quantized_tensor_value": [*_CHANNELWISE, c_size_t, *_VALUE[1:]],
    "xnn_define_fully_connected": [c_void_p, *_RANGE, *[c_uint32] * 5],
    "xnn_define_convolution_2d": [c_void_p, *_WINDOW, c_size_t, c_size_t, *_RANGE, *[c_uint32] * 5],
    "xnn_define_deconvolution_2d": [c_void_p, *[c_uint32] * 13, c_size_t, c_size_t, *_RANGE, *[c_uint32] * 5],
    "xnn_define_depthwise_convolution_2d": [c_void_p, *_WINDOW, c_size_t, *_RANGE, *[c_uint32] * 5],
    "xnn_define_batch_matrix_multiply": [c_void_p, *[c_uint32] * 4],
    "xnn_define_static_reduce": [c_void_p, c_int, c_size_t, c_void_p, *[c_uint32] * 3],
    "xnn_define_clamp": [c_void_p, *_RANGE, *[c_uint32] * 3],
    "xnn_define_elu": [c_void_p, c_float, *[c_uint32] * 3],
    "xnn_define_unary": [c_void_p, c_int, c_void_p, *[c_uint32] * 3],
    **{f"xnn_define_{name}": _BINARY for name in ("add2", "subtract", "multiply2", "divide")},
    **{
        f"xnn_define_{name}": _UNARY
        for name in """convert copy exp gelu hardswish log reciprocal_square_root sigmoid softmax square
        square_root tanh""".split()
    },
}


class Xnnpack:
    """The library in this process, and a thread pool for it.

    ``directory``: of the runtime's libraries; ``threads``: size of the pool.

    Raises RefusedError: the library cannot be initialised; OSError: it cannot be loaded.
    """

    def __init__(self, directory: Path, threads: int) -> None:
        self._library = ctypes.CDLL(str(library_path(directory, BACKEND)))
        pools = ctypes.CDLL(str(library_path(directory, THREADPOOL)))
        pools.pthreadpool_create.restype, pools.pthreadpool_create.argtypes = c_void_p, [c_size_t]
        pools.pthreadpool_get_threads_count.restype = c_size_t
        pools.pthreadpool_get_threads_count.argtypes = [c_void_p]
        self.pool = pools.pthreadpool_create(threads)
        self.threads = int(pools.pthreadpool_get_threads_count(self.pool))
        self.call("xnn_initialize", None)

    def call(self, function: str, *arguments: Any) -> None:  # noqa: ANN401 - whatever the C function takes
        """Call a function of the API."""
        status = self.function(function)(*arguments)
        if status:
            raise RefusedError(function, _STATUS[status] if status < len(_STATUS) else f"status {status}")

    def function(self, name: str) -> Callable[..., int]:
        """A function of the API, which returns its status."""
        try:
            found = self._library[name]
        except AttributeError:
            raise RefusedError(name, "not in this library") from None
        found.argtypes = _PROTOTYPES[name]
        return found


ABSENT = 0xFFFFFFFF
"""The number of a value that an operator does without."""

BLOCK = 32
"""Weights that share a scale in ``Datatype.QBINT4``."""

MOST_EXTERNALS = 1024
"""Inputs and outputs that a graph may have."""

_INPUT, _OUTPUT = 1, 2
_PROFILED = 8
_OPERATOR_NAMES = 1
_OUT_OF_MEMORY = 6
_ALIGNMENT = 64
# XNNPACK may read 16 bytes, on some processors 128, behind the end of a tensor, and 15 further scales.
_READ_BEYOND = 256
_FLOATS = {Datatype.FP32: np.float32, Datatype.FP16: np.float16}
# 4-bit numbers are stored without sign; ExecuTorch states 8 for their zero.
_ZERO_POINTS = {Datatype.QCINT4: 8, Datatype.QBINT4: 8}
_HALF_IN_BF16 = 0x3F00


class Memory(Protocol):
    """Something with an address that stays valid while it is held."""

    @property
    def address(self) -> int:
        """Of its first byte."""
        ...


class Buffer:
    """Memory that XNNPACK reads and writes, aligned, every page of it in use."""

    def __init__(self, size: int, content: bytes = b"") -> None:
        self._memory = (ctypes.c_uint8 * (size + _ALIGNMENT + _READ_BEYOND))()
        self.address = -(-ctypes.addressof(self._memory) // _ALIGNMENT) * _ALIGNMENT
        ctypes.memset(self.address, 0, size)
        ctypes.memmove(self.address, content, len(content))

    def part(self, offset: int) -> BufferView:
        """What begins at an offset."""
        return BufferView(self, self.address + offset)


class BufferView(NamedTuple):
    """A part of a buffer, which it keeps alive."""

    owner: Buffer
    address: int


class SubgraphBuilder:
    """A graph under construction: values first, then the operators between them."""

    def __init__(self, xnnpack: Xnnpack) -> None:
        self._xnnpack = xnnpack
        self._random = np.random.default_rng(0)
        self._externals: list[Memory] = []
        self._kept: list[Any] = []
        handle = c_void_p()
        xnnpack.call("xnn_create_subgraph", MOST_EXTERNALS, 0, ctypes.byref(handle))
        self.handle = handle

    def external(
        self, datatype: Datatype, dims: Sequence[int], *, output: bool = False, memory: Memory | None = None
    ) -> int:
        """An input, or an output, and the memory behind it: random numbers, or what others may use too."""
        number = len(self._externals)
        self._externals.append(memory or self.random(datatype, dims))
        return self._value(datatype, dims, number, _OUTPUT if output else _INPUT)

    def random(self, datatype: Datatype, dims: Sequence[int]) -> Buffer:
        """Memory with random numbers: between 0 and 1 and no denormals, or whole bytes for integers."""
        count = math.prod(dims)
        if datatype in _FLOATS:
            numbers = self._random.random(count, np.float32) * 0.75 + 0.125
            content = numbers.astype(_FLOATS[datatype]).tobytes()
        else:
            content = self._random.bytes((count * datatype.bits + 7) // 8)
        return Buffer(len(content), content)

    def quantised_at_run_time(self, source: int, dims: Sequence[int]) -> int:
        """A value converted to int8 with a scale for each row, or for each image of four dimensions."""
        inner = len(dims) - 1
        target = self._number(
            *("xnn_define_dynamically_quantized_tensor_value", Datatype.QDINT8, len(dims), inner, _sizes(dims)),
            *(ABSENT, 0),
        )
        self.define("xnn_define_convert", source, target, 0)
        return target

    def weights(self, datatype: Datatype, dims: Sequence[int], channel: int = 0) -> int:
        """Constant random numbers; quantised ones with a scale for each channel or block."""
        content = self.random(datatype, dims)
        self._kept.append(content)
        if datatype in _FLOATS:
            return self._value(datatype, dims, ABSENT, 0, content)
        count, place = len(dims), (content.address, ABSENT, 0)
        zero = _ZERO_POINTS.get(datatype, 0)
        if datatype is Datatype.QBINT4:
            scales = self._scales(np.full(math.prod(dims) // BLOCK, _HALF_IN_BF16, np.uint16))
            name, block = "xnn_define_blockwise_quantized_tensor_value", [BLOCK]
        else:
            scales = self._scales(np.full(dims[channel], 0.01, np.float32))
            name, block = "xnn_define_channelwise_quantized_tensor_value_v2", []
        return self._number(name, datatype, zero, scales, count, channel, *block, _sizes(dims), *place)

    def define(self, function: str, *arguments: Any) -> None:  # noqa: ANN401 - whatever the operator takes
        """Add an operator."""
        self._xnnpack.call(function, self.handle, *arguments)

    def compile(self) -> GraphRuntime:
        """What runs this graph."""
        return GraphRuntime(self._xnnpack, self.handle, self._externals, self._kept)

    def delete(self) -> None:
        """Give the graph back; a runtime made of it stays usable."""
        self._xnnpack.call("xnn_delete_subgraph", self.handle)

    def _scales(self, scales: np.ndarray[Any, Any]) -> int:
        buffer = Buffer(scales.nbytes, scales.tobytes())
        self._kept.append(buffer)
        return buffer.address

    def _value(
        self, datatype: Datatype, dims: Sequence[int], external: int, flags: int, content: Buffer | None = None
    ) -> int:
        rest = (len(dims), _sizes(dims), content.address if content else None, external, flags)
        if datatype is Datatype.QINT8:
            return self._number("xnn_define_quantized_tensor_value", datatype, 0, 0.05, *rest)
        return self._number("xnn_define_tensor_value", datatype, *rest)

    def _number(self, function: str, *arguments: Any) -> int:  # noqa: ANN401 - likewise
        number = c_uint32()
        self.define(function, *arguments, ctypes.byref(number))
        return number.value


class _External(ctypes.Structure):
    _fields_ = (("id", c_uint32), ("data", c_void_p))


class GraphRuntime:
    """A compiled graph with its memory."""

    def __init__(self, xnnpack: Xnnpack, graph: c_void_p, externals: list[Memory], kept: list[Any]) -> None:
        self._xnnpack = xnnpack
        self._memory = (externals, kept)
        self._invoke = xnnpack.function("xnn_invoke_runtime")
        self._handle = c_void_p()
        xnnpack.call("xnn_create_runtime_v2", graph, xnnpack.pool, _PROFILED, ctypes.byref(self._handle))
        try:
            xnnpack.call("xnn_reshape_runtime", self._handle)
            places = (_External * len(externals))(*(_External(i, place.address) for i, place in enumerate(externals)))
            xnnpack.call("xnn_setup_runtime_v2", self._handle, len(externals), places)
            self.operators = self._names()
        except RefusedError:
            self.delete()
            raise

    def _names(self) -> list[str]:
        size, query = c_size_t(), "xnn_get_runtime_profiling_info"
        status = self._xnnpack.function(query)(self._handle, _OPERATOR_NAMES, 0, None, ctypes.byref(size))
        if status != _OUT_OF_MEMORY:  # which is how it tells the size that is needed
            raise RefusedError(query, "reports no names of operators")
        text = ctypes.create_string_buffer(size.value)
        self._xnnpack.call(query, self._handle, _OPERATOR_NAMES, size, text, ctypes.byref(size))
        return text.raw.decode("ascii", "replace").strip("\0").split("\0")

    def invoke(self) -> None:
        """Run every operator once."""
        status = self._invoke(self._handle)
        if status:
            raise RefusedError("xnn_invoke_runtime", f"status {status}")

    def delete(self) -> None:
        """Give its memory back."""
        self._xnnpack.call("xnn_delete_runtime", self._handle)


def _sizes(dims: Sequence[int]) -> ctypes.Array[c_size_t]:
    return (c_size_t * len(dims))(*dims)
