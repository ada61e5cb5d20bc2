"""The process that measures ceilings, with the argument ``REQUEST``.

As for a repetition, the order of its steps is what makes it true: clear features, load the backend, which copies the
features when it is loaded, prove what was cleared, then measure. Neither torch nor executorch is imported.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import FeatureError, OpscopeError, StorageError
from opscope.core.files import write_atomically
from opscope.core.system.launch import end_with_parent
from opscope.experiment.protocol import PeakRatesRequest, PeakRatesResponse
from opscope.machine import isa
from opscope.program.peak_rates.drift import unmeasured
from opscope.program.peak_rates.peak_rates import DispatchCost, ElementPeakRate, MacPeakRate, MemoryPeakRate, PeakRates
from opscope.runtimes.executorch.cpuinfo import switched_off
from opscope.runtimes.executorch.installed import installed_runtime, library_directory
from opscope.runtimes.executorch.peak_rates.compute import compute_probes
from opscope.runtimes.executorch.peak_rates.elements import element_probes
from opscope.runtimes.executorch.peak_rates.memory import (
    dispatch_probes,
    largest_working_set,
    memory_probes,
    weight_probes,
)
from opscope.runtimes.executorch.peak_rates.sampler import measure
from opscope.runtimes.executorch.peak_rates.subgraph import GraphRuntime, SubgraphBuilder
from opscope.runtimes.executorch.peak_rates.xnnpack import RefusedError, Xnnpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.runtimes.executorch.peak_rates.sampler import Probe, ProbeCandidate


def main(arguments: Sequence[str]) -> int:
    """Answer one request; the answer is a file, the exit code tells whether it holds ceilings.

    When not even the answer can be written, the exit code is that of a StorageError.
    """
    end_with_parent()
    request = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=PeakRatesRequest)
    answer = _guarded(request)
    try:
        write_atomically(Path(request.answer), msgspec.json.encode(answer))
    except StorageError as error:
        return error.exit_code
    return 0 if answer.error is None else 1


def _guarded(request: PeakRatesRequest) -> PeakRatesResponse:
    try:
        return serve(request)
    except FeatureError as error:
        return PeakRatesResponse(error=str(error), kind="mask")
    except (OpscopeError, RefusedError, OSError, MemoryError, ValueError) as error:
        return PeakRatesResponse(error=f"{type(error).__name__}: {error}")


def serve(request: PeakRatesRequest) -> PeakRatesResponse:
    """Measure the ceilings in this process.

    Raises:
        FeatureError: it cannot be proved that the features are off.
        RefusedError: XNNPACK cannot be used at all.
    """
    began, directory = time.perf_counter(), library_directory()
    prove = switched_off(installed_runtime(), request.clear)
    xnnpack = Xnnpack(directory, request.threads)
    proof = prove()
    probes = _probes_again(request.again) if request.again else _probes(xnnpack.threads)
    measuring, computing = time.perf_counter(), time.thread_time()
    found = measure(probes, lambda candidate: _compiled(xnnpack, candidate), request.seconds, _CLOCK)
    share = (time.thread_time() - computing) / (time.perf_counter() - measuring)
    roofs = PeakRates(
        arch=isa.architecture(platform.machine()),
        cleared=request.clear or [],
        threads=xnnpack.threads,
        seconds=round(time.perf_counter() - began, 3),
        versions={"executorch": version("executorch")},
        compute=[roof for roof in found if isinstance(roof, MacPeakRate)],
        elements=[roof for roof in found if isinstance(roof, ElementPeakRate)],
        memory=[roof for roof in found if isinstance(roof, MemoryPeakRate)],
        dispatch=[roof for roof in found if isinstance(roof, DispatchCost)],
        cpu_share=round(min(share, 1.0), 3),
    )
    return PeakRatesResponse(roofs, proof)


_CLOCK = time.perf_counter_ns


def _probes(threads: int, largest: int | None = None) -> list[Probe]:
    if largest is None:
        largest = largest_working_set(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    computing = [*compute_probes(threads), *element_probes(threads)]
    passing = [*memory_probes(threads, largest), *weight_probes(threads, largest)]
    return [*computing, *passing, *dispatch_probes(threads)]


def _probes_again(again: PeakRates) -> list[Probe]:
    """The probes of some ceilings, each with the one candidate that was the fastest before."""
    wanted = [unmeasured(roof) for roof in again.all()]
    probes = _probes(again.threads, max((roof.working_set for roof in again.memory), default=0))
    same = [probe._replace(candidates=[one for one in probe.candidates if one.roof in wanted]) for probe in probes]
    return [probe for probe in same if probe.candidates]


def _compiled(xnnpack: Xnnpack, candidate: ProbeCandidate) -> GraphRuntime:
    graph = SubgraphBuilder(xnnpack)
    try:
        candidate.build(graph)
        return graph.compile()
    finally:
        graph.delete()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
