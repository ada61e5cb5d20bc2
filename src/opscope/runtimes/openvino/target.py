"""OpenVINO on this machine, as the wheel has it."""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opscope.core.errors import MissingDependencyError
from opscope.core.system.pythons import HERE
from opscope.runtimes.native.building import built_library
from opscope.runtimes.openvino.installed import PACKAGE, asking_libraries, installed_openvino
from opscope.runtimes.openvino.trace import TRACE
from opscope.runtimes.package_target import PackageModules, PackageTarget
from opscope.runtimes.switching import LibrarySwitch

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.bundle.manifest import Mechanism
    from opscope.core.system.pythons import Python
    from opscope.experiment.protocol import Job, ProgramSides
    from opscope.experiment.target import SwitchOffer

MODULES = PackageModules(
    "opscope.runtimes.openvino.child",
    # the graph is called whatever its name, and its weights are found beside the model
    frozenset({"affinity", "calls", "inputs", "values", "data", "options"}),
)


_CLOCK = Path(__file__).with_name("c") / "clock.c"
"""Source of the clock that gives OpenVINO's counters nanoseconds; it is loaded before OpenVINO."""
_FLAGS = ("-x", "c", "-std=gnu11", "-O2", "-shared", "-fPIC", str(_CLOCK))


class OpenVinoTarget(PackageTarget):
    """Runs models with the installed package."""

    def __init__(self, sides: Callable[[Path], ProgramSides], python: Python = HERE) -> None:
        self._sides_of = sides
        library, self._asking = installed_openvino(python), asking_libraries(python)
        super().__init__(MODULES, TRACE, lambda: library.library, lambda: {PACKAGE: library.version}, python=python)

    @cached_property
    def _clock_library(self) -> str | None:
        """The library that refines OpenVINO's counters; None without a compiler: then they only hold averages."""
        if sys.platform != "linux":  # it has no effect elsewhere
            return None
        try:
            return str(built_library(_CLOCK, _FLAGS, "libclock.so"))
        except MissingDependencyError:
            return None

    def _request_fields(self, job: Job) -> dict[str, Any]:
        return {"sides": self._sides_of(Path(job.program)), "recorder": self._clock_library if job.traced else None}

    def _library_switch(self) -> LibrarySwitch:
        return LibrarySwitch(self._host, self._asking)

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """Return the offer of a mechanism. SSE4 fields cannot be cleared: OpenVINO compiles no model without them."""
        offer = super().offer(mechanism)
        lowest = [name for name in offer.probe.fields if name.startswith("sse4")]
        return offer._replace(probe=msgspec.structs.replace(offer.probe, needed=lowest))
