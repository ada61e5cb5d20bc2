"""The clock that gives the counters of OpenVINO nanoseconds: built here once, and loaded before OpenVINO is."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from opscope.core.system.cache import cache_directory, is_whole, made_in_place
from opscope.runtimes.native.building import build_key, compile_to, find_compiler

SOURCE = Path(__file__).with_name("c") / "clock.c"
_FLAGS = ("-x", "c", "-std=gnu11", "-O2", "-shared", "-fPIC", str(SOURCE))


def clock_library(cache: Path | None = None) -> Path | None:
    """The library; built when there is none of this source and compiler. None on a system where it has no effect."""
    if sys.platform != "linux":
        return None
    compiler = find_compiler()
    path = (cache or cache_directory()) / "native" / build_key(compiler, SOURCE, _FLAGS) / "libclock.so"
    if not is_whole(path):
        with made_in_place(path) as built:
            compile_to(built, compiler, _FLAGS)
    return path


class FineClock:
    """The clock in this process; OpenVINO must not be loaded yet."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self._library.opscope_asked.restype = ctypes.c_int64

    def is_read(self) -> bool:
        """Whether anything has read it: else the counters have their usual unit."""
        return bool(self._library.opscope_asked())
