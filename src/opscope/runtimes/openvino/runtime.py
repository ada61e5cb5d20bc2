"""OpenVINO as a runtime of opscope."""

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
    """Runs an IR, an .onnx or a .tflite on OpenVINO's CPU plugin."""

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

    def __init__(self, *foreign_runtimes: Runtime) -> None:
        self._others = foreign_runtimes  # whose programs it takes, too

    def target(self, target_name: TargetName) -> RunTarget:
        """Return the target of a Python on this machine, which may be that of another environment."""
        from opscope.core.system.pythons import python_at
        from opscope.hosts.target_kinds import LOCAL
        from opscope.runtimes.openvino.target import OpenVinoTarget

        if target_name.kind is LOCAL:
            return OpenVinoTarget(self._program_sides, python_at(target_name.address))
        return super().target(target_name)

    def target_here(self) -> RunTarget:
        """Return the target of the installed package."""
        from opscope.runtimes.openvino.target import OpenVinoTarget

        return OpenVinoTarget(self._program_sides)

    def version(self) -> str:
        """Return the version of the installed package."""
        from opscope.runtimes.openvino.installed import installed_openvino

        return installed_openvino().version

    def holds(self, path: Path) -> bool:
        """Return whether a file is an IR, by the first element of its XML."""
        from opscope.runtimes.openvino.program_files import is_ir

        return is_ir(path)

    def check(self, path: Path) -> None:
        """Raise an error for a damaged program, for one without its weights, and for inputs that cannot be given."""
        self.files(path, None)
        self.signatures(path)

    def check_options(self, options: Mapping[str, str] | None) -> None:
        """Raise UsageError for unknown properties."""
        from opscope.runtimes.openvino.installed import properties

        properties(options)

    def options(self, requested: Mapping[str, str]) -> Mapping[str, str]:
        """Return the properties of a compilation: by default latency of one stream, in the precision of the model."""
        from opscope.runtimes.openvino.installed import properties

        return properties(requested)

    def files(self, program: Path, data: Path | None) -> list[Path]:
        """Return the program and the file with its weights."""
        from opscope.runtimes.openvino.program_files import weights_file

        if owner := self._owning_runtime(program):
            return owner.files(program, data)
        weights = weights_file(program)
        return [program] if weights is None else [program, weights]

    def signatures(self, program: Path) -> Sequence[Signature]:
        """Return the signatures of a program; an IR has a single function."""
        from opscope.runtimes.openvino.program_files import read_ir_signature

        owner = self._owning_runtime(program)
        return owner.signatures(program) if owner else (read_ir_signature(program),)

    def index_limits(self, program: Path) -> Mapping[str, int]:
        """Return the number of rows of the tables that inputs index, as the program's own runtime reads them."""
        owner = self._owning_runtime(program)
        return owner.index_limits(program) if owner else {}

    def weight_bits(self, program: Path) -> frozenset[int]:
        """Return the bit widths of the stored weights."""
        from opscope.program.structure.dtypes import used_bits
        from opscope.runtimes.openvino.program_files import read_ir

        if owner := self._owning_runtime(program):
            return owner.weight_bits(program)
        return used_bits(weight.dtype for weight in read_ir(program).weights if len(weight.sizes) > 1)

    def preflight(self, program: Path, record: Path | None, cpu: Cpu | None) -> Preflight:  # noqa: ARG002 - it has none
        """Predict the work of a program from one run of it."""
        from opscope.runtimes.openvino.preflight import openvino_preflight
        from opscope.runtimes.openvino.target import OpenVinoTarget

        target = OpenVinoTarget(self._program_sides)
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
        """Attribute the operators of a side through the graphs kept beside its traces."""
        from opscope.runtimes.openvino.attribution import graph_of, with_nodes

        return with_nodes(side, graph_of(side))

    def _owning_runtime(self, path: Path) -> Runtime | None:
        """Return the other runtime whose program a file is; None for an IR and for anything else."""
        return None if self.holds(path) else next((runtime for runtime in self._others if runtime.holds(path)), None)

    def _program_sides(self, program: Path) -> ProgramSides:
        """Return method, inputs, and names of inputs and outputs of a program's first signature.

        The order of an IR's inputs and outputs is OpenVINO's own, so no names are needed.
        """
        from opscope.experiment.protocol import ProgramSides
        from opscope.program.structure.exported import Tensor

        signature, owner = self.signatures(program)[0], self._owning_runtime(program)
        tensors = [Tensor(list(tensor.sizes), tensor.dtype.name) for tensor in signature.inputs]
        return ProgramSides(signature.name, tensors, *(owner.tensor_names(program) if owner else (None, None)))
