"""The process that runs a model, with the arguments ``run REQUEST``, ``probe ANSWER`` or ``versions``.

The order of its steps is the experiment: clear features, then load torch and the runtime, whose backend copies
the features when it is loaded, then prove what was cleared, then run. One process serves one variant once.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from opscope.core.errors import FeatureError, MissingDependencyError, RunError
from opscope.core.system.launch import end_with_parent
from opscope.core.writing import write_atomically
from opscope.experiment.protocol import ProbeAnswer, Refusal, RunRequest
from opscope.experiment.tensors import random_inputs
from opscope.machine.environment import versions
from opscope.program.phases import phase_of
from opscope.program.structure.dtypes import program_type
from opscope.program.structure.exported import Tensor
from opscope.runtimes.child import ProgramRun, serve_runs
from opscope.runtimes.executorch import FORWARD
from opscope.runtimes.executorch.cpuinfo import CpuInfo, switched_off
from opscope.runtimes.executorch.installed import installed_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.experiment.protocol import Job
    from opscope.experiment.tensors import Array

    Module: TypeAlias = Any
    """Type of a loaded program of the runtime's Python bindings, which ship without complete types."""

_PACKAGES = ("executorch", "torch")


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    end_with_parent()
    request, path = [*arguments, ""][:2]
    if request == "versions":
        sys.stdout.write(msgspec.json.encode(versions()).decode())
        return 0
    if request == "probe":
        probed = _probe_or_refuse()
        write_atomically(Path(path), msgspec.json.encode(probed))
        return int(isinstance(probed, Refusal))
    return serve_runs(arguments, PteRun, RuntimeError, TypeError, ImportError)


def _probe_or_refuse() -> ProbeAnswer | Refusal:
    try:
        return probe()
    except (FeatureError, MissingDependencyError) as error:
        return Refusal.of(error)


def probe() -> ProbeAnswer:
    """Return the features of this CPU, with a proved layout. Raises FeatureError if it cannot be proved."""
    cpu = CpuInfo(installed_runtime())
    return ProbeAnswer(cpu.arch, sorted(cpu.fields()), cpu.struct_size, cpu.layout.size, cpu.layout.offsets)


