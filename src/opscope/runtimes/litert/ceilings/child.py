"""The process that measures LiteRT's ceilings, with the argument ``REQUEST``.

All candidates of a part are signatures of one model: opening a model takes longer than running it. A second model of
the same, with the profiler, tells which operators run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from opscope.core.errors import RunError
from opscope.experiment.protocol import CeilingsRequest
from opscope.machine.switch.switch import proof
from opscope.runtimes.ceilings.process import measured_ceilings
from opscope.runtimes.ceilings.sampler import RefusedError
from opscope.runtimes.child import answer_request
from opscope.runtimes.litert.c_api import DELEGATE, CompiledModel, check_status
from opscope.runtimes.litert.ceilings.graphs import GraphBuilder, ModelBuilder
from opscope.runtimes.litert.ceilings.probes import SignatureProbes
from opscope.runtimes.litert.installed import PACKAGE, installed_litert
from opscope.runtimes.litert.trace import DELEGATE_OP, OPERATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.program.ceilings.ceilings import Ceilings
    from opscope.runtimes.ceilings.sampler import Probe, ProbeCandidate

    Candidate: TypeAlias = ProbeCandidate[GraphBuilder]

_FUNCTION = "LiteRtRunCompiledModel"


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    return answer_request(Path(arguments[0]), CeilingsRequest, serve, RefusedError, MemoryError)


def serve(request: CeilingsRequest, began: int) -> tuple[Ceilings, MaskProof | None]:
    """Measure the ceilings in this process."""
    installed, graphs = installed_litert(), SignatureProbes(request.threads, request.again)
    models = _Models(installed.library, request.threads, graphs.probes)
    ceilings = measured_ceilings(request, graphs, models.runner, {PACKAGE: installed.version}, began)
    # Kernels are chosen when models are opened: asked behind that, the counters hold all questions.
    return ceilings, proof(Path(request.record)) if request.record is not None else None


class _Runner:
    """A signature that can be run."""

    def __init__(self, run: Callable[[], int], operators: Sequence[str]) -> None:
        self._run, self.operators = run, operators

    def invoke(self) -> None:
        status = self._run()
        if status:
            raise RefusedError(_FUNCTION, f"status {status}")

    def delete(self) -> None:
        """Its memory is the model's, which lives as long as the process."""


class _Models:
    """The candidates of all probes as signatures of models, one for each kind of ceiling, made when first asked for."""

    def __init__(self, library: Path, threads: int, probes: Sequence[Probe[GraphBuilder]]) -> None:
        self._library, self._threads = library, threads
        self._parts: dict[str, list[Candidate]] = {}
        for probe in probes:
            for candidate in probe.candidates:
                self._parts.setdefault(_part(candidate), []).append(candidate)
        self._runners: dict[str, dict[int, _Runner] | str] = {}
        self._kept: list[CompiledModel] = []

    def runner(self, candidate: Candidate) -> _Runner:
        """What runs a candidate."""
        part = _part(candidate)
        if part not in self._runners:
            self._runners[part] = self._opened(self._parts[part])
        runners = self._runners[part]
        if isinstance(runners, str):
            raise RefusedError("LiteRtCreateCompiledModel", runners)
        return runners[id(candidate)]

    def _opened(self, candidates: Sequence[Candidate]) -> dict[int, _Runner] | str:
        """Runners by candidate, or why there are none."""
        model = ModelBuilder()
        for candidate in candidates:
            candidate.build(model.graph())
        with tempfile.TemporaryDirectory(dir=".") as directory:
            file = Path(directory) / "ceilings.tflite"
            file.write_bytes(model.content())
            try:
                names = self._names(file)
                opened = self._model(file, profiled=False)
                calls = opened.calls()
            except RunError as error:
                return error.problem
        self._kept.append(opened)
        runners = [_Runner(calls[str(number)].run, own) for number, own in enumerate(names)]
        return {id(one): runner for one, runner in zip(candidates, runners, strict=True)}

    def _names(self, file: Path) -> list[list[str]]:
        """Names of the operators that each signature runs."""
        model, names = self._model(file, profiled=True), []
        for call in model.calls().values():
            model.profile()
            check_status(call.run(), _FUNCTION)
            names.append([event.tag for event in model.events() if event.type in (OPERATOR, DELEGATE_OP)])
        model.close()
        return names

    def _model(self, file: Path, *, profiled: bool) -> CompiledModel:
        return CompiledModel(self._library, str(file), DELEGATE, self._threads, profiled=profiled)


def _part(candidate: Candidate) -> str:
    """Candidates of one part share a model."""
    ceiling = candidate.ceiling
    return f"{type(ceiling).__name__} {getattr(ceiling, 'dtype', '')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
