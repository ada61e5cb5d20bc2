"""ExecuTorch's native runner as it was built: its libraries, and what each start of it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.runtimes.counting.kernel_counter import COUNTS, counter_environment
from opscope.runtimes.executorch.installed import BACKEND, THREADPOOL, library_directory
from opscope.runtimes.executorch.kernel_libraries import extra_kernels
from opscope.runtimes.executorch.runners.native_answer import NativeAnswer
from opscope.runtimes.native.start import RunnerStarter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opscope.experiment.protocol import ProbeAnswer
    from opscope.hosts.host import Host
    from opscope.runtimes.native.start import NativeProgram
    from opscope.runtimes.switching import LibrarySwitch

_COUNTER = "libopscope_counter.so"
_MAC = sys.platform == "darwin"
_LIBRARY, _SUFFIX = f"{BACKEND}.so", ".dylib" if _MAC else ".so"
_PARTS = ("libexecutorch", "libexecutorch_kernels_optimized", BACKEND, "libexecutorch_kernels_quantized")


def backend_of(program: NativeProgram) -> Path:
    """The library of the backend whose kernels a runner calls, on this machine."""
    return (program.brought.directory if program.brought else library_directory()) / _LIBRARY


def libraries_of(program: NativeProgram) -> list[Path]:
    """The libraries that a runner can load, on this machine."""
    place, suffix = (program.brought.directory, ".so") if program.brought else (library_directory(), _SUFFIX)
    return [place / f"{name}{suffix}" for name in _PARTS if (place / f"{name}{suffix}").exists()]


class NativeStarter(RunnerStarter[NativeAnswer]):
    """Starts the native runner of ExecuTorch.

    Args:
        host: where.
        program: the runner.
    """

    def __init__(self, host: Host, program: NativeProgram) -> None:
        super().__init__(host, program, NativeAnswer)

    def kernels(self, program: Path) -> list[str]:
        """Files of the libraries of further kernels that a program needs and that are there."""
        known = {file.name for file in libraries_of(self._program)}
        named = [f"{one.library}{_SUFFIX}" for one in extra_kernels(program) if one.library]
        prefix = "@rpath/" if _MAC and not self._program.brought else ""
        return [f"{prefix}{name}" for name in named if name in known]

    def counting(self, counter: str | None) -> Mapping[str, str]:
        """Variables of a process whose calls of kernels are counted, in its file :data:`COUNTS`."""
        if counter is None:
            return {}
        return counter_environment(self._host.provide("counters", {_COUNTER: Path(counter)})[_COUNTER], COUNTS)

    def switching(self, features: Callable[[], ProbeAnswer]) -> LibrarySwitch:
        """What switches features for the libraries that ask the CPU for those by which kernels are chosen."""
        backend = backend_of(self._program)
        return self.switch([backend.with_name(f"{THREADPOOL}{backend.suffix}"), backend], features)
