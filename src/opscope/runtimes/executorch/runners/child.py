"""The process that runs a model, with the arguments ``run REQUEST``, ``probe ANSWER`` or ``versions``.

The order of its steps is the experiment: clear features, then load torch and the runtime, whose backend copies the
features when it is loaded, then prove what was cleared, then run. One process serves one variant once.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from opscope.bundle.manifest import Measurement, Tensor
from opscope.core.errors import FeatureError, MissingDependencyError, RunError
from opscope.core.files import write_atomically
from opscope.core.system.launch import end_with_parent
from opscope.experiment.protocol import ProbeAnswer, ProbeRefusal, RunRequest
from opscope.experiment.tensors import random_inputs
from opscope.machine.environment import versions
from opscope.machine.processor import stay_on
from opscope.program.structure.dtypes import program_type
from opscope.runtimes.child import Stages, answer_request, inferred, measurement_of
from opscope.runtimes.executorch.cpuinfo import CpuInfo, switched_off
from opscope.runtimes.executorch.installed import installed_runtime

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.machine.off_cpu import OffCpuMeter

    Module: TypeAlias = Any
    """A loaded program of the runtime's Python bindings, which ship without complete types."""

_PACKAGES = ("executorch", "torch", "numpy")


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    end_with_parent()
    what, path = [*arguments, ""][:2]
    if what == "versions":
        sys.stdout.write(msgspec.json.encode(versions()).decode())
        return 0
    if what == "probe":
        found = _probed()
        write_atomically(Path(path), msgspec.json.encode(found))
        return int(isinstance(found, ProbeRefusal))
    return answer_request(Path(path), run, RuntimeError, TypeError, ImportError)


def _probed() -> ProbeAnswer | ProbeRefusal:
    try:
        return probe()
    except (FeatureError, MissingDependencyError) as error:
        return ProbeRefusal(error.problem, error.where, error.hint, missing=isinstance(error, MissingDependencyError))


def probe() -> ProbeAnswer:
    """The features of this CPU, with the layout proved."""
    cpu = CpuInfo(installed_runtime())
    return ProbeAnswer(cpu.arch, sorted(cpu.fields()), cpu.struct_size, cpu.layout.size, cpu.layout.offsets)


def run(request: RunRequest, began: int) -> Measurement:
    """Run one request in this process."""
    stay_on(request.affinity)
    installed = installed_runtime()
    prove = switched_off(installed, request.clear, request.record)

    import torch  # the runtime's bindings exchange torch tensors; its import belongs to the start-up time

    runtime = import_module(f"executorch.extension.pybindings.{installed.bindings}")
    # They link the backend: loaded behind the switch, and before its proof.
    for kernels in request.kernels:
        import_module(kernels)
    proof = prove()
    runtime._unsafe_reset_threadpool(request.threads)  # noqa: SLF001 - the runtime offers no other way
    # The attention of language models multiplies with torch's library, which has threads of its own.
    torch.set_num_threads(request.threads)
    started = time.perf_counter_ns()
    traced = request.trace is not None
    weights = {"data_path": request.data} if request.data else {}
    module = runtime._load_for_executorch(request.program, enable_etdump=traced, **weights)  # noqa: SLF001 - likewise
    loaded = time.perf_counter_ns()
    calls = _calls(module, request.calls)
    inputs = _given(module, calls, request) if request.inputs else _inputs(module, calls, request.seed)
    left: dict[str, list[Any]] = {method: [] for method in inputs}
    done = inferred(request, cycle(calls), partial(_call, module, inputs, left))
    measured = time.perf_counter_ns()
    if traced:
        module.write_etdump_result_to_file(request.trace)
    arrays = [_array(output) for own in left.values() for output in own if hasattr(output, "detach")]
    return measurement_of(
        request,
        done,
        Stages(began, started, loaded, measured),
        arrays,
        inputs=[_tensor(value) for own in inputs.values() for value in own if hasattr(value, "detach")],
        versions={name: version(name) for name in _PACKAGES},
        mask=proof,
        threads=_threads(runtime),
    )


def _threads(runtime: Module) -> int | None:
    """Size of the thread pool, read back; None where the bindings do not tell (executorch 0.7)."""
    count = getattr(runtime, "_threadpool_get_thread_count", None)
    return None if count is None else int(count())


def _calls(module: Module, wanted: Sequence[str]) -> tuple[str, ...]:
    """The methods to call: those that are wanted, else the only one, else ``forward``."""
    names = [str(name) for name in module.method_names()]
    calls = tuple(wanted) or (names[0] if len(names) == 1 else "forward",)
    for method in calls:
        if method not in names:
            raise RunError(f"the program has no method {method!r}; it has: {', '.join(sorted(names))}")
    return calls


def _inputs(module: Module, calls: Sequence[str], seed: int) -> dict[str, list[Any]]:
    """Random inputs of the shapes and types that methods declare, those of the native runner for the same seed."""
    import torch

    metas = {method: module.method_meta(method) for method in dict.fromkeys(calls)}
    declared = {
        method: [_declared(meta.input_tensor_meta(number)) for number in range(meta.num_inputs())]
        for method, meta in metas.items()
    }
    tensors = [tensor for own in declared.values() for tensor in own]
    made = iter(zip(random_inputs(tensors, seed), tensors, strict=True))
    return {
        method: [torch.from_numpy(array).to(getattr(torch, tensor.dtype)) for array, tensor in islice(made, len(own))]
        for method, own in declared.items()
    }


def _given(module: Module, calls: Sequence[str], request: RunRequest) -> dict[str, list[Any]]:
    """The inputs that were asked for, by method: tensors, numbers, truth values and None."""
    import torch

    tensors = [Tensor(one.shape, one.dtype) for one in request.inputs if one.shape is not None]
    if request.values is None:
        drawn = iter(random_inputs(tensors, request.seed))
    else:
        with np.load(request.values, allow_pickle=False) as file:
            arrays = [file[f"arr_{number}"] for number, one in enumerate(request.inputs) if one.shape is not None]
        drawn = iter(arrays)
    values = iter(
        one.value if one.shape is None else torch.from_numpy(next(drawn)).to(getattr(torch, one.dtype))
        for one in request.inputs
    )
    return {method: list(islice(values, module.method_meta(method).num_inputs())) for method in dict.fromkeys(calls)}


def _declared(info: Module) -> Tensor:
    return Tensor(list(info.sizes()), program_type(int(info.dtype())).name)


def _call(
    module: Module,
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    methods: Iterable[str],
    wall: list[int],
    meter: OffCpuMeter,
) -> None:
    """Call methods in turn. The meter is read between calls only, and seldom enough to cost no more than it may."""
    clock = time.perf_counter_ns
    due = meter.open(len(wall))
    for method in methods:
        own = inputs[method]
        before = clock()
        found = module.run_method(method, own)
        after = clock()
        wall.append(after - before)
        if after < due:
            outputs[method] = found
            continue
        meter.close(len(wall))
        outputs[method] = found  # frees the outputs before, which is not a part of a call
        due = meter.open(len(wall))
    meter.close(len(wall))


def _tensor(tensor: Any) -> Tensor:  # noqa: ANN401 - likewise
    return Tensor(list(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _array(output: Any) -> Any:  # noqa: ANN401 - a tensor of a library without types here, and an array of any type
    """The values of an output; numpy has no 16-bit brain floats, so these become float32, which holds them exactly."""
    values = output.detach().cpu()
    return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
