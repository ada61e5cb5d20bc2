"""The process that measures ONNX Runtime's ceilings, with the argument ``REQUEST``.

Every candidate is a session of its own, which is made in a few milliseconds. The graph that a session saves tells which
nodes run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opscope.experiment.protocol import CeilingsRequest
from opscope.machine.switch.switch import proof
from opscope.runtimes.ceilings.probes import RefusedError
from opscope.runtimes.ceilings.process import measured_ceilings
from opscope.runtimes.child import answer_request
from opscope.runtimes.onnxruntime.ceilings.graphs import NodeProbes, OnnxBuilder, keeps_graph
from opscope.runtimes.onnxruntime.installed import PACKAGE, imported_onnxruntime, installed_onnxruntime
from opscope.runtimes.onnxruntime.onnx_file import read_onnx
from opscope.runtimes.onnxruntime.options import CPU

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.program.ceilings import Ceilings
    from opscope.runtimes.ceilings.probes import ProbeCandidate

_QUIET = 4


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    return answer_request(Path(arguments[0]), CeilingsRequest, serve, RefusedError, MemoryError)


def serve(request: CeilingsRequest, began: int) -> tuple[Ceilings, MaskProof | None]:
    """Measure the ceilings in this process."""
    versions, package = {PACKAGE: installed_onnxruntime().version}, imported_onnxruntime()
    graphs = NodeProbes(request.threads, request.again)
    ceilings = measured_ceilings(request, graphs, lambda one: _Runner(package, one, request.threads), versions, began)
    # Kernels are chosen when sessions are made: asked behind that, the counters hold all questions.
    return ceilings, proof(Path(request.record)) if request.record is not None else None


class _Runner:
    """A session of a candidate, its inputs and outputs bound; refused where the session refuses the model."""

    def __init__(self, runtime: Any, candidate: ProbeCandidate[OnnxBuilder], threads: int) -> None:  # noqa: ANN401 - it has no types
        model = OnnxBuilder()
        candidate.build(model)
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = _QUIET
        if keeps_graph(candidate):
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._session, self.operators = _opened(runtime, model.content(), options)
            # The session reads them where they are: these names keep them there.
            self._arrays = [one.values() for one in model.inputs]
            self._values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in self._arrays]
            self._binding = self._session.io_binding()
            for one, value in zip(model.inputs, self._values, strict=True):
                self._binding.bind_ortvalue_input(one.name, value)
            for name in model.outputs:
                self._binding.bind_output(name)
        except Exception as error:  # the errors of the runtime are of classes of its own, all of them Exceptions
            raise RefusedError("InferenceSession", str(error)) from error

    def invoke(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def delete(self) -> None:
        del self._binding, self._session


def _opened(runtime: Any, content: bytes, options: Any) -> tuple[Any, list[str]]:  # noqa: ANN401 - likewise
    """A session, and the nodes that it runs."""
    with tempfile.TemporaryDirectory(dir=".") as directory:
        file = Path(directory) / "optimised.onnx"
        options.optimized_model_filepath = str(file)
        session = runtime.InferenceSession(content, options, providers=[CPU])
        return session, [node.op for node in read_onnx(file).graph.nodes]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
