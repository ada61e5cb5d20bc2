"""OpenVINO as a runtime."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from opscope.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opscope.analysis.preflight.preflight import Preflight
    from opscope.analysis.tuning import TuningSpace
    from opscope.experiment.protocol import ProgramSides
    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.program.kernels.cpu import Cpu
    from opscope.program.structure.exported import Signature
    from opscope.runtimes.attribution import AttributedSide
    from opscope.runtimes.side import Side


class OpenVino(Runtime):
    """Runs an IR, an .onnx or a .tflite on its CPU plugin."""

    name = "openvino"
    title = "OpenVINO"
    suffixes = (".xml",)
    takes = (".onnx", ".tflite")
    readers: ClassVar = {
        "openvino-trace": ("opscope.runtimes.openvino.trace", "OpenVinoTraceReader"),
        "openvino-counters": ("opscope.runtimes.openvino.counters", "OpenVinoCountersReader"),
    }
    program_hint = "--program MODEL adds layers and shapes"
    importable = "openvino"
    has_options = True
    channels_last = False
    has_delegates = False
    has_model = False
    names_kernels = True
    preflight_runs = True

    def __init__(self, *others: Runtime) -> None:
        self._others = others  # whose programs it takes, too

    def target(self, named: TargetName) -> RunTarget:
        """Python on this machine, which may be that of another environment."""
        from opscope.core.system.pythons import python_at
        from opscope.hosts.target_kinds import LOCAL
        from opscope.runtimes.openvino.target import OpenVinoTarget

        if named.kind is LOCAL:
            return OpenVinoTarget(self._sides, python_at(named.address))
        return super().target(named)

    def target_here(self) -> RunTarget:
        """The installed package."""
        from opscope.runtimes.openvino.target import OpenVinoTarget

        return OpenVinoTarget(self._sides)

    def version(self) -> str:
        """Of the installed package."""
        from opscope.runtimes.openvino.installed import installed_openvino

        return installed_openvino().version

    def holds(self, path: Path) -> bool:
        """By the first element of its XML."""
        from opscope.runtimes.openvino.program_files import is_ir

        return is_ir(path)

    def check(self, path: Path) -> None:
        """Refuse a damaged program, one without its weights, and inputs that cannot be given."""
        self.files(path, None)
        self.signatures(path)

    def check_options(self, options: Mapping[str, str] | None) -> None:
        """Refuse properties that are not known."""
        from opscope.runtimes.openvino.installed import properties

        properties(options)

    def options(self, asked: Mapping[str, str]) -> Mapping[str, str]:
        """Latency of one stream, in the precision of the model, unless they are asked for otherwise."""
        from opscope.runtimes.openvino.installed import properties

        return properties(asked)

    def files(self, program: Path, data: Path | None) -> list[Path]:
        """The program, and the file with its weights."""
        from opscope.runtimes.openvino.program_files import weights_file

        if other := self._other(program):
            return other.files(program, data)
        weights = weights_file(program)
        return [program] if weights is None else [program, weights]

    def signatures(self, program: Path) -> Sequence[Signature]:
        """Of an IR its one function."""
        from opscope.runtimes.openvino.program_files import read_ir_signature

        other = self._other(program)
        return other.signatures(program) if other else (read_ir_signature(program),)

    def index_limits(self, program: Path) -> Mapping[str, int]:
        """As the runtime of the program tells them."""
        other = self._other(program)
        return other.index_limits(program) if other else {}

    def weight_bits(self, program: Path) -> frozenset[int]:
        """Of the weights that are stored."""
        from opscope.program.structure.dtypes import used_bits
        from opscope.runtimes.openvino.program_files import read_ir

        if other := self._other(program):
            return other.weight_bits(program)
        return used_bits(one.dtype for one in read_ir(program).weights if len(one.sizes) > 1)

    def preflight(self, program: Path, record: Path | None, cpu: Cpu | None) -> Preflight:  # noqa: ARG002 - it has none
        """By one run of it."""
        from opscope.runtimes.openvino.preflight import openvino_preflight
        from opscope.runtimes.openvino.target import OpenVinoTarget

        target = OpenVinoTarget(self._sides)
        return openvino_preflight(program, self.signatures(program)[0], self.index_limits(program), target, cpu=cpu)

    def tuning_space(self, cpus: int) -> TuningSpace:
        """Return the precision f32, where the default may be bfloat16, and thread counts."""
        from opscope.analysis.tuning import DEFAULT, TuningCandidate, TuningSpace, join_candidates, thread_candidates

        line = 'core.compile_model(model, "CPU", {{"INFERENCE_NUM_THREADS": {threads}}})'
        threads = thread_candidates(cpus, 0, line)
        hint = {"INFERENCE_PRECISION_HINT": "f32"}
        exact = TuningCandidate("f32", options=hint, lines=[f'core.compile_model(model, "CPU", {json.dumps(hint)})'])
        candidates = [exact, *threads, *join_candidates([exact], threads)]
        return TuningSpace(TuningCandidate(DEFAULT), candidates, exact.name)

    def attributed(self, side: Side, program: Path, record: Path | None) -> AttributedSide:  # noqa: ARG002 - it has none
        """By the graphs that are kept beside the traces."""
        from opscope.runtimes.openvino.attribution import graph_of, with_nodes

        return with_nodes(side, graph_of(side))

    def _other(self, path: Path) -> Runtime | None:
        """The runtime whose program a file is; None for an IR, and for anything else."""
        return None if self.holds(path) else next((one for one in self._others if one.holds(path)), None)

    def _sides(self, program: Path) -> ProgramSides:
        """A program of several signatures is called by its first; of an IR the order is OpenVINO's."""
        from opscope.experiment.protocol import ProgramSides
        from opscope.program.structure.exported import Tensor

        signature, other = self.signatures(program)[0], self._other(program)
        tensors = [Tensor(list(one.sizes), one.dtype.name) for one in signature.inputs]
        return ProgramSides(signature.name, tensors, *(other.tensor_names(program) if other else (None, None)))
