"""Targets of ONNX Runtime: the wheel from Python on this machine, and its native runner on any host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import RunError, UsageError
from opscope.core.files import place_beside
from opscope.core.system.pythons import HERE
from opscope.core.writing import write_atomically
from opscope.experiment.tensors import from_bytes, to_bytes
from opscope.program.structure.exported import Tensor
from opscope.runtimes.child import array_tensors, input_arrays
from opscope.runtimes.native.jobs import PreparedRun
from opscope.runtimes.native.start import INPUT, OUTPUT, RawTensor, RunnerAnswer, SentFile
from opscope.runtimes.native.wheel_runner import WheelRunner, WheelTarget
from opscope.runtimes.onnxruntime.graph import GRAPH, SCHEMA, SessionGraph
from opscope.runtimes.onnxruntime.installed import (
    NEWEST,
    PACKAGE,
    installed_onnxruntime,
    native_library,
    stated_version,
)
from opscope.runtimes.onnxruntime.onnx_file import element_type, external_paths, read_onnx
from opscope.runtimes.onnxruntime.options import CPU, PROVIDERS, session_choice
from opscope.runtimes.onnxruntime.rows import session_nodes, tensors_of
from opscope.runtimes.onnxruntime.signatures import signature_of
from opscope.runtimes.package_target import PackageModules, PackageTarget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.core.system.pythons import Python
    from opscope.experiment.protocol import Job
    from opscope.experiment.tensors import Array
    from opscope.program.structure.exported import Signature
    from opscope.runtimes.onnxruntime.onnx_file import OnnxModel
    from opscope.runtimes.onnxruntime.options import SessionChoice


MODULES = PackageModules(
    "opscope.runtimes.onnxruntime.child",
    # the graph is called whatever its name, and its weights are found beside the model
    frozenset({"affinity", "calls", "inputs", "values", "data", "options"}),
)
TRACE = "trace.onnxruntime.json"
"""Name of the file with a session's profile, as ONNX Runtime writes it."""


def onnxruntime_here(python: Python = HERE) -> PackageTarget:
    """Return the target of the installed ONNX Runtime on this machine."""
    library = installed_onnxruntime(python)
    return PackageTarget(MODULES, TRACE, lambda: library.library, lambda: {PACKAGE: library.version}, python=python)


_PROGRAM, _PROFILE, _SAVED, _GIVEN = "program.onnx", "profile.json", "saved.onnx", "given.onnx"
_GIVEN_PROFILE = f"{_GIVEN}.json"


class SessionAnswer(RunnerAnswer, frozen=True):
    """Answer of the runner: a measurement of a session, or an error."""

    inputs: list[str] = msgspec.field(default_factory=list)  # names, in the order of the session
    outputs: list[RawTensor] = msgspec.field(default_factory=list)  # of the last call, in the same
    profile_start_ns: int = 0  # of the process's clock, from which times of the profile count


class NativeOnnxTarget(WheelTarget[SessionAnswer]):
    """Runs .onnx models with ONNX Runtime's native runner."""

    honours = MODULES.honours
    runner = WheelRunner(
        title="ONNX Runtime",
        package=PACKAGE,
        source=Path(__file__).with_name("cpp") / "runner.cpp",
        installed=native_library,
        member=lambda version: f"{PACKAGE}/capi/libonnxruntime.so.{stated_version(version)}",
        newest=NEWEST,
        platforms=("manylinux_2_27", "manylinux_2_28"),
    )
    trace, answers = TRACE, SessionAnswer
    otherwise = "ONNX Runtime models run on Linux and Android devices"

    def _prepare_run(self, job: Job, directory: Path, work: Path) -> PreparedRun:
        program, choice = Path(job.program).resolve(), _session_settings(job)
        model = read_onnx(program)
        signature = signature_of(model, program)
        inputs = _input_tensors(job, signature)
        for number, array in enumerate(input_arrays(job.values, job.seed, inputs)):
            content = to_bytes(array, inputs[number].dtype, range(array.ndim))
            (work / f"{INPUT}-{number}.bin").write_bytes(content)
        profile = directory / TRACE
        brought = {_PROFILE: profile, **{name: work / name for name in (_SAVED, _GIVEN, _GIVEN_PROFILE)}}

        def keep(answer: SessionAnswer) -> tuple[list[Array], list[Tensor]]:
            if answer.inputs != [tensor.name for tensor in signature.inputs]:
                raise RunError(f"the session's inputs differ from the model's: {', '.join(answer.inputs)}")
            if job.traced:
                graph = self._read_graph(work, profile, model, choice, answer.profile_start_ns)
                write_atomically(directory / GRAPH, msgspec.json.encode(graph))
            outputs = _read_outputs(answer, work)
            return outputs, array_tensors(outputs)

        flags = {**self._session_flags(job, choice), "input_sizes": ",".join(map(_sizes_text, inputs))}
        return PreparedRun(flags, {"model_path": _file_to_send(program, model)}, len(inputs), inputs, brought, keep)

    def _session_flags(self, job: Job, choice: SessionChoice) -> Mapping[str, object]:
        traced = {"trace_path": _PROFILE, "graph_path": _SAVED, "given_path": _GIVEN} if job.traced else {}
        return {
            "library": self._library_there(),
            "library_version": stated_version(self.program.versions[PACKAGE]),
            "optimisation": choice.level_number,
            "inter_op_threads": choice.inter_op_threads,
            "parallel": int(choice.parallel),
            "session_entries": "\n".join(f"{name}={value}" for name, value in choice.entries.items()),
            **traced,
        }

    def _read_graph(
        self, work: Path, profile: Path, model: OnnxModel, choice: SessionChoice, started: int
    ) -> SessionGraph:
        """Return the graph that ran, from the files that the session wrote."""
        nodes = session_nodes(read_onnx(work / _SAVED).graph, profile, model.graph)
        unoptimised = work / _GIVEN
        plain = (
            session_nodes(read_onnx(unoptimised).graph, work / _GIVEN_PROFILE, model.graph)
            if unoptimised.exists()
            else ()
        )
        version = self.program.versions[PACKAGE]
        return SessionGraph(SCHEMA, version, choice.level, choice.providers, nodes, tensors_of(plain), started)


def _session_settings(job: Job) -> SessionChoice:
    """Return the settings of a job's session. Raises UsageError for providers other than the CPU's."""
    choice = session_choice(job.variant.options)
    if choice.providers != (CPU,):
        problem = f"the native runner has {CPU} alone, not {', '.join(choice.providers)}"
        raise UsageError(problem, where=PROVIDERS, hint="run other providers from Python: --target local")
    return choice


def _input_tensors(job: Job, signature: Signature) -> list[Tensor]:
    """Return the inputs as requested, else as the model declares them."""
    if job.inputs:
        return [Tensor(list(planned.shape or ()), planned.dtype) for planned in job.inputs]
    return [Tensor(list(declared.sizes), declared.dtype.name) for declared in signature.inputs]


def _sizes_text(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "-"


def _file_to_send(program: Path, model: OnnxModel) -> SentFile:
    """Return a model with the files of its weights, to be sent to a host."""
    weights = {place_beside(path, program): path for path in external_paths(model, program)}
    return SentFile("programs", _PROGRAM, program, weights)


def _read_outputs(answer: SessionAnswer, work: Path) -> list[Array]:
    return [
        from_bytes(
            (work / f"{OUTPUT}-{number}.bin").read_bytes(),
            Tensor(tensor.sizes, element_type(tensor.type)),
            range(len(tensor.sizes)),
        )
        for number, tensor in enumerate(answer.outputs)
    ]