class PteRun(ProgramRun[str]):
    """A .pte whose methods are called."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request)
        job, installed = request.job, installed_runtime()
        prove = switched_off(installed, job.clear, request.record)

        import torch  # the runtime's bindings exchange torch tensors; its import belongs to the start-up time

        self._runtime = import_module(f"executorch.extension.pybindings.{installed.bindings}")
        # They link the backend: loaded behind the switch, and before its proof.
        for kernels in request.kernels:
            import_module(kernels)
        self._proof = prove()
        if job.threads:
            self._runtime._unsafe_reset_threadpool(job.threads)  # noqa: SLF001 - the runtime offers no other way
            # The attention of language models multiplies with torch's library, which has threads of its own.
            torch.set_num_threads(job.threads)
        self._left: dict[str, list[Any]] = {}

    def load(self) -> None:
        """Load the program with its separate weights."""
        weights = {"data_path": self._job.data} if self._job.data else {}
        load = self._runtime._load_for_executorch  # noqa: SLF001 - likewise
        self._module = load(self._job.program, enable_etdump=self._traced, **weights)

    def fill(self) -> list[Tensor]:
        """Make the inputs as requested, else as the methods declare them."""
        module, job = self._module, self._job
        self._methods = _methods_by_call(module, job.calls)
        self._inputs = (
            _requested_inputs(module, self._methods, job)
            if job.inputs
            else _random_call_inputs(module, self._methods, job.seed)
        )
        return [
            _describe_tensor(value)
            for call_inputs in self._inputs.values()
            for value in call_inputs
            if hasattr(value, "detach")
        ]

    def calls(self) -> Iterator[str]:
        """Yield the methods in turn, or the phases of the only one, endlessly."""
        return cycle(self._job.calls or self._methods)

    def call(self, call_name: str) -> tuple[int, int, list[Any]]:
        """Run a method."""
        clock, run_method, inputs = time.perf_counter_ns, self._module.run_method, self._inputs[call_name]
        method = self._methods[call_name]
        before = clock()
        method_outputs = run_method(method, inputs)
        return before, clock(), method_outputs

    def keep(self, call_name: str, method_outputs: list[Any]) -> None:
        """Store the outputs, which frees those of the previous call."""
        self._left[call_name] = method_outputs

    def proof(self, record: Path | None) -> MaskProof | None:  # noqa: ARG002 - known by then
        """Return the proof from when the backend was loaded, which copies the features."""
        return self._proof

    def threads(self) -> int | None:
        """Return the size of the thread pool; None for the bindings of executorch 0.7, which do not state it."""
        count = getattr(self._runtime, "_threadpool_get_thread_count", None)
        return None if count is None else int(count())

    def versions(self) -> dict[str, str]:
        """Return the versions of the loaded packages."""
        return {name: version(name) for name in _PACKAGES}

    def write_trace(self, path: Path) -> None:
        """Write the .etdump."""
        self._module.write_etdump_result_to_file(str(path))

    def outputs(self) -> list[Array]:
        """Return the outputs that are tensors."""
        outputs_by_call = [self._left.get(method, []) for method in self._inputs]
        return [
            _to_array(output)
            for call_outputs in outputs_by_call
            for output in call_outputs
            if hasattr(output, "detach")
        ]


def _methods_by_call(module: Module, requested: Sequence[str]) -> dict[str, str]:
    """Return the method of each call: as requested, else the only one, else ``forward``, which also has the phases."""
    names = [str(name) for name in module.method_names()]
    methods = {}
    for call_name in tuple(requested) or (names[0] if len(names) == 1 else FORWARD,):
        method = FORWARD if call_name not in names and phase_of(call_name) else call_name
        if method not in names:
            raise RunError(f"the program has no method {method!r}; it has: {', '.join(sorted(names))}")
        methods[call_name] = method
    return methods


def _random_call_inputs(module: Module, methods: Mapping[str, str], seed: int) -> dict[str, list[Any]]:
    """Make random inputs of the declared shapes and types, equal to the native runner's for the same seed."""
    import torch

    metas = {call_name: module.method_meta(method) for call_name, method in methods.items()}
    declared = {
        call_name: [_declared_tensor(meta.input_tensor_meta(number)) for number in range(meta.num_inputs())]
        for call_name, meta in metas.items()
    }
    tensors = [tensor for call_tensors in declared.values() for tensor in call_tensors]
    made = iter(zip(random_inputs(tensors, seed), tensors, strict=True))
    return {
        call_name: [
            torch.from_numpy(array).to(getattr(torch, tensor.dtype))
            for array, tensor in islice(made, len(call_tensors))
        ]
        for call_name, call_tensors in declared.items()
    }


def _requested_inputs(module: Module, methods: Mapping[str, str], job: Job) -> dict[str, list[Any]]:
    """Return the requested inputs by call: tensors, numbers, truth values and None."""
    import torch

    tensors = [Tensor(planned.shape, planned.dtype) for planned in job.inputs if planned.shape is not None]
    if job.values is None:
        drawn = iter(random_inputs(tensors, job.seed))
    else:
        with np.load(job.values, allow_pickle=False) as file:
            arrays = [file[f"arr_{number}"] for number, planned in enumerate(job.inputs) if planned.shape is not None]
        drawn = iter(arrays)
    values = iter(
        planned.value if planned.shape is None else torch.from_numpy(next(drawn)).to(getattr(torch, planned.dtype))
        for planned in job.inputs
    )
    return {
        call_name: list(islice(values, module.method_meta(method).num_inputs()))
        for call_name, method in methods.items()
    }


def _declared_tensor(info: Module) -> Tensor:
    return Tensor(list(info.sizes()), program_type(int(info.dtype())).name)


def _describe_tensor(tensor: Any) -> Tensor:  # noqa: ANN401 - likewise
    return Tensor(list(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _to_array(output: Any) -> Any:  # noqa: ANN401 - a tensor of a library without types here, and an array of any type
    """Return the values of an output; bfloat16, which numpy lacks, becomes float32, which holds it exactly."""
    values = output.detach().cpu()
    return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
