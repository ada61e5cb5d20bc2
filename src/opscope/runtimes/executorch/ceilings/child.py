"""The process that measures ceilings, with the argument ``REQUEST``.

As for a repetition, the order of its steps is what makes it true: clear features, load the backend, which copies the
features when it is loaded, prove what was cleared, then measure. Neither torch nor executorch is imported.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.experiment.protocol import CeilingsRequest
from opscope.runtimes.ceilings.process import measured_ceilings
from opscope.runtimes.ceilings.sampler import RefusedError
from opscope.runtimes.child import answer_request
from opscope.runtimes.executorch.ceilings.probes import SubgraphProbes
from opscope.runtimes.executorch.ceilings.subgraph import GraphRuntime, SubgraphBuilder
from opscope.runtimes.executorch.ceilings.xnnpack import Xnnpack
from opscope.runtimes.executorch.cpuinfo import switched_off
from opscope.runtimes.executorch.installed import installed_runtime, library_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.program.ceilings.ceilings import Ceilings
    from opscope.runtimes.ceilings.sampler import ProbeCandidate


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    return answer_request(Path(arguments[0]), CeilingsRequest, serve, RefusedError, MemoryError)


def serve(request: CeilingsRequest, began: int) -> tuple[Ceilings, MaskProof | None]:
    """Measure the ceilings in this process."""
    directory = library_directory()
    prove = switched_off(installed_runtime(), request.clear)
    xnnpack = Xnnpack(directory, request.threads)
    proof = prove()

    def compiled(candidate: ProbeCandidate[SubgraphBuilder]) -> GraphRuntime:
        graph = SubgraphBuilder(xnnpack)
        try:
            candidate.build(graph)
            return graph.compile()
        finally:
            graph.delete()

    graphs, versions = SubgraphProbes(xnnpack.threads, request.again), {"executorch": version("executorch")}
    return measured_ceilings(request, graphs, compiled, versions, began), proof


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
