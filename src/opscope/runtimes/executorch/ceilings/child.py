"""The process that measures ceilings, with the argument ``REQUEST``.

As for a repetition, the order of its steps is what makes it true: clear features, load the backend, which copies the
features when it is loaded, prove what was cleared, then measure. Neither torch nor executorch is imported.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from opscope.experiment.protocol import CeilingsResponse
from opscope.runtimes.ceilings.process import MeasuredRuntime, answer_ceilings, measured_ceilings, probes_again
from opscope.runtimes.executorch.ceilings.probes import (
    compute_probes,
    dispatch_probes,
    element_probes,
    largest_working_set,
    memory_probes,
    weight_probes,
)
from opscope.runtimes.executorch.ceilings.subgraph import GraphRuntime, SubgraphBuilder
from opscope.runtimes.executorch.ceilings.xnnpack import Xnnpack
from opscope.runtimes.executorch.cpuinfo import switched_off
from opscope.runtimes.executorch.installed import installed_runtime, library_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.protocol import CeilingsRequest
    from opscope.program.ceilings.ceilings import Ceilings
    from opscope.runtimes.ceilings.sampler import Probe, ProbeCandidate

    GraphProbe: TypeAlias = Probe[SubgraphBuilder]


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.ceilings.process.answer_ceilings`."""
    return answer_ceilings(Path(arguments[0]), serve)


def serve(request: CeilingsRequest) -> CeilingsResponse:
    """Measure the ceilings in this process."""
    began, directory = time.perf_counter(), library_directory()
    prove = switched_off(installed_runtime(), request.clear)
    xnnpack = Xnnpack(directory, request.threads)
    proof = prove()
    probes = _probes_of(request.again) if request.again else _probes(xnnpack.threads)
    runtime = MeasuredRuntime(xnnpack.threads, {"executorch": version("executorch")})
    ceilings = measured_ceilings(request, runtime, probes, lambda one: _compiled(xnnpack, one), began)
    return CeilingsResponse(ceilings, proof)


def _probes(threads: int, largest: int | None = None) -> list[GraphProbe]:
    if largest is None:
        largest = largest_working_set(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    computing = [*compute_probes(threads), *element_probes(threads)]
    passing = [*memory_probes(threads, largest), *weight_probes(threads, largest)]
    return [*computing, *passing, *dispatch_probes(threads)]


def _probes_of(again: Ceilings) -> list[GraphProbe]:
    largest = max((ceiling.working_set for ceiling in again.memory), default=0)
    return probes_again(again, _probes(again.threads, largest))


def _compiled(xnnpack: Xnnpack, candidate: ProbeCandidate[SubgraphBuilder]) -> GraphRuntime:
    graph = SubgraphBuilder(xnnpack)
    try:
        candidate.build(graph)
        return graph.compile()
    finally:
        graph.delete()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
