"""XNNPACK's subgraph API by ctypes, as far as measuring ceilings needs it.

The library that runs models exports the whole API. Signatures and numbers of types are those of
``include/xnnpack.h`` of google/XNNPACK (2026), which has kept them for years. Neither torch nor the executorch package
is imported.
"""

from __future__ import annotations

import ctypes
import enum
from ctypes import c_float, c_int, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any

from opscope.runtimes.ceilings.sampler import RefusedError
from opscope.runtimes.executorch.installed import BACKEND, THREADPOOL, library_path

if TYPE_CHECKING:
    from collections.abc import Callable
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

    Args:
        directory: of the runtime's libraries.
        threads: size of the pool.

    Raises:
        RefusedError: the library cannot be initialised.
        OSError: it cannot be loaded.
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
